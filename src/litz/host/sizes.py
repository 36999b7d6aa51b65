"""Sizes of buffers in bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from litz.index import Expr, as_expr, const, size_hint
from litz.ir.program import Buffer

LARGE_BYTES: Final = 4 << 20
"""From here on a buffer is recycled by itself (``litz.runtime.memory``)."""


def byte_size(b: Buffer) -> Expr:
    """Bytes from the first element of a buffer to behind its last."""
    return _size(b.shape, b.strides, b.dtype.bytes)


@lru_cache(maxsize=1024)
def _size(shape: tuple[Expr, ...], strides: tuple[Expr, ...], each: int) -> Expr:
    if any(d is const(0) for d in shape):
        return const(0)
    elements = as_expr(1)
    for extent, stride in zip(shape, strides, strict=True):
        elements = elements + (extent - 1) * stride
    return elements * each


def hinted_bytes(b: Buffer) -> int:
    """The size of a buffer with symbols at their hints."""
    return max(size_hint(byte_size(b)), 0)
