"""Writes into memory that others see: ``copy_`` into inputs, and functional ``copy``."""

from __future__ import annotations

from typing import Any

import torch

from litz.ir import body
from litz.lowering import values
from litz.lowering.context import Unsupported
from litz.lowering.registry import Call, lower
from litz.lowering.values import TensorValue

aten = torch.ops.aten


@lower(aten.copy.default)
def copy(ctx: Call, x: TensorValue, src: TensorValue) -> TensorValue:
    if src.device != x.device:
        raise Unsupported("a copy between devices")
    return x.with_node(ctx.b.user_cast(values.expand(src, x.shape).node, x.dtype))


@lower(aten.copy_.default)
def copy_(ctx: Call, x: TensorValue, src: TensorValue) -> TensorValue:
    if x.ref is None:
        raise Unsupported("a write into a value that has no memory")
    if src.device != x.device:
        raise Unsupported("a copy between devices")
    b = ctx.b
    wide = values.expand(src, x.shape)
    lazy = x.with_node(b.user_cast(wide.node, x.dtype))
    ctx.before_mutation(x)
    if overlaps(b, lazy, x):
        lazy = b.realize(lazy)
    b.store_into(lazy, x)
    return x


def overlaps(b: Any, value: TensorValue, target: TensorValue) -> bool:
    """Whether ``value`` reads the memory of ``target`` at another place than it is written to."""
    ref = target.memory
    where, root = ref.place(values.axes(target.shape)), b.root(ref.buffer)
    return any(
        b.root(n.buffer) == root and not (n.buffer == ref.buffer and n.index is where)
        for n in body.loads((value.node,))
    )
