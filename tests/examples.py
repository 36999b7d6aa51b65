"""``python -m tests.examples FOLDER [NAME ...]``: the programs of a folder, one after the other.

Each runs in a process of its own, is right where it ends without an error, and must have had Litz
compile something and leave no graph to ATen as a whole.  ``examples/libraries`` wants the libraries
(``make libraries`` sets that up).  The exit status is the number of programs that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# A torchvision for CUDA beside a torch for CPUs cannot load its operators, and then refuses to be
# imported for want of one after the other.
RUN = """
import runpy, sys, torch
for _ in range(20):
    try:
        import torchvision
        break
    except RuntimeError as e:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        torch.library.define(str(e).split()[1], "(Tensor x) -> Tensor")
    except ImportError:
        break
import litz
with litz.metrics() as found:
    runpy.run_path(sys.argv[1], run_name="__main__")
c = found.counters
names = ("graphs", "graph_breaks", "fallbacks", "kernels", "aten_calls")
print("; ".join(f"{c.get(n, 0):.0f} {n}" for n in names))
assert c.get("graphs") and not c.get("fallbacks"), "Litz has not compiled it all"
"""


def run(path: Path) -> tuple[str, bool]:
    """What a program ended with, and whether that is right."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return "\n".join((done.stdout + done.stderr).splitlines()[-40:]), False
    return done.stdout.splitlines()[-1], True


def main(folder: str, names: Sequence[str]) -> int:
    failed = 0
    for path in sorted(Path(folder).glob("*.py")):
        if names and path.stem not in names:
            continue
        start = time.monotonic()
        said, right = run(path)
        failed += not right
        state = "right: " if right else "FAILED\n"
        print(f"{path.stem:20} {time.monotonic() - start:6.1f} s  {state}{said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
