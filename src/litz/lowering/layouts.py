"""Values in memory, laid out as the graph's metadata states.

Operators of ATen may count on more of their arguments than the elements: PyTorch pads, slices and
expands a mask of attention so that its rows begin at multiples of 16 bytes, and the kernel reads
whole vectors of them.
"""

from __future__ import annotations

from litz.index import ONE, ZERO, Expr, divides, provably_lt
from litz.lowering import values
from litz.lowering.context import Builder
from litz.lowering.padding import with_zeros
from litz.lowering.registry import Result
from litz.lowering.strides import apart
from litz.lowering.values import Shape, TensorValue, at_dims, axes


def laid_out(b: Builder, v: TensorValue, r: Result) -> TensorValue | None:
    """A copy of ``v`` with the strides of ``r``, and zeros where rows have gaps behind them.

    None where elements of ``r`` may share places, but for those that an expanded dimension repeats.
    """
    own = [k for k, st in enumerate(r.strides) if st is not ZERO]
    shape = tuple(v.shape[k] if k in own else ONE for k in range(v.ndim))
    strides = tuple(r.strides[k] if k in own else ONE for k in range(v.ndim))
    if not apart(Result(r.dtype, shape, strides, r.device)):
        return None
    once = values.viewed(v, shape, at_dims(v.ndim, own, [axes(v.shape)[k] for k in own]))
    row = _row(shape, strides)
    if row is not None:
        once = with_zeros(once, tuple(row[1] if k == row[0] else n for k, n in enumerate(shape)))
    stored = values.strided(b.realize(once, strides), shape, strides, ZERO)
    return values.expand(stored, v.shape)


def _row(shape: Shape, strides: Shape) -> tuple[int, Expr] | None:
    """The contiguous dimension and how many elements its rows are apart, where that is more."""
    inner = [
        k
        for k, (n, st) in enumerate(zip(shape, strides, strict=True))
        if st is ONE and n is not ONE
    ]
    if len(inner) != 1:
        return None
    size = shape[inner[0]]
    outer = [st for n, st in zip(shape, strides, strict=True) if n is not ONE and st is not ONE]
    for row in outer:
        if provably_lt(size, row) and all(divides(row, st) for st in outer):
            return inner[0], row
    return None
