"""A process of the sweep: reads tasks, a line of JSON each, and answers with rows.

PyTorch and the packages of models are imported once.  What libraries print goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# A process that holds more than this after a task gives way to a new one.
ENOUGH_KIB = 6 << 20


def about(device: str) -> dict[str, Any]:
    """What is run on: the device, and versions of what matters."""
    import importlib.metadata
    import platform

    import torch

    versions = {}
    for name in ("torch", "triton", "transformers", "timm", "diffusers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    chip = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device.partition(":")[0], "chip": chip, "versions": versions}


def keep_cores(number: int, of: int) -> None:
    """Take two of the cores: Litz starts as many compile workers as a process may use cores."""
    cores = sorted(os.sched_getaffinity(0))
    if of > 1 and len(cores) > 2:
        at = {cores[number % len(cores)], cores[(number + len(cores) // 2) % len(cores)]}
        os.sched_setaffinity(0, at)


def answer(out: TextIO, value: Any) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    device, number, of = settings["device"], settings["number"], settings["of"]
    keep_cores(number, of)
    import torch

    warnings.simplefilter("ignore")
    if of > 1:
        torch.set_num_threads(1)
    # With TF32 eager's own errors would hide Litz's.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if device.startswith("cuda"):
        device = f"cuda:{number % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    from models_run import run
    from zoo_families import families

    zoo = families()
    answer(out, {"about": about(device)})
    for line in sys.stdin:
        task = json.loads(line)
        row = run(
            task["family"],
            zoo[task["family"]],
            variant=task["variant"],
            device=device,
            draws=task["draws"],
            target=settings["target"],
        )
        gc.collect()
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > ENOUGH_KIB
        answer(out, {"row": row.as_json(), "leaves": full})
        if full:
            return


if __name__ == "__main__":
    main()
