"""Losses and their backwards, with ATen's arithmetic and its roundings in between.

Kernels that compute 16-bit floats op by op round after each; ``steps`` says where.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from litz.index import Const, Expr
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.activations import add, div, mul, steps, stepwise, stepwise_f16, sub, where
from litz.lowering.context import Unsupported
from litz.lowering.indexing import load_at, position
from litz.lowering.pointwise import Elementwise, Rounding, elementwise, k
from litz.lowering.reductions import fold, mean, number, reduce_many, reduced, sum_of
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

Maybe = TensorValue | None
F = TypeVar("F", bound=Elementwise)
NONE, MEAN = 0, 1


# --- elementwise losses --------------------------------------------------------------------------


def loss(
    overload: torch._ops.OpOverload, steps: Callable[[Call], Rounding] = stepwise
) -> Callable[[F], F]:
    """Register a formula, see there, whose results are reduced as the call asks."""

    def register(fn: F) -> F:
        def lowered(
            ctx: Call, *operands: TensorValue | None, reduction: int, **options: Any
        ) -> TensorValue:
            if ctx.dtype.is_int:
                raise Unsupported(f"a loss of {ctx.dtype}")
            value = elementwise(ctx, partial(fn, steps(ctx), **options), *operands)
            if reduction == NONE:
                return value
            return mean(ctx, value) if reduction == MEAN else reduced(ctx, sum_of, value)

        lower(overload, of=fn, also=("reduction",))(lowered)
        return fn

    return register


def _scale(like: Node, x: TensorValue, reduction: int, factor: float = 1.0) -> Node:
    """What a backward multiplies by: ``factor``, over the number of elements for a mean."""
    if reduction != MEAN:
        return k(like, factor)
    size = x.numel
    if isinstance(size, Const):
        return k(like, factor / size.value if size.value else 0.0)
    return div(k(like, factor), number(like.dtype, size))


def _constant(r: Rounding, like: Node, value: float) -> Node:
    return r(k(like, value))


@loss(aten.mse_loss.default)
def mse_loss(r: Rounding, a: Node, t: Node) -> Node:
    diff = r(sub(a, t))
    return mul(diff, diff)


@lower(aten.mse_loss_backward.default)
def mse_loss_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int
) -> TensorValue:
    r = stepwise(ctx)

    def fn(g: Node, a: Node, t: Node) -> Node:
        return mul(r(mul(r(_scale(a, x, reduction, 2.0)), r(sub(a, t)))), g)

    return elementwise(ctx, fn, grad, x, target)


@loss(aten.smooth_l1_loss.default, stepwise_f16)
def smooth_l1_loss(r: Rounding, a: Node, t: Node, *, beta: float) -> Node:
    z = op("abs", r(sub(a, t)))
    if beta == 0:
        return z
    limit = _constant(r, a, beta)
    near = div(r(mul(r(mul(k(a, 0.5), z)), z)), limit)
    return where(op("lt", z, limit), near, sub(z, r(mul(k(a, 0.5), limit))))


@lower(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, beta: float
) -> TensorValue:
    def fn(g: Node, a: Node, t: Node) -> Node:
        diff, norm, limit = sub(a, t), _scale(a, x, reduction), k(a, beta)
        far = mul(norm, g)
        inner = div(mul(norm, diff, g), limit)
        above = where(op("ge", diff, limit), far, inner)
        return where(op("le", diff, op("neg", limit)), op("neg", far), above)

    return elementwise(ctx, fn, grad, x, target)


def _stepwise_bf16(ctx: Call) -> Rounding:
    """ATen's kernel computes in f32 for f16, but step by step for bf16."""
    return steps(ctx, ctx.dtype if ctx.dtype is d.BF16 else d.F32)


@loss(aten.huber_loss.default, _stepwise_bf16)
def huber_loss(r: Rounding, a: Node, t: Node, *, delta: float) -> Node:
    z = op("abs", r(sub(a, t)))
    limit, half = _constant(r, a, delta), k(a, 0.5)
    near = mul(r(mul(half, z)), z)
    return where(op("le", z, limit), near, mul(limit, r(sub(z, r(mul(half, limit))))))


@lower(aten.huber_loss_backward.default)
def huber_loss_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, delta: float
) -> TensorValue:
    r = stepwise(ctx)

    def fn(g: Node, a: Node, t: Node) -> Node:
        diff, limit, norm = r(sub(a, t)), _constant(r, a, delta), r(_scale(a, x, reduction))
        far = mul(r(mul(norm, g)), limit)
        above = where(op("ge", diff, limit), far, mul(r(mul(norm, diff)), g))
        return where(op("le", diff, op("neg", limit)), op("neg", far), above)

    return elementwise(ctx, fn, grad, x, target)


# --- binary cross entropy ------------------------------------------------------------------------


@loss(aten.binary_cross_entropy.default)
def binary_cross_entropy(r: Rounding, a: Node, t: Node, weight: Node | None) -> Node:
    low = k(a, -100)
    off = op("maximum", r(op("log1p", op("neg", a))), low)
    on = op("maximum", r(op("log", a)), low)
    loss = sub(r(mul(r(sub(t, k(t, 1))), off)), r(mul(t, on)))
    return loss if weight is None else mul(r(loss), weight)


@lower(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: Maybe,
    reduction: int,
) -> TensorValue:
    r = stepwise(ctx)

    def fn(g: Node, a: Node, t: Node, w: Node | None) -> Node:
        slope = op("maximum", r(mul(r(sub(k(a, 1), a)), a)), _constant(r, a, 1e-12))
        out = div(r(mul(g, r(sub(a, t)))), slope)
        if w is not None:
            out = mul(r(out), w)
        return div(r(out), number(a.dtype, x.numel)) if reduction == MEAN else out

    return elementwise(ctx, fn, grad, x, target, weight)


def _log_sigmoid(a: Node) -> Node:
    tail = op("log1p", op("exp", op("neg", op("abs", a))))
    return sub(op("minimum", a, k(a, 0)), tail)


@loss(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    r: Rounding, a: Node, t: Node, weight: Node | None, pos_weight: Node | None
) -> Node:
    one = k(a, 1)
    log = r(_log_sigmoid(a))
    if pos_weight is not None:
        factor = r(add(r(mul(r(sub(pos_weight, one)), t)), one))
        log = r(mul(log, factor))
    loss = sub(r(mul(r(sub(one, t)), a)), log)
    return loss if weight is None else mul(r(loss), weight)


@loss(aten.soft_margin_loss.default)
def soft_margin_loss(r: Rounding, a: Node, t: Node) -> Node:
    return op("log1p", r(op("exp", r(mul(op("neg", t), a)))))


@lower(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int
) -> TensorValue:
    r = stepwise(ctx)

    def fn(g: Node, a: Node, t: Node) -> Node:
        z = r(op("exp", r(mul(op("neg", t), a))))
        top = r(mul(r(mul(t, z)), op("neg", _scale(a, x, reduction))))
        return mul(r(div(top, r(add(z, k(z, 1))))), g)

    return elementwise(ctx, fn, grad, x, target)


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
    at = position(where(counted, label, k(label, 0)), x.shape[dim])
    picked = ctx.b.opmath(load_at(ctx, x, [*own[:dim], at, *own[dim:]]))
    zero = k(picked, 0)
    share = k(picked, 1) if weight is None else _class_weight(ctx, weight, at, picked.dtype)
    share = where(counted, share, zero)
    scaled = op("neg", picked) if weight is None else mul(op("neg", picked), share)
    loss = where(counted, scaled, zero)
    one, two = ctx.nth_result(0), ctx.nth_result(1)
    if reduction == NONE:
        none = target.with_node(body.cast(loss, one.dtype))
        return none, ctx.b.full(two.shape, 0, two.dtype, two.device)

    def fn(n: tuple[Node, ...], over: tuple[Expr, ...], _: tuple[Expr, ...]) -> tuple[Node, ...]:
        total, count = fold("sum", over, n[0]), fold("sum", over, n[1])
        total = div(total, count) if reduction == MEAN else total
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
    hit = op("and_", hit, op("ne", label, number(d.I64, ignore_index)))
    g = b.opmath(grad.at(sample) if reduction == NONE else grad.at([ZERO] * grad.ndim))
    if reduction == MEAN:
        g = div(g, b.opmath(total_weight.at([ZERO] * total_weight.ndim)))
    g = op("neg", g)
    if weight is not None:
        at = own[dim] if weight.shape[0] is not ONE else ZERO
        g = mul(g, body.cast(b.opmath(weight.at([at])), g.dtype))
    return x.with_node(body.cast(where(hit, g, k(g, 0)), ctx.dtype))
