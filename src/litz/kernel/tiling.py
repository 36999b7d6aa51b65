"""Which loops to vectorise and tile, scored by the bytes that become contiguous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from litz.dataclass import dataclass
from litz.index import Const, Expr, Var, coefficient, size_hint
from litz.ir.body import Load, Masked, Node, Store, walk
from litz.ir.masks import conjuncts
from litz.kernel.nodes import as_index, is_comparison, roots

Place = tuple[str, Expr]
"""A buffer, and an index into it."""
DEFAULT_SIZE = 1 << 8
# Elements of a loop below which part of a vector is idle.
FULL_VECTOR = 16
# What a strided access is worth next to a contiguous one.
SMALL_STRIDE, ANY_STRIDE = 0.3, 0.05
DIVIDED = -0.8  # where each lane of a CPU's vector computes its place by divisions
FEW = 0.5  # loads of a point
NEAR = 8  # elements: a stride whose vectors share their cache lines with few others
LONG_ROW = 1 << 14  # elements of a row that no block holds
# Elements of rows that a CPU walks down quicker than along: in which a place is looked for; and,
# where their ends leave part of a vector idle, of which an extreme is wanted, and others.
PLACES, EXTREMES, ENDS = 64, 36, 16


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: its index, the bytes that it moves of an element.

    through: loops that data depends on which decides where; None where none does.  share: of all
    points, those at which it is made, as far as masks of single loops say.  beside: elements that
    lie one behind the other and that a point moves all, this one among them.
    """

    index: Expr
    bytes: int
    is_store: bool
    through: frozenset[Expr] | None = None
    share: float = 1.0
    beside: int = 1


@dataclass(frozen=True, slots=True)
class Tiling:
    """The loops of a kernel: see ``KernelPlan`` for lane and tile; the parallel ones in order."""

    lane: Expr | None
    tile: Expr | None
    parallel: tuple[Expr, ...]


def accesses_of(stores: Sequence[Store], sizes: Mapping[str, int]) -> list[Access]:
    """The distinct accesses that stores and their values make.

    sizes: bytes of an element of each buffer that counts; accesses of others are left out.
    """
    out: dict[tuple[str, Expr], Access] = {}
    shares = _shares(roots(stores))
    for n in walk(roots(stores)):
        if isinstance(n, Load) and n.buffer in sizes:
            at, share = (n.buffer, n.index), shares.get(n, 1.0)
            out.setdefault(at, Access(n.index, n.dtype.bytes, False, _through(n), share))
    for s in stores:
        if s.buffer in sizes:
            size = sizes[s.buffer] * (1 if s.mode == "set" else 2)  # an update reads as well
            out[s.buffer, s.index] = Access(s.index, size, True, _through(s))
    for stored in (False, True):
        for run in runs([at for at, a in out.items() if a.is_store == stored]):
            for at in run:
                if not out[at].through:
                    out[at] = replace(out[at], beside=len(run))
    return list(out.values())


def runs(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Places of a buffer that lie one behind the other, two at least; all are distinct."""
    several = Counter(buffer for buffer, _ in places)
    known = {at for at in places if several[at[0]] > 1}
    for buffer, index in places:
        if (buffer, index) in known and (buffer, index - 1) not in known:
            run = [(buffer, index)]
            while (after := (buffer, index + len(run))) in known:
                run.append(after)
            if len(run) > 1:
                yield run


def _through(n: Load | Store) -> frozenset[Expr] | None:
    return frozenset(v for _, data in n.indirect for v in data.vars) if n.indirect else None


def _shares(nodes: Sequence[Node]) -> dict[Node, float]:
    """At which part of all points a node is computed, by the masks that guard it.

    Empty where half of the points load something: loads weigh as much as stores there.
    """
    if not any(isinstance(n, Masked) for n in walk(nodes)):
        return {}
    found: dict[Node, float] = {}
    stack = [(n, 1.0) for n in nodes]
    while stack:
        n, share = stack.pop()
        if found.get(n, 0.0) < share:
            found[n] = share
            below = share * _part(n.args[0]) if isinstance(n, Masked) else share
            stack += [(a, below if i == 1 else share) for i, a in enumerate(n.args)]
    loads = sum(share for n, share in found.items() if isinstance(n, Load))
    return found if loads < FEW else {}


def _part(cond: Node) -> float:
    """The part of all points at which a condition holds; 1 of what is no bound of a single loop."""
    part = 1.0
    for c in filter(is_comparison, conjuncts(cond)):
        e = as_index(c.args[0]) - as_index(c.args[1])
        loops = [v for v in e.free if isinstance(v, Var)]
        step = coefficient(e, loops[0]) if len(loops) == 1 else None
        if isinstance(step, Const) and step.value:
            size = max(extent_of(loops[0]), 1)
            zero = -size_hint(e - loops[0] * step, default=0) / step.value
            low = min(max(zero / size, 0.0), 1.0)
            part *= low if (c.name in ("lt", "le")) == (step.value > 0) else 1 - low
    return part


def choose_tiling(
    axes: Sequence[Expr], reduced: Sequence[Expr], accesses: Sequence[Access]
) -> Tiling:
    """Lane and tile of a kernel, and its parallel loops in order.

    axes, reduced: the parallel and the reduced loops.
    """
    lane = choose_lane(axes, reduced, accesses)
    tile = choose_tile(axes, reduced, accesses, lane)
    return Tiling(lane, tile, loop_order(axes, accesses, lane, tile))


def extent_of(v: Expr) -> int:
    return size_hint(v.extent, default=DEFAULT_SIZE)  # type: ignore[attr-defined]


def _touched(a: Access, loops: Sequence[Expr]) -> float:
    """Bytes that the access touches over the loops that its index depends on."""
    total = a.bytes * a.share
    for v in loops:
        if v in a.index.free or (a.through and v in a.through):
            total *= extent_of(v)
    return total


def _stride(a: Access, v: Expr) -> int | None:
    """Elements between neighbours along ``v``; None where that is no constant.

    1 where those between are moved as well: interleaved results, parts of complex numbers.
    """
    if a.through and v in a.through:
        return None
    if v not in a.index.free:
        return 0
    c = coefficient(a.index, v)
    if not isinstance(c, Const):
        return None
    return 1 if 1 < c.value <= a.beside else c.value


def lane_score(
    v: Expr, loops: Sequence[Expr], accesses: Sequence[Access], divided: float = ANY_STRIDE
) -> float:
    """Bytes that vectorising ``v`` makes contiguous, less for what would leave lanes idle.

    divided: what an access is worth that divides ``v``.
    """
    score = 0.0
    for a in accesses:
        stride = _stride(a, v)
        if stride == 0:
            continue
        size = _touched(a, loops)
        if stride in (1, -1):
            score += size
        elif stride is not None and abs(stride) <= NEAR:
            score += size * SMALL_STRIDE
        else:
            divides = not a.through and coefficient(a.index, v) is None
            score += size * (divided if divides else ANY_STRIDE)
    return score * min(1.0, extent_of(v) / FULL_VECTOR)


def best_score(
    loops: Sequence[Expr], accesses: Sequence[Access], divided: float = ANY_STRIDE
) -> float:
    """Bytes that vectorising the chosen of ``loops`` makes contiguous (see ``lane_score``)."""
    lane = choose_lane(loops, (), accesses)
    return 0.0 if lane is None else lane_score(lane, loops, accesses, divided)


def choose_lane(
    axes: Sequence[Expr], reduced: Sequence[Expr], accesses: Sequence[Access]
) -> Expr | None:
    """The loop to vectorise: the one that makes most bytes contiguous; None without loops."""
    loops = (*axes, *reduced)
    if not loops:
        return None
    best: Expr | None = None
    best_score = -1.0
    for v in loops:
        score = lane_score(v, loops, accesses)
        if score >= best_score:
            best, best_score = v, score
    return best


def choose_tile(
    axes: Sequence[Expr], reduced: Sequence[Expr], accesses: Sequence[Access], lane: Expr | None
) -> Expr | None:
    """A second loop that is contiguous where the lane is not, if one saves strided bytes."""
    if lane is None or reduced or lane not in axes:
        return None
    loops = tuple(axes)
    best: Expr | None = None
    best_score = 0.0
    for v in axes:
        if v is lane or not _is_long(v):
            continue
        score = sum(
            _touched(a, loops)
            for a in accesses
            if a.through is None and _stride(a, v) == 1 and _stride(a, lane) not in (0, 1)
        )
        if score > best_score:
            best, best_score = v, score
    return best


def filled(t: Tiling, accesses: Sequence[Access]) -> Tiling:
    """With a short loop behind another where that fills the gaps between what this one stores.

    Blocks over both store without gaps.  What they load comes in a few streams, or else the lane of
    the loads becomes the tile.
    """
    if t.lane not in t.parallel:
        return t
    for v, short in _filling(t.parallel, [a for a in accesses if a.is_store]):
        if t.tile is not None and v not in (t.lane, t.tile):
            continue
        across = t.tile if v is t.lane else t.lane
        rest = tuple(x for x in t.parallel if x not in (short, v, across))
        if across is None:
            return Tiling(short, None, (*rest, v, short))
        if short is not across and _is_long(v):
            return Tiling(short, across, (*rest, across, v, short))
    return t


def _is_long(v: Expr) -> bool:
    """Whether a loop fills enough of a vector to be a side of a tile."""
    return extent_of(v) >= FULL_VECTOR // 2


def _filling(loops: Sequence[Expr], accesses: Sequence[Access]) -> Iterator[tuple[Expr, Expr]]:
    """Loops that step over all that a short one goes through, with that one."""
    for short in loops if accesses else ():
        size = short.extent.value if isinstance(short.extent, Const) else 0  # type: ignore[attr-defined]
        if 1 < size <= NEAR and all(_stride(a, short) == 1 for a in accesses):
            for v in loops:
                if v is not short and all(_stride(a, v) == size for a in accesses):
                    yield v, short


def across(t: Tiling, reduced: Sequence[Expr], accesses: Sequence[Access]) -> Tiling:
    """With lanes across long rows, where as many bytes are contiguous across them as along.

    A block across rows goes along them as well, and makes both kinds of accesses in whole lines;
    one that has a single row does not.
    """
    loops, long = (*t.parallel, *reduced), prod(map(extent_of, reduced)) > LONG_ROW
    if t.lane is None or t.lane not in reduced or not t.parallel or not long:
        return t
    lane = max(t.parallel, key=lambda v: lane_score(v, loops, accesses))
    if lane_score(lane, loops, accesses) < lane_score(t.lane, loops, accesses):
        return t
    return Tiling(lane, None, loop_order(t.parallel, accesses, lane))


def beside(t: Tiling, reduced: Sequence[Expr], accesses: Sequence[Access], longest: int) -> Tiling:
    """With lanes across short rows that lie one behind the other, on a CPU.

    A vector of rows then goes over cache lines that the first of its elements have fetched.
    longest: PLACES, EXTREMES or ENDS, by what is reduced.
    """
    if len(reduced) != 1 or t.lane is not reduced[0]:
        return t
    size = t.lane.extent  # type: ignore[attr-defined]
    along = [a for a in accesses if _stride(a, t.lane) != 0]
    if not isinstance(size, Const) or any(_stride(a, t.lane) != 1 for a in along):
        return t
    if longest < PLACES and size.value % (FULL_VECTOR // 2) == 0:
        return t
    if any(a.is_store for a in along):  # each element of a vector is written by itself
        longest //= 3
    for v in t.parallel if size.value <= longest else ():
        if _is_long(v) and {_stride(a, v) for a in along} in ({size.value}, {0, size.value}):
            return Tiling(v, None, loop_order(t.parallel, accesses, v))
    return t


def loop_order(
    loops: Sequence[Expr],
    accesses: Sequence[Access],
    lane: Expr | None,
    tile: Expr | None = None,
) -> tuple[Expr, ...]:
    """Loops from the largest stride to the smallest, to walk memory forward; lane last."""

    def key(v: Expr) -> tuple[int, float, int]:
        weight = 0.0
        for a in accesses:
            if v in a.index.free:
                c = coefficient(a.index, v)
                stride = size_hint(c, default=DEFAULT_SIZE) if c is not None else 1
                weight += a.bytes * a.share * abs(stride)
        last = 2 if v is lane else 1 if v is tile else 0
        return (last, -weight, loops.index(v))

    return tuple(sorted(loops, key=key))
