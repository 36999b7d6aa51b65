"""Up- and downsampling of images: nearest, linear in one to three dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from litz.dataclass import dataclass
from litz.index import Const, Expr, const, floordiv
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.ir.dtype import wrap as wrap_scalar
from litz.lowering.context import Unsupported
from litz.lowering.indexing import Position, load_at
from litz.lowering.pooling import MAX_TAPS, gathered, one, shared
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten


def _ratio(size: Expr, count: Expr, scale: float | None, acc: DType) -> Node:
    """Source elements per result element, in the type eager computes it in."""
    if scale is not None and scale > 0:
        return body.const(acc, wrap_scalar(1.0 / scale, acc))
    if isinstance(size, Const) and isinstance(count, Const):
        return body.const(acc, wrap_scalar(size.value / count.value, acc))
    return op("div", *(body.cast(body.index(e), acc) for e in (size, count)))


# --- nearest -------------------------------------------------------------------------------------


def _nearest(i: Expr, size: Expr, count: Expr, scale: float | None, exact: bool) -> Position:
    """The source position of result position ``i``, by eager's float arithmetic."""
    if size is count or size is ONE:
        return i if size is count else ZERO
    ratio = _ratio(size, count, scale, d.F32)
    if isinstance(size, Const) and isinstance(count, Const) and isinstance(ratio, body.Const):
        whole = _whole(size.value, count.value, float(ratio.value), exact)
        if whole is not None:
            return floordiv(i * whole[0], whole[1])
    at = body.cast(body.index(i), d.F32)
    if exact:
        at = at + 0.5
    source = body.cast(op("floor", at * ratio), d.I64)
    return op("minimum", source, body.index(size - 1))


def _whole(size: int, count: int, ratio: float, exact: bool) -> tuple[int, int] | None:
    """A fraction whose integer division gives every source position, if there is one."""
    common = math.gcd(size, count)
    up, down = size // common, count // common
    half = 0.5 if exact else 0.0

    def source(i: int) -> int:
        # A double holds the product of two float32 numbers; eager rounds it to float32.
        product = float(wrap_scalar(i + half, d.F32)) * ratio
        return min(math.floor(wrap_scalar(product, d.F32)), size - 1)

    return (up, down) if all(source(i) == i * up // down for i in range(count)) else None


@lower_rows(
    (aten.upsample_nearest1d.default, False),
    (aten.upsample_nearest2d.default, False),
    (aten.upsample_nearest3d.default, False),
    (aten._upsample_nearest_exact1d.default, True),
    (aten._upsample_nearest_exact2d.default, True),
)
def upsample_nearest(
    ctx: Call, exact: bool, x: TensorValue, output_size: object, *scales: float | None
) -> TensorValue:
    rank = len(scales)
    own = axes(ctx.shape)
    positions: list[Position] = list(own[:-rank])
    spatial = zip(own[-rank:], x.shape[-rank:], ctx.shape[-rank:], scales, strict=True)
    positions += [_nearest(i, s, c, scale, exact) for i, s, c, scale in spatial]
    return ctx.value(load_at(ctx, x, positions))


@lower_rows(
    (aten.upsample_nearest1d_backward.default, False),
    (aten.upsample_nearest2d_backward.default, False),
    (aten._upsample_nearest_exact2d_backward.default, True),
)
def upsample_nearest_backward(
    ctx: Call,
    exact: bool,
    grad: TensorValue,
    output_size: object,
    input_size: object,
    *scales: float | None,
) -> TensorValue:
    """Each source element gets the sum of the block that was copied from it."""
    rank = len(scales)
    factors = []
    spatial = zip(ctx.shape[-rank:], grad.shape[-rank:], scales, strict=True)
    for size, count, scale in spatial:
        ratio = _ratio(size, count, scale, d.F32)
        static = isinstance(size, Const) and isinstance(count, Const)
        if not (static and isinstance(ratio, body.Const)):
            raise Unsupported("gradients of upsampling between symbolic sizes")
        assert isinstance(size, Const) and isinstance(count, Const)
        whole = _whole(size.value, count.value, float(ratio.value), exact)
        if whole is None or whole[0] != 1:
            raise Unsupported("gradients of upsampling by a fraction")
        factors.append(whole[1])
    if math.prod(factors) > MAX_TAPS:
        raise Unsupported("gradients of upsampling by a large factor")
    grad = shared(ctx, grad)
    own = axes(ctx.shape)

    def at(taps: Sequence[int]) -> list[Expr]:
        inner = zip(own[-rank:], factors, taps, strict=True)
        return [*own[:-rank], *(i * f + j for i, f, j in inner)]

    taps = itertools.product(*map(range, factors))
    return one(ctx, gathered(ctx, grad, ((at(t), const(1), ()) for t in taps)))


# --- linear --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interpolation:
    """The two source positions that a result position mixes, and the second one's share.

    share: None where only the first counts.
    """

    first: Position
    second: Position
    share: Node | None


def _linear_taps(
    ctx: Call, i: Expr, size: Expr, count: Expr, scale: float | None, align: bool, acc: DType
) -> Interpolation:
    if size is count:
        return Interpolation(i, i, None)
    real = _source(i, size, count, scale, align, acc)
    last = body.index(size - 1)
    low = op("minimum", body.cast(real, d.I64), last)
    high = op("minimum", low + 1, last)
    part = real - body.cast(low, acc)
    part = op("minimum", op("maximum", part, body.const(acc, 0)), body.const(acc, 1))
    if i is ZERO:
        return Interpolation(low, high, part)
    # One short table a dimension, so that the nest over the image doesn't repeat this arithmetic.
    device = ctx.result.device

    def table(node: Node) -> Node:
        lazy = body.substitute(node, {i: axes((count,))[0]})
        stored = ctx.b.realize(TensorValue(node.dtype, (count,), device, lazy=lazy))
        return stored.at([i])

    return Interpolation(table(low), table(high), table(part))


def _source(i: Expr, size: Expr, count: Expr, scale: float | None, align: bool, acc: DType) -> Node:
    at = body.cast(body.index(i), acc)
    if align:
        if count is ONE:
            return body.const(acc, 0)
        return _ratio(size - 1, count - 1, None, acc) * at
    half = body.const(acc, 0.5)
    ratio = _ratio(size, count, scale, acc)
    return op("maximum", ratio * (at + half) - half, body.const(acc, 0))


@lower(
    aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_trilinear3d.default,
)
def upsample_linear(
    ctx: Call, x: TensorValue, output_size: object, align: bool, *scales: float | None
) -> TensorValue:
    if not x.dtype.is_float:
        raise Unsupported("interpolation of integers")
    rank = len(scales)
    acc = x.dtype.opmath
    if x.lazy is not None:
        x = ctx.b.keep(x)
    own = axes(ctx.shape)
    spatial = zip(own[-rank:], x.shape[-rank:], ctx.shape[-rank:], scales, strict=True)
    taps = [_linear_taps(ctx, i, s, c, scale, align, acc) for i, s, c, scale in spatial]

    def mix(done: list[Position], rest: Sequence[Interpolation]) -> Node:
        if not rest:
            return ctx.b.opmath(load_at(ctx, x, done))
        t, *inner = rest
        first = mix([*done, t.first], inner)
        if t.share is None:
            return first
        second = mix([*done, t.second], inner)
        other = 1 - t.share
        return first * other + second * t.share

    return one(ctx, mix(list(own[:-rank]), taps))
