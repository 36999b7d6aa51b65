"""Scans: running sums, products, extremes with their places, logarithms of sums of exponentials;
and what a running count places.

16-bit floats accumulate in f32, and each result is rounded once.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.index import var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node
from litz.ir.dtype import DType
from litz.lowering import values
from litz.lowering.context import Unsupported
from litz.lowering.indexing import load_at
from litz.lowering.indexing import position as position_of
from litz.lowering.reductions import number
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.strides import result_buffer
from litz.lowering.values import ONE, TensorValue, axes

aten = torch.ops.aten


def scanned(
    ctx: Call, kind: str, x: TensorValue, dim: int, parts: tuple[tuple[str, DType], ...]
) -> tuple[TensorValue, ...]:
    """The parts of running states along ``dim``, in the types given, stored by one nest.

    x: elements in the type that arithmetic runs in.  A row with positions gets those along ``dim``.
    """
    own = axes(x.shape)
    over = var("r0", x.shape[dim])
    value = x.at([over if k == dim else a for k, a in enumerate(own)])
    at = body.cast(body.index(over), d.I32 if _is_short(over) else d.I64)
    elements = (value, at) if kind in ("cummax", "cummin") else (value,)
    stores, results = [], []
    for position, (part, dtype) in enumerate(parts):
        found = body.scan(kind, part, over, own[dim], elements)
        made = result_buffer(ctx, position, dtype)
        stores.append(made.memory.store(own, found))
        results.append(made)
    ctx.b.add_loops(own, (over,), tuple(stores), x.device)
    return tuple(results)


def _is_short(v: Any) -> bool:
    return v.hi is not None and v.hi < 1 << 31


def _is_single(x: TensorValue, dim: int) -> bool:
    """Whether each element is its own state."""
    return not x.ndim or x.shape[dim % x.ndim] is ONE


@lower_rows(
    (aten.cumsum.default, "sum"),
    (aten.cumprod.default, "prod"),
    (aten.logcumsumexp.default, "logaddexp"),
)
def running(ctx: Call, kind: str, x: TensorValue, dim: int) -> TensorValue:
    x = x.with_node(ctx.b.opmath(ctx.b.user_cast(x.node, ctx.dtype)))
    once = x.node + 0 if kind == "sum" and x.dtype.is_float else x.node
    if _is_single(x, dim) or ctx.empty:
        return ctx.value(once)
    place = axes(x.shape)[dim % x.ndim]
    if kind == "sum" and place not in once.vars:  # of an expanded tensor
        return ctx.value(once * number(once.dtype, place + 1))
    return scanned(ctx, kind, x, dim % x.ndim, (("value", ctx.dtype),))[0]


@lower_rows((aten.cummax.default, "cummax"), (aten.cummin.default, "cummin"))
def extreme(ctx: Call, kind: str, x: TensorValue, dim: int) -> tuple[TensorValue, ...]:
    if _is_single(x, dim) or ctx.empty:
        return x.without_memory(), ctx.b.full(x.shape, 0, d.I64, x.device)
    wide: Node = ctx.b.opmath(x.node)
    ranked = x.with_node(body.cast(wide, d.U8) if wide.dtype is d.BOOL else wide)
    return scanned(ctx, kind, ranked, dim % x.ndim, (("value", x.dtype), ("at", d.I64)))


@lower(aten.masked_scatter.default)
def masked_scatter(
    ctx: Call, x: TensorValue, mask: TensorValue, source: TensorValue
) -> TensorValue:
    """Elements of ``source`` in turn where a mask holds: a running count says which."""
    if mask.dtype is not d.BOOL:
        raise Unsupported("a mask that is not bool")
    if ctx.empty:
        return ctx.full(0)
    flat = (values.product(ctx.shape),)
    # In the order of the elements, whose layout may be another: one nest counts and takes.
    rows = [values.reshape(values.expand(t, ctx.shape), flat) for t in (x, mask)]
    own = axes(flat)
    over = () if flat[0] is ONE else (var("r0", *flat),)
    nth = body.cast(rows[1].at(over or own), d.I32 if _is_short(own[0]) else d.I64)
    nth = body.scan("sum", "value", over[0], own[0], (nth,)) if over else nth
    elements = values.reshape(ctx.cast(source), (values.product(source.shape),))
    holds = rows[1].at(own)
    place = body.op("where", holds, nth - 1, body.const(nth.dtype, 0))
    taken = load_at(ctx, elements, [position_of(place, elements.shape[0])])
    out = ctx.b.allocate(ctx.dtype, flat, ctx.result.device)
    node = body.op("where", holds, taken, rows[0].at(own))
    ctx.b.add_loops(own, over, (out.memory.store(own, node),), ctx.result.device)
    return values.reshape(out, ctx.shape)
