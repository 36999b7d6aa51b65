"""Reads at positions that are data: embeddings, gathers, indexing, searches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import torch

from litz.dataclass import dataclass
from litz.index import Const, Expr, Substitution, const, provably_le, symbol
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Load, Node, Op, Rewriter, Scalar, op
from litz.ir.ops import CHECKS
from litz.lowering import values, views
from litz.lowering.context import Unsupported
from litz.lowering.creation import literal
from litz.lowering.places import is_quick, place_of
from litz.lowering.promotion import operand
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue, axes, product

aten = torch.ops.aten

# A lazy value is read through data-dependent positions as it is, if computing it costs no more.
MAX_GATHER_COST = 24
_SYMBOL = re.compile(r"t(\d+)$")
Position = Expr | Node


# --- positions that are data ---------------------------------------------------------------------


def first_free(nodes: Iterable[Node]) -> int:
    """The first number n such that no load below ``nodes`` binds ``tn`` or one beyond it."""
    start = 0
    for n in body.walk(nodes):
        if isinstance(n, Load):
            for s, _ in n.indirect:
                found = _SYMBOL.match(str(s))
                start = max(start, int(found.group(1)) + 1) if found else start
    return start


def bind(
    positions: Sequence[Position], sizes: Sequence[Expr], nodes: Iterable[Node]
) -> tuple[list[Expr], tuple[tuple[Expr, Node], ...]]:
    """Index expressions for ``positions``; the symbols in them and what they stand for.

    sizes: of the indexed dimensions.  A symbol's range lets threads divide what cannot meet.
    """
    data = [p for p in positions if isinstance(p, Node)]
    number = first_free([*nodes, *data])
    index: list[Expr] = []
    bound: list[tuple[Expr, Node]] = []
    for p, size in zip(positions, sizes, strict=True):
        if isinstance(p, Expr):
            index.append(p)
        elif isinstance(p, body.Const):
            index.append(const(int(p.value)))
        elif isinstance(p, body.Index):
            index.append(p.expr)
        else:
            known = isinstance(size, Const) and size.value > 1
            s = symbol(f"t{number}", 0, size.hi - 1 if known and size.hi else None)
            number += 1
            index.append(s)
            bound.append((s, p))
    return index, tuple(bound)


def load_at(ctx: Call, x: TensorValue, positions: Sequence[Position]) -> Node:
    """The element of ``x`` at ``positions``, one a dimension: index expressions or i64 nodes."""
    lazy = x.ref is None
    index, bound = bind(positions, x.shape, (x.node,) if lazy else ())
    if not bound:
        return x.at(index)
    quick = lazy and body.cost(x.node) <= MAX_GATHER_COST
    node = _through(x, index, bound) if quick else None
    if node is None:
        ref = ctx.b.realize(x).memory
        node = ref.load(index, tuple((s, p) for s, p in bound if s in ref.place(index).free))
    read = set(body.walk((node,)))
    for _, p in bound:
        if p not in read and any(isinstance(n, Op) and n.name in CHECKS for n in body.walk((p,))):
            # Along an expanded dimension nothing is left of a position, nor of its check.
            seen = op("ge", p, body.const(d.I64, 0))
            node = body.masked(seen, node, body.const(node.dtype, 0))
    return node


def _through(
    x: TensorValue, index: Sequence[Expr], bound: tuple[tuple[Expr, Node], ...]
) -> Node | None:
    """A lazy value's expression at data-dependent positions; None if that has no form."""
    mapping = {
        v: e for v, e in zip(axes(x.shape), index, strict=True) if v is not ZERO and v is not e
    }
    data = {v for v, e in mapping.items() if any(s in e.free for s, _ in bound)}
    for n in body.walk((x.node,)):
        # An index value would have to become arithmetic on nodes, and a reduction repeats itself.
        if isinstance(n, body.Index) and any(v in data for v in n.vars):
            return None
        if isinstance(n, body.Reduce):
            return None

    def with_bindings(_: Node, n: Node) -> Node:
        if not isinstance(n, Load):
            return n
        mine = tuple((s, v) for s, v in bound if s in n.index.free)
        return body.load(n.dtype, n.buffer, n.index, (*n.indirect, *mine)) if mine else n

    return Rewriter(Substitution(mapping), with_bindings)(x.node)


def position(node: Node, size: Expr, *, negative: bool = False, on_gpu: bool = False) -> Node:
    """An index element as an i64 node in [0, size): checked, and from the end if negative.

    Where the check fails, it is 0, so that there must be an element.
    """
    if node.dtype.kind == "bool" or not node.dtype.is_int:
        raise Unsupported(f"an index of type {node.dtype}")
    if not provably_le(ONE, size):
        raise Unsupported("a position where perhaps nothing is")
    i = body.cast(node, d.I64)
    extent = body.index(size)
    if isinstance(i, body.Const) and isinstance(extent, body.Const):
        at = int(i.value) + (int(extent.value) if negative and i.value < 0 else 0)
        if 0 <= at < extent.value:
            return body.const(d.I64, at)
    place = place_of(i)
    if place is not None and isinstance(size, Const):
        lo, hi = place.lo, place.hi
        if lo is not None and hi is not None and lo >= 0 and hi < size.value:
            return body.index(place) if is_quick(place, on_gpu) else i
    if negative:
        below = op("lt", i, body.const(d.I64, 0))
        i = op("where", below, op("add", i, extent), i)
    return op("check_index", i, extent)


# --- embeddings ----------------------------------------------------------------------------------


@lower(aten.embedding.default)
def embedding(ctx: Call, weight: TensorValue, indices: TensorValue) -> TensorValue:
    own = axes(ctx.shape)
    row = position(indices.at(own[:-1]), weight.shape[0])
    return ctx.value(load_at(ctx, weight, [row, own[-1]]))


# --- along one dimension -------------------------------------------------------------------------


@lower(aten.gather.default)
def gather(ctx: Call, x: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    if ctx.empty:
        return ctx.full(0)
    if x.ndim == 0:
        at = position(index.node, ONE)
        return ctx.value(load_at(ctx, values.reshape(x, (ONE,)), [at]))
    if index.ndim == 0:
        index = values.reshape(index, (ONE,))
    dim = views.wrap(dim, x.ndim)
    positions: list[Position] = list(axes(index.shape))
    positions[dim] = position(index.node, x.shape[dim])
    return ctx.value(load_at(ctx, x, positions))


@lower(aten.index_select.default)
def index_select(ctx: Call, x: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    if index.ndim > 1:
        raise Unsupported("positions that are no vector")
    if x.ndim == 0:
        only = position(index.at([ZERO] * index.ndim), ONE)
        return ctx.value(load_at(ctx, values.reshape(x, (ONE,)), [only]))
    if ctx.empty:
        return ctx.full(0)
    dim = views.wrap(dim, x.ndim)
    own = axes(ctx.shape)
    element = index.at([own[dim]]) if index.ndim else index.node
    positions: list[Position] = list(own)
    positions[dim] = position(element, x.shape[dim])
    return ctx.value(load_at(ctx, x, positions))


@lower(aten.take.default)
def take(ctx: Call, x: TensorValue, index: TensorValue) -> TensorValue:
    if ctx.empty:
        return ctx.full(0)
    flat = values.reshape(x, (product(x.shape),))
    at = position(index.node, flat.shape[0], negative=True)
    return ctx.value(load_at(ctx, flat, [at]))


# --- several index tensors -----------------------------------------------------------------------


@dataclass(frozen=True)
class Indexed:
    """How ``x[indices]`` maps an element of the result to one of ``x``.

    shape: of the result; positions: one a dimension of ``x``.
    """

    shape: tuple[Expr, ...]
    positions: tuple[Position, ...]


def indexed(
    ctx: Call, x: TensorValue, indices: Sequence[TensorValue | None], *, clamp: bool = False
) -> Indexed:
    """Advanced indexing: index tensors broadcast together, in place if adjacent, else in front."""
    slots = list(indices) + [None] * (x.ndim - len(indices))
    given = [k for k, t in enumerate(slots) if t is not None]
    tensors = [t for t in slots if t is not None]
    if not given or len(slots) > x.ndim:
        raise Unsupported("an index of this form")
    for t in tensors:
        if t.dtype.kind == "bool" or t.dtype is d.U8:
            raise Unsupported("a mask as an index: the number of elements depends on data")
    rank = max(t.ndim for t in tensors)
    common = ctx.b.broadcast(tensors)[0]
    adjacent = given[-1] - given[0] == len(given) - 1
    front = given[0] if adjacent else 0
    rest = [k for k in range(x.ndim) if slots[k] is None]
    before = [k for k in rest if k < front] if adjacent else []
    after = [k for k in rest if k not in before]
    shape = (*(x.shape[k] for k in before), *common, *(x.shape[k] for k in after))
    own = axes(shape)
    middle = own[len(before) : len(before) + rank]
    positions: list[Position] = [ZERO] * x.ndim
    for k, i in zip(before, own, strict=False):
        positions[k] = i
    for k, i in zip(after, own[len(before) + rank :], strict=True):
        positions[k] = i
    on_gpu = ctx.b.settings.on_gpu(x.device)
    for k, t in zip(given, tensors, strict=True):
        at = t.at(middle[rank - t.ndim :])
        if clamp:
            positions[k] = _clamped(body.cast(at, d.I64), x.shape[k], on_gpu)
        else:
            positions[k] = position(at, x.shape[k], negative=True, on_gpu=on_gpu)
    return Indexed(shape, tuple(positions))


def _clamped(i: Node, size: Expr, on_gpu: bool) -> Node:
    zero = body.const(d.I64, 0)
    at = op("maximum", op("minimum", i, body.index(size - 1)), zero)
    place = place_of(at)
    return at if place is None or not is_quick(place, on_gpu) else body.index(place)


# "Unsafe" frees a kernel from checking; the check costs little and keeps a wrong index an error.
@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(ctx: Call, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    found = indexed(ctx, x, indices)
    if ctx.empty:
        return ctx.full(0)
    return x.with_node(load_at(ctx, x, found.positions), found.shape)


@lower(aten._unsafe_masked_index.default)
def unsafe_masked_index(
    ctx: Call,
    x: TensorValue,
    mask: TensorValue,
    indices: Sequence[TensorValue | None],
    fill: Scalar | Expr,
) -> TensorValue:
    if ZERO in x.shape:
        return ctx.value(literal(fill, x.dtype))
    # Positions outside are moved inside, and then not looked at.
    found = indexed(ctx, x, indices, clamp=True)
    wide = values.expand(mask, found.shape)
    if wide.dtype is not d.BOOL:
        raise Unsupported("a mask that is not bool")
    node = body.masked(wide.node, load_at(ctx, x, found.positions), literal(fill, x.dtype))
    return x.with_node(node, found.shape)


# --- binary search -------------------------------------------------------------------------------


def _search(
    ctx: Call, length: Expr, value: Node, boundary: Callable[[Node], Node], right: bool
) -> Node:
    """How many sorted elements lie before ``value``: a binary search, unrolled.

    It looks where eager's does, so that sequences that are not sorted (nan behind the numbers is
    not, as nan compares) give what they give in eager.
    """
    if not isinstance(length, Const):
        raise Unsupported("a search in a sequence of unknown length")
    one, last = body.const(d.I64, 1), body.const(d.I64, length.value - 1)
    start: Node = body.const(d.I64, 0)
    end: Node = body.const(d.I64, length.value)
    for _ in range(length.value.bit_length()):
        middle = op("shr", op("add", start, end), one)
        searching = op("lt", start, end)
        # nan compares false with every boundary and so ends up behind all of them.
        stop = op("gt" if right else "ge", boundary(op("minimum", middle, last)), value)
        start = op("where", op("and_", searching, op("not_", stop)), op("add", middle, one), start)
        end = op("where", op("and_", searching, stop), middle, end)
    return body.cast(start, ctx.dtype)


@lower(aten.bucketize.Tensor)
def bucketize(ctx: Call, x: TensorValue, boundaries: TensorValue, *, right: bool) -> TensorValue:
    if boundaries.ndim != 1:
        raise Unsupported("boundaries that are no vector")
    return searchsorted(ctx, boundaries, x, right=right, side=None, sorter=None)


@lower(aten.searchsorted.Tensor)
def searchsorted(
    ctx: Call,
    sequence: TensorValue,
    x: TensorValue,
    *,
    right: bool,
    side: str | None,
    sorter: TensorValue | None,
) -> TensorValue:
    if sequence.dtype is d.BOOL or x.dtype is d.BOOL:
        raise Unsupported("a search of this form")
    if sequence.dtype is not x.dtype:
        raise Unsupported("a search for another type than the sequence's")
    if sorter is not None and sorter.dtype is not d.I64:
        raise Unsupported("an order that eager refuses")
    b = ctx.b
    stored = b.realize(sequence)
    order = None if sorter is None else b.realize(sorter)
    # Several loads read the value and the sequence: keep what they repeat cheap.
    x = x if x.ref is not None or body.cost(x.node) <= 1 else b.realize(x)
    own = axes(x.shape)
    lead: list[Position] = list(own[:-1]) if sequence.ndim > 1 else []
    if sequence.ndim > 1 and any(
        s is not t for s, t in zip(sequence.shape[:-1], x.shape[:-1], strict=True)
    ):
        raise Unsupported("a search in sequences of other leading sizes")

    def boundary(at: Node) -> Node:
        if order is not None:
            at = position(load_at(ctx, order, [*lead, at]), sequence.shape[-1])
        return operand(b, load_at(ctx, stored, [*lead, at]), x.dtype)

    value = operand(b, x.node, x.dtype)
    return x.with_node(_search(ctx, sequence.shape[-1], value, boundary, right or side == "right"))
