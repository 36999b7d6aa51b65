"""``python -m tests.wheels``: a wheel is built, and is enough by itself in every Python there is.

Each of Python 3.10 to 3.14 on the machine gets an environment with the wheel alone: its modules
compile, ``litz`` lists its commands, and the native library loads.  The Python that runs this,
which has PyTorch, compiles a program with the wheel's files alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = [f"3.{n}" for n in range(10, 15)]
ALONE = """
import compileall, ctypes, pathlib, litz
from litz.tools.commands import COMMANDS, overview
place = pathlib.Path(litz.__file__).parent
assert "site-packages" in str(place), place
assert (place / "py.typed").is_file() and list(place.rglob("*.h"))
assert compileall.compile_dir(place, quiet=1)
assert all(name in overview() for name in COMMANDS)
libraries = list((place / "runtime" / "lib").glob("*.so"))
[ctypes.CDLL(str(x)) for x in libraries]
print("native library" if libraries else "no native library")
"""
WITH_TORCH = """
import sys, torch, litz
assert litz.__file__.startswith(sys.argv[1]), litz.__file__
x = torch.randn(9, 33)
compiled = torch.compile(lambda x: x.softmax(-1) * 2, backend="litz")
assert torch.allclose(compiled(x), x.softmax(-1) * 2)
"""


def run(command: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)


def checked(command: Sequence[str | Path], **variables: str) -> str:
    done = run(command, **variables)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checked([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT])
        (wheel,) = folder.glob("litz-*.whl")
        print(wheel.name)
        # One for every Python: where a version is not here, tags and the stable interface vouch.
        assert wheel.name.split("-")[2] in ("cp310", "py3"), wheel.name
        for version in VERSIONS:
            python = f"python{version}"
            try:
                found = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            except FileNotFoundError:
                found = None
            if found is None or found.stdout.strip() != version:
                print(f"{version}: not on this machine")
                continue
            place = folder / version
            if (made := run([python, "-m", "venv", place])).returncode:
                print(f"{version}: LEFT OUT, it makes no environments: {made.stdout}{made.stderr}")
                continue
            checked([place / "bin/pip", "install", "-q", "--no-deps", wheel])
            print(f"{version}: {checked([place / 'bin/python', '-c', ALONE]).strip()}")
            assert "doctor" in checked([place / "bin/litz"])
        inside = folder / "inside"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", inside]
        checked([*pip, wheel])
        checked([sys.executable, "-c", WITH_TORCH, inside], PYTHONPATH=str(inside))
        print("with PyTorch: compiled, right")


if __name__ == "__main__":
    main()
