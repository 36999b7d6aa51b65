"""From a plan to its recipe in lanes."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, Var, product, size_hint
from litz.ir.body import Load, Node, Reduce, Store, walk
from litz.ir.masks import open_reduces
from litz.kernel.lanes import phases, regroup
from litz.kernel.lanes.recipe import Form, LanePlan, LaneRecipe
from litz.kernel.lanes.reuse import worth_keeping
from litz.kernel.lanes.space import Space, prepare
from litz.kernel.nodes import (
    extent,
    int_value,
    loops_of,
    mergeable,
    over_all,
    reduce_levels,
    roots,
)
from litz.kernel.plan import KernelPlan

TILES = 64, 64  # rows and lanes of a block of tiles
WIDEST = 4096  # lanes of a block that is walked once: whole rows, where they stream best
CACHED = 1 << 18  # bytes of a block that several passes walk over
STACK = 1 << 18  # bytes that accumulators may take
SHORT = 8  # rows that are walked down one vector at a time
STREAM = 1 << 25  # bytes of a result that is written past the caches
FEW = 48  # points that are too few to occupy threads
FEW_COLUMNS = 1 << 14  # lanes whose rows are better read whole by each thread
LONG = 256  # iterations that are worth dividing


def choose(plan: KernelPlan, lanes: int) -> LaneRecipe:
    """One kernel, or several phases.  lanes: f32 elements in a vector register."""
    lanes = width(plan, lanes)
    space = prepare(plan)
    several = regroup.divide(plan) or phases.divide(plan, space)
    if several is None:
        return LaneRecipe(plan, (in_lanes(plan, space, lanes),))
    kernels = tuple(in_lanes(p, prepare(p), lanes) for p in several.plans)
    return LaneRecipe(plan, kernels, several.temps, several.points)


def width(plan: KernelPlan, lanes: int) -> int:
    """Lanes of a plan's vectors: 8 or 16, fewer where all elements have 8 bytes."""
    narrow = any(p.dtype.bits < 64 for p in plan.params) or any(
        n.dtype.bits in (16, 32) for n in walk(roots(plan.stores))
    )
    return max(8, lanes if narrow else lanes // 2)


def in_lanes(plan: KernelPlan, space: Space, lanes: int) -> LanePlan:
    """One plan as one kernel.  space: of its loops; lanes: the width of every vector."""
    form = _form(plan, space)
    reduces = open_reduces(roots(space.stores))
    block = TILES if form == "tiles" else (_block(space, lanes),) if form == "columns" else ()
    return LanePlan(
        plan,
        space,
        form,
        lanes,
        block,
        _divided(space),
        _kept(space, reduces, lanes),
        frozenset(s for s in space.stores if _streams(plan, s)),
    )


def _form(plan: KernelPlan, space: Space) -> Form:
    lane, tile = space.lane, plan.tile
    if lane is None:
        return "rows"
    if tile is not None and not space.reduced and {lane, tile} <= set(space.units):
        return "tiles"
    # Columns long enough for blocks of lanes.
    rows = product(extent(v) for v in space.reduced)
    short = rows.is_const and int_value(rows) <= SHORT
    return "columns" if space.reduced and lane not in space.reduced and not short else "rows"


def _block(space: Space, lanes: int) -> int:
    """Lanes of a block: many for one pass, fewer where several passes share the cache."""
    levels = reduce_levels(roots(space.stores))
    reduces = [n for n in levels if isinstance(n, Reduce)]
    full = [s for s in space.stores if loops_of(s, space.reduced)]
    passes = 1 + max((levels[n] for n in reduces), default=-1)
    passes += any(max(levels[n] for n in s.roots()) + 1 >= passes for s in full)
    step = 4 * lanes
    widest = max(step, min(WIDEST, STACK // (12 * max(len(reduces), 1)) // step * step))
    if passes == 1:
        return widest
    rows = product(extent(v) for v in space.reduced)
    row = sum(n.dtype.bytes for n in levels if isinstance(n, Load)) or 4
    most = CACHED // (row * int_value(rows)) if rows.is_const and int_value(rows) else 256
    return max(step, min(widest, most // step * step))


def _kept(space: Space, reduces: Sequence[Reduce], lanes: int) -> tuple[Node, ...]:
    reduced, lane = space.reduced, space.lane
    if lane is None or lane not in reduced or not reduces:
        return ()
    if any(set(n.axes) != set(reduced) for n in reduces):
        return ()
    full = [s for s in space.stores if loops_of(s, reduced)]
    return worth_keeping(full, reduces, reduced, lane, lanes)


def _streams(plan: KernelPlan, s: Store) -> bool:
    """Whether what is stored is too large to be in the cache when it is read again."""
    size = product(extent(v) for v in s.index.free if isinstance(v, Var))
    if s.mode != "set" or s.mask is not None or s.indirect or not size.is_const:
        return False
    known = {p.name: p.mode for p in plan.params}
    return known.get(s.buffer) == "out" and int_value(size) * s.value.dtype.bytes >= STREAM


def _divided(space: Space) -> Expr | None:
    """The reduced dim that threads divide, or None where the parallel dims serve better."""
    if space.serial or not space.reduced:
        return None
    reduces = [n for n in walk(roots(space.stores)) if isinstance(n, Reduce)]
    if not _one_pass(space, reduces):
        return None
    if not reduces or any(set(n.axes) != set(space.reduced) for n in reduces):
        return None
    if any(isinstance(a, Reduce) for n in reduces for a in walk(n.args)):
        return None
    points = size_hint(product(extent(v) for v in space.units))
    across = space.lane is not None and space.lane in space.units
    if points > (FEW_COLUMNS if across else FEW):
        return None
    sizes = [size_hint(extent(v)) for v in space.reduced]
    best = next((i for i, n in enumerate(sizes) if n >= LONG), sizes.index(max(sizes)))
    return space.reduced[best] if sizes[best] >= LONG else None


def _one_pass(space: Space, reduces: Sequence[Reduce]) -> bool:
    """Whether the stores of the full space, if any, run along with the reductions."""
    full = [s for s in space.stores if loops_of(s, space.reduced)]
    if not full:
        return True
    flat = [s for s in space.stores if s not in full]
    same = len({space.lane in n.vars for n in reduces}) == 1
    # What a unit leaves unchanged is reduced outside of its loop, where no store can join.
    every = all(set(space.units) <= set(n.vars) for n in reduces)
    return (
        same
        and every
        and not any(n.row.counts for n in reduces)
        and all(s.mode == "set" and over_all(s, space.reduced) for s in full)
        and not any(isinstance(n, Reduce) for n in walk(roots(full)))
        and len(mergeable(full, roots(flat))) == len(full)
    )
