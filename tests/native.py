"""Programs in C++ that run packages: built against the library, and run without Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch

import litz

NATIVE = Path(litz.native_folder())
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cpp"
TORCH = Path(torch.__file__).parent / "lib"
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def built(folder: Path, *flags: str, main: Path = EXAMPLE / "main.cpp") -> Path:
    """The example, or another program, by the compiler alone."""
    run = folder / "run"
    sources = [str(main), str(NATIVE / "litz.cpp")]
    libraries = [f"-L{TORCH}", f"-Wl,-rpath,{TORCH}", "-ltorch_cpu", "-lc10", "-ldl", "-lm"]
    command = ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{NATIVE}", *flags, *sources]
    subprocess.run([*command, "-o", str(run), "-Wl,--no-as-needed", *libraries], check=True)
    return run


def called(run: Path, *given: Path | str, **env: str) -> subprocess.CompletedProcess[str]:
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LITZ"))}
    return subprocess.run([run, *given], capture_output=True, text=True, env={**outside, **env})
