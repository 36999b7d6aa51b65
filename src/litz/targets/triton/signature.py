"""Triton's names for the types of a kernel's arguments."""

from __future__ import annotations

from litz.index import Expr
from litz.ir.dtype import STORED, DType

_TYPES = {"bool": "i1", "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64"}
_TYPES |= {t.name: "u8" for t in STORED}
_LIMIT = 1 << 31


def pointer_type(dtype: DType) -> str:
    """Triton's name for the type of a pointer."""
    return "*" + _TYPES.get(dtype.name, dtype.name)


def scalar_type(dtype: DType) -> str:
    """Triton's name for the type of an argument by value; 16-bit floats come as 32 bits."""
    return "fp32" if dtype.is_float and dtype.bits == 16 else pointer_type(dtype)[1:]


def int_type(e: Expr) -> str:
    """The type of an integer argument that is a value: 32 bits where its bounds fit."""
    low, high = e.lo, e.hi
    fits = low is not None and high is not None and -_LIMIT <= low and high < _LIMIT
    return "i32" if fits else "i64"
