"""Compiles C++ that uses Litz's headers and calls it on torch tensors."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from litz.ir import dtype as dt
from litz.ir.dtype import DType
from litz.ir.ops import CPP_TYPES, OpRow, cpp_header, cpp_text, result_dtype
from litz.targets.cpp.toolchain import BASE_FLAGS, INCLUDE

# The kernels' own flags, but for warnings: a header that warns is wrong.
FLAGS = (*(f for f in BASE_FLAGS if f != "-w"), "-fopenmp", "-Wall")
# The three instruction sets with code of their own.
ARCHS = {
    "native": ("-march=native", "-DLITZ_GATHERS"),
    "avx2": ("-march=haswell",),
    "baseline": (),
}
# The best of them where instructions that gather are slow.
WAYS = {**ARCHS, "loads": ("-march=native",)}
# Bounds are for machines with fused multiply-add; polynomials lose a little without.
WITHOUT_FMA = 1.5
LANES = (16, 8)
_FOLDER = tempfile.TemporaryDirectory(prefix="litz-ops-")

TORCH = {
    dt.BOOL: torch.bool,
    dt.U8: torch.uint8,
    dt.U16: torch.uint16,
    dt.U32: torch.uint32,
    dt.U64: torch.uint64,
    dt.I8: torch.int8,
    dt.I16: torch.int16,
    dt.I32: torch.int32,
    dt.I64: torch.int64,
    dt.F16: torch.float16,
    dt.BF16: torch.bfloat16,
    dt.F32: torch.float32,
    dt.F64: torch.float64,
}


@cache
def build(source: str, arch: str = "native") -> ctypes.CDLL:
    """The shared object of one C++ source; a warning is an error here."""
    name = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()[:16]
    stem = Path(_FOLDER.name) / name
    cpp, obj, so = (stem.with_suffix(s) for s in (".cpp", ".o", ".so"))
    cpp.write_text(source)
    command = ["g++", *FLAGS, *WAYS[arch], f"-I{INCLUDE}", "-c", str(cpp), "-o", str(obj)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "warning:" in done.stderr:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr[:4000]}")
    subprocess.run(["ld", "-shared", "-o", str(so), str(obj)], check=True)
    return ctypes.CDLL(str(so))


def call(library: ctypes.CDLL, name: str, *tensors: torch.Tensor, n: int | None = None) -> None:
    """``name(n, pointers...)``; n defaults to the length of the last tensor."""
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    function = getattr(library, name)
    function.restype = None
    function(ctypes.c_int64(tensors[-1].numel() if n is None else n), *pointers)


def symbol(row: OpRow, dtype: DType, to: DType | None) -> str:
    """The name of a test kernel, less its form."""
    return "_".join(["k", row.name, dtype.name, *([to.name] if to else [])])


def _kernel(row: OpRow, dtype: DType, to: DType | None, lanes: int) -> str:
    """One loop over an op: by vectors of ``lanes``, or by scalars where it is 1."""
    kinds = [dt.BOOL if kind == "b*" else dtype for kind in row.kinds]
    out = CPP_TYPES[result_dtype(row.name, kinds, to).name]
    names = [f"p{i}" for i in range(row.arity)]
    params = ", ".join(f"const {CPP_TYPES[k.name]}* {p}" for k, p in zip(kinds, names, strict=True))
    form = f"v{lanes}" if lanes > 1 else "s"
    load = "litz::load<{1}>({0} + i)" if lanes > 1 else "{0}[i]"
    value = cpp_text(row.name, [load.format(p, lanes) for p in names], dtype, to)
    put = f"litz::store(out + i, {value})" if lanes > 1 else f"out[i] = {value}"
    return (
        f'extern "C" void {symbol(row, dtype, to)}_{form}(long n, {params}, {out}* out) {{\n'
        f"  for (long i = 0; i + {lanes} <= n; i += {lanes}) {put};\n}}\n"
    )


def source(
    cases: Sequence[tuple[OpRow, DType, DType | None]], lanes: Sequence[int] = (*LANES, 1)
) -> str:
    """One file with every form of every case."""
    headers = dict.fromkeys(cpp_header(row.name, dtype) for row, dtype, _ in cases)
    lines = [f"#include <{h}>" for h in headers]
    lines += [_kernel(row, dtype, to, n) for row, dtype, to in cases for n in lanes]
    return "\n".join(lines)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors agree: the same values, signs of zero included; all nans are alike."""
    if not a.dtype.is_floating_point:
        return a == b
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
