"""Writes into a part of a tensor, and gradients of what gave one: selections, slices, diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.graph.aliasing import is_returned
from litz.index import Expr, and_, as_expr, eq, floordiv, le, lt, mod
from litz.ir import body
from litz.lowering import views
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds, literal
from litz.lowering.registry import Call, lower_rows
from litz.lowering.strides import apart, dense
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes

aten = torch.ops.aten

# From a tensor's shape: whether an element lies in the part, and where in it.
Part = Callable[..., tuple[Expr, list[Expr]]]


def selected(shape: Shape, *, dim: int, index: Expr | int) -> tuple[Expr, list[Expr]]:
    own = axes(shape)
    dim = views.wrap(dim, len(own))
    return eq(own[dim], views.wrap_index(index, shape[dim])), [*own[:dim], *own[dim + 1 :]]


def sliced(
    shape: Shape, *, dim: int, start: Expr | int | None, end: Expr | int | None, step: Expr | int
) -> tuple[Expr, list[Expr]]:
    at = list(axes(shape))
    dim = views.wrap(dim, len(at))
    size, i, by = shape[dim], at[dim], as_expr(step)
    first = views.clamp_position(start, size, ZERO)
    inside = [le(first, i), lt(i, views.clamp_position(end, size, size))]
    if by is not ONE:
        inside.append(eq(mod(i - first, by), 0))
    at[dim] = floordiv(i - first, by)
    return and_(*inside), at


def diagonal(shape: Shape, *, offset: int, dim1: int, dim2: int) -> tuple[Expr, list[Expr]]:
    own = axes(shape)
    dim1, dim2 = views.wrap(dim1, len(own)), views.wrap(dim2, len(own))
    row, col = own[dim1], own[dim2]
    rest = [own[k] for k in range(len(own)) if k not in (dim1, dim2)]
    return eq(row + offset, col), [*rest, row if offset >= 0 else col]


@lower_rows(
    (aten.select_scatter.default, selected),
    (aten.slice_scatter.default, sliced),
    (aten.diagonal_scatter.default, diagonal),
)
def scatter(ctx: Call, part: Part, x: TensorValue, src: TensorValue, **which: Any) -> TensorValue:
    """``x`` with another value in the part."""
    if ZERO in src.shape:
        return x.with_node(x.node)
    if is_returned(ctx.node) and not dense(ctx.result):
        raise Unsupported("a result with the gaps in memory that its argument has")
    if x.ref is not None and not apart(ctx.result):
        raise Unsupported("a write into a part of memory that lies under other elements too")
    inside, at = part(x.shape, **which)
    return x.with_node(body.masked(holds(inside), ctx.cast(src).at(at), x.node))


@lower_rows(
    (aten.select_backward.default, selected),
    (aten.slice_backward.default, sliced),
    (aten.diagonal_backward.default, diagonal),
    (aten.diag_embed.default, diagonal),
)
def embed(
    ctx: Call, part: Part, x: TensorValue, *, input_sizes: object = None, **which: Any
) -> TensorValue:
    """Zeros with ``x`` in the part."""
    if ZERO in x.shape:
        return ctx.full(0)
    inside, at = part(ctx.shape, **which)
    return ctx.value(body.masked(holds(inside), x.at(at), literal(0, x.dtype)))
