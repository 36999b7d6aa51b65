"""Writes into a part of a tensor, and gradients of what gave one: selections, slices, diagonals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from litz.graph.aliasing import is_returned
from litz.index import Const, Expr, and_, as_expr, eq, floordiv, le, lt, mod
from litz.ir import body
from litz.lowering import values, views
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds, literal
from litz.lowering.registry import Call, lower_rows
from litz.lowering.strides import apart, dense, injective
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


VIEWS: Final[Mapping[Part, Any]] = {
    selected: aten.select.int,
    sliced: aten.slice.Tensor,
    diagonal: aten.diagonal.default,
}


def _differs(view: Any, whole: Shape, given: Shape, which: Mapping[str, Any]) -> bool:
    """Whether a shape is surely not that of a part."""
    sizes = [s.value for s in (*whole, *given) if isinstance(s, Const)]
    if len(sizes) < len(whole) + len(given) or not {int, type(None)}.issuperset(
        map(type, which.values())
    ):
        return False
    part = view(torch.empty(sizes[: len(whole)], device="meta"), **which)
    return list(part.shape) != sizes[len(whole) :]


@lower_rows(
    (aten.select_scatter.default, selected),
    (aten.slice_scatter.default, sliced),
    (aten.diagonal_scatter.default, diagonal),
)
def scatter(ctx: Call, part: Part, x: TensorValue, src: TensorValue, **which: Any) -> TensorValue:
    """``x`` with another value in the part."""
    if _differs(VIEWS[part], x.shape, src.shape, which):
        raise Unsupported("a value of another shape than the part's")
    if ZERO in src.shape:
        return x.with_node(x.node)
    if is_returned(ctx.node) and not dense(ctx.result):
        raise Unsupported("a result with the gaps in memory that its argument has")
    if x.ref is not None and not apart(ctx.result):
        raise Unsupported("a write into a part of memory that lies under other elements too")
    stays = ctx.n_users > 1 or is_returned(ctx.node)
    if part is sliced and stays and _written(ctx, x, src, **which):
        return x
    inside, at = part(x.shape, **which)
    return x.with_node(body.masked(holds(inside), ctx.cast(src).at(at), x.node))


def _written(
    ctx: Call,
    x: TensorValue,
    src: TensorValue,
    *,
    dim: int,
    start: Expr | int | None,
    end: Expr | int | None,
    step: Expr | int,
) -> bool:
    """Write a slice of memory that nothing else reads, and the new value not where it is written.

    It may be computed from other elements along ``dim``, as circular padding is.
    """
    if x.ref is None or step != 1 or not injective(x.shape, x.ref.strides):
        return False
    if not ctx.last_use(x, src):
        return False
    dim = views.wrap(dim, x.ndim)
    first, size = views.clamp_position(start, x.shape[dim], ZERO), src.shape[dim]
    by = x.ref.strides[dim]
    to, value = values.slice_dim(x, dim, first, size, ONE), ctx.cast(src)
    root, here = ctx.b.root(x.ref.buffer), to.memory.place(axes(src.shape))
    for n in body.loads((value.node,)):
        if ctx.b.root(n.buffer) != root:
            continue
        exprs = (n.index - here, first, by, size, x.shape[dim])
        known = [e.value for e in exprs if isinstance(e, Const)]
        if n.buffer != x.ref.buffer or len(known) < len(exprs):
            return False
        away, begin, stride, count, total = known
        off, rest = divmod(away, stride or 1)  # that of one element may be 0
        if rest or abs(off) < count or not 0 <= begin + off <= total - count:
            return False
    ctx.b.store_into(value, to)
    return True


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
