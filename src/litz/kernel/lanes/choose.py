"""From a plan to its recipe in lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, Var, coefficient, const, divides, product, size_hint, split_linear
from litz.ir.body import Const, Load, Node, Op, Reduce, Store, walk
from litz.ir.ops import op as op_row
from litz.ir.scans import scans_of, sorts_of
from litz.ir.updates import Parts
from litz.kernel.lanes import attention, nests, phases, pieces, regroup, stored, turn, updates
from litz.kernel.lanes.access import Move, move, turned
from litz.kernel.lanes.cuts import Cuts
from litz.kernel.lanes.fetch import LINE, ROW, fetches, fetches_of_updates
from litz.kernel.lanes.inside import gathers, inside
from litz.kernel.lanes.recipe import STREAM, Form, LanePlan, LaneRecipe
from litz.kernel.lanes.reuse import worth_keeping
from litz.kernel.lanes.signs import in_bits
from litz.kernel.lanes.space import NARROW, Space, prepare, read_order, reductions_of
from litz.kernel.lanes.sums import sums_with_erf
from litz.kernel.nodes import below, extent, int_value, loops_of, over_all, roots
from litz.kernel.passes import Pass, passes_of
from litz.kernel.phases import Phases
from litz.kernel.plan import KernelPlan
from litz.kernel.scans import can_divide, part_of
from litz.kernel.scans import divide as divide_scans

TILES = 64, 64  # rows and lanes of a block of tiles
STREAMED_TILES = 32, 128  # of one whose lines go past the caches: down the rows first
MOVED = 1 << 9, 1 << 8  # bytes that such a block writes of a row, rows of it: nothing is computed
MOVED_LEAST = 1 << 6  # rows of it where there would be fewer blocks than ``MANY_BLOCKS``
MANY_BLOCKS = 1 << 8
WIDEST = 4096  # lanes of a block that is walked once: whole rows, where they stream best
CACHED = 1 << 18  # bytes of a block that several passes walk over
STACK = 1 << 18  # bytes that accumulators may take
SHORT = 8  # rows that are walked down one vector at a time
TILED = 1 << 22  # the same where neighbouring rows' lines are written: none is fetched ahead
FEW = 48  # points that are too few to occupy threads
FEW_COLUMNS = 1 << 14  # lanes whose rows are better read whole by each thread
UNITS = 32  # vectors in a part of a divided lane dim
SCALAR = 8  # how much longer an element takes outside of vectors
LONG = 256  # iterations that are worth dividing
FEW_ROWS = 12  # that are too few for threads
SHORT_ROW = 1 << 10  # elements of a row that no thread shares
LONG_RUN = 1 << 10  # bytes along the lane that are worth a beginning of their own
LONG_ROW = 1 << 17  # elements of a row that is worth scanning in parts
PART = 1 << 14  # elements of such a part
FUNCTION = 8  # additions that are worth a call
MANY = 1 << 14  # points for which the second takes no longer to compile than it saves
PAIRED = 64  # additions of two vectors that registers have room for in turn
INLINED = 1000  # additions in all functions that a body has inlined: g++ needs their square


def choose(plan: KernelPlan, lanes: int) -> LaneRecipe:
    """One kernel, or several phases.  lanes: f32 elements in a vector register."""
    plan = sums_with_erf(in_bits(plan))
    lanes = width(plan, lanes)
    if (of := updates.parts(plan)) is not None:
        return _updates(plan, of, lanes)
    if plan.skeleton is not None:
        return LaneRecipe(plan, (attention.in_lanes(plan, lanes),))
    prepared, space = prepare(plan)
    several = regroup.divide(plan) or phases.divide(prepared, space, lanes) or _scans(plan, space)
    several = several or turn.divide(prepared, space) or pieces.divide(prepared, space, lanes)
    if several is None:
        within = inside(prepared, space, lanes)
        several = stored.divide(prepared, space, lanes) if within[1] is space else None
        if several is None:
            return LaneRecipe(plan, (in_lanes(*within, lanes),))
    kernels = tuple(in_lanes(*inside(*prepare(p), lanes), lanes) for p in several.plans)
    return LaneRecipe(plan, kernels, several.temps)


def _updates(plan: KernelPlan, p: Parts, lanes: int) -> LaneRecipe:
    """Updates at places that data picks, whose stores are all a row."""
    if p.within:
        return LaneRecipe(plan, (_in_rooms(plan, p, lanes),))
    (first, rest), temps = updates.sorting(plan, p)
    return LaneRecipe(plan, (*choose(first, lanes).kernels, _sorted(rest, p, lanes)), temps)


def _in_rooms(plan: KernelPlan, p: Parts, lanes: int) -> LanePlan:
    """Row by row, in any order; updates of one are in theirs."""
    room = updates.room(plan, p)
    units = tuple(v for v in plan.parallel if v is not p.place)
    space = Space((*units, p.place), (), (), p.place)
    heads = _heads(room.last, space, (), lanes)
    whole = [_begins_whole(s, space, (), lanes) for s in room.last]
    streamed = tuple(
        i
        for i, s in enumerate(room.last)
        if _streams(plan, s, "rows", lanes) and (whole[i] or i in heads)
    )
    return LanePlan(
        plan,
        Space(units, (p.place,), plan.reduced, p.place),
        "room",
        lanes,
        _work_of_updates(plan, p, SCALAR),
        streamed=streamed,
        past=sum((_stored(room.last[i]) for i in streamed), const(0)),
        fetches=fetches_of_updates((room.number, room.value), room.over[-1], units, lanes),
        called=_called(_uses(plan)),
        heads=tuple(i for i in heads if i in streamed and not whole[i]),
    )


def _sorted(plan: KernelPlan, p: Parts, lanes: int) -> LanePlan:
    """Updates in the order of their rows: threads divide these, or each of them if it is wide."""
    units = (p.lane,) if updates.is_wide(p) else ()
    serial = tuple(v for v in plan.parallel if v not in units)
    return LanePlan(
        plan,
        Space(units, serial, plan.reduced, p.lane),
        "sorted",
        lanes,
        _work_of_updates(plan, p, 1),
        (max(updates.FEWEST, updates.STRIPE // (p.whole.dtype.bytes * lanes)),),
        streamed=tuple(range(len(plan.stores))),
        past=sum(map(_stored, plan.stores), const(0)),
        called=_called(_uses(plan)),
    )


def _work_of_updates(plan: KernelPlan, p: Parts, each: int) -> Expr:
    """each: how much longer an update takes than an element in vectors."""
    every = (*(v for v in plan.parallel if v is not p.place), *plan.reduced)
    uses, nodes = _uses(plan), walk(roots(plan.stores))
    cost = sum(count * op_row(name).cost for name, count in uses.items())
    cost += 2 * sum(isinstance(n, Load) for n in nodes) + 1
    points = product(map(extent, plan.parallel)) + each * product(map(extent, every))
    return points * cost


def _uses(plan: KernelPlan) -> Counter[str]:
    return Counter(n.name for n in walk(roots(plan.stores)) if isinstance(n, Op))


def _scans(plan: KernelPlan, space: Space) -> Phases | None:
    """Few long rows in parts that threads scan."""
    if space.serial or not can_divide(plan):
        return None
    size, rows = (
        size_hint(product(extent(v) for v in some)) for some in (space.reduced, space.units)
    )
    part = part_of(size, PART, PART, rows, 1)
    across = space.lane is not None and space.lane not in space.reduced
    return (
        divide_scans(plan, part, True)
        if rows <= FEW_ROWS and size > LONG_ROW and not across
        else None
    )


def width(plan: KernelPlan, lanes: int) -> int:
    """Lanes of a plan's vectors: as many as fill a register with the widest of its elements.

    8 at least; with 16-bit elements twice as many only where they are but moved: what computes with
    them does so in 32.  Twice as many where operations wait for each other.  No more than the lane
    dim has: a vector that is never whole costs the most.
    """
    nodes = tuple(walk(roots(plan.stores)))
    narrow = any(p.dtype.bits < 64 for p in plan.params) or any(
        n.dtype.bits in (16, 32) for n in nodes
    )
    along = [n for n in (*nodes, *(s.value for s in plan.stores)) if plan.lane in n.vars]
    moved = all(n.dtype.bits <= 16 and (isinstance(n, Load) or _in_one_step(n)) for n in along)
    wanted = 2 * lanes if moved and along else lanes if narrow else lanes // 2
    if not plan.reduced and plan.tile is None and wanted <= _paired(plan, along):
        wanted *= 2
    most = size_hint(extent(plan.lane), wanted) if plan.lane is not None else wanted
    while wanted > 8 and most < wanted:
        wanted //= 2
    return max(8, wanted)


def _in_one_step(n: Node) -> bool:
    return isinstance(n, Op) and n.name in ("bitcast", "and_", "xor")


def _paired(plan: KernelPlan, nodes: Sequence[Node]) -> int:
    """Up to how many lanes a vector has two registers; 0 where it has one.

    A function's steps follow from each other, and a processor holds few of them ready: of two
    vectors in turn each other one need not wait.  32 lanes of 16 bits take more to convert.
    """
    costs = [op_row(n.name).cost for n in nodes if isinstance(n, Op)]
    waits = FUNCTION <= max(costs, default=0) and sum(costs) <= PAIRED
    waits = waits and size_hint(product(extent(d.var) for d in plan.dims), 0) >= MANY
    return waits * (8 if any(p.dtype.bits == 16 for p in plan.params) else 16)


def in_lanes(plan: KernelPlan, space: Space, lanes: int) -> LanePlan:
    """One plan as one kernel.  space: of its loops; lanes: the width of every vector."""
    form = _form(plan, space, lanes)
    cut = pieces.cuts(plan.stores, space, lanes) if form == "rows" else ()
    if cut:
        assert space.lane is not None
        units = tuple(v for v in space.units if v is not space.lane)
        space = replace(space, units=units, serial=(*space.serial, space.lane))
    stores = plan.stores
    nodes = tuple(walk(roots(stores)))
    uses = Counter(n.name for n in nodes if isinstance(n, Op))
    reduces = reductions_of(stores)
    passes = nests.passes(stores, space, reduces)
    turned, turned_stores = _turned(plan, nodes) if form == "tiles" else ((), ())
    may_begin = _heads(stores, space, passes, lanes) if form == "rows" and not cut else ()
    heads = [i for i in may_begin if not _begins_whole(stores[i], space, cut, lanes)]
    streamed = tuple(
        i
        for i, s in enumerate(stores)
        if (i not in turned_stores or _moves_runs(plan))
        and _streams(plan, s, form, lanes)
        and (form != "rows" or _begins_whole(s, space, cut, lanes) or i in heads)
    )
    if form == "rows" and not cut and _whole_lines([stores[i] for i in streamed], space):
        space = replace(space, units=read_order(space, stores))
    if form == "rows" and not cut and _walked_whole(space):
        assert space.lane is not None
        space = replace(space, units=space.units[:-1], serial=(*space.serial, space.lane))
    if form == "columns":
        held = nests.block_values(stores, space, reduces, passes, lanes)
        kept = (*nests.lane_values(stores, space, reduces, passes, lanes), *held)
    else:
        kept, held = _kept(stores, space, reduces, passes, lanes), ()
    block: tuple[int, ...] = ()
    if form == "tiles":
        block = _tiles(plan, streamed)
    if form == "columns":
        block = (_block(stores, space, kept, len(passes), lanes, held),)
    divided = _divided(stores, space, reduces, passes)
    totals: tuple[tuple[int, int], ...] = ()
    if form == "rows" and divided is None and not kept:
        totals = nests.online(stores, space, reduces, passes)
    if totals:
        last = nests.in_order(nests.stores_of_all(stores, space), space, set(reduces))
        passes = passes_of([((0, 1),)], [()], last, stores)
    rowwise = form == "rows" and divided is None
    made = LanePlan(
        plan,
        space,
        form,
        lanes,
        _work(plan, space, uses, sum(isinstance(n, Load) for n in nodes)),
        block,
        divided,
        lanes * UNITS if divided is not None and divided is space.lane else 1,
        reduces,
        passes,
        totals,
        form == "columns" and nests.replaces_late(stores, space, passes),
        kept,
        cut,
        streamed,
        const(0) if form == "tiles" else sum((_stored(stores[i]) for i in streamed), const(0)),
        int(rowwise and _ahead(nodes, space, passes)),
        fetches(stores, space, lanes, streamed) if form == "rows" else (),
        turned,
        turned_stores,
        heads=tuple(i for i in heads if i in streamed),
        called=_called(uses),
        unordered=pieces.unordered_loops(stores, space.lane, cut) if form == "rows" else (),
    )
    return Cuts(made, nodes).chosen()


def _walked_whole(space: Space) -> bool:
    """Whether threads have enough rows, short ones, to walk along each as a whole.

    Where a part of a row may be a thread's, each vector waits for the count of those before.
    """
    *rows, last = space.units or (None,)
    enough = size_hint(product(extent(v) for v in rows if v is not None), 0) >= LONG
    return (
        last is not None and last is space.lane and enough and size_hint(extent(last)) <= SHORT_ROW
    )


def _work(plan: KernelPlan, space: Space, uses: Counter[str], loads: int) -> Expr:
    ops = sum(count * op_row(name).cost for name, count in uses.items())
    cost = ops + 2 * (loads + len(plan.stores)) + 1
    for n in sorts_of(plan.stores):
        cost += size_hint(extent(n.axis), SCALAR).bit_length() ** 2 // 2
    cost *= SCALAR if space.lane is None else 1
    return product(extent(d.var) for d in plan.dims) * cost


def _form(plan: KernelPlan, space: Space, lanes: int) -> Form:
    lane, tile = space.lane, plan.tile
    if lane is None:
        return "rows"
    if tile is not None and not space.reduced and {lane, tile} <= set(space.units):
        return "tiles"
    # Columns long enough for blocks of lanes.
    rows = product(extent(v) for v in space.reduced)
    short = rows.is_const and int_value(rows) <= SHORT or bool(sorts_of(plan.stores))
    short = short or gathers(plan, space.reduced, lane, lanes)
    return "columns" if space.reduced and lane not in space.reduced and not short else "rows"


def _block(
    stores: Sequence[Store],
    space: Space,
    kept: Sequence[Node],
    passes: int,
    lanes: int,
    held: Sequence[Node],
) -> int:
    """Lanes of a block: many for one pass, fewer where several passes share the cache.

    held: of what is kept, values of every point.
    """
    nodes = list(walk(roots(stores)))
    count = sum(isinstance(n, Reduce) for n in nodes)
    step = 4 * lanes
    own = 12 * max(count, 1) + sum(n.dtype.bytes for n in kept if n not in held)
    widest = max(step, min(WIDEST, STACK // own // step * step))
    if passes == 1:
        return widest
    rows = product(extent(v) for v in space.reduced)
    loads = [n for n in nodes if isinstance(n, Load)]
    row = sum(n.dtype.bytes for n in held or loads) or 4
    room = nests.HELD if held else CACHED
    most = room // (row * int_value(rows)) if rows.is_const and int_value(rows) else 256
    step = NARROW if held else step
    return max(step, min(widest, most // step * step))


def _kept(
    stores: Sequence[Store],
    space: Space,
    reduces: Sequence[Reduce],
    passes: Sequence[Pass],
    lanes: int,
) -> tuple[Node, ...]:
    reduced, lane = space.reduced, space.lane
    if lane is None or lane not in reduced or not reduces:
        return ()
    if any(set(n.axes) != set(reduced) for n in reduces):
        return ()
    computed = [nests.needs(p, stores, reduces) for p in passes]
    return worth_keeping(computed, reduced, lane, lanes)


def _ahead(nodes: Sequence[Node], space: Space, passes: Sequence[Pass]) -> bool:
    """Whether the next row is worth fetching while the second pass walks over this one.

    It finds all that it reads in the cache, and leaves memory idle.  Of long rows that is the last
    pass, which computes what is stored: the next one's lines wait where those behind it were.
    """
    lane = space.lane
    if len(passes) < 2 or not space.units or lane is None or lane not in space.reduced:
        return False
    loads = (n for n in nodes if isinstance(n, Load) and not n.indirect)
    width = sum(n.dtype.bytes for n in loads if {space.units[-1], lane} <= set(n.vars))
    least, most = ROW[0], nests.HELD if len(passes) == 2 else ROW[1]
    return least <= width * size_hint(product(extent(v) for v in space.reduced), 0) <= most


def _whole_lines(stores: Sequence[Store], space: Space) -> bool:
    """Whether each loop along the lane writes whole lines; there are such loops."""
    lane = space.lane
    if not stores or space.serial or lane is None or space.units[-2:-1] == ():
        return False
    widths = (s.value.dtype.bytes for s in stores)
    return space.units[-1] is lane and all(divides(LINE // w, extent(lane)) for w in widths)


def _streams(plan: KernelPlan, s: Store, form: Form, lanes: int) -> bool:
    """Whether what is stored is too large to be in the cache when it is read again.

    Tiles write a vector of each row: past the caches only whole lines.
    """
    if s.mode != "set" or s.mask is not None or s.indirect:
        return False
    known = {p.name: p.mode for p in plan.params}
    width = s.value.dtype.bytes
    if form == "tiles" and not _moves_runs(plan):
        row = coefficient(s.index, plan.tile) if plan.tile is not None else None
        if row is None or not divides(LINE // width, row) or lanes * width % LINE:
            return False
    if form == "rows" and plan.down and loops_of(s, plan.reduced) and lanes * width % LINE:
        return False  # the rest of a line is written a row of vectors later
    size = _stored(s)
    if form == "tiles" and not size.is_const:
        return False
    least = TILED if form == "tiles" else STREAM
    return known.get(s.buffer) == "out" and size_hint(size, 0) >= least


def _stored(s: Store) -> Expr:
    """Bytes that a store writes."""
    return product(extent(v) for v in s.index.free if isinstance(v, Var)) * s.value.dtype.bytes


def _move(plan: KernelPlan) -> Move | None:
    assert plan.tile is not None and plan.lane is not None
    return move(plan.stores, plan.tile, plan.lane)


def _moves_runs(plan: KernelPlan) -> bool:
    """Whether a kernel in tiles but moves, and writes enough in a row for lines that are whole."""
    moved = _move(plan)
    if moved is None:
        return False
    return size_hint(extent(moved.outer), 0) * moved.load.dtype.bytes >= MOVED[0] // 2


def _tiles(plan: KernelPlan, streamed: Sequence[int]) -> tuple[int, int]:
    """Rows and lanes of a block of tiles."""
    moved = _move(plan) if streamed else None
    if moved is None:
        return STREAMED_TILES if streamed else TILES
    run, rows = MOVED[0] // moved.load.dtype.bytes, MOVED[1]
    points = size_hint(product(extent(d.var) for d in plan.dims), 0)
    while rows > MOVED_LEAST and points < MANY_BLOCKS * run * rows:
        rows //= 2
    return (run, rows) if moved.outer is plan.tile else (rows, run)


def _begins_whole(s: Store, space: Space, cut: Sequence[int], lanes: int) -> bool:
    """Whether each loop along the lane begins at a whole vector, which is what can be streamed.

    Where some do, the lines between those and others are written twice.
    """
    lane = space.lane
    if lane is None or lane not in s.index.free or any(c % lanes for c in cut):
        return not cut
    split = split_linear(s.index, [v for v in s.index.free if isinstance(v, Var)])
    if split is None:
        return False
    steps, start = split
    return all(divides(lanes, c) for c in (start, *(c for v, c in steps.items() if v is not lane)))


def _heads(
    stores: Sequence[Store], space: Space, passes: Sequence[Pass], lanes: int
) -> tuple[int, ...]:
    """Stores whose loops along the lane may begin with fewer lanes, so that whole lines follow.

    Nothing there may depend on where in a vector a lane is.  Of vectors that are less than half of
    a line the arithmetic takes longer than memory.
    """
    lane, found = space.lane, []
    loops = [(p.stores, not p.groups) for p in passes] or [(tuple(range(len(stores))), True)]
    for some, computed in loops:
        nodes = below(roots(stores[i] for i in some)) if computed else {}
        plain = all(isinstance(n, (Load, Const, Op, Reduce)) for n in nodes)
        for n in (*nodes, *(stores[i] for i in some)):
            if isinstance(n, (Load, Store)) and not _in_order(n, lane):
                plain = False
        widths = {i: stores[i].value.dtype.bytes for i in some if lane in stores[i].index.free}
        row = size_hint(extent(lane), 0) if lane is not None else 0
        fit = (i for i, w in widths.items() if 2 * lanes * w >= LINE and row * w >= LONG_RUN)
        found += [*fit][:1] if plain else []
    return tuple(found)


def _in_order(n: Load | Store, lane: Expr | None) -> bool:
    """Whether neighbouring lanes are neighbours in memory, in rows that data may pick."""
    if lane is None or any(lane in v.vars for _, v in n.indirect):
        return False
    return coefficient(n.index, lane) in (const(0), const(1))


def _turned(plan: KernelPlan, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Loads and stores whose neighbours lie down the rows of a tile."""
    down, across = plan.tile, plan.lane
    assert down is not None and across is not None
    loads = [n for n in nodes if isinstance(n, Load) and not n.indirect]
    sets = [(i, s) for i, s in enumerate(plan.stores) if s.mode == "set" and not s.indirect]
    return (
        tuple(n for n in loads if turned(n.index, down, across) is not None),
        tuple(i for i, s in sets if s.mask is None and turned(s.index, down, across) is not None),
    )


def _called(uses: Counter[str]) -> tuple[str, ...]:
    """The ops of a long body that it calls: C++ compilers take their time for what is inlined."""
    costs = {name: op_row(name).cost for name in uses if op_row(name).cost >= FUNCTION}
    if sum(cost * uses[name] for name, cost in costs.items()) <= INLINED:
        return ()
    return tuple(sorted(name for name in costs if uses[name] > 1))


def _divided(
    stores: Sequence[Store], space: Space, reduces: Sequence[Reduce], passes: Sequence[Pass]
) -> Expr | None:
    """The reduced dim that threads divide, or None where the parallel dims serve better."""
    if space.serial or not space.reduced or not reduces or scans_of(stores):
        return None
    every = [n for n in walk(roots(stores)) if isinstance(n, Reduce)]
    if len(every) != len(reduces) or any(set(n.axes) != set(space.reduced) for n in every):
        return None
    if any(isinstance(a, Reduce) for n in every for a in walk(n.args)):
        return None
    full = nests.stores_of_all(stores, space)
    # What a unit leaves unchanged is reduced outside of its loop, where no store can join.
    inside = all(set(space.units) <= set(n.vars) for n in reduces)
    if full and not (len(passes) == 1 and inside and all(over_all(s, space.reduced) for s in full)):
        return None
    points = size_hint(product(extent(v) for v in space.units))
    across = space.lane is not None and space.lane in space.units
    if points > (FEW_COLUMNS if across else FEW):
        return None
    sizes = [size_hint(extent(v)) for v in space.reduced]
    best = next((i for i, n in enumerate(sizes) if n >= LONG), sizes.index(max(sizes)))
    return space.reduced[best] if sizes[best] >= LONG else None
