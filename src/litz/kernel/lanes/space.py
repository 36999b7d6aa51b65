"""From a plan to what the loop builder works on: dims in loop order, reductions rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import (
    Expr,
    Symbol,
    Var,
    coefficient,
    const,
    divides,
    product,
    size_hint,
    split_linear,
)
from litz.ir.body import Load, Reduce, Store, scans, walk
from litz.ir.masks import open_reduces
from litz.kernel.moments import simplify
from litz.kernel.nodes import extent, int_value, reduce_levels, roots
from litz.kernel.plan import KernelPlan

CACHED = 1 << 18  # bytes that several passes may walk over
NARROW = 64  # lanes at least of a block, where a pass runs down columns


@dataclass(frozen=True, slots=True)
class Space:
    """The iteration space of a plan in the order of its loops.

    units: parallel dims that threads may divide; serial: parallel dims that one thread must walk
    alone, because stores meet across them; reduced: the reduced dims, outermost first, or parallel
    ones that run inside of the lane's loop, over which nothing is reduced.
    lane: the vectorised dim, if any; it comes last in its list.
    """

    units: tuple[Expr, ...] = ()
    serial: tuple[Expr, ...] = ()
    reduced: tuple[Expr, ...] = ()
    lane: Expr | None = None


def reductions_of(stores: Sequence[Store]) -> tuple[Reduce, ...]:
    """Those that may run before what needs them, by how many have to run before each."""
    levels = reduce_levels(roots(stores))
    return tuple(sorted(open_reduces(roots(stores)), key=lambda n: levels[n]))


def prepare(plan: KernelPlan) -> tuple[KernelPlan, Space]:
    """The plan with mean and deviations as two sums where that is better, and its space."""
    # A scan begins with a row, not with a chunk of it.
    stores = simplify(plan.stores, lambda n: in_cache(n, plan.lane) or bool(scans(n.args)))
    reduces = [n for n in walk(roots(stores)) if isinstance(n, Reduce)]
    order = reduction_order(plan.reduced, reduces)
    lane = plan.lane if order is not None else None
    if lane is not None and lane not in plan.parallel and lane not in plan.reduced:
        raise ValueError(f"lane {lane} is not a dim of the plan")
    parallel = _last(plan.parallel, lane)
    apart = separate(stores, parallel)
    units = tuple(v for v in parallel if v in apart)
    serial = tuple(v for v in parallel if v not in apart)
    reduced = _last(order or plan.reduced, lane) if _free_order(reduces, lane) else order
    return replace(plan, stores=stores), Space(units, serial, reduced or plan.reduced, lane)


def read_order(space: Space, stores: Sequence[Store]) -> tuple[Expr, ...]:
    """The units in the order in which memory has what is read; as they are where reads disagree.

    Lines that are written past the caches may come in any order, those that are read should not.
    What is the same along a dim is small, and counts for nothing.
    """
    outer = [v for v in space.units if v is not space.lane]
    orders: set[tuple[Expr, ...]] = set()
    for n in walk(roots(stores)):
        if isinstance(n, Load) and (n.indirect or set(outer) <= set(n.vars)):
            steps = {v: coefficient(n.index, v) for v in outer}
            known = {v: -int_value(c) for v, c in steps.items() if c is not None and c.is_const}
            if n.indirect or len(known) < len(outer):
                return space.units
            orders.add(tuple(sorted(outer, key=known.__getitem__)))
    return (*orders.pop(), *space.units[len(outer) :]) if len(orders) == 1 else space.units


def in_cache(n: Reduce, lane: Expr | None) -> bool:
    """Whether what a reduction walks over stays in the cache for a second pass."""
    if lane is None:
        return True
    row = sum(a.dtype.bytes for a in walk(n.args) if isinstance(a, Load)) or 4
    if lane not in n.axes:
        row *= NARROW
    size = product(extent(v) for v in n.axes)
    return size_hint(size, NARROW) * row <= CACHED


def _last(dims: Sequence[Expr], lane: Expr | None) -> tuple[Expr, ...]:
    """``dims`` with the lane dim innermost."""
    if lane is None or lane not in dims:
        return tuple(dims)
    return (*(v for v in dims if v is not lane), lane)


def _free_order(reduces: Sequence[Reduce], lane: Expr | None) -> bool:
    """Whether the lane may go innermost: no reduction over other dims runs inside it."""
    return all(lane not in r.vars for r in reduces)


def reduction_order(dims: tuple[Expr, ...], reduces: Sequence[Reduce]) -> tuple[Expr, ...] | None:
    """``dims`` so that every reduction's free dims come before the dims it reduces.

    None where no order does: then a reduction runs inside a loop over its own dims.
    """
    before: dict[Expr, set[Expr]] = {v: set() for v in dims}
    for r in reduces:
        outer = [v for v in r.vars if v in before]
        for a in r.axes:
            before[a].update(outer)
    out: list[Expr] = []
    while len(out) < len(dims):
        ready = [v for v in dims if v not in out and before[v] <= set(out)]
        if not ready:
            return None
        out.append(ready[0])
    return tuple(out)


# --- dims across which stores never meet ----------------------------------------------------------


def separate(stores: Sequence[Store], parallel: Sequence[Expr]) -> tuple[Expr, ...]:
    """The parallel dims that threads may divide, whatever the other dims and data do."""
    keep = tuple(parallel)
    for s in stores:
        if s.mode != "set" or s.indirect:
            apart = separated_by(s, keep)
            keep = tuple(v for v in keep if v in apart)
    return keep


def separated_by(s: Store, dims: Sequence[Expr]) -> tuple[Expr, ...]:
    """Dims such that two iterations which differ in them store to different elements.

    The index must be ``high + rest + low``: the strides of the low dims span less than every
    stride in the rest, and the rest spans less than the strides of the high dims.
    """
    strides: dict[Expr, int] = {}
    for v in dims:
        c = coefficient(s.index, v)
        if c is not None and c.is_const and int_value(c) > 0:
            strides[v] = int_value(c)
    terms = _rest_terms(s, strides)
    if terms is None:
        return tuple(v for v in dims if _apart_in_rows(s, v))[:1]
    ordered = sorted(strides, key=lambda v: strides[v])
    # A dim of unknown size can only be the highest; below another it is like data.
    for v in [v for v in ordered[:-1] if not extent(v).is_const]:
        terms.append(_Term(strides.pop(v), None))
    low = _low([v for v in ordered if v in strides], strides, terms)
    high = _high([v for v in ordered if v in strides and v not in low], strides, terms, low)
    return tuple(v for v in dims if v in low or v in high)


def _apart_in_rows(s: Store, v: Expr) -> bool:
    """Whether ``v`` counts the elements of rows of its own size, symbolic or not."""
    data = [sym for sym, _ in s.indirect]
    split = split_linear(s.index, [w for w in s.index.free if isinstance(w, Var) or w in data])
    if split is None:
        return False
    steps, rest = split
    others = [c for w, c in steps.items() if w is not v]
    whole = all(divides(extent(v), c) for c in [*others, rest])
    return steps.get(v) is const(1) and whole


def _span(dims: Iterable[Expr], strides: dict[Expr, int]) -> int:
    return sum(strides[v] * (int_value(extent(v)) - 1) for v in dims)


@dataclass(frozen=True, slots=True)
class _Term:
    """``stride * symbol``; reach: the largest value it takes, None where unknown or negative."""

    stride: int
    reach: int | None


def _rest_terms(s: Store, strides: dict[Expr, int]) -> list[_Term] | None:
    """The terms of the index in other dims and in data, or None if it is not linear in them."""
    rest = s.index
    for v, c in strides.items():
        rest = rest - v * c
    data = [sym for sym, _ in s.indirect]
    terms: list[_Term] = []
    for v in rest.free:
        if isinstance(v, Symbol) and v not in data:
            continue
        stride = coefficient(rest, v)
        if stride is None or not stride.is_const:
            return None
        step = int_value(stride)
        known = v.lo is not None and v.lo >= 0 and v.hi is not None and step > 0
        terms.append(_Term(abs(step), step * v.hi if known and v.hi is not None else None))
    return terms


def _low(ordered: list[Expr], strides: dict[Expr, int], terms: list[_Term]) -> list[Expr]:
    floor = min((t.stride for t in terms), default=None)
    if floor is None or any(t.stride % floor for t in terms):
        return []
    out: list[Expr] = []
    for v in ordered:
        if not extent(v).is_const or strides[v] <= _span(out, strides):
            break
        if _span([*out, v], strides) >= floor:
            break
        out.append(v)
    return out


def _high(
    ordered: list[Expr], strides: dict[Expr, int], terms: list[_Term], low: list[Expr]
) -> list[Expr]:
    reach = _span(low, strides)
    for t in terms:
        if t.reach is None:
            return []
        reach += t.reach
    out: list[Expr] = []
    for v in ordered:
        if strides[v] > reach:
            out.append(v)
        if not extent(v).is_const:
            break
        reach += strides[v] * (int_value(extent(v)) - 1)
    return out
