"""Outer and cross products, turned into elementwise arithmetic by where each operand is read."""

from __future__ import annotations

from typing import Any

import torch

from litz.index import mod
from litz.ir import dtype as d
from litz.ir.body import Node
from litz.lowering import values, views
from litz.lowering.context import Unsupported
from litz.lowering.formulas import elementwise, num, stepwise
from litz.lowering.registry import Call, lower
from litz.lowering.values import TensorValue, axes

aten = torch.ops.aten


@lower(aten.addr.default)
def addr(
    ctx: Call,
    x: TensorValue,
    column: TensorValue,
    row: TensorValue,
    *,
    beta: Any,
    alpha: Any,
) -> TensorValue:
    """``beta * x + alpha * outer(column, row)``."""
    if ctx.dtype is d.BOOL:
        raise Unsupported("an outer product of bools")
    column, row = values.insert_dim(column, 1), values.insert_dim(row, 0)
    r = stepwise(ctx)

    def fn(s: Node, a: Node, c: Node) -> Node:
        outer = r(r(num(a, alpha) * a) * c)
        # As eager: with beta 0 not even a nan of x counts.
        return outer if beta == 0 else r(num(s, beta) * s) + outer

    return elementwise(ctx, fn, x, column, row)


@lower(aten.linalg_cross.default)
def linalg_cross(ctx: Call, x: TensorValue, y: TensorValue, *, dim: int) -> TensorValue:
    dim = views.wrap(dim, len(ctx.shape))
    x, y = values.expand(x, ctx.shape), values.expand(y, ctx.shape)
    own = list(axes(ctx.shape))

    def turned(v: TensorValue, by: int) -> TensorValue:
        index = list(own)
        index[dim] = mod(own[dim] + by, 3)
        return values.viewed(v, ctx.shape, index)

    r = stepwise(ctx)

    def fn(a: Node, b: Node, c: Node, e: Node) -> Node:
        return r(a * b) - r(c * e)

    return elementwise(ctx, fn, turned(x, 1), turned(y, 2), turned(x, 2), turned(y, 1))
