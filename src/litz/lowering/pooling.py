"""Pooling over windows: maxima with positions, averages, and their gradients.

The gradient of an average is computed per input element from the windows that contain it, so that
no two iterations write the same place; that of a maximum is added where the maximum came from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.index import Expr, and_, as_expr, floordiv, le, lt, max_, min_, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, Store, StoreMode, op
from litz.ir.reductions import MAX, reduction
from litz.lowering import indexing
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds
from litz.lowering.joins import result_buffer
from litz.lowering.registry import Call, lower_rows
from litz.lowering.scatters import finish, start, store_at
from litz.lowering.values import (
    ONE,
    ZERO,
    TensorValue,
    axes,
    contiguous_strides,
    linear,
    product,
    strided,
    view_strides,
)

aten = torch.ops.aten

# Windows of up to this many elements are unrolled; larger ones are reductions.
MAX_TAPS = 32
# A lazy input that costs more than this is stored before windows read it several times.
MAX_TAP_COST = 3
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
    rank: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = 1
) -> Windows:
    def spread(v: Sizes, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        given = (v,) if isinstance(v, int) else tuple(v)
        if not given:
            return default
        if any(not isinstance(x, int) for x in given):
            raise Unsupported("windows of symbolic size")
        return given * rank if len(given) == 1 else given

    k = spread(kernel)
    return Windows(k, spread(stride, k), spread(padding), spread(dilation))


def shared(ctx: Call, x: TensorValue) -> TensorValue:
    """``x`` so that reading an element several times costs little."""
    if x.lazy is None:
        return x
    cheap = body.cost(x.lazy) <= MAX_TAP_COST and len(body.loads((x.lazy,))) <= 1
    return x if cheap else ctx.b.keep(x)


def inside(at: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Whether a position lies in the tensor; constant where that is provable."""
    checks = [c for i, s in zip(at, sizes, strict=True) for c in (le(ZERO, i), lt(i, s))]
    return and_(*checks)


def guarded(x: TensorValue, at: Sequence[Expr], cond: Expr, fill: Node, b: Any) -> Node:
    """The element of ``x`` in opmath where ``cond`` holds, else ``fill``."""
    return body.masked(holds(cond), b.opmath(x.at(at)), fill)


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
        assert target.ref is not None
        where = linear(own, target.ref.strides)
        stores.append(Store(target.ref.buffer, where, body.cast(node, target.dtype)))
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
            total = op(reduction(kind).op, total, value)
        return total, ()
    over = [ZERO if k == 1 else var(f"r{n}", k) for n, k in enumerate(kernel)]
    reduced = tuple(r for r in over if r is not ZERO)
    return body.reduce(kind, reduced, element(over)), reduced


# --- maxima --------------------------------------------------------------------------------------


def _first_valid(start: Expr, dilation: int) -> Expr:
    """The window's first position that isn't padding: where eager starts to look."""
    before = max_(-start, ZERO)
    return start + floordiv(before + (dilation - 1), dilation) * dilation


def _flat(at: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    return linear(at, contiguous_strides(tuple(sizes)))


@lower_rows((aten.max_pool2d_with_indices.default, 2), (aten.max_pool3d_with_indices.default, 3))
def max_pool(
    ctx: Call,
    rank: int,
    x: TensorValue,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
) -> tuple[TensorValue | None, ...]:
    w = windows(rank, kernel, stride, padding, dilation)
    if x.dtype is d.BOOL or ctx.empty:
        raise Unsupported("pooling of bools or of nothing")
    wanted = 1 in ctx.used
    if wanted and w.taps > MAX_TAPS:
        raise Unsupported("positions of maxima in large windows")
    x = shared(ctx, x)
    own = axes(ctx.shape)
    lead, outer = own[:-rank], own[-rank:]
    sizes = x.shape[-rank:]
    starts = w.starts(outer)
    low = body.const(x.dtype.opmath, lowest(x))

    def at(js: Sequence[Expr]) -> list[Expr]:
        return [s + j * dil for s, j, dil in zip(starts, js, w.dilation, strict=True)]

    def element(js: Sequence[Expr]) -> Node:
        here = at(js)
        return guarded(x, [*lead, *here], inside(here, sizes), low, ctx.b)

    if not wanted:
        best, reduced = over_window(w.kernel, "max", element)
        value, _ = stored(ctx, (best, None), reduced)
        return value, None
    best = low
    first = [_first_valid(s, dil) for s, dil in zip(starts, w.dilation, strict=True)]
    where = body.index(_flat(first, sizes))
    for tap in itertools.product(*map(range, w.kernel)):
        js = [as_expr(j) for j in tap]
        v = element(js)
        better = v > best
        if x.dtype.is_float:  # nan wins, the last one for the position
            better = better | op("isnan", v)
        best = op("where", better, v, best)
        where = op("where", better, body.index(_flat(at(js), sizes)), where)
    return stored(ctx, (best, where))


def lowest(x: TensorValue) -> Scalar:
    """What no element of the tensor is below."""
    return MAX.identity(x.dtype)


@lower_rows(
    (aten.max_pool2d_with_indices_backward.default, 2),
    (aten.max_pool3d_with_indices_backward.default, 3),
    (aten.adaptive_max_pool2d_backward.default, 2),
    (aten.adaptive_max_pool3d_backward.default, 3),
)
def max_pool_backward(
    ctx: Call, rank: int, grad: TensorValue, *, indices: TensorValue
) -> TensorValue:
    """Every gradient goes to its window's maximum, in eager's order.

    A plane is one run of positions with equal steps, so that the position is the index itself.
    """
    out = start(ctx, ctx.full(0), "add")
    store_by_position(ctx, planes(out, rank), grad, indices, ctx.b.opmath(grad.node), "add")
    return finish(ctx, out)


def planes(v: TensorValue, rank: int) -> TensorValue:
    """A stored tensor with its last ``rank`` dimensions as one."""
    assert v.ref is not None
    shape = (*v.shape[:-rank], product(v.shape[-rank:]))
    strides = view_strides(v.shape, v.ref.strides, shape)
    if strides is None:
        raise Unsupported("planes with gaps")
    return strided(v, shape, strides, v.ref.offset)


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


def _divisor(
    w: Windows, outer: Sequence[Expr], sizes: Sequence[Expr], pad: bool, override: int | None
) -> Expr:
    """How many elements the window ``outer`` averages over."""
    if override == 0:
        raise Unsupported("averages over nothing, which eager refuses")
    if override is not None:
        return as_expr(override)
    ends = []
    starts = w.starts(outer)
    for s, k, size, p in zip(starts, w.kernel, sizes, w.padding, strict=True):
        if pad:
            ends.append(min_(s + k, size + p) - s)
        else:
            ends.append(min_(s + k, size) - max_(s, ZERO))
    return product(ends)


def _over(value: Node, count: Expr) -> Node:
    if count is ONE:
        return value
    return value / body.cast(body.index(count), value.dtype)


def _average_type(x: TensorValue) -> None:
    if not x.dtype.is_float:
        raise Unsupported("averages of integers")


@lower_rows((aten.avg_pool2d.default, 2), (aten.avg_pool3d.default, 3))
def avg_pool(
    ctx: Call,
    rank: int,
    x: TensorValue,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    *,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    _average_type(x)
    w = windows(rank, kernel, stride, padding)
    x = shared(ctx, x)
    own = axes(ctx.shape)
    lead, outer = own[:-rank], own[-rank:]
    starts = w.starts(outer)
    zero = body.const(x.dtype.opmath, 0)

    def element(js: Sequence[Expr]) -> Node:
        at = [s + j for s, j in zip(starts, js, strict=True)]
        return guarded(x, [*lead, *at], inside(at, x.shape[-rank:]), zero, ctx.b)

    node, reduced = over_window(w.kernel, "sum", element)
    count = _divisor(w, outer, x.shape[-rank:], count_include_pad, divisor_override)
    return one(ctx, _over(node, count), reduced)


@dataclass(frozen=True)
class Cover:
    """One window that may contain an input element: its number per dimension, and when it does."""

    outer: list[Expr]
    cond: Expr


def covers(w: Windows, position: Sequence[Expr], counts: Sequence[Expr]) -> Iterator[Cover]:
    """The windows around an input position, in eager's order (dilation 1)."""
    if any(dil != 1 for dil in w.dilation):
        raise Unsupported("gradients of dilated windows")
    many = [-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True)]
    if math.prod(many) > MAX_TAPS:
        raise Unsupported("gradients of windows that overlap this much")
    shifted = [i + p for i, p in zip(position, w.padding, strict=True)]
    for back in itertools.product(*(range(n - 1, -1, -1) for n in many)):
        outer = [floordiv(i, s) - j for i, s, j in zip(shifted, w.stride, back, strict=True)]
        within = [
            lt(i, o * s + k) for i, o, s, k in zip(shifted, outer, w.stride, w.kernel, strict=True)
        ]
        yield Cover(outer, and_(inside(outer, counts), *within))


def total(parts: Sequence[Node]) -> Node:
    first, *rest = parts
    for p in rest:
        first = first + p
    return first


@lower_rows((aten.avg_pool2d_backward.default, 2), (aten.avg_pool3d_backward.default, 3))
def avg_pool_backward(
    ctx: Call,
    rank: int,
    grad: TensorValue,
    x: TensorValue,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    *,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    w = windows(rank, kernel, stride, padding)
    grad = shared(ctx, grad)
    own = axes(ctx.shape)
    lead, position = own[:-rank], own[-rank:]
    zero = body.const(grad.dtype.opmath, 0)
    parts = []
    for c in covers(w, position, grad.shape[-rank:]):
        count = _divisor(w, c.outer, ctx.shape[-rank:], count_include_pad, divisor_override)
        value = _over(ctx.b.opmath(grad.at([*lead, *c.outer])), count)
        parts.append(body.masked(holds(c.cond), value, zero))
    return one(ctx, total(parts))


# --- averages over windows that share a size among them ------------------------------------------


def _adaptive_start(o: Expr, size: int, count: int) -> Expr:
    return floordiv(o * size, count)


def _adaptive_end(o: Expr, size: int, count: int) -> Expr:
    return floordiv((o + 1) * size + (count - 1), count)


def _static(sizes: Sequence[Expr]) -> tuple[int, ...]:
    if not all(s.is_const for s in sizes):
        raise Unsupported("adaptive pooling of symbolic sizes")
    return tuple(s.value for s in sizes)  # type: ignore[attr-defined]


def _longest(size: int, count: int) -> int:
    """The longest of ``count`` windows over ``size`` elements."""
    return max(-(-(o + 1) * size // count) - o * size // count for o in range(count))


@dataclass(frozen=True)
class AdaptiveWindows:
    """The window of one result.  kernel: the longest window's size; shorter ones end earlier."""

    kernel: tuple[int, ...]
    starts: tuple[Expr, ...]
    ends: tuple[Expr, ...]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def tap(self, js: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """The position ``js`` steps into the window, and whether the window reaches so far."""
        at = [s + j for s, j in zip(self.starts, js, strict=True)]
        return at, and_(*(lt(i, e) for i, e in zip(at, self.ends, strict=True)))


def adaptive_windows(ctx: Call, x: TensorValue, rank: int) -> AdaptiveWindows:
    """Windows over ``x`` of the call's results, whose number decides their sizes."""
    sizes, counts = _static(x.shape[-rank:]), _static(ctx.shape[-rank:])
    if 0 in sizes or 0 in counts:
        raise Unsupported("adaptive pooling of nothing")
    triples = list(zip(axes(ctx.shape)[-rank:], sizes, counts, strict=True))
    return AdaptiveWindows(
        tuple(_longest(s, c) for s, c in zip(sizes, counts, strict=True)),
        tuple(_adaptive_start(*t) for t in triples),
        tuple(_adaptive_end(*t) for t in triples),
    )


@lower_rows((aten._adaptive_avg_pool2d.default, 2), (aten._adaptive_avg_pool3d.default, 3))
def adaptive_avg_pool(ctx: Call, rank: int, x: TensorValue) -> TensorValue:
    _average_type(x)
    a = adaptive_windows(ctx, x, rank)
    x = shared(ctx, x)
    lead = axes(ctx.shape)[:-rank]
    zero = body.const(x.dtype.opmath, 0)

    def element(js: Sequence[Expr]) -> Node:
        at, cond = a.tap(js)
        return guarded(x, [*lead, *at], cond, zero, ctx.b)

    node, reduced = over_window(a.kernel, "sum", element)
    for s, e in zip(a.starts, a.ends, strict=True):
        node = _over(node, e - s)
    return one(ctx, node, reduced)


def _most_windows(size: int, count: int) -> int:
    """How many windows an element lies in, at most."""
    return max(
        sum(o * size // count <= i < -(-(o + 1) * size // count) for o in range(count))
        for i in range(size)
    )


@lower_rows(
    (aten._adaptive_avg_pool2d_backward.default, 2), (aten._adaptive_avg_pool3d_backward.default, 3)
)
def adaptive_avg_pool_backward(ctx: Call, rank: int, grad: TensorValue) -> TensorValue:
    sizes, counts = _static(ctx.shape[-rank:]), _static(grad.shape[-rank:])
    if 0 in sizes or 0 in counts:
        raise Unsupported("adaptive pooling of nothing")
    grad = shared(ctx, grad)
    own = axes(ctx.shape)
    lead, position = own[:-rank], own[-rank:]
    many = [_most_windows(s, c) for s, c in zip(sizes, counts, strict=True)]
    # Few threads gather slower than ATen adds.
    if math.prod(many) > (MAX_TAPS if ctx.b.settings.on_gpu(ctx.result.device) else 1):
        raise Unsupported("gradients of windows that overlap")
    zero = body.const(grad.dtype.opmath, 0)
    parts = []
    for ahead in itertools.product(*map(range, many)):
        outer = []
        conds = []
        for i, size, count, j in zip(position, sizes, counts, ahead, strict=True):
            o = floordiv(i * count, size) + j
            outer.append(o)
            conds += [lt(o, count), le(_adaptive_start(o, size, count), i)]
        value = ctx.b.opmath(grad.at([*lead, *outer]))
        for o, size, count in zip(outer, sizes, counts, strict=True):
            value = _over(value, _adaptive_end(o, size, count) - _adaptive_start(o, size, count))
        parts.append(body.masked(holds(and_(*conds)), value, zero))
    return one(ctx, total(parts))
