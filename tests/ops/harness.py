"""Compiles C++ that uses Litz's headers and calls it on torch tensors."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from litz import targets

INCLUDE = Path(targets.__path__[0]) / "cpp" / "include"
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wno-unknown-pragmas",
)
NATIVE = ("-march=native",)
_FOLDER = tempfile.TemporaryDirectory(prefix="litz-ops-")


@lru_cache(maxsize=None)
def build(source: str, arch: tuple[str, ...] = NATIVE) -> ctypes.CDLL:
    """The shared object of one C++ source; a warning is an error here."""
    name = hashlib.sha256((source + " ".join(arch)).encode()).hexdigest()[:16]
    stem = Path(_FOLDER.name) / name
    cpp, obj, so = (stem.with_suffix(s) for s in (".cpp", ".o", ".so"))
    cpp.write_text(source)
    command = ["g++", *FLAGS, *arch, f"-I{INCLUDE}", "-c", str(cpp), "-o", str(obj)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "warning:" in done.stderr:
        raise AssertionError(f"{' '.join(command)}\n{source}\n{done.stderr}")
    subprocess.run(["ld", "-shared", "-o", str(so), str(obj)], check=True)
    return ctypes.CDLL(str(so))


def call(library: ctypes.CDLL, name: str, *tensors: torch.Tensor) -> None:
    """``name(n, pointers...)`` where n is the length of the last tensor."""
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    function = getattr(library, name)
    function.restype = None
    function(ctypes.c_int64(tensors[-1].numel()), *pointers)
