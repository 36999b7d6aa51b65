"""Views: stride arithmetic on stored values, index substitution on lazy ones; never a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.graph.aliasing import leaves
from litz.index import Const, Expr, as_expr, const, max_, min_
from litz.ir import body
from litz.lowering import values
from litz.lowering.context import Unsupported
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue

aten = torch.ops.aten


def wrap(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def wrap_index(i: Expr | int, size: Expr) -> Expr:
    """A possibly negative position as a non-negative one."""
    e = as_expr(i)
    if e.lo is not None and e.lo >= 0:
        return e
    if e.hi is not None and e.hi < 0:
        return e + size
    raise Unsupported(f"a position {e} whose sign is not known")


@lower(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.view_copy.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
)
def view(ctx: Call, x: TensorValue) -> TensorValue:
    return values.reshape(x, ctx.shape)


@lower(aten.permute.default, aten.permute_copy.default)
def permute(ctx: Call, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    return values.permute(x, dims)


@lower(aten.transpose.int, aten.transpose_copy.int)
def transpose(ctx: Call, x: TensorValue, a: int, c: int) -> TensorValue:
    if x.ndim == 0:
        return x
    dims = list(range(x.ndim))
    a, c = wrap(a, x.ndim), wrap(c, x.ndim)
    dims[a], dims[c] = dims[c], dims[a]
    return values.permute(x, dims)


@lower(aten.t.default, aten.t_copy.default, aten.numpy_T.default)
def t(ctx: Call, x: TensorValue) -> TensorValue:
    return values.permute(x, tuple(reversed(range(x.ndim))))


@lower(aten.expand.default, aten.expand_copy.default)
def expand(ctx: Call, x: TensorValue) -> TensorValue:
    return values.expand(x, ctx.shape)


@lower(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    return values.insert_dim(x, wrap(dim, x.ndim + 1))


@lower(
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
)
def squeeze(ctx: Call, x: TensorValue, dims: Any = None) -> TensorValue:
    if dims is None:
        chosen = list(range(x.ndim))
    else:
        given = [dims] if isinstance(dims, int) else list(dims)
        chosen = [wrap(k, x.ndim) for k in given] if x.ndim else []
    if x.ndim - len(ctx.shape) != sum(x.shape[k] is ONE for k in chosen):
        raise Unsupported("squeeze of a dimension whose size is not known")
    return values.drop_dims(x, [k for k in chosen if x.shape[k] is ONE])


@lower(aten.select.int, aten.select_copy.int)
def select(ctx: Call, x: TensorValue, dim: int, index: Expr | int) -> TensorValue:
    dim = wrap(dim, x.ndim)
    return values.select(x, dim, wrap_index(index, x.shape[dim]))


def clamp_position(value: Any, size: Expr, default: Expr) -> Expr:
    """A slice bound as torch reads it: negative from the end, clamped into [0, size]."""
    if value is None:
        return default
    e = as_expr(value)
    if isinstance(e, Const) and e.value >= 2**62:
        return size
    if isinstance(e, Const) and e.value < 0:
        e = e + size
    elif not (e.lo is not None and e.lo >= 0):
        e = wrap_index(e, size)
    if e.lo is None or e.lo < 0:
        e = max_(e, ZERO)
    return min_(e, size)


@lower(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    ctx: Call, x: TensorValue, *, dim: int, start: Expr | int | None, step: Expr | int
) -> TensorValue:
    dim = wrap(dim, x.ndim)
    begin = clamp_position(start, x.shape[dim], ZERO)
    return values.slice_dim(x, dim, begin, ctx.shape[dim], as_expr(step))


@lower(aten.narrow.default, aten.narrow_copy.default)
def narrow(
    ctx: Call, x: TensorValue, dim: int, start: Expr | int, length: Expr | int
) -> TensorValue:
    dim = wrap(dim, x.ndim)
    return values.slice_dim(x, dim, wrap_index(start, x.shape[dim]), as_expr(length), ONE)


@lower(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(ctx: Call, x: TensorValue, offset: int, dim1: int, dim2: int) -> TensorValue:
    dim1, dim2 = wrap(dim1, x.ndim), wrap(dim2, x.ndim)
    row, col = max(-offset, 0), max(offset, 0)
    if x.ref is not None:
        at = x.ref.offset + const(row) * x.ref.strides[dim1] + const(col) * x.ref.strides[dim2]
        rest = [k for k in range(x.ndim) if k not in (dim1, dim2)]
        strides = (*(x.ref.strides[k] for k in rest), x.ref.strides[dim1] + x.ref.strides[dim2])
        return values.strided(x, ctx.shape, strides, at)
    own = values.axes(ctx.shape)
    index: list[Expr] = []
    lead = iter(own[:-1])
    for k in range(x.ndim):
        if k == dim1:
            index.append(own[-1] + row)
        elif k == dim2:
            index.append(own[-1] + col)
        else:
            index.append(next(lead))
    return values.viewed(x, ctx.shape, index)


@lower(
    aten.alias.default,
    aten.detach.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
    aten.positive.default,
)
def alias(ctx: Call, x: TensorValue) -> TensorValue:
    return x


@lower(aten.unbind.int)
def unbind(ctx: Call, x: TensorValue, dim: int) -> tuple[TensorValue, ...]:
    dim = wrap(dim, x.ndim)
    return tuple(values.select(x, dim, const(k)) for k in range(len(ctx.results)))


@lower(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split(ctx: Call, x: TensorValue, *, dim: int) -> tuple[TensorValue, ...]:
    dim = wrap(dim, x.ndim)
    out = []
    at: Expr = ZERO
    for r in ctx.results:
        assert r is not None
        out.append(values.slice_dim(x, dim, at, r.shape[dim], ONE))
        at = at + r.shape[dim]
    return tuple(out)


@lower(aten.view.dtype)
def view_dtype(ctx: Call, x: TensorValue) -> TensorValue:
    if ctx.dtype.bits != x.dtype.bits or "bool" in (ctx.dtype.kind, x.dtype.kind):
        raise Unsupported("a view as a type of another width")
    if x.dtype is ctx.dtype:
        return x
    if leaves(ctx.node):
        raise Unsupported("a view as another type that is returned: it shares memory")
    return x.with_node(body.op("bitcast", x.node, to=ctx.dtype))
