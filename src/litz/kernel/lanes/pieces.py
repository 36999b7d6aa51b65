"""Where the loop along the lane is cut, so that each piece is simple: borders apart from the rest.

An index that is reflected, clamped or wrapped around at a border, and a mask that holds within
borders, turn at few places of the lane.  Between them indices step evenly and masks are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Const as Number
from litz.index import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Substitution,
    coefficient,
    const,
    product,
    size_hint,
    var,
)
from litz.ir.body import Op, Reduce, Rewriter, Scan, Store, walk
from litz.ir.unfold import index_exprs
from litz.kernel.lanes.access import access, uniform
from litz.kernel.lanes.neighbours import unordered
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import as_index, extent, int_value, is_comparison, roots
from litz.kernel.phases import Phases, normalised
from litz.kernel.plan import KernelPlan
from litz.kernel.unfold import settled

MOST = 7  # pieces: each has the whole body
SHORT = 4  # places that one part of a vector takes as well
ROWS = 64  # that are enough for threads to divide
LONG = 1 << 14  # places of a row that are worth dividing where there are fewer rows
WRAPS = 2  # turns of one division


@dataclass(frozen=True, slots=True)
class Piece:
    """What the lane's loop does from ``start`` on, over ``var``; None for a single place."""

    start: int
    var: Expr | None
    stores: tuple[Store, ...]


def pieces(stores: Sequence[Store], lane: Expr, cuts: Sequence[int]) -> list[Piece]:
    """The loop along ``lane`` in pieces that begin at ``cuts`` and at 0."""
    found = []
    starts = (0, *cuts)
    for k, (start, stop) in enumerate(zip(starts, (*cuts, int_value(extent(lane))), strict=True)):
        v = var(f"{lane}p{k}", stop - start) if stop - start > 1 else None
        within = Rewriter(Substitution({lane: const(start) if v is None else v + start}), settled)
        found.append(Piece(start, v, tuple(within.store(s) for s in stores)))
    return found


def divide(plan: KernelPlan, space: Space, lanes: int) -> Phases | None:
    """A kernel for each piece of a loop, where one for all would not do.

    Threads divide the lane of few long rows.  Tiles are turned in registers where indices step
    evenly along both sides.  A short row goes on in the next where the loop around it does.
    """
    lane = space.lane
    if lane is None or space.serial or space.reduced:
        return None
    sides = (lane, plan.tile) if plan.tile is not None else (lane,) if _few(space, lane) else ()
    if sides:
        plans = [plan]
        for v in sides:
            plans = [q for p in plans for q in _cut(p, space, v, lanes) or (p,)]
        return Phases(tuple(plans), ()) if 1 < len(plans) <= MOST**2 else None
    short = [v for v in space.units if size_hint(extent(v)) < 2 * lanes]
    for v in space.units:
        if short and v not in short:
            plans = _cut(plan, space, v, lanes)
            most = max(plans, key=_points, default=plan)
            if len(most.dims) < len(plan.dims):
                return Phases(tuple(plans), ())
    return None


def _points(plan: KernelPlan) -> int:
    return size_hint(product(extent(v) for v in plan.parallel))


def _cut(plan: KernelPlan, space: Space, v: Expr | None, lanes: int) -> list[KernelPlan]:
    """A plan for each piece of a loop, with loops merged where they may; none without cuts."""
    units = plan.parallel
    if v is None or v not in units:
        return []
    found = cuts(plan.stores, replace(space, units=units, lane=v), lanes)
    plans = []
    for p in pieces(plan.stores, v, found) if found else ():
        loops = [p.var if u is v else u for u in units]
        left = tuple(u for u in loops if u is not None)
        plans.append(normalised(plan, (), left, (), p.stores))
    return plans


def _few(space: Space, lane: Expr) -> bool:
    rows = product(extent(v) for v in space.units if v is not lane)
    return lane in space.units and size_hint(rows) < ROWS and size_hint(extent(lane)) > LONG


def cuts(stores: Sequence[Store], space: Space, lanes: int) -> tuple[int, ...]:
    """Where indices and masks turn along the lane; none where that is nowhere, or not worth it."""
    lane = space.lane
    if lane is None or lane not in space.units or not extent(lane).is_const:
        return ()
    size = int_value(extent(lane))
    if size < SHORT or _keeps(stores):
        return ()
    uneven = any(
        access(e, lane, lanes).kind in ("near", "any") and any(_at(e, lane))
        for e in index_exprs(tuple(stores))
    )
    if not uneven and (size < 2 * lanes or not _masked(stores, lane, lanes)):
        return ()
    found: tuple[int, ...] = ()
    while True:
        new = set(found)
        for p in pieces(stores, lane, found):
            if p.var is not None:
                new |= {p.start + at for at in _places(p.stores, p.var)}
        if len(new) >= MOST:
            return ()
        if len(new) == len(found):
            return found
        found = tuple(sorted(new))


def unordered_loops(
    stores: Sequence[Store], lane: Expr | None, cuts: Sequence[int]
) -> tuple[int, ...]:
    """The loops along ``lane``, cut, whose lanes may lie in whatever order, by number."""
    if lane is None or not cuts:
        return (0,) if unordered(stores, lane) else ()
    loops = enumerate(pieces(stores, lane, cuts))
    return tuple(k for k, p in loops if unordered(p.stores, p.var))


def _keeps(stores: Sequence[Store]) -> bool:
    """Whether something lasts along the lane, or stores meet."""
    held = any(isinstance(n, Reduce | Scan) for n in walk(roots(stores)))
    return held or any(s.mode != "set" or s.indirect for s in stores)


def _masked(stores: Sequence[Store], lane: Expr, lanes: int) -> bool:
    """Whether a mask begins or ends within vectors."""
    return any(
        lane in n.vars and not uniform(n, lane, lanes) and any(_compared(n, lane))
        for n in filter(is_comparison, walk(roots(stores)))
    )


def _places(stores: tuple[Store, ...], lane: Expr) -> Iterator[int]:
    for e in index_exprs(stores):
        yield from _at(e, lane)
    for n in walk(roots(stores)):
        if is_comparison(n) and lane in n.vars:
            yield from _compared(n, lane)


def _at(e: Expr, lane: Expr) -> Iterator[int]:
    """Where the maxima, minima and divisions in an index turn, whose arguments step evenly."""
    stack = [e]
    while stack:
        part = stack.pop()
        if lane not in part.free:
            continue
        stack.extend(part.children())
        if isinstance(part, Max | Min):
            for i, a in enumerate(part.args):
                for b in part.args[:i]:  # equal at a place, which goes to the middle
                    for at in _signs(a - b, lane, False):
                        late = 2 * at > int_value(extent(lane))
                        yield from _signs(a - b, lane, True) if late else (at,)
        elif isinstance(part, FloorDiv | Mod) and isinstance(part.den, Number):
            yield from _wraps(part.num, part.den.value, lane)


def _wraps(num: Expr, den: int, lane: Expr) -> Iterator[int]:
    line = _line(num, lane)
    if line is None or den < 1:
        return
    step, start = line
    ends = sorted((start // den, (start + step * (int_value(extent(lane)) - 1)) // den))
    if ends[1] - ends[0] <= WRAPS:
        for turn in range(ends[0] + 1, ends[1] + 1):
            yield from _signs(num - turn * den, lane, step < 0)


def _compared(n: Op, lane: Expr) -> Iterator[int]:
    """Where a comparison of indices changes."""
    less = as_index(n.args[0]) - as_index(n.args[1])
    line = _line(less, lane)
    if line is not None:
        yield from _signs(less, lane, (n.name in ("le", "gt")) == (line[0] > 0))


def _signs(e: Expr, lane: Expr, beyond: bool) -> Iterator[int]:
    """The first place at which ``e`` has reached zero, or is beyond it."""
    line = _line(e, lane)
    if line is None:
        return
    step, start = line
    if step < 0:
        step, start = -step, -start
    at = -start // step + 1 if beyond else -(start // step)
    if 0 < at < int_value(extent(lane)):
        yield at


def _line(e: Expr, lane: Expr) -> tuple[int, int] | None:
    """``step``, not 0, and ``start`` of an index that is step * lane + start."""
    step = coefficient(e, lane)
    if step is None or not isinstance(step, Number) or step is const(0):
        return None
    start = e - lane * step
    return (step.value, start.value) if isinstance(start, Number) else None
