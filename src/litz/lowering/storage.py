"""``as_strided`` and its kind, on the flat tensors that ``litz.graph.storage`` makes for them."""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.storage import ANCHORED, is_flat
from litz.index import Expr, as_expr
from litz.lowering import values
from litz.lowering.context import GraphUnsupported, Unsupported
from litz.lowering.registry import Call, lower
from litz.lowering.strides import injective, result_buffer
from litz.lowering.values import ONE, TensorValue

aten = torch.ops.aten


def check_flat(ctx: Call) -> None:
    """Declines calls on an input's own storage; raises for storage that Litz does not have."""
    if is_flat(ctx.node):
        return
    base = ctx.node.args[0]
    own = isinstance(base, torch.fx.Node) and base.op in ("placeholder", "get_attr")
    if own or ctx.node.meta.get(ANCHORED):
        raise Unsupported("it reads memory around its argument, which only ATen knows")
    raise GraphUnsupported("as_strided over memory whose layout is not known")


def window(x: TensorValue, size: Any, stride: Any, offset: Expr | int | None) -> TensorValue:
    """A strided view of a flat tensor that is stored."""
    (step,) = x.memory.strides
    strides = tuple(as_expr(s) * step for s in stride)
    start = x.memory.offset + as_expr(0 if offset is None else offset) * step
    return values.strided(x, tuple(as_expr(s) for s in size), strides, start)


@lower(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    ctx: Call, x: TensorValue, size: Any, stride: Any, storage_offset: Expr | int | None
) -> TensorValue:
    check_flat(ctx)
    if x.ref is None:
        x = ctx.b.realize(x, (ONE,))
    return window(x, size, stride, storage_offset)


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: Call,
    x: TensorValue,
    src: TensorValue,
    size: Any,
    stride: Any,
    storage_offset: Expr | int | None,
) -> TensorValue:
    check_flat(ctx)
    out = result_buffer(ctx)
    ctx.b.store_into(x, out)
    place = window(out, size, stride, storage_offset)
    new = ctx.cast(values.expand(src, place.shape))
    if injective(place.shape, tuple(as_expr(s) for s in stride)):
        ctx.b.store_into(new, place)
    else:
        _copy_in_order(ctx, new, place)
    return out


def _copy_in_order(ctx: Call, value: TensorValue, place: TensorValue) -> None:
    """Have ATen write to places that may overlap: the last write counts, as in eager mode.

    Of values that overlap in the same way it takes them where they lie, for they agree.
    """
    b = ctx.b
    stored = value if value.ref is not None else b.realize(value)
    target = aten.copy_.default
    why = "a write to places that may overlap, where the last one counts"
    written = (b.root(place.memory.buffer),)
    b.extern(target, (place.memory, stored.memory), (None,), place.device, why, mutates=written)
