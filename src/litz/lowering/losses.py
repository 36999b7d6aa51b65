"""Losses and their backwards, with ATen's arithmetic and its roundings in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from litz.index import Const, Expr
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.activations import log_sigmoid
from litz.lowering.context import Unsupported
from litz.lowering.formulas import (
    Elementwise,
    Overload,
    Rounding,
    elementwise,
    k,
    stepwise,
    stepwise_bf16,
    stepwise_f16,
    where,
)
from litz.lowering.indexing import load_at, position
from litz.lowering.reductions import Exprs, Nodes, fold, mean, number, reduce_many, reduced, sum_of
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

Maybe = TensorValue | None
Steps = Callable[[Call], Rounding]
F = TypeVar("F", bound=Elementwise)
NONE, MEAN = 0, 1


# --- elementwise losses --------------------------------------------------------------------------


def loss(overload: Overload, steps: Steps = stepwise) -> Callable[[F], F]:
    """Register a formula, see there, whose results are reduced as the call asks."""

    def register(fn: F) -> F:
        def lowered(ctx: Call, *operands: Maybe, reduction: int, **options: Any) -> TensorValue:
            if ctx.dtype.is_int:
                raise Unsupported(f"a loss of {ctx.dtype}")
            value = elementwise(ctx, partial(fn, steps(ctx), **options), *operands)
            if value.shape != ctx.b.broadcast([v for v in operands[:2] if v is not None])[0]:
                raise Unsupported("weights of a larger shape")
            if reduction == NONE:
                return value
            return mean(ctx, value) if reduction == MEAN else reduced(ctx, sum_of, value)

        lower(overload, of=fn, also=("reduction",))(lowered)
        return fn

    return register


def loss_backward(overload: Overload) -> Callable[[F], F]:
    """Register a loss's backward, a formula that takes the number of elements of a mean first."""

    def register(fn: F) -> F:
        def lowered(
            ctx: Call,
            grad: TensorValue,
            x: TensorValue,
            *rest: Maybe,
            reduction: int,
            **options: Any,
        ) -> TensorValue:
            size = x.numel if reduction == MEAN else None
            return elementwise(ctx, partial(fn, stepwise(ctx), size, **options), grad, x, *rest)

        lower(overload, of=fn, skip=2, also=("reduction",))(lowered)
        return fn

    return register


def _share(like: Node, size: Expr | None, factor: float = 1.0) -> Node:
    """What a backward multiplies by: ``factor``, over the number of elements for a mean."""
    if isinstance(size, Const):
        return k(like, factor / size.value if size.value else 0.0)
    return k(like, factor) if size is None else k(like, factor) / number(like.dtype, size)


@loss(aten.mse_loss.default)
def mse_loss(r: Rounding, a: Node, t: Node) -> Node:
    diff = r(a - t)
    return diff * diff


@loss_backward(aten.mse_loss_backward.default)
def mse_loss_backward(r: Rounding, size: Expr | None, g: Node, a: Node, t: Node) -> Node:
    return r(r(_share(a, size, 2.0)) * r(a - t)) * g


@loss(aten.smooth_l1_loss.default, stepwise_f16)
def smooth_l1_loss(r: Rounding, a: Node, t: Node, *, beta: float) -> Node:
    z = op("abs", r(a - t))
    if beta == 0:
        return z
    limit = r(k(a, beta))
    near = r(r(0.5 * z) * z) / limit
    return where(z < limit, near, z - r(0.5 * limit))


@loss_backward(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    r: Rounding, size: Expr | None, g: Node, a: Node, t: Node, *, beta: float
) -> Node:
    diff, norm, limit = a - t, _share(a, size), k(a, beta)
    far = norm * g
    above = where(diff >= limit, far, norm * diff * g / limit)
    return where(diff <= -limit, -far, above)


@loss(aten.huber_loss.default, stepwise_bf16)
def huber_loss(r: Rounding, a: Node, t: Node, *, delta: float) -> Node:
    z = op("abs", r(a - t))
    limit = r(k(a, delta))
    return where(z <= limit, r(0.5 * z) * z, limit * r(z - r(0.5 * limit)))


@loss_backward(aten.huber_loss_backward.default)
def huber_loss_backward(
    r: Rounding, size: Expr | None, g: Node, a: Node, t: Node, *, delta: float
) -> Node:
    diff, limit, norm = r(a - t), r(k(a, delta)), r(_share(a, size))
    far = r(norm * g) * limit
    above = where(diff >= limit, far, r(norm * diff) * g)
    return where(diff <= -limit, -far, above)


def _weighted(r: Rounding, value: Node, weight: Node | None) -> Node:
    return value if weight is None else r(value) * weight


@loss(aten.binary_cross_entropy.default)
def binary_cross_entropy(r: Rounding, a: Node, t: Node, weight: Node | None) -> Node:
    off = op("maximum", r(op("log1p", -a)), k(a, -100))
    on = op("maximum", r(op("log", a)), k(a, -100))
    return _weighted(r, r(r(t - 1) * off) - r(t * on), weight)


@loss_backward(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    r: Rounding, size: Expr | None, g: Node, a: Node, t: Node, weight: Node | None
) -> Node:
    slope = op("maximum", r(r(1 - a) * a), r(k(a, 1e-12)))
    out = _weighted(r, r(g * r(a - t)) / slope, weight)
    return out if size is None else r(out) / number(a.dtype, size)


@loss(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    r: Rounding, a: Node, t: Node, weight: Node | None, pos_weight: Node | None
) -> Node:
    log = r(log_sigmoid(a))
    if pos_weight is not None:
        log = r(log * r(r(r(pos_weight - 1) * t) + 1))
    return _weighted(r, r(r(1 - t) * a) - log, weight)


@loss(aten.soft_margin_loss.default)
def soft_margin_loss(r: Rounding, a: Node, t: Node) -> Node:
    return op("log1p", r(op("exp", r(-t * a))))


@loss_backward(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(r: Rounding, size: Expr | None, g: Node, a: Node, t: Node) -> Node:
    z = r(op("exp", r(-t * a)))
    return r(r(r(t * z) * -_share(a, size)) / r(z + 1)) * g


# --- negative log likelihood ---------------------------------------------------------------------


def _class_dim(x: TensorValue) -> int:
    return 0 if x.ndim == 1 else 1


def _class_weight(ctx: Call, weight: TensorValue, at: Any, dtype: d.DType) -> Node:
    return body.cast(ctx.b.opmath(load_at(ctx, weight, [at])), dtype)


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    ctx: Call,
    x: TensorValue,
    target: TensorValue,
    weight: Maybe,
    reduction: int,
    ignore_index: int | Expr,
) -> tuple[TensorValue, TensorValue]:
    """Per sample -weight[t] * x[t], 0 where t is ignored; the weights' sum beside it."""
    dim = _class_dim(x)
    own = axes(target.shape)
    label = body.cast(target.node, d.I64)
    counted = op("ne", label, number(d.I64, ignore_index))
    at = position(where(counted, label, 0), x.shape[dim])
    picked = ctx.b.opmath(load_at(ctx, x, [*own[:dim], at, *own[dim:]]))
    share = k(picked, 1) if weight is None else _class_weight(ctx, weight, at, picked.dtype)
    share = where(counted, share, 0)
    loss = where(counted, -picked if weight is None else -picked * share, 0)
    one, two = ctx.nth_result(0), ctx.nth_result(1)
    if reduction == NONE:
        none = target.with_node(body.cast(loss, one.dtype))
        return none, ctx.b.full(two.shape, 0, two.dtype, two.device)

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        total, count = fold("sum", over, n[0]), fold("sum", over, n[1])
        total = total / count if reduction == MEAN else total
        return body.cast(total, one.dtype), body.cast(count, two.dtype)

    parts = [target.with_node(loss), target.with_node(share)]
    out, count = reduce_many(ctx.b, parts, list(range(target.ndim)), fn)
    return out, count


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: Maybe,
    reduction: int,
    ignore_index: int | Expr,
    total_weight: TensorValue,
) -> TensorValue:
    """One nonzero a sample: a comparison with the class's position, so that it stays lazy."""
    b = ctx.b
    dim = _class_dim(x)
    own = axes(x.shape)
    sample = (*own[:dim], *own[dim + 1 :])
    label = body.cast(target.at(sample), d.I64)
    hit = op("eq", body.index(own[dim]), label)
    hit = hit & op("ne", label, number(d.I64, ignore_index))
    g = b.opmath(grad.at(sample) if reduction == NONE else grad.at([ZERO] * grad.ndim))
    if reduction == MEAN:
        g = g / b.opmath(total_weight.at([ZERO] * total_weight.ndim))
    g = -g
    if weight is not None:
        at = own[dim] if weight.shape[0] is not ONE else ZERO
        g = g * body.cast(b.opmath(weight.at([at])), g.dtype)
    return x.with_node(body.cast(where(hit, g, 0), ctx.dtype))
