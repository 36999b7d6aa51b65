"""Normalisations and their backwards: layer, RMS and group norm.

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
from litz.lowering.context import Builder, Unsupported
from litz.lowering.reductions import (
    Exprs,
    Nodes,
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

Maybe = TensorValue | None


def check_float(x: TensorValue) -> None:
    if not x.dtype.is_float:
        raise Unsupported(f"a norm of {x.dtype}")


def inverse_std(m2: Node, size: Expr, eps: float) -> Node:
    return 1 / op("sqrt", variance_of(m2, size, 0) + eps)


def element(b: Builder, v: TensorValue, index: Sequence[Expr], dtype: DType) -> Node:
    """``v`` at ``index`` in the type ``dtype`` that arithmetic runs in."""
    return body.cast(b.opmath(v.at(index)), dtype)


def _statistics(
    ctx: Call, v: TensorValue, dims: Sequence[int], eps: float, keepdim: bool = False
) -> tuple[TensorValue, TensorValue, list[TensorValue]]:
    """Mean and 1 / sqrt(variance + eps) over ``dims``, stored; both as the graph returns them."""
    size = count(v, dims)

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        rstd = inverse_std(fold("welford_m2", over, n[0]), size, eps)
        return with_rounded(ctx, (fold("welford_mean", over, n[0]), rstd), (1, 2))

    mean, rstd, *rounded = reduce_many(ctx.b, [v], dims, fn, keepdim=keepdim)
    return mean, rstd, returned(ctx, (mean, rstd), (1, 2), rounded)


def _rounded(ctx: Call, dtype: DType, position: int) -> DType | None:
    """The type of a result that someone reads and that is not ``dtype``."""
    r = ctx.results[position]
    return r.dtype if r is not None and position in ctx.used and r.dtype is not dtype else None


def with_rounded(ctx: Call, nodes: Nodes, positions: Sequence[int]) -> Nodes:
    """``nodes``, and after them what the graph returns of them in another type."""
    to = [_rounded(ctx, n.dtype, p) for n, p in zip(nodes, positions, strict=True)]
    return *nodes, *(body.cast(n, t) for n, t in zip(nodes, to, strict=True) if t is not None)


def returned(
    ctx: Call, exact: Sequence[TensorValue], positions: Sequence[int], rounded: list[TensorValue]
) -> list[TensorValue]:
    """The statistics as the graph returns them; ``rounded`` is what ``with_rounded`` added."""
    return [
        v if _rounded(ctx, v.dtype, p) is None else rounded.pop(0)
        for v, p in zip(exact, positions, strict=True)
    ]


def _sums(
    b: Builder,
    tensors: Sequence[TensorValue],
    dims: Sequence[int],
    to: Sequence[DType] | None = None,
) -> list[TensorValue]:
    """The sums of several tensors of one shape, stored by one nest (in the types ``to``)."""

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        sums = tuple(fold("sum", over, x) for x in n)
        return sums if to is None else tuple(map(body.cast, sums, to))

    return list(reduce_many(b, tensors, dims, fn))


# --- layer norm ----------------------------------------------------------------------------------


def affine(b: Builder, y: Node, index: Sequence[Expr], weight: Maybe, bias: Maybe) -> Node:
    if weight is not None:
        y = y * element(b, weight, index, y.dtype)
    if bias is not None:
        y = y + element(b, bias, index, y.dtype)
    return y


def normalized(
    b: Builder, x: Node, mean: Node, rstd: Node, channel: Sequence[Expr], weight: Maybe, bias: Maybe
) -> Node:
    """Of channels, each with a factor of its own, as ATen groups it."""
    scale = affine(b, rstd, channel, weight, None)
    return affine(b, (x - mean) * scale, channel, None, bias)


@lower(aten.native_layer_norm.default)
def layer_norm(
    ctx: Call,
    x: TensorValue,
    normalized_shape: Sequence[Any],
    weight: Maybe,
    bias: Maybe,
    eps: float,
) -> tuple[TensorValue, ...]:
    check_float(x)
    b = ctx.b
    lead = x.ndim - len(normalized_shape)
    dims = list(range(lead, x.ndim))
    v = wide(b, shared(b, x))
    mean, rstd, saved = _statistics(ctx, v, dims, eps, keepdim=True)
    own = axes(v.shape)
    row = (*own[:lead], *(ZERO for _ in dims))
    y = (v.node - mean.at(row)) * rstd.at(row)
    out = v.with_node(affine(b, y, own[lead:], weight, bias))
    return narrow(out, ctx.dtype), *saved


def _normalized(
    b: Builder, x: TensorValue, mean: Maybe, rstd: TensorValue, row: Sequence[Expr]
) -> Node:
    """(x - mean) * rstd as an element over the axes of ``x``."""
    node = b.opmath(x.node)
    if mean is not None:
        node = node - element(b, mean, row, node.dtype)
    return node * element(b, rstd, row, node.dtype)


def _gradients(
    ctx: Call, terms: dict[int, TensorValue], mask: Sequence[bool], dims: Sequence[int]
) -> dict[int, TensorValue]:
    """Sums of the terms of those parameters whose gradients the graph has, by one nest."""
    wanted = [(i, ctx.results[i]) for i in terms if i < len(mask) and mask[i]]
    real = [(i, r) for i, r in wanted if r is not None]
    if not real:
        return {}
    sums = _sums(ctx.b, [terms[i] for i, _ in real], dims, [r.dtype for _, r in real])
    return {i: values.reshape(s, r.shape) for (i, r), s in zip(real, sums, strict=True)}


@lower(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    normalized_shape: Sequence[Any],
    mean: Maybe,
    rstd: TensorValue,
    weight: Maybe,
    *,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients of a norm over the last dimensions (without ``mean``: RMS norm)."""
    b = ctx.b
    lead = x.ndim - len(normalized_shape)
    dims = list(range(lead, x.ndim))
    x, grad = shared(b, x), shared(b, values.expand(grad, x.shape))
    own = axes(x.shape)
    row = (*own[:lead], *(ZERO for _ in dims))
    g = wide(b, grad)
    hat = _normalized(b, x, mean, rstd, row)
    inner = g.node if weight is None else g.node * element(b, weight, own[lead:], hat.dtype)
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[0]:
        parts = [x.with_node(inner * hat), *([] if mean is None else [x.with_node(inner)])]
        size = number(hat.dtype, count(x, dims))
        over = [spread(s, x.shape, range(lead)) / size for s in _sums(b, parts, dims)]
        centred = inner if mean is None else inner - over[1]
        slope = element(b, rstd, row, hat.dtype)
        node = slope * (centred - hat * over[0])
        results[0] = narrow(x.with_node(node), x.dtype)
    terms = {1: x.with_node(g.node * hat), 2: g}
    for i, v in _gradients(ctx, terms, output_mask, list(range(lead))).items():
        results[i] = v
    return tuple(results[: len(output_mask)])


# --- RMS norm ------------------------------------------------------------------------------------


@lower(aten._fused_rms_norm.default)
def rms_norm(
    ctx: Call, x: TensorValue, normalized_shape: Sequence[Any], weight: Maybe, eps: float | None
) -> tuple[TensorValue, TensorValue]:
    check_float(x)
    b = ctx.b
    lead = x.ndim - len(normalized_shape)
    dims = list(range(lead, x.ndim))
    v = wide(b, shared(b, x))
    size = count(v, dims)
    small = float(torch.finfo(to_torch(v.dtype)).eps) if eps is None else eps

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        mean = fold("sum", over, n[0] * n[0]) / number(v.dtype, size)
        return with_rounded(ctx, (op("rsqrt", mean + small),), (1,))

    rstd, *rounded = reduce_many(b, [v], dims, fn, keepdim=True)
    own = axes(v.shape)
    y = v.node * rstd.at((*own[:lead], *(ZERO for _ in dims)))
    out = v.with_node(affine(b, y, own[lead:], weight, None))
    return narrow(out, ctx.dtype), returned(ctx, (rstd,), (1,), rounded)[0]


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
    return layer_norm_backward(ctx, grad, x, normalized_shape, None, rstd, weight, output_mask=mask)


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
    check_float(x)
    if x.ndim < 2:
        raise Unsupported("a group norm without channels")
    if x.shape[1] is ZERO:
        raise Unsupported("a group norm of no channels")


@lower(aten.native_group_norm.default)
def group_norm(
    ctx: Call, x: TensorValue, weight: Maybe, bias: Maybe, *, group: int, eps: float
) -> tuple[TensorValue, ...]:
    _check_groups(x)
    b = ctx.b
    groups = as_expr(group)
    x = shared(b, x)
    v = wide(b, _grouped(x, groups))
    mean, rstd, saved = _statistics(ctx, v, list(range(2, v.ndim)), eps)
    whole = wide(b, x)
    center, factor = (_by_group(v, x, groups) for v in (mean, rstd))
    y = normalized(b, whole.node, center, factor, axes(x.shape)[1:2], weight, bias)
    out = whole.with_node(y)
    return narrow(out, ctx.dtype), *saved


@lower(aten.native_group_norm_backward.default)
def group_norm_backward(
    ctx: Call,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: Maybe,
    *,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    _check_groups(x)
    b = ctx.b
    groups = as_expr(group)
    depth = floordiv(x.shape[1], groups)
    x, grad = shared(b, x), shared(b, values.expand(grad, x.shape))
    own = axes(x.shape)
    g = wide(b, grad)
    mean, rstd = wide(b, mean), wide(b, rstd)
    centred = body.cast(b.opmath(x.node), rstd.dtype) - _by_group(mean, x, groups)
    hat = centred * _by_group(rstd, x, groups)
    # Sums per (N, C) serve all three gradients.
    spatial = list(range(2, x.ndim))
    dot, total = _sums(b, [g.with_node(g.node * hat), g], spatial)
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[0]:
        scaled = [_weighted(b, s, weight) for s in (dot, total)]
        split = [values.reshape(s, (x.shape[0], groups, depth)) for s in scaled]
        sums = _sums(b, split, [2])
        size = number(hat.dtype, values.product([depth, *x.shape[2:]]))
        dots, totals = (_by_group(s, x, groups) / size for s in sums)
        inner = g.node if weight is None else g.node * element(b, weight, own[1:2], hat.dtype)
        node = _by_group(rstd, x, groups) * (inner - totals - hat * dots)
        results[0] = narrow(x.with_node(node), x.dtype)
    for i, v in _gradients(ctx, {1: dot, 2: total}, output_mask, [0]).items():
        results[i] = v
    return tuple(results)


def _weighted(b: Builder, v: TensorValue, weight: Maybe) -> TensorValue:
    """A stored (N, C) value times the channel's weight, lazily."""
    if weight is None:
        return v
    return v.with_node(v.node * element(b, weight, axes(v.shape)[1:2], v.dtype))
