"""Layouts that the graph's metadata describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from litz.index import Const, Expr, Var, contiguous_strides, linear, max_, mixed_radix
from litz.ir.dtype import DType
from litz.ir.program import TensorRef
from litz.lowering.registry import Call, Result
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes


def dense(r: Result) -> bool:
    """Strides of a permuted row-major layout: every element once, no gaps."""
    return row_major(r.shape, r.strides) is not None


def result_strides(r: Result) -> Shape:
    """The strides to store a result with: eager's where they leave no gaps, else row-major."""
    return r.strides if dense(r) else contiguous_strides(r.shape)


def result_buffer(ctx: Call, position: int = 0, dtype: DType | None = None) -> TensorValue:
    """A fresh buffer for one result of the call, laid out as eager lays it out."""
    r = ctx.nth_result(position)
    return ctx.b.allocate(dtype or r.dtype, r.shape, r.device, result_strides(r))


def spaced(r: Result) -> bool:
    """Strides of a permuted row-major layout with gaps of known sizes: nothing lies twice."""
    inside = 1
    for st, s in sorted(zip(r.strides, r.shape, strict=True), key=lambda p: p[0].hi or 0):
        if not (isinstance(st, Const) and isinstance(s, Const)):
            return False
        if s.value > 1 and st.value < inside:
            return False
        inside = max(inside, st.value * s.value)
    return True


def in_order(shape: Shape, r: Result | None) -> Shape:
    """Strides without gaps, in the order of eager's, by which ATen lays out what it computes.

    Row-major where that is not known, or where elements may share a place.
    """
    if r is None or ZERO in shape or not spaced(r):
        return contiguous_strides(shape)
    inner: Expr = ONE
    out = list(shape)
    for d in sorted(range(len(shape)), key=lambda d: (r.strides[d].hi or 0, -d)):
        out[d] = inner
        inner = inner * shape[d]
    return tuple(out)


def apart(r: Result) -> bool:
    """Whether each element surely lies in a place of its own."""
    return dense(r) or spaced(r) or injective(r.shape, r.strides)


def injective(shape: Shape, strides: Shape) -> bool:
    """Whether a view's elements surely lie in places of their own, in whatever order and gaps."""
    own = axes(shape)
    radix = mixed_radix(linear(own, strides), [v for v in own if isinstance(v, Var)])
    return radix is not None and radix.injective


def plain_strides(shape: Shape, strides: Shape) -> Shape:
    """Strides of a permuted row-major layout as products of sizes; others as they are."""
    if all(st.is_const for st in strides):
        return strides
    return row_major(shape, strides) or strides


@lru_cache(maxsize=1024)
def row_major(shape: Shape, strides: Shape) -> Shape | None:
    """The strides of a permuted row-major layout as products of sizes, None for other layouts.

    PyTorch takes a size that may be 0 for 1 in strides; nothing depends on them then.
    """
    left = [k for k, s in enumerate(shape) if s is not ONE]
    left.sort(
        key=lambda k: (strides[k].hi if strides[k].hi is not None else 1 << 62, strides[k].key)
    )
    out = list(strides)
    # Compare symbolically: each stride is the product of the sizes inside it.
    step: Expr = ONE
    least: Expr = ONE
    while left:
        k = next((k for k in left if strides[k] in (step, least)), None)
        if k is None:
            return None
        left.remove(k)
        out[k] = step
        size = shape[k]
        step, least = step * size, least * (size if size.lo and size.lo > 0 else max_(size, 1))
    return tuple(out)


def _order(stride: Expr) -> tuple[int, tuple[object, ...]]:
    return 1 << 62 if stride.hi is None else stride.hi, stride.key


def same_layout(ref: TensorRef | Result, strides: tuple[Expr, ...]) -> bool:
    """Whether what is given has these strides, along dimensions of more than one element."""
    return ref.strides == strides or all(
        a is b for a, b, s in zip(ref.strides, strides, ref.shape, strict=True) if s is not ONE
    )


def laid_otherwise(ref: TensorRef, strides: tuple[Expr, ...]) -> bool:
    """Whether a reference surely has other strides, along dimensions of more than one element."""
    return any(
        a is not b and a.is_const and b.is_const and s is not ONE
        for a, b, s in zip(ref.strides, strides, ref.shape, strict=True)
    )


def same_place(a: TensorRef, b: TensorRef) -> bool:
    """Whether two references are to the same elements, in the same order."""
    same = (a.buffer, a.dtype, a.offset, a.shape) == (b.buffer, b.dtype, b.offset, b.shape)
    return same and same_layout(a, b.strides)


def with_idle_strides(ref: TensorRef, strides: Sequence[Expr]) -> TensorRef:
    """A reference with eager's strides along dimensions of one element, where any would do."""
    sizes = zip(ref.shape, ref.strides, strides, strict=True)
    return replace(ref, strides=tuple(e if d is ONE else s for d, s, e in sizes))
