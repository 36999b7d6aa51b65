"""Tensors put together from others: concatenation, padding, repetition, writes into a part."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.graph.aliasing import readers
from litz.index import (
    Expr,
    and_,
    as_expr,
    ceildiv,
    const,
    floordiv,
    le,
    lt,
    max_,
    min_,
    mod,
)
from litz.ir import body
from litz.ir.body import Node, Scalar
from litz.lowering import values, views
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds, literal, padded
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.strides import result_buffer
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten
prims = torch.ops.prims

# A concatenation of more inputs, or of costlier ones, is stored piece by piece.
MAX_LAZY_INPUTS = 4
MAX_LAZY_COST = 60


def _read_elementwise(n: torch.fx.Node) -> bool:
    """Whether the value goes, through views, only to operators that are elementwise."""
    return all(_is_elementwise(u.target) for u in readers(n))


def _is_elementwise(target: object) -> bool:
    if target in (aten._to_copy.default, prims.convert_element_type.default):
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


# --- concatenation -------------------------------------------------------------------------------


@lower(aten.cat.default)
def cat(ctx: Call, tensors: Sequence[TensorValue], dim: int) -> TensorValue:
    # torch skips 1-d tensors without elements, whatever the others' rank.
    parts = [t for t in tensors if not (t.ndim == 1 and t.shape[0] is ZERO)]
    if not parts:
        return ctx.full(0)
    if any(t.device != ctx.result.device for t in parts):
        raise Unsupported("a concatenation across devices")
    dim = views.wrap(dim, len(ctx.shape))
    return concatenate(ctx, [ctx.cast(t) for t in parts if t.shape[dim] is not ZERO], dim)


@lower(aten.stack.default)
def stack(ctx: Call, tensors: Sequence[TensorValue], dim: int) -> TensorValue:
    dim = views.wrap(dim, len(ctx.shape))
    return concatenate(ctx, [values.insert_dim(ctx.cast(t), dim) for t in tensors], dim)


@lower(aten._chunk_cat.default)
def chunk_cat(
    ctx: Call, tensors: Sequence[TensorValue], dim: int, num_chunks: Expr | int
) -> TensorValue:
    """Every tensor in ``num_chunks`` rows, the last ones filled up with zeros; rows are joined."""
    if any(ZERO in t.shape for t in tensors):
        raise Unsupported("chunks of nothing")
    dim, count = dim if dim >= 0 else views.wrap(dim, tensors[0].ndim), as_expr(num_chunks)
    parts = []
    for t in tensors:
        chunk = ceildiv(t.shape[dim], count)
        shape = (*t.shape[:dim], chunk * count, *t.shape[dim + 1 :])
        whole = padded(t, shape, {dim: (ZERO, chunk * count - t.shape[dim])}, literal(0, t.dtype))
        row = chunk * values.product(t.shape[dim + 1 :])
        parts.append(ctx.cast(values.reshape(whole, (*t.shape[:dim], count, row))))
    return concatenate(ctx, parts, dim + 1)


def concatenate(ctx: Call, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    """``parts`` of the result's type one after the other along ``dim``."""
    if not parts or ctx.empty:
        return ctx.full(0)
    if len(parts) == 1:
        return parts[0].with_node(parts[0].at(axes(ctx.shape)), ctx.shape)
    cheap = sum(body.cost(t.node) for t in parts) <= MAX_LAZY_COST
    fuses = ctx.n_users == 1 and cheap and _read_elementwise(ctx.node)
    if len(parts) <= MAX_LAZY_INPUTS and fuses:
        return _chain(ctx, parts, dim)
    out = result_buffer(ctx)
    start: Expr = ZERO
    for t in parts:
        size = t.shape[dim]
        shape = (*ctx.shape[:dim], size, *ctx.shape[dim + 1 :])
        ctx.b.store_into(values.expand(t, shape), values.slice_dim(out, dim, start, size, ONE))
        start = start + size
    return out


def _chain(ctx: Call, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    own = list(axes(ctx.shape))
    i = own[dim]
    starts: list[Expr] = [ZERO]
    for t in parts:
        starts.append(starts[-1] + t.shape[dim])
    node: Node = literal(0, ctx.dtype)
    for k in reversed(range(len(parts))):
        start, end = starts[k], starts[k + 1]
        # Each part is read where it lies and nowhere else: both sides are conditions.
        inside = [le(start, i)] if k else []
        inside += [lt(i, end)] if k < len(parts) - 1 else []
        own[dim] = i - start
        node = body.masked(holds(and_(*inside)), parts[k].at(own), node)
    return ctx.value(node)


@lower(aten.block_diag.default)
def block_diag(ctx: Call, tensors: Sequence[TensorValue]) -> TensorValue:
    """Matrices (vectors and numbers count as one row) along the diagonal, zero elsewhere."""
    row, column = axes(ctx.shape)
    node: Node = literal(0, ctx.dtype)
    top, left = ZERO, ZERO
    for t in tensors:
        rows, columns = (*(ONE,) * (2 - t.ndim), *t.shape)
        if rows is not ZERO and columns is not ZERO:
            part = values.reshape(ctx.cast(t), (rows, columns))
            inside = [
                le(top, row),
                lt(row, top + rows),
                le(left, column),
                lt(column, left + columns),
            ]
            node = body.masked(holds(and_(*inside)), part.at([row - top, column - left]), node)
        top, left = top + rows, left + columns
    return ctx.value(node)


# --- padding -------------------------------------------------------------------------------------


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(
    ctx: Call, x: TensorValue, pad: Sequence[Expr | int], value: Scalar | Expr
) -> TensorValue:
    fill = literal(value, x.dtype)
    if ZERO in x.shape:
        return ctx.value(fill)
    around = {
        x.ndim - 1 - k: (as_expr(pad[2 * k]), as_expr(pad[2 * k + 1])) for k in range(len(pad) // 2)
    }
    return padded(x, ctx.shape, around, fill)


@lower_rows(
    (aten.reflection_pad1d.default, True),
    (aten.reflection_pad2d.default, True),
    (aten.reflection_pad3d.default, True),
    (aten.replication_pad1d.default, False),
    (aten.replication_pad2d.default, False),
    (aten.replication_pad3d.default, False),
)
def pad_inside(
    ctx: Call, reflect: bool, x: TensorValue, padding: Sequence[Expr | int]
) -> TensorValue:
    """Padding by elements: mirrored at the edge, or the edge's own."""
    source = ctx.node.args[0]
    if isinstance(source, torch.fx.Node) and _is_turned(source, ctx.node):
        raise Unsupported("a layout that only ATen knows")
    index = list(axes(ctx.shape))
    for k in range(len(padding) // 2):
        dim = x.ndim - 1 - k
        at = index[dim] - padding[2 * k]
        last = x.shape[dim] - 1
        if reflect:
            at = max_(at, -at)
            over = last - at
            index[dim] = last - max_(over, -over)
        else:
            index[dim] = min_(max_(at, ZERO), last)
    return values.viewed(x, ctx.shape, index)


def _is_turned(source: torch.fx.Node, result: torch.fx.Node) -> bool:
    """Whether eager's result on a CPU is in channels-last, and the graph's metadata not.

    A kernel would turn what is only returned, and nobody asked to be turned; what a kernel reads
    next it turns as it pads.
    """
    given, made = source.meta["val"], result.meta["val"]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if given.device.type != "cpu" or given.ndim not in formats or given.is_contiguous():
        return False
    last = formats[given.ndim]
    turned = given.is_contiguous(memory_format=last) and not made.is_contiguous(memory_format=last)
    return turned and all(user.op == "output" for user in result.users)


# --- the same elements in another order ----------------------------------------------------------


@lower(aten.roll.default)
def roll(
    ctx: Call, x: TensorValue, shifts: Sequence[Expr | int], dims: Sequence[int]
) -> TensorValue:
    if ZERO in x.shape:
        return x.with_node(x.node)
    if not dims:
        flat = values.reshape(x, (x.numel,))
        return values.reshape(_rolled(flat, shifts, [0]), x.shape)
    return _rolled(x, shifts, dims)


def _rolled(x: TensorValue, shifts: Sequence[Expr | int], dims: Sequence[int]) -> TensorValue:
    index = list(axes(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        dim = views.wrap(dim, x.ndim)
        size = x.shape[dim]
        # The offset is made non-negative first, so that the index needs one mod of a sum.
        index[dim] = mod(index[dim] + mod(-as_expr(shift), size), size)
    return values.viewed(x, x.shape, index)


@lower(aten.flip.default)
def flip(ctx: Call, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    index = list(axes(x.shape))
    for dim in dims:
        dim = views.wrap(dim, x.ndim)
        index[dim] = x.shape[dim] - 1 - index[dim]
    return values.viewed(x, x.shape, index)


@lower(aten.rot90.default)
def rot90(ctx: Call, x: TensorValue, k: int, dims: Sequence[int]) -> TensorValue:
    a, c = (views.wrap(dim, x.ndim) for dim in dims)
    turns = k % 4
    flipped = ((), (c,), (a, c), (a,))[turns]
    turned = flip(ctx, x, flipped) if flipped else x
    return turned if turns in (0, 2) else views.transpose(ctx, turned, a, c)


@lower(aten.repeat.default, aten.tile.default)
def repeat(ctx: Call, x: TensorValue) -> TensorValue:
    if ctx.empty:
        return ctx.full(0)
    own = axes(ctx.shape)[len(ctx.shape) - x.ndim :]
    return values.viewed(x, ctx.shape, [mod(i, s) for i, s in zip(own, x.shape, strict=True)])


@lower(aten.repeat_interleave.self_int)
def repeat_interleave(
    ctx: Call, x: TensorValue, repeats: Expr | int, dim: int | None
) -> TensorValue:
    if ctx.empty:
        return ctx.full(0)
    if dim is None:
        x, dim = values.reshape(x, (x.numel,)), 0
    dim = views.wrap(dim, x.ndim)
    index = list(axes(ctx.shape))
    index[dim] = floordiv(index[dim], repeats)
    return values.viewed(x, ctx.shape, index)


@lower(aten.pixel_shuffle.default)
def pixel_shuffle(ctx: Call, x: TensorValue, upscale_factor: int) -> TensorValue:
    *lead, c, h, w = x.shape
    r, n = const(upscale_factor), len(lead)
    wide = values.reshape(x, (*lead, floordiv(c, r * r), r, r, h, w))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return values.reshape(values.permute(wide, order), ctx.shape)


@lower(aten.pixel_unshuffle.default)
def pixel_unshuffle(ctx: Call, x: TensorValue, downscale_factor: int) -> TensorValue:
    *lead, c, h, w = x.shape
    r, n = const(downscale_factor), len(lead)
    wide = values.reshape(x, (*lead, c, floordiv(h, r), r, floordiv(w, r), r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return values.reshape(values.permute(wide, order), ctx.shape)


@lower(aten.channel_shuffle.default)
def channel_shuffle(ctx: Call, x: TensorValue, groups: Expr | int) -> TensorValue:
    n, c, *rest = x.shape
    g = as_expr(groups)
    wide = values.reshape(x, (n, g, floordiv(c, g), *rest))
    return values.reshape(values.permute(wide, (0, 2, 1, *range(3, wide.ndim))), ctx.shape)


# --- copies of views -----------------------------------------------------------------------------


@lower(
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
def split_copy(ctx: Call, x: TensorValue, *, dim: int) -> tuple[TensorValue, ...]:
    return tuple(p.with_node(p.node) for p in views.split(ctx, x, dim=dim))


@lower(aten.unbind_copy.int)
def unbind_copy(ctx: Call, x: TensorValue, dim: int) -> tuple[TensorValue, ...]:
    return tuple(p.with_node(p.node) for p in views.unbind(ctx, x, dim))
