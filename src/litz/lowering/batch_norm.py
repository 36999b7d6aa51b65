"""Batch norm, in training and inference, and its backward.

Statistics, and the next running statistics, come from one pass over the input (Welford).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.index import Expr
from litz.ir import body
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.lowering.context import Builder, Unsupported
from litz.lowering.formulas import k
from litz.lowering.norms import (
    Maybe,
    check_float,
    element,
    inverse_std,
    normalized,
    returned,
    with_rounded,
)
from litz.lowering.reductions import (
    Exprs,
    Nodes,
    count,
    fold,
    narrow,
    number,
    reduce_many,
    shared,
    variance_of,
    wide,
)
from litz.lowering.registry import Call, lower
from litz.lowering.values import ZERO, TensorValue, axes, expand

aten = torch.ops.aten


def _channels(x: TensorValue) -> list[int]:
    """Every dimension but the channels'."""
    check_float(x)
    if x.ndim < 2:
        raise Unsupported("a batch norm without channels")
    return [i for i in range(x.ndim) if i != 1]


def _training(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    running: Sequence[TensorValue],
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """The norm, mean and 1 / std, and the next running statistics: all of these from one nest."""
    b = ctx.b
    v = wide(b, shared(b, x))
    dims = _channels(v)
    size = count(v, dims)

    def blend(old: TensorValue, new: Node, own: Exprs) -> Node:
        was = element(b, old, own, new.dtype)
        return body.cast(k(new, momentum) * new + k(new, 1 - momentum) * was, old.dtype)

    def fn(n: Nodes, over: Exprs, own: Exprs) -> Nodes:
        m2 = fold("welford_m2", over, n[0])
        mean = fold("welford_mean", over, n[0])
        first = (mean, inverse_std(m2, size, eps))
        updated: Nodes = ()
        if running:
            unbiased = variance_of(m2, size, 1)
            updated = (blend(running[0], mean, own), blend(running[1], unbiased, own))
        return *updated, *with_rounded(ctx, first, (1, 2))

    stored = list(reduce_many(b, [v], dims, fn))
    updated, (mean, rstd, *rounded) = stored[: len(running)], stored[len(running) :]
    channel = axes(v.shape)[1:2]
    y = normalized(b, v.node, mean.at(channel), rstd.at(channel), channel, weight, bias)
    out = v.with_node(y)
    saved = returned(ctx, (mean, rstd), (1, 2), rounded)
    return narrow(out, ctx.dtype), *saved, *updated


def _inverse_std(b: Builder, var: TensorValue, at: Sequence[Expr], eps: float, to: DType) -> Node:
    return 1 / op("sqrt", element(b, var, at, to) + eps)


def _inference(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    mean: TensorValue,
    var: TensorValue,
    eps: float,
) -> TensorValue:
    """x * alpha + beta with alpha and beta from running statistics, as ATen groups it."""
    _channels(x)
    b = ctx.b
    own = axes(x.shape)
    v = wide(b, x)
    at = own[1:2]
    alpha = _inverse_std(b, var, at, eps, v.dtype)
    if weight is not None:
        alpha = alpha * element(b, weight, at, v.dtype)
    beta = -(element(b, mean, at, v.dtype) * alpha)
    if bias is not None:
        beta = element(b, bias, at, v.dtype) + beta
    return narrow(v.with_node(v.node * alpha + beta), ctx.dtype)


def _nothing(ctx: Call, position: int) -> TensorValue:
    r = ctx.nth_result(position)
    return ctx.b.full(r.shape, 0, r.dtype, r.device)


def _used(ctx: Call, mean: TensorValue, var: TensorValue, eps: float) -> tuple[TensorValue, ...]:
    """Mean and 1 / std as inference used them; ATen gives them on GPUs, and on CPUs nothing."""
    first, second = ctx.nth_result(1), ctx.nth_result(2)
    if first.shape == (ZERO,):
        return _nothing(ctx, 1), _nothing(ctx, 2)
    own = axes(first.shape)
    rstd = _inverse_std(ctx.b, var, own, eps, second.dtype.opmath)
    nodes = (element(ctx.b, mean, own, first.dtype.opmath), rstd)
    return tuple(
        TensorValue(r.dtype, r.shape, r.device, lazy=body.cast(n, r.dtype))
        for r, n in zip((first, second), nodes, strict=True)
    )


@lower(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
)
def batch_norm(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    *,
    running_mean: Maybe = None,
    running_var: Maybe = None,
    training: bool | None = None,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """All forms: their results are the norm, its statistics, at times a reserve, and at times the
    next running statistics, which others write in place."""
    count = len(ctx.results)
    reserve = (_nothing(ctx, 3),) if count in (4, 6) else ()
    functional = count > 4
    if running_mean is None or running_var is None:
        if reserve:
            raise Unsupported("a batch norm without statistics")
        return _training(ctx, x, weight, bias, (), momentum, eps)
    running = (running_mean, running_var)
    if functional if training is None else training:
        if not functional:
            raise Unsupported("running statistics that are updated in place")
        out, mean, rstd, *updated = _training(ctx, x, weight, bias, running, momentum, eps)
        return out, mean, rstd, *reserve, *updated
    out = _inference(ctx, x, weight, bias, *running, eps)
    return out, *_used(ctx, *running, eps), *reserve, *(running if functional else ())


@lower(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_rstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    b = ctx.b
    dims = _channels(x)
    mean = save_mean if train else running_mean
    x, grad = shared(b, x), shared(b, expand(grad, x.shape))
    own = axes(x.shape)
    at = own[1:2]
    g, v = wide(b, grad), wide(b, x)
    to = v.dtype
    if mean is None:
        raise Unsupported("a batch norm's backward without statistics")
    if train:
        assert save_rstd is not None
        rstd = element(b, save_rstd, at, to)
    else:
        assert running_var is not None
        rstd = _inverse_std(b, running_var, at, eps, to)
    hat = (v.node - element(b, mean, at, to)) * rstd
    dot_total: tuple[TensorValue, ...] = ()
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[1] or output_mask[2] or train:
        # Both sums serve the input's gradient and the parameters'.
        terms = [g.with_node(g.node * hat), g]

        def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
            return with_rounded(ctx, tuple(fold("sum", over, x) for x in n), (1, 2))

        dot, total, *rounded = reduce_many(b, terms, dims, fn)
        dot_total = (dot, total)
        for i, v in zip((1, 2), returned(ctx, dot_total, (1, 2), rounded), strict=True):
            results[i] = v if output_mask[i] else None
    if output_mask[0]:
        node = g.node
        if train:
            size = number(to, count(x, dims))
            dots, totals = (s.at(at) / size for s in dot_total)
            node = node - totals - hat * dots
        slope = rstd if weight is None else rstd * element(b, weight, at, to)
        results[0] = narrow(x.with_node(node * slope), x.dtype)
    return tuple(results)
