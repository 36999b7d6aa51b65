"""Sizes of buffers in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from litz.index import Expr, as_expr, const, size_hint, substitute
from litz.ir.program import Buffer

LARGE_BYTES: Final = 4 << 20
"""From here on a buffer is recycled by itself (``litz.runtime.memory``)."""


def byte_size(b: Buffer) -> Expr:
    """Bytes from the first element of a buffer to behind its last."""
    return _extent(b.shape, b.strides) * b.dtype.bytes


@lru_cache(maxsize=1024)
def _extent(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr:
    if any(d is const(0) for d in shape):
        return const(0)
    elements = as_expr(1)
    for extent, stride in zip(shape, strides, strict=True):
        elements = elements + (extent - 1) * stride
    return elements


def hinted(e: Expr, hints: Mapping[Expr, int] | None = None) -> int:
    """The value of ``e`` with symbols at ``hints``, else at their own hints."""
    if hints and not e.is_const:
        e = substitute(e, {s: const(v) for s, v in hints.items()})
    return size_hint(e)
