"""Normalisations and their backwards: layer, RMS, group and batch norm.

Statistics take one pass over the input (Welford) and stay in the type arithmetic runs in; what the
graph returns of them is rounded to the graph's type on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.index import Expr, as_expr, floordiv
from litz.ir import body
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.lowering import values
from litz.lowering.activations import add, div, mul, sub
from litz.lowering.context import Builder, Unsupported
from litz.lowering.pointwise import k
from litz.lowering.reductions import (
    count,
    fold,
    narrow,
    number,
    reduce_many,
    shared,
    spread,
    variance_of,
    wide,
)
from litz.lowering.registry import Call, lower
from litz.lowering.torch_types import to_torch
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

Nodes = tuple[Node, ...]
Exprs = tuple[Expr, ...]
Maybe = TensorValue | None


def _float(x: TensorValue) -> None:
    if not x.dtype.is_float:
        raise Unsupported(f"a norm of {x.dtype}")


def _rstd(m2: Node, size: Expr, eps: float) -> Node:
    variance = variance_of(m2, size, 0)
    return div(k(m2, 1), op("sqrt", add(variance, k(m2, eps))))


def _element(b: Builder, v: TensorValue, index: Sequence[Expr], dtype: DType) -> Node:
    """``v`` at ``index`` in the type ``dtype`` that arithmetic runs in."""
    return body.cast(b.opmath(v.at(index)), dtype)


def _statistics(
    b: Builder, v: TensorValue, dims: Sequence[int], eps: float, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    """Mean and 1 / sqrt(variance + eps) over ``dims``, stored."""
    size = count(v, dims)

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        rstd = _rstd(fold("welford_m2", over, n[0]), size, eps)
        return fold("welford_mean", over, n[0]), rstd

    mean, rstd = reduce_many(b, [v], dims, fn, keepdim=keepdim)
    return mean, rstd


def _sums(b: Builder, tensors: Sequence[TensorValue], dims: Sequence[int]) -> list[TensorValue]:
    """The sums of several tensors of one shape, stored by one nest."""

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        return tuple(fold("sum", over, x) for x in n)

    return list(reduce_many(b, tensors, dims, fn))


# --- layer norm ----------------------------------------------------------------------------------


def _affine(b: Builder, y: Node, index: Sequence[Expr], weight: Maybe, bias: Maybe) -> Node:
    if weight is not None:
        y = mul(y, _element(b, weight, index, y.dtype))
    if bias is not None:
        y = add(y, _element(b, bias, index, y.dtype))
    return y


@lower(aten.native_layer_norm.default)
def layer_norm(
    ctx: Call,
    x: TensorValue,
    normalized_shape: Sequence[Any],
    weight: Maybe,
    bias: Maybe,
    eps: float,
) -> tuple[TensorValue, ...]:
    _float(x)
    b = ctx.b
    lead = x.ndim - len(normalized_shape)
    dims = list(range(lead, x.ndim))
    v = wide(b, shared(b, x))
    mean, rstd = _statistics(b, v, dims, eps, keepdim=True)
    own = axes(v.shape)
    row = (*own[:lead], *(ZERO for _ in dims))
    y = mul(sub(v.node, mean.at(row)), rstd.at(row))
    out = v.with_node(_affine(b, y, own[lead:], weight, bias))
    return narrow(out, ctx.dtype), _stat(ctx, mean, 1), _stat(ctx, rstd, 2)


def _stat(ctx: Call, v: TensorValue, position: int) -> TensorValue:
    r = ctx.results[position]
    return v if r is None else narrow(v, r.dtype)


def _normalized(
    b: Builder, x: TensorValue, mean: Maybe, rstd: TensorValue, row: Sequence[Expr]
) -> Node:
    """(x - mean) * rstd as an element over the axes of ``x``."""
    node = b.opmath(x.node)
    if mean is not None:
        node = sub(node, _element(b, mean, row, node.dtype))
    return mul(node, _element(b, rstd, row, node.dtype))


def _result(v: TensorValue, ctx: Call, position: int) -> TensorValue | None:
    """A gradient in its result's type and shape; None where the graph has none."""
    r = ctx.results[position]
    if r is None:
        return None
    return values.reshape(narrow(v, r.dtype), r.shape)


@lower(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    normalized_shape: Sequence[Any],
    mean: TensorValue,
    rstd: TensorValue,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    return _rows_backward(ctx, grad, x, len(normalized_shape), mean, rstd, weight, output_mask)


def _rows_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    rank: int,
    mean: Maybe,
    rstd: TensorValue,
    weight: Maybe,
    mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients of a norm over the last ``rank`` dimensions (without ``mean``: RMS norm)."""
    b = ctx.b
    lead = x.ndim - rank
    dims = list(range(lead, x.ndim))
    x, grad = shared(b, x), shared(b, grad)
    own = axes(x.shape)
    row = (*own[:lead], *(ZERO for _ in dims))
    g = wide(b, grad)
    hat = _normalized(b, x, mean, rstd, row)
    inner = g.node if weight is None else mul(g.node, _element(b, weight, own[lead:], hat.dtype))
    results: list[TensorValue | None] = [None, None, None]
    if mask[0]:
        parts = [x.with_node(mul(inner, hat)), *([] if mean is None else [x.with_node(inner)])]
        size = number(hat.dtype, count(x, dims))
        over = [div(spread(s, x.shape, range(lead)), size) for s in _sums(b, parts, dims)]
        centred = inner if mean is None else sub(inner, over[1])
        slope = _element(b, rstd, row, hat.dtype)
        node = mul(slope, sub(centred, mul(hat, over[0])))
        results[0] = narrow(x.with_node(node), x.dtype)
    wanted = [i for i in (1, 2) if i < len(mask) and mask[i]]
    if wanted:
        terms = {1: x.with_node(mul(g.node, hat)), 2: g}
        sums = _sums(b, [terms[i] for i in wanted], list(range(lead)))
        for i, s in zip(wanted, sums, strict=True):
            results[i] = _result(s, ctx, i)
    return tuple(results[: len(mask)])


# --- RMS norm ------------------------------------------------------------------------------------


@lower(aten._fused_rms_norm.default)
def rms_norm(
    ctx: Call, x: TensorValue, normalized_shape: Sequence[Any], weight: Maybe, eps: float | None
) -> tuple[TensorValue, TensorValue]:
    _float(x)
    b = ctx.b
    lead = x.ndim - len(normalized_shape)
    dims = list(range(lead, x.ndim))
    v = wide(b, shared(b, x))
    size = count(v, dims)
    small = float(torch.finfo(to_torch(v.dtype)).eps) if eps is None else eps

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        mean = div(fold("sum", over, mul(n[0], n[0])), number(v.dtype, size))
        return (op("rsqrt", add(mean, k(mean, small))),)

    (rstd,) = reduce_many(b, [v], dims, fn, keepdim=True)
    own = axes(v.shape)
    y = mul(v.node, rstd.at((*own[:lead], *(ZERO for _ in dims))))
    out = v.with_node(_affine(b, y, own[lead:], weight, None))
    return narrow(out, ctx.dtype), _stat(ctx, rstd, 1)


@lower(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    normalized_shape: Sequence[Any],
    rstd: TensorValue,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    mask = (output_mask[0], output_mask[1] and weight is not None)
    return _rows_backward(ctx, grad, x, len(normalized_shape), None, rstd, weight, mask)


# --- group norm ----------------------------------------------------------------------------------


def _grouped(x: TensorValue, group: Expr) -> TensorValue:
    """(N, C, *) as (N, groups, C / groups, *)."""
    n, c, *spatial = x.shape
    return values.reshape(x, (n, group, floordiv(c, group), *spatial))


def _by_group(v: TensorValue, x: TensorValue, group: Expr) -> Node:
    """A value per (N, group), as an element over the axes of ``x`` (N, C, *)."""
    own = axes(x.shape)
    depth = floordiv(x.shape[1], group)
    return v.at((own[0], ZERO if group is ONE else floordiv(own[1], depth)))


def _check_groups(x: TensorValue) -> None:
    _float(x)
    if x.ndim < 2:
        raise Unsupported("a group norm without channels")


@lower(aten.native_group_norm.default)
def group_norm(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[TensorValue, ...]:
    _check_groups(x)
    b = ctx.b
    groups = as_expr(group)
    x = shared(b, x)
    v = wide(b, _grouped(x, groups))
    mean, rstd = _statistics(b, v, list(range(2, v.ndim)), eps)
    whole = wide(b, x)
    y = mul(sub(whole.node, _by_group(mean, x, groups)), _by_group(rstd, x, groups))
    out = whole.with_node(_affine(b, y, axes(x.shape)[1:2], weight, bias))
    return narrow(out, ctx.dtype), _stat(ctx, mean, 1), _stat(ctx, rstd, 2)


@lower(aten.native_group_norm_backward.default)
def group_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: Maybe,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    _check_groups(x)
    b = ctx.b
    groups = as_expr(group)
    depth = floordiv(x.shape[1], groups)
    x, grad = shared(b, x), shared(b, grad)
    own = axes(x.shape)
    g = wide(b, grad)
    mean, rstd = wide(b, mean), wide(b, rstd)
    centred = sub(body.cast(b.opmath(x.node), rstd.dtype), _by_group(mean, x, groups))
    hat = mul(centred, _by_group(rstd, x, groups))
    # Sums per (N, C) serve all three gradients.
    spatial = list(range(2, x.ndim))
    dot, total = _sums(b, [g.with_node(mul(g.node, hat)), g], spatial)
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[0]:
        scaled = [_weighted(b, s, weight) for s in (dot, total)]
        split = [values.reshape(s, (x.shape[0], groups, depth)) for s in scaled]
        sums = _sums(b, split, [2])
        size = number(hat.dtype, values.product([depth, *x.shape[2:]]))
        dots, totals = (div(_by_group(s, x, groups), size) for s in sums)
        inner = g.node if weight is None else mul(g.node, _channel(b, weight, own, hat.dtype))
        node = mul(_by_group(rstd, x, groups), sub(sub(inner, totals), mul(hat, dots)))
        results[0] = narrow(x.with_node(node), x.dtype)
    for i, s in ((1, dot), (2, total)):
        if output_mask[i]:
            results[i] = _result(_sums(b, [s], [0])[0], ctx, i)
    return tuple(results)


def _channel(b: Builder, v: TensorValue, own: Sequence[Expr], dtype: DType) -> Node:
    """A value per channel, as an element over (N, C, *)."""
    return _element(b, v, own[1:2], dtype)


def _weighted(b: Builder, v: TensorValue, weight: Maybe) -> TensorValue:
    """A stored (N, C) value times the channel's weight, lazily."""
    if weight is None:
        return v
    return v.with_node(mul(v.node, _channel(b, weight, axes(v.shape), v.dtype)))


# --- batch norm ----------------------------------------------------------------------------------


def _channels(x: TensorValue) -> list[int]:
    """Every dimension but the channels'."""
    _float(x)
    if x.ndim < 2:
        raise Unsupported("a batch norm without channels")
    return [i for i in range(x.ndim) if i != 1]


def _batch_statistics(
    ctx: Call, v: TensorValue, running: Sequence[TensorValue], momentum: float, eps: float
) -> tuple[TensorValue, ...]:
    """Mean, 1 / std and, from running statistics, their next values: all from one nest."""
    b = ctx.b
    dims = _channels(v)
    size = count(v, dims)

    def blend(old: TensorValue, new: Node, own: Exprs) -> Node:
        was = _element(b, old, own, new.dtype)
        return body.cast(add(mul(k(new, momentum), new), mul(k(new, 1 - momentum), was)), old.dtype)

    def fn(n: Nodes, over: Exprs, own: Exprs) -> Nodes:
        m2 = fold("welford_m2", over, n[0])
        mean = fold("welford_mean", over, n[0])
        first = (mean, _rstd(m2, size, eps))
        if not running:
            return first
        unbiased = variance_of(m2, size, 1)
        return (*first, blend(running[0], mean, own), blend(running[1], unbiased, own))

    return reduce_many(b, [v], dims, fn)


def _training(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    running: Sequence[TensorValue],
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    b = ctx.b
    v = wide(b, shared(b, x))
    mean, rstd, *updated = _batch_statistics(ctx, v, running, momentum, eps)
    own = axes(v.shape)
    y = mul(sub(v.node, mean.at(own[1:2])), rstd.at(own[1:2]))
    out = v.with_node(_affine(b, y, own[1:2], weight, bias))
    return narrow(out, ctx.dtype), _stat(ctx, mean, 1), _stat(ctx, rstd, 2), *updated


def _inverse_std(b: Builder, var: TensorValue, at: Sequence[Expr], eps: float, to: DType) -> Node:
    variance = _element(b, var, at, to)
    return div(k(variance, 1), op("sqrt", add(variance, k(variance, eps))))


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
        alpha = mul(alpha, _element(b, weight, at, v.dtype))
    beta = op("neg", mul(_element(b, mean, at, v.dtype), alpha))
    if bias is not None:
        beta = add(_element(b, bias, at, v.dtype), beta)
    return narrow(v.with_node(add(mul(v.node, alpha), beta)), ctx.dtype)


def _nothing(ctx: Call, position: int) -> TensorValue:
    r = ctx.results[position]
    assert r is not None
    return ctx.b.full(r.shape, 0, r.dtype, r.device)


@lower(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    mean: TensorValue,
    var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    out = _inference(ctx, x, weight, bias, mean, var, eps)
    return out, _nothing(ctx, 1), _nothing(ctx, 2)


@lower(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    mean: TensorValue,
    var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    if training:
        return _training(ctx, x, weight, bias, (mean, var), momentum, eps)
    out = _inference(ctx, x, weight, bias, mean, var, eps)
    return out, _nothing(ctx, 1), _nothing(ctx, 2), mean, var


@lower(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    return _training(ctx, x, weight, bias, (), momentum, eps)


@lower(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    mean: TensorValue,
    var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    out, save, rstd, *updated = _training(ctx, x, weight, bias, (mean, var), momentum, eps)
    return out, save, rstd, _nothing(ctx, 3), *updated


@lower(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    ctx: Call,
    x: TensorValue,
    weight: Maybe,
    bias: Maybe,
    mean: Maybe,
    var: Maybe,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    if mean is None or var is None:
        raise Unsupported("a batch norm without statistics")
    out = _inference(ctx, x, weight, bias, mean, var, eps)
    return out, _nothing(ctx, 1), _nothing(ctx, 2), _nothing(ctx, 3)


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
    x, grad = shared(b, x), shared(b, grad)
    own = axes(x.shape)
    at = own[1:2]
    g, v = wide(b, grad), wide(b, x)
    to = v.dtype
    if mean is None:
        raise Unsupported("a batch norm's backward without statistics")
    if train:
        assert save_rstd is not None
        rstd = _element(b, save_rstd, at, to)
    else:
        assert running_var is not None
        rstd = _inverse_std(b, running_var, at, eps, to)
    hat = mul(sub(v.node, _element(b, mean, at, to)), rstd)
    results: list[TensorValue | None] = [None, None, None]
    sums: list[TensorValue] = []
    if output_mask[1] or output_mask[2] or train:
        sums = _sums(b, [g.with_node(mul(g.node, hat)), g], dims)
    if output_mask[0]:
        node = g.node
        if train:
            size = number(to, count(x, dims))
            dot, total = (div(s.at(at), size) for s in sums)
            node = sub(sub(node, total), mul(hat, dot))
        slope = rstd if weight is None else mul(rstd, _element(b, weight, at, to))
        results[0] = narrow(x.with_node(mul(node, slope)), x.dtype)
    for i in (1, 2):
        if output_mask[i]:
            results[i] = _result(sums[i - 1], ctx, i)
    return tuple(results)
