"""Softmax and log-softmax with their backwards: computed in f32 for 16-bit floats, rounded once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from litz.ir.body import Node, Op, op
from litz.ir.onehot import sum_of_one_hot
from litz.lowering import values
from litz.lowering.context import Builder
from litz.lowering.formulas import k
from litz.lowering.reductions import fold, narrow, reduce_one, shared, spread, wide
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, TensorValue, axes

aten = torch.ops.aten


F = TypeVar("F", bound=Callable[..., TensorValue])


def _of_rows(fn: F) -> F:
    """A lowering over one dimension that takes 0-d tensors for rows of one element."""

    @functools.wraps(fn)
    def lowered(ctx: Call, x: TensorValue, *args: Any, **kw: Any) -> TensorValue:
        if x.ndim:
            return fn(ctx, x, *args, **kw)
        rest = [values.reshape(a, (ONE,)) if isinstance(a, TensorValue) else a for a in args]
        return values.reshape(fn(ctx, values.reshape(x, (ONE,)), *rest, **kw), ())

    return cast(F, lowered)


def _across(v: TensorValue, row: TensorValue, dim: int) -> Node:
    """One value a row, as an element of the whole tensor."""
    return spread(row, v.shape, [i for i in range(v.ndim) if i != dim])


def _shifted(b: Builder, v: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    """The tensor less its rows' maxima, and the maxima."""
    top = reduce_one(b, v, [dim], lambda n, over: fold("max", over, n))
    return v.with_node(v.node - _across(v, top, dim)), top


def _parts(
    b: Builder, v: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    """(x - max, exp(x - max), its row sums, max)."""
    low, top = _shifted(b, v, dim)
    e = low.with_node(op("exp", low.node))
    return low, e, reduce_one(b, e, [dim], lambda n, over: fold("sum", over, n)), top


@lower(aten._softmax.default)
@_of_rows
def softmax(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    dim = dim % x.ndim
    v = wide(ctx.b, shared(ctx.b, x))
    _, e, total, _ = _parts(ctx.b, v, dim)
    return narrow(v.with_node(e.node / _across(v, total, dim)), ctx.dtype)


@lower(aten._safe_softmax.default)
@_of_rows
def safe_softmax(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    """Softmax whose rows are 0 where every element is -inf."""
    dim = dim % x.ndim
    x = ctx.cast(x)
    v = wide(ctx.b, shared(ctx.b, x))
    _, e, total, top = _parts(ctx.b, v, dim)
    m = _across(v, top, dim)
    value = e.node / _across(v, total, dim)
    node = op("where", op("eq", m, k(m, -math.inf)), k(m, 0), value)
    return narrow(v.with_node(node), ctx.dtype)


@lower(aten._log_softmax.default)
@_of_rows
def log_softmax(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    dim = dim % x.ndim
    b = ctx.b
    v = wide(b, shared(b, x))
    low, _ = _shifted(b, v, dim)
    e = low.with_node(op("exp", low.node))
    logs = reduce_one(b, e, [dim], lambda n, over: op("log", fold("sum", over, n)))
    # Not x - (max + log): with large x the sum would swallow the log.
    return narrow(v.with_node(low.node - _across(v, logs, dim)), ctx.dtype)


@lower(aten._softmax_backward_data.default)
@_of_rows
def softmax_backward(ctx: Call, grad: TensorValue, output: TensorValue, dim: int) -> TensorValue:
    dim = dim % output.ndim
    b = ctx.b
    grad = values.expand(grad, output.shape)  # the same sizes, which may be written differently
    g, y = wide(b, shared(b, grad)), wide(b, shared(b, output))
    weighted = y.with_node(g.node * y.node)
    total = reduce_one(b, weighted, [dim], lambda n, over: fold("sum", over, n))
    node = (g.node - _across(y, total, dim)) * y.node
    return narrow(y.with_node(node), ctx.dtype)


@lower(aten._log_softmax_backward_data.default)
@_of_rows
def log_softmax_backward(
    ctx: Call, grad: TensorValue, output: TensorValue, dim: int
) -> TensorValue:
    dim = dim % output.ndim
    b = ctx.b
    grad = values.expand(grad, output.shape)
    log = output.lazy
    if isinstance(log, Op) and log.name == "log":  # of what was saved in its place
        powers = output.with_node(log.args[0])
    else:
        v = wide(b, shared(b, output))
        powers = v.with_node(op("exp", v.node))
    y, g = wide(b, powers), wide(b, grad)
    sum_ = sum_of_one_hot(g.node, axes(g.shape)[dim])
    if sum_ is None:
        g = wide(b, shared(b, grad))
        sum_ = _across(y, reduce_one(b, g, [dim], lambda n, over: fold("sum", over, n)), dim)
    return narrow(y.with_node(g.node - y.node * sum_), ctx.dtype)
