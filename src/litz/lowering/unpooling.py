"""Maxima put back, and sliding windows as a dimension or as columns.

``unfold`` and ``im2col`` read each window's element where it lies; ``col2im`` gathers, per element
of the result, what the columns hold of it, so that no two iterations write the same place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from litz.index import Expr, and_, as_expr, eq, floordiv, lt, mod, provably_le
from litz.ir import body
from litz.lowering import pooling, values, views
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds, literal
from litz.lowering.pooling import MAX_TAPS, Windows, inside, windows
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.scatters import finish, start
from litz.lowering.values import ZERO, TensorValue, axes

aten = torch.ops.aten


# --- maxima put back -----------------------------------------------------------------------------


@lower_rows((aten.max_unpool2d.default, 2), (aten.max_unpool3d.default, 3))
def max_unpool(ctx: Call, rank: int, x: TensorValue, indices: TensorValue) -> TensorValue:
    """Zeros, with every value of ``x`` at its position in the plane."""
    source = ctx.node.args[0]
    if isinstance(source, torch.fx.Node) and not source.meta["val"].is_contiguous():
        # Eager's result is channels-last then, which the graph's metadata does not say.
        raise Unsupported("a layout that only ATen knows")
    out = start(ctx, ctx.full(0), "set")
    target = pooling.planes(out, rank)
    if target.shape[-1] is ZERO or ZERO in x.shape:
        return out
    pooling.store_by_position(ctx, target, x, indices, x.node, "set")
    return finish(ctx, out)


# --- sliding windows -----------------------------------------------------------------------------


@lower(aten.unfold.default, aten.unfold_copy.default)
def unfold(ctx: Call, x: TensorValue, dim: int, size: Expr | int, step: Expr | int) -> TensorValue:
    if x.ndim == 0:  # a row of one element, in a window of that or of none
        return values.reshape(x, ctx.shape) if size == 1 else values.viewed(x, ctx.shape, ())
    dim = views.wrap(dim, x.ndim)
    x = x if provably_le(as_expr(size), as_expr(step)) else pooling.shared(ctx, x)
    if x.ref is not None:
        strides = list(x.ref.strides)
        inner = strides[dim]
        strides[dim] = inner * step
        return values.strided(x, ctx.shape, (*strides, inner), x.ref.offset)
    own = axes(ctx.shape)
    index = list(own[:-1])
    index[dim] = own[dim] * step + own[-1]
    return values.viewed(x, ctx.shape, index)


def _counts(w: Windows, sizes: Sequence[Expr]) -> list[Expr]:
    """How many windows there are along each spatial dimension."""
    return [
        floordiv(s + 2 * p - dil * (k - 1) - 1, step) + 1
        for s, k, step, p, dil in zip(sizes, w.kernel, w.stride, w.padding, w.dilation, strict=True)
    ]


@lower(aten.im2col.default)
def im2col(ctx: Call, x: TensorValue, **where: Any) -> TensorValue:
    if ZERO in x.shape or ctx.empty:
        return ctx.full(0)
    w = windows(2, **where)
    x = pooling.shared(ctx, x)
    *lead, row, column = axes(ctx.shape)
    sizes = x.shape[-2:]
    across = _counts(w, sizes)[1]
    j = [mod(floordiv(row, w.kernel[1]), w.kernel[0]), mod(row, w.kernel[1])]
    outer = [floordiv(column, across), mod(column, across)]
    at = [s + i * dil for s, i, dil in zip(w.starts(outer), j, w.dilation, strict=True)]
    channel = floordiv(row, w.taps)
    zero = literal(0, x.dtype)
    return ctx.value(body.masked(holds(inside(at, sizes)), x.at([*lead, channel, *at]), zero))


@lower(aten.col2im.default)
def col2im(ctx: Call, x: TensorValue, output_size: object, **where: Any) -> TensorValue:
    if ZERO in x.shape or ctx.empty:
        return ctx.full(0)
    w = windows(2, **where)
    *lead, channel, high, wide = axes(ctx.shape)
    counts = _counts(w, ctx.shape[-2:])
    shifted = [i + p for i, p in zip((high, wide), w.padding, strict=True)]
    held = [list(_holding(*of)) for of in zip(shifted, w.kernel, w.stride, w.dilation, strict=True)]
    if math.prod(map(len, held)) > MAX_TAPS:
        raise Unsupported("columns of windows that overlap this much")
    x = pooling.shared(ctx, x)

    def reads() -> Iterator[pooling.Read]:
        for windows_ in itertools.product(*held):
            outer, (down, right), conds = zip(*windows_, strict=True)
            row = channel * w.taps + down * w.kernel[1] + right
            at = [*lead, row, outer[0] * counts[1] + outer[1]]
            yield at, and_(inside(outer, counts), *conds), ()

    return pooling.one(ctx, pooling.gathered(ctx, x, reads()))


def _holding(i: Expr, size: int, step: int, dilation: int) -> Iterator[tuple[Expr, Expr, Expr]]:
    """The windows that may hold position ``i``, where in them it is, and when they hold it.

    In eager's order: from the window that begins with it to the one that ends with it.
    """
    if dilation == 1:
        for back in range(-(-size // step)):
            outer = floordiv(i, step) - back
            yield outer, i - outer * step, lt(i - outer * step, size)
        return
    for k in range(size):
        yield floordiv(i - k * dilation, step), as_expr(k), eq(mod(i - k * dilation, step), 0)
