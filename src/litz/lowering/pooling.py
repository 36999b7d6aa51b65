"""Pooling over windows: maxima with positions, averages, and their gradients.

The gradient of an average is computed per input element from the windows that contain it, so that
no two iterations write the same place; that of a maximum is added where the maximum came from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import add, mul
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.index import Const, Expr, and_, as_expr, const, floordiv, le, linear, lt, max_, min_, var
from litz.index.layout import contiguous_strides
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Store, StoreMode, op
from litz.ir.reductions import MAX, reduction
from litz.lowering import indexing
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds
from litz.lowering.registry import Call, lower_rows
from litz.lowering.scatters import finish, start, store_at
from litz.lowering.strides import result_buffer
from litz.lowering.values import (
    ONE,
    ZERO,
    TensorValue,
    axes,
    product,
    strided,
    view_strides,
)

aten = torch.ops.aten

# Windows of up to this many elements are unrolled; larger ones are reductions.
MAX_TAPS = 32
# A lazy input that costs more than this is stored before windows read it several times; and one of
# so many nodes in all of a window before they read it once.
MAX_TAP_COST = 3
MAX_ALONE_COST = 16  # the same on GPUs where a result reads one element
# Of so many windows around an element each is asked whether that is its maximum.
MAX_SHARED = 9
MAX_TAP_NODES = 400
Sizes = Sequence[int] | int


@dataclass(frozen=True)
class Windows:
    """Where windows lie: one entry a spatial dimension, of which there are ``len(kernel)``."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def starts(self, outer: Sequence[Expr]) -> list[Expr]:
        """First positions of the windows numbered ``outer``; negative in the padding."""
        return [o * s - p for o, s, p in zip(outer, self.stride, self.padding, strict=True)]


def windows(
    rank: int,
    *,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Windows:
    """The windows of a call's arguments.  How many there are (``ceil_mode``) its result says."""

    def spread(v: Sizes, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        given = (v,) if isinstance(v, int) else tuple(v)
        if not given:
            return default
        if any(not isinstance(x, int) for x in given):
            raise Unsupported("windows of symbolic size")
        return given * rank if len(given) == 1 else given

    k = spread(kernel_size)
    return Windows(k, spread(stride, k), spread(padding), spread(dilation))


def shared(ctx: Call, x: TensorValue, once: int = 0, apart: bool = False) -> TensorValue:
    """``x`` so that reading an element several times costs little.

    once: how many elements a window has, where none is in two.  apart: whether a result reads one
    element, which neighbours may read as well: on a GPU each computes it while it waits for memory.
    """
    if x.lazy is None or 0 < once * len(list(body.walk((x.lazy,)))) <= MAX_TAP_NODES:
        return x
    alone = apart and ctx.b.settings.on_gpu(x.device)
    loads = [n for n in body.loads((x.lazy,)) if n.vars]
    most = (MAX_ALONE_COST, 2) if alone else (MAX_TAP_COST, 1)
    cheap = body.cost(x.lazy) <= most[0] and len(loads) <= most[1]
    return x if cheap else ctx.b.keep(x)


def inside(at: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Whether a position lies in the tensor; constant where that is provable."""
    checks = [c for i, s in zip(at, sizes, strict=True) for c in (le(ZERO, i), lt(i, s))]
    return and_(*checks)


def stored(
    ctx: Call, nodes: Sequence[Node | None], reduced: tuple[Expr, ...] = ()
) -> tuple[TensorValue | None, ...]:
    """One nest over the first result's axes that stores every result given; None is left out."""
    out: list[TensorValue | None] = []
    stores: list[Store] = []
    own = axes(ctx.shape)
    for k, node in enumerate(nodes):
        if node is None:
            out.append(None)
            continue
        target = result_buffer(ctx, k)
        stores.append(target.memory.store(own, node))
        out.append(target)
    ctx.b.add_loops(own, reduced, tuple(stores), ctx.result.device)
    return tuple(out)


def one(ctx: Call, node: Node, reduced: tuple[Expr, ...] = ()) -> TensorValue:
    (result,) = stored(ctx, (node,), reduced)
    assert result is not None
    return result


def over_window(
    kernel: Sequence[int], kind: str, element: Callable[[Sequence[Expr]], Node]
) -> tuple[Node, tuple[Expr, ...]]:
    """``kind`` (sum or max) over a window: unrolled if small, else a reduction and its variables.

    element: from the position within the window to the value there.
    """
    if math.prod(kernel) <= MAX_TAPS:
        taps = (element([as_expr(j) for j in js]) for js in itertools.product(*map(range, kernel)))
        total = next(taps)
        for value in taps:
            # Of two zeros eager's maximum is the first, the op's is its second operand.
            pair = (value, total) if kind == "max" else (total, value)
            total = op(reduction(kind).op, *pair)
        return total, ()
    over = [ZERO if k == 1 else var(f"r{n}", k) for n, k in enumerate(kernel)]
    reduced = tuple(r for r in over if r is not ZERO)
    return body.reduce(kind, reduced, element(over)), reduced


# --- where windows read --------------------------------------------------------------------------


@dataclass(frozen=True)
class Taps:
    """What the window of one result reads.

    kernel: sizes of the longest window.  first: its first position that is no padding.  at: from
    steps into the window to a position, and whether the window has it.
    apart: whether no element lies in two windows.
    """

    kernel: tuple[int, ...]
    first: Sequence[Expr]
    at: Callable[[Sequence[Expr]], tuple[list[Expr], Expr]]
    apart: bool = False

    @property
    def once(self) -> int:
        """How many elements a window reads that no other does."""
        return math.prod(self.kernel) if self.apart else 0


def sliding(ctx: Call, x: TensorValue, w: Windows) -> Taps:
    """Windows over ``x`` of the call's results."""
    sizes = x.shape[-w.rank :]
    starts = w.starts(axes(ctx.shape)[-w.rank :])

    def at(js: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        here = [s + j * dil for s, j, dil in zip(starts, js, w.dilation, strict=True)]
        return here, inside(here, sizes)

    first = [_first_valid(s, d) for s, d in zip(starts, w.dilation, strict=True)]
    apart = all(k <= s for k, s in zip(w.kernel, w.stride, strict=True))
    return Taps(w.kernel, first, at, apart and w.dilation == (1,) * w.rank)


def _first_valid(start: Expr, dilation: int) -> Expr:
    """The window's first position that isn't padding: where eager starts to look."""
    before = max_(-start, ZERO)
    return start + floordiv(before + (dilation - 1), dilation) * dilation


@dataclass(frozen=True)
class Share:
    """Windows that share ``size`` elements among ``count`` of them, by their numbers."""

    size: int
    count: int

    def start(self, o: Expr) -> Expr:
        return floordiv(o * self.size, self.count)

    def end(self, o: Expr) -> Expr:
        return floordiv((o + 1) * self.size + (self.count - 1), self.count)

    def length(self, o: Expr) -> Expr:
        return self.end(o) - self.start(o)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        size, count = self.size, self.count
        return [(o * size // count, -(-(o + 1) * size // count)) for o in range(count)]

    @property
    def longest(self) -> int:
        return max(end - start for start, end in self.bounds)

    @property
    def overlap(self) -> int:
        """How many windows an element lies in, at most."""
        return max(sum(a <= i < b for a, b in self.bounds) for i in range(self.size))


def shares(sizes: Sequence[Expr], counts: Sequence[Expr]) -> list[Share]:
    """Adaptive windows, whose number decides their sizes, a spatial dimension each."""
    if not all(isinstance(s, Const) for s in (*sizes, *counts)):
        raise Unsupported("adaptive pooling of symbolic sizes")
    if ZERO in sizes or ZERO in counts:
        raise Unsupported("adaptive pooling of nothing")
    known = [[s.value for s in each if isinstance(s, Const)] for each in (sizes, counts)]
    return [Share(size, count) for size, count in zip(*known, strict=True)]


def sharing(ctx: Call, found: Sequence[Share]) -> Taps:
    """Such windows of the call's results; shorter ones end before the longest one's size."""
    pairs = list(zip(found, axes(ctx.shape)[-len(found) :], strict=True))
    starts = [s.start(o) for s, o in pairs]

    def at(js: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        here = [s + j for s, j in zip(starts, js, strict=True)]
        return here, and_(*(lt(i, s.end(o)) for i, (s, o) in zip(here, pairs, strict=True)))

    return Taps(tuple(s.longest for s in found), starts, at)


def tapped(ctx: Call, x: TensorValue, taps: Taps, none: Node, js: Sequence[Expr]) -> Node:
    """What a result's window has of ``x`` at steps into it; ``none`` where that is nothing."""
    at, cond = taps.at(js)
    lead = axes(ctx.shape)[: -len(at)]
    return body.masked(holds(cond), ctx.b.opmath(x.at([*lead, *at])), none)


# --- maxima --------------------------------------------------------------------------------------


@lower_rows((aten.max_pool2d_with_indices.default, 2), (aten.max_pool3d_with_indices.default, 3))
def max_pool(ctx: Call, rank: int, x: TensorValue, **where: Any) -> tuple[TensorValue | None, ...]:
    if x.dtype is d.BOOL or ctx.empty:
        raise Unsupported("pooling of bools or of nothing")
    return _maxima(ctx, x, sliding(ctx, x, windows(rank, **where)))


@lower_rows((aten.adaptive_max_pool2d.default, 2), (aten.adaptive_max_pool3d.default, 3))
def adaptive_max_pool(ctx: Call, rank: int, x: TensorValue) -> tuple[TensorValue | None, ...]:
    return _maxima(ctx, x, sharing(ctx, shares(x.shape[-rank:], ctx.shape[-rank:])))


def _maxima(ctx: Call, x: TensorValue, taps: Taps) -> tuple[TensorValue | None, ...]:
    """Values and positions of maxima; nan wins, and the last one of several."""
    rank, wanted = len(taps.kernel), 1 in ctx.used
    if wanted and math.prod(taps.kernel) > MAX_TAPS:
        raise Unsupported("positions of maxima in large windows")
    x = shared(ctx, x, taps.once)
    strides = contiguous_strides(x.shape[-rank:])
    low = body.const(x.dtype.opmath, MAX.identity(x.dtype))
    element = partial(tapped, ctx, x, taps, low)
    if not wanted:
        best, reduced = over_window(taps.kernel, "max", element)
        value, _ = stored(ctx, (best, None), reduced)
        return value, None
    # Steps from the window's beginning are constants, and mostly fit a lane of 32 bits.
    origin = linear(taps.at([ZERO] * rank)[0], strides)
    last = linear(taps.at([const(k - 1) for k in taps.kernel])[0], strides) - origin
    small = d.I32 if last.hi is not None and last.hi < 1 << 31 else d.I64

    def position(at: Sequence[Expr]) -> Node:
        return body.cast(body.index(linear(at, strides) - origin), small)

    best = low
    where = position(taps.first)
    for tap in itertools.product(*map(range, taps.kernel)):
        js = [as_expr(j) for j in tap]
        v = element(js)
        better = v > best
        if x.dtype.is_float:
            better = better | op("isnan", v)
        best = op("where", better, v, best)
        where = op("where", better, position(taps.at(js)[0]), where)
    return stored(ctx, (best, body.cast(where, d.I64) + body.index(origin)))


@lower_rows(
    (aten.max_pool2d_with_indices_backward.default, 2),
    (aten.max_pool3d_with_indices_backward.default, 3),
)
def max_pool_backward(
    ctx: Call,
    rank: int,
    grad: TensorValue,
    x: TensorValue,
    *,
    indices: TensorValue,
    **where: Any,
) -> TensorValue:
    """Every gradient goes to its window's maximum, in eager's order.

    With channels last on CPUs an element asks the windows around it, where they are few, whether it
    was their maximum: lanes are channels, each of which would add to a row of its own.
    """
    w = windows(rank, **where)
    many = math.prod(-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True))
    asked = not ctx.b.settings.on_gpu(ctx.result.device) and all(n == 1 for n in w.dilation)
    if not asked or ctx.result.strides[-1] is ONE or many > MAX_SHARED:
        how: StoreMode = "set" if asked and many == 1 else "add"
        return adaptive_max_pool_backward(ctx, rank, grad, indices=indices, mode=how)
    grad, indices = shared(ctx, grad), shared(ctx, indices)
    own, plane, zero = axes(ctx.shape), ctx.shape[-rank:], body.const(grad.dtype.opmath, 0)
    node: Node = zero
    here = body.index(linear(own[-rank:], contiguous_strides(plane)))
    size = body.index(product(plane))
    for outer, cond in covers(w, own[-rank:], grad.shape[-rank:]):
        at = [*own[:-rank], *outer]
        place = op("check_index", indices.at(at), size)
        value = op("where", op("eq", place, here), ctx.b.opmath(grad.at(at)), zero)
        node = node + body.masked(holds(cond), value, zero)
    return one(ctx, node)


@lower_rows(
    (aten.adaptive_max_pool2d_backward.default, 2),
    (aten.adaptive_max_pool3d_backward.default, 3),
)
def adaptive_max_pool_backward(
    ctx: Call, rank: int, grad: TensorValue, *, indices: TensorValue, mode: StoreMode = "add"
) -> TensorValue:
    """Every gradient goes to its window's maximum, in eager's order.

    A plane is one run of positions with equal steps, so that the position is the index itself.
    mode: ``set`` where no two windows share an element, which needs no wider sum then.
    """
    out, value = start(ctx, ctx.full(0), mode), ctx.b.opmath(grad.node)
    # Without a sign where it is zero, as the sum is.
    value = value + body.const(value.dtype, 0) if mode == "set" else value
    store_by_position(ctx, planes(out, rank), grad, indices, value, mode)
    return finish(ctx, out)


def planes(v: TensorValue, rank: int) -> TensorValue:
    """A stored tensor with its last ``rank`` dimensions as one."""
    shape = (*v.shape[:-rank], product(v.shape[-rank:]))
    strides = view_strides(v.shape, v.memory.strides, shape)
    if strides is None:
        raise Unsupported("planes with gaps")
    return strided(v, shape, strides, v.memory.offset)


def store_by_position(
    ctx: Call,
    target: TensorValue,
    x: TensorValue,
    indices: TensorValue,
    value: Node,
    mode: StoreMode,
) -> None:
    """Each element of ``x`` updates its plane of ``target`` at its position in ``indices``."""
    own = axes(x.shape)  # sizes that a guard finds equal may be written differently
    at = indexing.position(indices.at(own), target.shape[-1])
    store_at(ctx, target, x.shape, [*own[: target.ndim - 1], at], value, mode)


# --- averages ------------------------------------------------------------------------------------


def _lengths(
    w: Windows, outer: Sequence[Expr], sizes: Sequence[Expr], pad: bool, counts: Sequence[Expr]
) -> list[Expr]:
    """How many elements the window ``outer`` averages over, along each dimension.

    counts: of windows, beyond which nothing is read.
    """
    found = []
    starts, lasts = w.starts(outer), w.starts([n - 1 for n in counts])
    for s, last, k, size, p in zip(starts, lasts, w.kernel, sizes, w.padding, strict=True):
        end = size + p if pad else size
        end = s + k if le(last + k, end) is ONE else min_(s + k, end)
        found.append(end - (s if pad or p == 0 else max_(s, ZERO)))
    return found


def _divisors(override: int | None, lengths: Callable[[], list[Expr]]) -> list[list[Expr]]:
    """What eager divides by."""
    if override == 0:
        raise Unsupported("averages over nothing, which eager refuses")
    return [lengths() if override is None else [as_expr(override)]]


def _over(value: Node, divisors: Sequence[Sequence[Expr]]) -> Node:
    """A value divided by one product after the other.

    A type of floats that is computed with has all sizes of windows: their product is one of floats,
    not an integer polynomial of positions.
    """
    for lengths in divisors:
        whole = [n for n in lengths if isinstance(n, Const)]
        parts = [product(whole), *(n for n in lengths if n not in whole)]
        casts = [body.cast(body.index(n), value.dtype) for n in parts if n is not ONE]
        if casts:
            value = value / reduce(mul, casts)
    return value


@lower_rows((aten.avg_pool2d.default, 2), (aten.avg_pool3d.default, 3))
def avg_pool(
    ctx: Call,
    rank: int,
    x: TensorValue,
    *,
    count_include_pad: bool,
    divisor_override: int | None,
    **where: Any,
) -> TensorValue:
    w, shape = windows(rank, **where), ctx.shape
    sizes = x.shape[-rank:], count_include_pad, shape[-rank:]
    lengths = partial(_lengths, w, axes(shape)[-rank:], *sizes)
    return _averages(ctx, x, sliding(ctx, x, w), _divisors(divisor_override, lengths))


@lower_rows((aten._adaptive_avg_pool2d.default, 2), (aten._adaptive_avg_pool3d.default, 3))
def adaptive_avg_pool(ctx: Call, rank: int, x: TensorValue) -> TensorValue:
    found = shares(x.shape[-rank:], ctx.shape[-rank:])
    counts = [[s.length(o)] for s, o in zip(found, axes(ctx.shape)[-rank:], strict=True)]
    return _averages(ctx, x, sharing(ctx, found), counts)


def _averages(
    ctx: Call, x: TensorValue, taps: Taps, divisors: Sequence[Sequence[Expr]]
) -> TensorValue:
    if not x.dtype.is_float:
        raise Unsupported("averages of integers")
    x = shared(ctx, x, taps.once)
    zero = body.const(x.dtype.opmath, 0)
    node, reduced = over_window(taps.kernel, "sum", partial(tapped, ctx, x, taps, zero))
    return one(ctx, _over(node, divisors), reduced)


# --- gradients of averages -----------------------------------------------------------------------


# A read of a gradient: where, on what condition, and products that divide it.
Read = tuple[Sequence[Expr], Expr, Sequence[Sequence[Expr]]]


def gathered(ctx: Call, v: TensorValue, reads: Iterable[Read]) -> Node:
    """The sum of what ``v`` holds at several positions, each on a condition."""
    zero = body.const(v.dtype.opmath, 0)
    parts = [
        body.masked(holds(cond), _over(ctx.b.opmath(v.at(at)), divisors), zero)
        for at, cond, divisors in reads
    ]
    return reduce(add, parts) if parts else zero


def covers(
    w: Windows, position: Sequence[Expr], counts: Sequence[Expr]
) -> Iterator[tuple[list[Expr], Expr]]:
    """The windows around an input position, in eager's order, and when there are such."""
    many = [-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True)]
    if math.prod(many) > MAX_TAPS:
        raise Unsupported("gradients of windows that overlap this much")
    shifted = [i + p for i, p in zip(position, w.padding, strict=True)]
    for back in itertools.product(*(range(n - 1, -1, -1) for n in many)):
        outer = [floordiv(i, s) - j for i, s, j in zip(shifted, w.stride, back, strict=True)]
        within = [
            lt(i, o * s + k) for i, o, s, k in zip(shifted, outer, w.stride, w.kernel, strict=True)
        ]
        yield outer, and_(inside(outer, counts), *within)


@lower_rows((aten.avg_pool2d_backward.default, 2), (aten.avg_pool3d_backward.default, 3))
def avg_pool_backward(
    ctx: Call,
    rank: int,
    grad: TensorValue,
    x: TensorValue,
    *,
    count_include_pad: bool,
    divisor_override: int | None,
    **where: Any,
) -> TensorValue:
    w = windows(rank, **where)
    grad = shared(ctx, grad, apart=all(k <= s for k, s in zip(w.kernel, w.stride, strict=True)))
    own, windows_ = axes(ctx.shape), grad.shape[-rank:]
    sizes = ctx.shape[-rank:], count_include_pad, windows_

    def divisors(outer: Sequence[Expr]) -> list[list[Expr]]:
        return _divisors(divisor_override, partial(_lengths, w, outer, *sizes))

    found = covers(w, own[-rank:], windows_)
    reads = (([*own[:-rank], *outer], cond, divisors(outer)) for outer, cond in found)
    return one(ctx, gathered(ctx, grad, reads))


@lower_rows(
    (aten._adaptive_avg_pool2d_backward.default, 2), (aten._adaptive_avg_pool3d_backward.default, 3)
)
def adaptive_avg_pool_backward(ctx: Call, rank: int, grad: TensorValue) -> TensorValue:
    found = shares(ctx.shape[-rank:], grad.shape[-rank:])
    grad = shared(ctx, grad)
    own = axes(ctx.shape)
    # Few threads gather slower than ATen adds.
    most = MAX_TAPS if ctx.b.settings.on_gpu(ctx.result.device) else 1
    if math.prod(s.overlap for s in found) > most:
        raise Unsupported("gradients of windows that overlap")

    def reads() -> Iterator[Read]:
        for ahead in itertools.product(*(range(s.overlap) for s in found)):
            outer, conds = [], []
            for s, i, j in zip(found, own[-rank:], ahead, strict=True):
                o = floordiv(i * s.count, s.size) + j
                outer.append(o)
                conds += [lt(o, s.count), le(s.start(o), i)]
            counts = [[s.length(o)] for s, o in zip(found, outer, strict=True)]
            yield [*own[:-rank], *outer], and_(*conds), counts

    return one(ctx, gathered(ctx, grad, reads()))
