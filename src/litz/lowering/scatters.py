"""Writes at positions that are data: a stored copy of the input, then a nest of stores into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import torch

from litz.graph.calls import in_place_form
from litz.index import Const, Expr, Var, mixed_radix
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, StoreMode, op
from litz.ir.dtype import DType
from litz.ir.program import Loops
from litz.ir.reductions import by_update
from litz.lowering import values, views
from litz.lowering.context import Builder, Unsupported
from litz.lowering.creation import literal
from litz.lowering.indexing import Position, bind, indexed, position
from litz.lowering.promotion import operand
from litz.lowering.registry import Call, lower
from litz.lowering.strides import result_buffer, result_strides
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes

aten = torch.ops.aten

F = TypeVar("F", bound=Callable[..., TensorValue])

CROWD = 8  # updates of a place
MODES: Final[dict[str, StoreMode]] = {
    "set": "set",
    "add": "add",
    "multiply": "mul",
    "sum": "add",
    "mean": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def accumulator(dtype: DType, mode: StoreMode) -> DType:
    """The type that updates run in: sums and products of 16-bit floats gather in f32."""
    if dtype is d.BOOL and mode != "set":
        raise Unsupported("updates of bools")
    return dtype.opmath if mode in ("add", "mul") else dtype


def is_in_place(ctx: Call) -> bool:
    target = ctx.node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def start(
    ctx: Call, x: TensorValue, mode: StoreMode, where: Sequence[Position] = ()
) -> TensorValue:
    """A stored copy of ``x``, in the type that updates run in.

    Of an in-place call, or where nothing reads ``x`` again, it is ``x`` itself.  where: positions
    of an update that sets elements; if they are no data, they may be all of ``x``.
    """
    if is_in_place(ctx):
        if accumulator(x.dtype, mode) is not x.dtype:
            raise Unsupported("an in-place sum of 16-bit floats")
        return x
    to = accumulator(x.dtype, mode)
    kept = mode != "set" or any(not isinstance(p, Expr) and body.loads((p,)) for p in where)
    if kept and to is x.dtype is ctx.dtype and _is_laid_out(ctx, x) and ctx.last_use(x):
        return x
    out = result_buffer(ctx, dtype=to)
    ctx.b.store_into(ctx.cast(x, out.dtype), out)
    return out


def _is_laid_out(ctx: Call, x: TensorValue) -> bool:
    """Whether ``x`` is a whole buffer, in the layout that the result has."""
    if x.ref is None or x.ref.offset is not ZERO:
        return False
    buffer = ctx.b.buffers[x.ref.buffer]
    whole = x.ref.shape == buffer.shape and x.ref.strides == buffer.strides
    return whole and buffer.alias is None and buffer.strides == result_strides(ctx.result)


def finish(ctx: Call, out: TensorValue) -> TensorValue:
    """The updated buffer as the result's type."""
    return out if out.dtype is ctx.dtype else out.with_node(body.cast(out.node, ctx.dtype))


def store_at(
    ctx: Call,
    out: TensorValue,
    shape: Shape,
    positions: Sequence[Position],
    value: Node,
    mode: StoreMode,
    mask: Node | None = None,
) -> None:
    """For each point of ``shape``: update ``out`` at ``positions`` (over ``axes(shape)``)."""
    if ZERO in shape:
        return
    if ZERO in out.shape:
        raise Unsupported("a write into a tensor without elements")
    value = body.cast(value, out.dtype)
    index, bound = bind(positions, out.shape, (value,) if mask is None else (value, mask))
    store = out.memory.store(index, value, mode, bound, mask)
    if mode == "set" and not bound and mask is None and not is_in_place(ctx):
        _drop_overwritten(ctx.b, out, store.index, shape, ctx.node.name)
    ctx.b.add_loops(axes(shape), (), (store,), out.device)


def _drop_overwritten(b: Builder, out: TensorValue, where: Expr, shape: Shape, name: str) -> None:
    """Drop the call's copy of its input if positions turn out to be all of it (an arange, say).

    name: the call's, which its own nodes carry.
    """
    loops = [v for v in axes(shape) if isinstance(v, Var) and v in where.free]
    radix = mixed_radix(where, loops)
    last = b.nodes[-1] if b.nodes else None
    if radix is None or not radix.injective or radix.size is not out.numel:
        return
    mine = isinstance(last, Loops) and name in last.origins
    if isinstance(last, Loops) and mine and last.write_buffers() == (out.memory.buffer,):
        b.nodes.pop()


def _element(ctx: Call, node: Node, to: DType) -> Node:
    """An element of an input as the type that updates run in."""
    return ctx.b.opmath(node) if to is node.dtype.opmath else ctx.b.user_cast(node, to)


# --- in place ------------------------------------------------------------------------------------


def _in_place(fn: Callable[..., TensorValue]) -> Callable[..., TensorValue]:
    """The lowering ``fn`` with its stores into the first argument."""

    @wraps(fn)
    def run(ctx: Call, x: TensorValue, *args: Any, **kwargs: Any) -> TensorValue:
        b = ctx.b
        if x.ref is None:
            raise Unsupported("a write into a value that has no memory")
        mark = len(b.nodes)
        named = {k: _apart(b, v, x) for k, v in kwargs.items()}
        fn(ctx, x, *(_apart(b, a, x) for a in args), **named)
        made = len(b.nodes)
        # Nothing can decline the call from here on: what others still read is copied first.
        ctx.before_mutation(x)
        b.nodes[mark:] = [*b.nodes[made:], *b.nodes[mark:made]]
        return x

    return run


def _apart(b: Builder, value: Any, target: TensorValue) -> Any:
    """``value`` in memory of its own if it reads what is about to be written."""
    if isinstance(value, list | tuple):
        return [_apart(b, v, target) for v in value]
    if not isinstance(value, TensorValue):
        return value
    root = b.root(target.memory.buffer)
    if all(b.root(n.buffer) != root for n in body.loads((value.node,))):
        return value
    return b.realize(value.with_node(value.node))


def lower_with_in_place(*overloads: torch._ops.OpOverload) -> Callable[[F], F]:
    """Register a lowering for operators and for their in-place forms."""

    def register(fn: F) -> F:
        for o in overloads:
            lower(in_place_form(o))(_in_place(fn))
        return lower(*overloads)(fn)

    return register


# --- index_put -----------------------------------------------------------------------------------


def _put_mask(
    ctx: Call, x: TensorValue, mask: TensorValue, new: TensorValue, accumulate: bool
) -> TensorValue:
    """``x[mask] = new`` where ``new`` does not vary along the masked elements."""
    rest = x.shape[mask.ndim :]
    if mask.shape != x.shape[: mask.ndim]:
        raise Unsupported("a mask of another shape")
    if new.ndim > len(rest):
        if new.shape[0] is not ONE or new.ndim > len(rest) + 1:
            raise Unsupported("values that go to masked elements in turn")
        new = values.drop_dims(new, [0])
    own = axes(x.shape)
    wide = values.expand(ctx.cast(new), rest).at(own[mask.ndim :])
    if accumulate:
        common = x.dtype
        wide = op("add", *(operand(ctx.b, n, common) for n in (x.node, wide)))
        wide = body.cast(wide, common)
    node = op("where", mask.at(own[: mask.ndim]), wide, x.node)
    return x.with_node(node)


@lower(aten._unsafe_index_put.default)
@lower_with_in_place(aten.index_put.default)
def index_put(
    ctx: Call,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    new: TensorValue,
    accumulate: bool,
) -> TensorValue:
    first = indices[0] if indices else None
    if first is not None and first.dtype is d.BOOL and all(t is None for t in indices[1:]):
        if accumulate and x.dtype is d.BOOL:
            raise Unsupported("updates of bools")
        return _put_mask(ctx, x, first, new, accumulate)
    mode: StoreMode = "add" if accumulate else "set"
    accumulator(x.dtype, mode)
    found = indexed(ctx, x, indices)
    return _put(ctx, x, found.shape, found.positions, new, mode, None)


@lower(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put(
    ctx: Call,
    x: TensorValue,
    mask: TensorValue,
    indices: Sequence[TensorValue | None],
    new: TensorValue,
) -> TensorValue:
    if mask.dtype is not d.BOOL:
        raise Unsupported("a mask that is not bool")
    if ZERO in x.shape:
        return x.with_node(x.node)
    accumulator(x.dtype, "add")
    found = indexed(ctx, x, indices, clamp=True)
    inside = values.expand(mask, found.shape).node
    return _put(ctx, x, found.shape, found.positions, new, "add", inside)


def _put(
    ctx: Call,
    x: TensorValue,
    shape: Shape,
    positions: Sequence[Position],
    new: TensorValue,
    mode: StoreMode,
    mask: Node | None,
) -> TensorValue:
    if not all(s is ONE or s is t for s, t in zip(new.shape[::-1], shape[::-1], strict=False)):
        raise Unsupported("values of a shape that may not broadcast")
    wide = values.expand(new, shape)
    out = start(ctx, x, mode, positions)
    store_at(ctx, out, shape, positions, _element(ctx, wide.node, out.dtype), mode, mask)
    return finish(ctx, out)


# --- scatter -------------------------------------------------------------------------------------


def _at_least_1d(*tensors: TensorValue) -> list[TensorValue]:
    return [values.reshape(t, (ONE,)) if t.ndim == 0 else t for t in tensors]


def _scatter_into(
    ctx: Call,
    out: TensorValue,
    dim: int,
    index: TensorValue,
    src: TensorValue | Node | Scalar | Expr,
    mode: StoreMode,
    *,
    alpha: Scalar = 1,
    negative: bool = False,
) -> None:
    target, index = _at_least_1d(out, index)
    dim = views.wrap(dim, target.ndim)
    own = axes(index.shape)
    positions: list[Position] = list(own)
    positions[dim] = position(index.node, target.shape[dim], negative=negative)
    if isinstance(src, TensorValue):
        (wide,) = _at_least_1d(src)
        if wide.ndim != target.ndim:  # a 0-d source next to a longer self
            wide = values.reshape(wide, index.shape)
        value = _element(ctx, wide.at(own), out.dtype)
        value = value if alpha == 1 else alpha * value
    else:
        value = src if isinstance(src, Node) else body.cast(literal(src, ctx.dtype), out.dtype)
    store_at(ctx, target, index.shape, positions, value, mode)


def _scatter(
    ctx: Call, x: TensorValue, dim: int, index: TensorValue, src: Any, mode: StoreMode, **how: Any
) -> TensorValue:
    accumulator(x.dtype, mode)
    out = start(ctx, x, mode, (index.node,))
    _scatter_into(ctx, out, dim, index, src, mode, **how)
    return finish(ctx, out)


@lower_with_in_place(
    aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce
)
def scatter(
    ctx: Call, x: TensorValue, dim: int, index: TensorValue, src: Any, *, reduce: str = "set"
) -> TensorValue:
    return _scatter(ctx, x, dim, index, src, MODES[reduce])


@lower_with_in_place(aten.scatter_add.default)
def scatter_add(
    ctx: Call, x: TensorValue, dim: int, index: TensorValue, src: TensorValue
) -> TensorValue:
    return _scatter(ctx, x, dim, index, src, "add")


def crowded(ctx: Call, x: TensorValue, index: TensorValue) -> bool:
    """Whether on a GPU, where updates of one place wait for each other, there are many of each."""
    places, updates = values.product(x.shape), values.product(index.shape)
    known = isinstance(places, Const) and isinstance(updates, Const)
    many = known and updates.value > CROWD * places.value  # type: ignore[attr-defined]
    return bool(many) and ctx.b.settings.on_gpu(x.device)


@lower_with_in_place(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Call,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool,
) -> TensorValue:
    """``x`` with elements of ``source`` reduced into it."""
    mode = MODES[reduce]
    if x.dtype is d.BOOL:
        raise Unsupported("updates of bools")
    if mode == "mul" and crowded(ctx, x, index):
        raise Unsupported("products of many numbers at each place: ATen's threads try one by one")
    out = start(ctx, x, mode)
    if not include_self:
        identity = literal(by_update(mode).identity(x.dtype), out.dtype)
        _scatter_into(ctx, out, dim, index, identity, "set")
    _scatter_into(ctx, out, dim, index, source, mode)
    if reduce != "mean":
        return finish(ctx, out)
    count = result_buffer(ctx, dtype=out.dtype)
    ctx.b.store_into(ctx.b.full(count.shape, 1, count.dtype, count.device), count)
    if not include_self:
        _scatter_into(ctx, count, dim, index, literal(0, count.dtype), "set")
    _scatter_into(ctx, count, dim, index, literal(1, count.dtype), "add")
    seen = op("maximum", count.node, body.const(count.dtype, 1))
    mean = op("div" if out.dtype.is_float else "floordiv", out.node, seen)
    return out.with_node(body.cast(mean, ctx.dtype))


# --- along one dimension -------------------------------------------------------------------------


def _along(
    x: TensorValue, dim: int, index: TensorValue, source: TensorValue | None = None
) -> TensorValue:
    """Positions along ``dim`` for every place in the others: the index of a scatter.

    source: has to be of that shape, which ATen sees to where it may not be.
    """
    (index,) = _at_least_1d(index)
    dim = views.wrap(dim, max(x.ndim, 1))
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    if index.ndim > 1 or source is not None and _at_least_1d(source)[0].shape != shape:
        raise Unsupported("an index and a source of shapes that may differ")
    return values.viewed(index, shape, [axes(shape)[dim]])


@lower_with_in_place(aten.index_reduce.default)
def index_reduce(
    ctx: Call,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    *rest: Any,
    **how: Any,
) -> TensorValue:
    return scatter_reduce(ctx, x, dim, _along(x, dim, index, source), source, *rest, **how)


@lower_with_in_place(aten.index_add.default)
def index_add(
    ctx: Call, x: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: Any
) -> TensorValue:
    if isinstance(alpha, Expr):
        raise Unsupported("a symbolic alpha")
    return _scatter(ctx, x, dim, _along(x, dim, index, source), source, "add", alpha=alpha)


@lower_with_in_place(aten.index_copy.default)
def index_copy(
    ctx: Call, x: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    return _scatter(ctx, x, dim, _along(x, dim, index, source), source, "set")


@lower_with_in_place(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ctx: Call, x: TensorValue, dim: int, index: TensorValue, value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        node = ctx.b.user_cast(value.node, x.dtype)
    else:
        node = literal(value, x.dtype)
    return _scatter(ctx, x, dim, _along(x, dim, index), node, "set", negative=True)


@lower_with_in_place(aten.put.default)
def put(
    ctx: Call, x: TensorValue, index: TensorValue, source: TensorValue, accumulate: bool
) -> TensorValue:
    if values.product(source.shape) is not values.product(index.shape):
        raise Unsupported("as many positions as values, or not")
    mode: StoreMode = "add" if accumulate else "set"
    out = start(ctx, x, mode, (index.node,))
    flat = (values.product(out.shape),)
    strides = values.view_strides(out.shape, out.memory.strides, flat)
    if strides is None or flat[0] is ZERO:
        raise Unsupported("a write by number into a tensor that is not one row")
    target = values.strided(out, flat, strides, out.memory.offset)
    at = position(index.node, flat[0], negative=True)
    value = _element(ctx, values.reshape(source, index.shape).node, out.dtype)
    store_at(ctx, target, index.shape, [at], value, mode)
    return finish(ctx, out)


@lower(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Call,
    grad: TensorValue,
    indices: TensorValue,
    *,
    padding_idx: Expr | int,
    scale_grad_by_freq: bool,
) -> TensorValue:
    if scale_grad_by_freq:
        raise Unsupported("gradients scaled by how often a row is used")
    out = start(ctx, ctx.full(0), "add")
    own = axes(grad.shape)
    element = indices.at(own[:-1])
    row = position(element, ctx.shape[0])
    mask = None
    if not (isinstance(padding_idx, int) and padding_idx < 0):
        skipped = body.cast(literal(padding_idx, d.I64), element.dtype)
        mask = op("ne", element, skipped)
    value = _element(ctx, grad.node, out.dtype)
    store_at(ctx, out, grad.shape, [row, own[-1]], value, "add", mask)
    return finish(ctx, out)
