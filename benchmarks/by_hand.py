"""Loops by hand beside what Litz makes of a case: ``loops/*.cpp``, compiled here for this machine.

Each is the best form that is known of a case's whole work, for contiguous float32: what it takes is
a bound that was measured, with the same arithmetic and the same access to memory.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import litz
from benchmarks.sweep.tensors import Job
from benchmarks.sweep.timing import Side
from litz.runtime.prelude import empty_large

FOLDER = Path(__file__).with_name("loops")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fopenmp")
SHARED = ("-fPIC", "-shared")
HEADERS = Path(litz.__file__).parent / "targets" / "cpp" / "include"

FILES = {
    **dict.fromkeys(("sum_all", "sum_rows", "sum_columns"), "sums"),
    **dict.fromkeys(("softmax", "softmax_columns", "layer_norm", "group_norm_silu"), "norms"),
    **dict.fromkeys(
        ("index_select", "gather", "scatter_add", "index_add", "embedding_training"), "places"
    ),
    "max_pool": "pools",
    "avg_pool": "pools",
    "cross_entropy_training": "losses",
    "transposed_copy": "transposes",
}
"""Which file has a case's loop."""

WHOLE = {"places": 128}
"""Elements of which rows have to be a multiple for a file's loops."""

WITHIN = 1e-4
"""Distance from eager mode's results, of their norm, from which a loop does other work."""


@cache
def library(file: str) -> ctypes.CDLL:
    """A file's loops.  Raises CalledProcessError where the compiler refuses it."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/{file}.so"
        source = str(FOLDER / f"{file}.cpp")
        subprocess.run([compiler, *FLAGS, *SHARED, f"-I{HEADERS}", source, "-o", built], check=True)
        return ctypes.CDLL(built)


def loop(name: str, job: Job) -> Callable[[], Any] | None:
    """A call of a case's loop with as many threads as PyTorch has, or None if none takes its rows.

    Sizes are those of the first argument.  Raises ValueError where its result
    is another than eager mode's.
    """
    first: Tensor = job.args[0]
    if name not in FILES or first.shape[-1] % WHOLE.get(FILES[name], 1):
        return None
    run = getattr(library(FILES[name]), name)
    expected = Side(job.fn, job).outcome()
    # On huge pages, where there are some, as results of Litz are.
    results = [empty_large(t.shape, t.stride(), t.dtype).fill_(torch.nan) for t in expected]
    held = [t.detach() for t in job.args if isinstance(t, Tensor)] + results
    tensors = (ctypes.c_void_p * len(held))(*(t.data_ptr() for t in held))
    sizes = (ctypes.c_int64 * first.dim())(*first.shape)

    def call() -> list[Tensor]:
        run(tensors, sizes, torch.get_num_threads())
        return held

    call()
    for got, want in zip(results, expected, strict=True):
        far = (got.double() - want.double()).norm() / want.double().norm()
        if not far <= WITHIN:
            raise ValueError(f"{name}: the loop by hand is {far:.1e} off eager mode's result")
    return call
