"""Block sizes and warps of a kernel, from the size of its axes and the bytes it moves.

A program should keep some 16 bytes a thread and access in flight; there should be several programs
for each of the machine's multiprocessors; and what a persistent reduction holds has to fit in
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from litz.index import Const, Expr, coefficient, divides, product, size_hint
from litz.ir.body import Load, Masked, Node, Op, Scan, loads, walk
from litz.ir.ops import op
from litz.ir.scans import scans_of, sorts_of
from litz.kernel.blocks.across import (
    FEW,
    LINE,
    SECTOR,
    rows_across,
    stores_sectors,
    width_across,
)
from litz.kernel.blocks.axes import (
    PART,
    choose_axes,
    combined_along,
    row_block,
    spreads,
    whole_block,
)
from litz.kernel.blocks.narrow import narrow
from litz.kernel.blocks.places import pairs_of
from litz.kernel.blocks.recipe import Axes, Config
from litz.kernel.nodes import extent, int_value, loops_of, reduce_levels, roots, row_start
from litz.kernel.plan import KernelPlan

PROGRAMS = 512  # programs that keep a large machine busy
PERSISTENT = 1 << 14  # elements of a row that fit in the registers of one program
HOLDS = 1 << 16  # elements of a row that a block can hold at all, in and beside its registers
WARP = 32
AHEAD = 64  # bytes that a thread loads at once, of a block without reductions
THREADS = 1 << 18  # that are under way on a large machine
CACHE = 32 << 20  # bytes that stay in its last-level cache
SORTED = 1 << 12  # elements of columns that one program sorts
LOADED = 64  # values that a thread may load of a space of several dims
BUSY = 12  # cost of a kernel's ops from which it is bound by them as much as by memory
HEAVY = 20  # cost for each byte of a point from which it is bound by them alone
ROW = 1 << 12  # elements of a row's part that a loop takes at once
COLUMNS = 1 << 10  # elements of short columns that a program reduces
SPREAD = 4  # accesses of a thread that stores what rows share
FLAT_WARPS = 4  # of a block without reductions, unless it has fewer elements than threads
HELD_COLUMN = 64  # elements of a column that a block holds
HELD_COLUMNS = 1 << 15  # elements of columns that a block holds where these are few
NARROW = 1 << 9  # columns that keep a good part of a large machine busy
DIVIDED = 1 << 9  # elements of fewer columns that programs share
MANY = 1 << 14  # columns of which loops keep all of it busy
EACH = 32  # elements of a thread of a block that holds what is contiguous from row to row
HELD = 1 << 15  # bytes of the states of columns that a program scans at once


def power_of_two(n: int) -> int:
    """The least power of two that is no less than ``n``, at least 1."""
    return 1 << max(0, n - 1).bit_length()


def hint(e: Expr) -> int:
    return max(1, size_hint(e, default=1 << 10))


def narrowest(plan: KernelPlan) -> int:
    """Bytes of the narrowest element that the kernel moves."""
    return min((p.dtype.bytes for p in plan.params), default=4)


def streams(plan: KernelPlan) -> int:
    """Values that a point of the space keeps in flight."""
    return max(1, len(loads(roots(plan.stores))))


def is_persistent(plan: KernelPlan, axes: Axes) -> bool:
    """Whether a block holds all of the reduced axis."""
    if axes.reduced is not None and sorts_of(plan.stores):
        return True
    if axes.reduced is None or not axes.reduced.size.is_const:
        return False
    size = power_of_two(hint(axes.reduced.size))
    if combined_along(plan):
        return size <= PERSISTENT
    if plan.lane is not None and plan.lane in plan.reduced:
        return size * streams(plan) <= 2 * PERSISTENT and size <= PERSISTENT
    return size <= HELD_COLUMN or columns_held(plan) > 0  # a block needs width besides


def columns_held(plan: KernelPlan) -> int:
    """Columns of a block that holds long ones whole; 0 where none should.

    One should where they are stored along, as loops would read them again, and where they are few.
    """
    size = product(extent(v) for v in plan.reduced)
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    if not plan.down or not size.is_const or sorts_of(plan.stores):
        return 0
    if rows < NARROW and int_value(size) >= DIVIDED:
        return 0
    if rows > MANY and not _stores_along(plan):
        return 0
    if not (width := width_across(plan)) or not stores_sectors(plan):
        return 0
    values = max(len(_along(plan)), _values(plan))
    if LINE // width * power_of_two(int_value(size)) * values > HELD_COLUMNS:
        return 0
    return LINE // width if rows * width >= FEW * LINE else SECTOR // width


def _along(plan: KernelPlan) -> list[Load]:
    """The loads of all elements along the reduced axis."""
    return [n for n in loads(roots(plan.stores)) if any(v in n.vars for v in plan.reduced)]


def _values(plan: KernelPlan) -> int:
    """Values that a scan has at a point."""
    return max(1, state_bytes(plan) // 4)


def unheld(plan: KernelPlan) -> str:
    """Why no block can hold all of the reduced axis; empty where one can."""
    size = product(extent(v) for v in plan.reduced)
    if not size.is_const:
        return "its rows have an open length"
    return "" if int_value(size) <= HOLDS else f"no block holds its rows of {size} elements"


def unlooped(plan: KernelPlan) -> str:
    """Why a loop cannot go over the reduced axis; empty where one can."""
    if sorts_of(plan.stores):
        return "a sort holds its rows"
    three = len(choose_axes(plan).blocked) == 3
    return "a block holds short columns of several results" if three else ""


def choose_configs(plan: KernelPlan, axes: Axes, persistent: bool) -> tuple[Config, ...]:
    """The default configuration, then others that may be quicker."""
    if axes.reduced is not None:
        found = _reduction(plan, axes, persistent)
    elif len(axes.blocked) == 2:
        found = _tile(plan, axes) if plan.tile is not None else _rows(plan, axes)
    else:
        found = _flat(plan, axes)
    return tuple(dict.fromkeys(found))


def _config(warps: int, **blocks: int) -> Config:
    """Of so many warps, at least one.  blocks: elements along each axis."""
    return Config(tuple(blocks.items()), max(1, warps))


def _access(plan: KernelPlan) -> int:
    """Elements of a thread's access of 16 bytes, of the narrowest type."""
    return max(4, 16 // narrowest(plan))


def _each(plan: KernelPlan, points: int) -> int:
    """Elements of a thread that computes as much as it moves, else 0.

    Some more than one access let arithmetic and memory overlap, but not where that leaves the
    machine without threads; where arithmetic takes the time, registers do best that leave room for
    other threads.
    """
    costs = {n: op(n.name).cost for n in _usual(plan) if isinstance(n, Op)}
    work = sum(costs.values())
    if work >= (limit := HEAVY * sum(p.dtype.bytes for p in plan.params)):
        heavy = work - sum(costs[n] for n in narrow(plan.stores) if n in costs)
        if heavy >= limit:
            return 4 if heavy < 2 * limit else 2
    each = max(_access(plan), 8)
    while each > 4 and points // each < THREADS:
        each //= 2
    return each if work >= BUSY else 0


def _usual(plan: KernelPlan) -> Iterator[Node]:
    """The nodes that are computed for nearly every element."""
    stack, seen = list(roots(plan.stores)), set(roots(plan.stores))
    while stack:
        n = stack.pop()
        yield n
        args = n.args[:2] if isinstance(n, Op) and n.name == "mostly" else n.args
        fresh = [a for a in args if a not in seen]
        stack += fresh
        seen.update(fresh)


def _widths(
    plan: KernelPlan,
    axes: Axes,
    programs: Callable[[int], int],
    most: int = 1 << 30,
    warps: int = FLAT_WARPS,
) -> Iterator[tuple[int, int]]:
    """Elements of a block without reductions and its warps, the default first.

    programs: see ``_shrunk``.  most: elements that a thread has by default.  warps: by default,
    where they wait for memory.
    """
    along = {v for a in axes.blocked for v in a.dims}  # what a program loads once counts not
    loaded = sum(n.dtype.bytes for n in loads(roots(plan.stores)) if along & {*n.vars})
    each = max(4, min(_access(plan), power_of_two(AHEAD // max(loaded, 1) + 1) // 2))
    few, scattered = _each(plan, programs(1)), apart(plan)
    most = min(few or each, most)
    if scattered:
        most = min(most, max(4 // narrowest(plan), each // scattered, 1))
    first = most, FLAT_WARPS if few else warps
    for times, warps in dict.fromkeys((first, (2 * each, 2), (each, 4), (each, 8), (4 * each, 4))):
        yield _shrunk(times, warps, programs), warps


def _shrunk(each: int, warps: int, programs: Callable[[int], int]) -> int:
    """Elements of a block, ``each`` of a thread, or fewer where programs are.

    programs: how many there are of blocks of so many elements.
    """
    block = WARP * warps * each
    while block > WARP * warps and programs(block) < PROGRAMS:
        block //= 2
    return block


def apart(plan: KernelPlan) -> int:
    """Loads of a point that lie apart from those of its neighbours along the lane.

    The more of such points a thread has, the further apart lie those of its neighbours: each load
    of a warp touches as many more lines.  Many loads are under way without that.
    """
    pairs, along = pairs_of(plan)[0], [v for v in (plan.lane, plan.tile) if v is not None]
    found = 0
    for n in {*loads(roots(plan.stores))} - {*pairs, *pairs.values()}:
        steps = [coefficient(n.index, v) for v in along]
        known = [abs(c.value) for c in steps if isinstance(c, Const)]
        found += 1 < min(known, default=0)
    return found


def _flat(plan: KernelPlan, axes: Axes) -> Iterator[Config]:
    """Blocks along one axis."""
    if any(s.mode == "mul" for s in plan.stores):
        yield _config(1, x=WARP)  # who tries again lets nobody wait but a warp
        return
    size = hint(axes.parallel[-1].size)
    rows = hint(product(a.size for a in axes.parallel[:-1] if a is not axes.turns))
    # Where rows are no axis of their own, neighbours share no loads: each element has registers for
    # all of its own, and with many of those few threads are under way.
    row = axes.parallel[-1].dims
    own = [n for n in loads(roots(plan.stores)) if len(row) > 1 or _looks_up(n, row)]
    # In turns many loads are under way anyway; neighbours that a thread has lie apart in a warp's.
    most = 1 if axes.turns else _most(own, row)
    # Programs that begin with the place of a row have more.
    default = 8 if len(axes.parallel) > 1 and not axes.turns else FLAT_WARPS
    for block, warps in _widths(plan, axes, lambda block: size // block * rows, most, default):
        x = min(block, power_of_two(size))
        yield _config(min(warps, x // WARP), x=x)


def _most(own: Sequence[Load], row: Sequence[Expr]) -> int:
    """Elements of a thread, each of which has registers for all that it loads by itself.

    Where data along the row says from where, beside each value there is its address of 64 bits.
    """
    held = max(1, sum(3 if _looks_up(n, row) else 1 for n in own))
    return max(2, power_of_two(LOADED // held + 1) // 2)


def _looks_up(n: Load, row: Sequence[Expr]) -> bool:
    return any(v in data.vars for _, data in n.indirect for v in row)


def _rows(plan: KernelPlan, axes: Axes) -> Iterator[Config]:
    """Blocks over parts of several rows."""
    rows, row = axes.blocked
    count, size = hint(rows.size), hint(row.size)
    own = [
        n for n in loads(roots(plan.stores)) if all(set(a.dims) & set(n.vars) for a in axes.blocked)
    ]
    most = _most(own, row.dims)
    shared = sum(n.dtype.bytes for n in loads(roots(plan.stores)) if not {*rows.dims} & {*n.vars})
    # What rows share is loaded once for those that a thread has.
    is_more = shared > sum(n.dtype.bytes for n in own)
    fewest = 2 * PROGRAMS if spreads(plan) else 4 * PROGRAMS if is_more else 1 << 62
    for block, warps in _widths(plan, axes, lambda block: count * size // block, most):
        x = min(whole_block(row.size), block)
        x = x if x >= PART else min(row_block(row.size), block)
        while block < SPREAD * 128 * warps and count * size // block > fewest:
            block *= 2
        yield _config(warps, y=min(block // x, power_of_two(count)), x=x)


def _tile(plan: KernelPlan, axes: Axes) -> Iterator[Config]:
    ys, xs = (power_of_two(hint(a.size)) for a in axes.blocked)
    wide = 128 if narrowest(plan) < 4 else 64
    sides = ((64, wide, 8), (64, 64, 4), (64, 32, 4), (32, 32, 4), (64, 64, 8))
    first = ((64, 16, 4),) if pairs_of(plan)[1] else ()  # of several results a thread holds all
    if each := _each(plan, ys * xs):
        # Where memory takes the time both sides are lines of it.
        first = ((wide // 2, wide // 2, 4),) if each >= 8 else ((32, 32, 32 // each),)
    for y, x, warps in (*first, *sides):
        yield _config(warps, y=min(y, ys), x=min(x, xs))


def _reduction(plan: KernelPlan, axes: Axes, persistent: bool) -> Iterator[Config]:
    assert axes.reduced is not None
    if len(axes.blocked) == 3:
        return _pieces(axes)
    rows, size = hint(axes.parallel[-1].size), hint(axes.reduced.size)
    if sorts_of(plan.stores):
        return _sorted(axes, rows, plan.down)
    if persistent and combined_along(plan):
        return _combined(axes, power_of_two(size))
    if plan.down:
        return (_held_columns if persistent else _columns)(plan, rows, size)
    return (_held_rows if persistent else _long_rows)(plan, rows, size)


def _long_rows(plan: KernelPlan, rows: int, size: int) -> Iterator[Config]:
    """Parts of rows, which a loop goes over."""
    r, most = power_of_two(size), max(1024, power_of_two(ROW // max(1, len(_along(plan)))))
    fewest = _warps_to_reread(plan, size)
    # Elements one by one are more loads of a thread: others have some of them.
    parted = len(plan.reduced) > 1 and hint(extent(plan.reduced[-1])) % _access(plan) != 0
    parted = parted or _are_guarded(plan)
    for n in (most, most // 2, 2 * most, most // 4):
        n = min(r, n)
        yield _config(max(_warps(n, 8 if parted else 16), min(fewest, n // 128)), x=1, r=n)
    yield _config(_warps(min(r, most)), x=1, r=min(r, most))


def _are_guarded(plan: KernelPlan) -> bool:
    """Whether whole accesses do not divide rows, of which some elements may not be there."""
    if plan.lane is None or not any(isinstance(n, Masked) for n in walk(roots(plan.stores))):
        return False
    starts = (row_start(n.index, plan.lane) for n in _along(plan))
    return any(e is not None and not divides(_access(plan), e) for e in starts)


def _held_rows(plan: KernelPlan, rows: int, size: int) -> Iterator[Config]:
    """Whole rows, several where they are short or contiguous from one to the next."""
    r = power_of_two(size)
    least, each = rows_across(plan, rows, r), _least_each(plan, rows * r)
    # What is not stored along needs no registers beside what is held.
    times = 1 if _stores_along(plan) else 2
    for elements in (2048, 4096, 1024):
        x = least
        while each == 16 and x * r < elements and rows // (2 * x) >= PROGRAMS:
            x *= 2
        warps = _warps(x * r, times * EACH // _values(plan) if least > 1 else each)
        yield _config(_shared(plan, warps, x * r, rows // x), x=x, r=r)


def _least_each(plan: KernelPlan, points: int) -> int:
    """Elements of a row that a thread has: 16, unless few threads would have what is narrow.

    A thread's elements lie beside each other as far as one access of the narrowest kind reaches,
    and those of wider kinds of several threads apart: four of 4 bytes beside 16 of one.
    """
    wide = max((p.dtype.bytes for p in plan.params if not p.by_value), default=4)
    apart = narrowest(plan) * 4 <= wide and points // 16 < THREADS
    return max(4, 16 // wide) if apart else 16


def _combined(axes: Axes, r: int) -> Iterator[Config]:
    """Blocks of what needs reductions of few numbers: wide, as each program reduces these."""
    *apart, x = axes.parallel
    rows, size = hint(product(a.size for a in apart)), hint(x.size)
    for each, warps in ((16, 8), (8, 8), (16, 4), (8, 4)):
        block = _shrunk(each, warps, lambda block: size // block * rows)
        yield _config(warps, x=min(block, power_of_two(size)), r=r)


def _sorted(axes: Axes, rows: int, down: bool) -> Iterator[Config]:
    """Sorts of rows: few elements a thread, as each is in registers twice."""
    assert axes.reduced is not None and axes.reduced.size.hi is not None
    r, apart = power_of_two(axes.reduced.size.hi), {a.name: 1 for a in axes.blocked[:-2]}
    for elements, each in ((1024, 8), (1024, 4), (512, 8), (2048, 8), (2048, 16)):
        # Down columns some lie beside each other, so that accesses are of more than one element.
        x = max(1, min(8, SORTED // r)) if down else 1
        while x * r < elements and (rows // (2 * x) >= PROGRAMS or down):
            x *= 2
        x = min(x, power_of_two(rows))
        yield _config(min(32, x * r // (WARP * each)), **apart, x=x, r=r)


def _pieces(axes: Axes) -> Iterator[Config]:
    """Short reductions down columns, several of each column in a block."""
    second, lane, reduced = axes.blocked
    r, width = power_of_two(hint(reduced.size)), power_of_two(hint(lane.size))
    for y, x, warps in ((2, 64, 2), (4, 32, 2), (2, 32, 2), (2, 32, 1), (2, 64, 4), (4, 64, 4)):
        y, x = min(y, whole_block(second.size)), min(x, width)
        while y * x * r > 16384 and x > 16:
            x //= 2
        yield _config(min(warps, y * x * r // 128), y=y, x=x, r=r)


def _held_columns(plan: KernelPlan, rows: int, size: int) -> Iterator[Config]:
    """Whole columns beside each other."""
    r, scans, most = power_of_two(size), scans_of(plan.stores), power_of_two(rows)
    if size > HELD_COLUMN and (x := min(columns_held(plan), most)):
        yield _config(_warps(x * r, EACH // _values(plan)), x=x, r=r)
        return
    wide = max(32, 128 // narrowest(plan))  # a cache line at least
    # A thread holds whole columns, as many as one access takes: no thread waits for another.
    warp = WARP * _access(plan)
    best = warp * max(1, COLUMNS // (warp * r))
    least = wide if scans else SECTOR // min(4, narrowest(plan))
    while best > least and rows // best < PROGRAMS:
        best //= 2
    short = best, warp // WARP * r if best >= warp else 32
    for width, each in (short, (wide, 32), (wide, 16), (2 * wide, 32), (wide, 64)):
        x = min(width, most)
        while x * r > 4096 and x > 16:
            x //= 2
        each = each if scans or x == width else 32
        warps = _warps(x * r, each) if scans else max(1, x * r // (WARP * each))
        yield _config(_shared(plan, warps, x * r, rows // x), x=x, r=r)


def _columns(plan: KernelPlan, rows: int, size: int) -> Iterator[Config]:
    """Parts of columns, which a loop goes over: wide along what is contiguous."""
    # Few programs need many threads each; where there are many, each thread has more to do.
    many, most = rows // 64 >= 4 * PROGRAMS, (power_of_two(rows), power_of_two(size))
    if not many and (held := state_bytes(plan)):
        line = max(32, 128 // max(p.dtype.bytes for p in plan.params))
        yield from scanned_columns(line, *most, HELD // held)
        return
    line = max(32, 128 // narrowest(plan))
    first = (line, 2048 // line, 4) if rows // line >= PROGRAMS // 2 else (16, 256, 8)
    if rows // 64 >= PROGRAMS:
        first = (64, 16, 2) if many else (64, 32, 8)
    for *sides, warps in (first, (64, 32, 8), (64, 16, 2), (32, 64, 16), (128, 32, 8)):
        x, r = map(min, sides, most)
        yield _config(min(warps, x * r // 64), x=x, r=r)


def state_bytes(plan: KernelPlan) -> int:
    """Bytes of the states of a kernel's scans at one point, twice those that take long to combine.

    What comes of them is held beside them then.
    """
    found = {(n.args, n.combine): n for n in scans_of(plan.stores)}.values()
    return sum(e.dtype.bytes * (1 + _is_long(n)) for n in found for e in n.elements)


def _is_long(n: Scan) -> bool:
    if n.combine:
        return sum(op(v.name).cost for v in walk(n.combine) if isinstance(v, Op)) >= BUSY
    return not n.row.op and not n.row.positional


def scanned_columns(line: int, rows: int, size: int, elements: int) -> Iterator[Config]:
    """Scans down columns: no wider than a line of memory, so that there are many programs.

    What a turn takes besides (the scan over threads, what it hands on, the way to memory) is
    hundreds of nanoseconds however much it loads: so it loads what registers hold.
    """
    for width, part, warps in ((1, 1, 4), (1, 2, 4), (2, 1, 8), (1, 1, 8), (1, 4, 4)):
        x = min(width * line, rows)
        r = min(power_of_two(elements // (x * part) + 1) // 2, size)
        yield _config(min(warps, x * r // 64), x=x, r=r)


def run_of(plan: KernelPlan, configs: tuple[Config, ...]) -> int:
    """Elements of a column that a thread of a block scans by itself before others come in.

    Neighbours in memory are of other columns, so that a block may hold columns in any order.
    """
    if not plan.down or not scans_of(plan.stores) or sorts_of(plan.stores):
        return 1
    first = configs[0]
    each = first.block("x") * first.block("r") // (32 * first.warps * _access(plan))
    return max(1, min(each, *(c.block("r") // 2 for c in configs)))


def _stores_along(plan: KernelPlan) -> bool:
    """Whether something is stored for each element of a row that is reduced."""
    return any(loops_of(s, plan.reduced) for s in plan.stores)


def _warps_to_reread(plan: KernelPlan, size: int) -> int:
    """Warps of a program such that the rows under way at one time stay in the cache.

    1 where rows are read once.
    """
    levels = reduce_levels(roots(plan.stores))
    full = _stores_along(plan)
    if not full and max(levels.values()) < 1:
        return 1
    row = size * sum(n.dtype.bytes for n in _along(plan))
    warps = 1
    while warps < 32 and row * (THREADS // (32 * warps)) > CACHE:
        warps *= 2
    return warps


def _warps(elements: int, each: int = 16) -> int:
    """Warps of a block, ``each`` elements a thread: at most 32, few where there is little to do."""
    warps = 1
    while warps < 32 and elements // (32 * warps) > each:
        warps *= 2
    return warps if elements >= 512 else 1 if elements < 256 else 2


def _shared(plan: KernelPlan, warps: int, elements: int, programs: int) -> int:
    """Warps of a block: four where few programs run, unless they have hardly anything to do.

    Scans hand on from thread to thread, and from warp to warp: as few as there are.
    """
    few = programs < PROGRAMS and elements >= 512 and not scans_of(plan.stores)
    return max(warps, 4) if few else warps


def widened(
    configs: tuple[Config, ...],
    even: frozenset[str],
    axes: Axes,
    persistent: bool,
    single: bool = False,
) -> tuple[Config, ...]:
    """Configurations and their neighbours: blocks and warps halved and doubled, stages.

    even: axes whose size the default's block divides: all others' must too, since one kernel
    serves them all.  single: a block has to hold one row.
    """
    sizes = {a.name: a.size for a in axes.blocked}
    tries: dict[Config, None] = dict.fromkeys(configs)
    for c in configs:
        for name, n in c.blocks:
            if (name == "r" and persistent) or (name == "x" and single):
                continue
            for m in (n // 2, 2 * n):
                blocks = tuple((k, m if k == name else v) for k, v in c.blocks)
                tries[Config(blocks, c.warps, c.stages)] = None
        for warps in (c.warps // 2, 2 * c.warps):
            tries[Config(c.blocks, warps, c.stages)] = None
    if axes.reduced is not None and not persistent:
        tries.update(dict.fromkeys(Config(c.blocks, c.warps, 3) for c in tuple(tries)))
    default = configs[0]

    def fits(c: Config) -> bool:
        elements = 1
        for name, n in c.blocks:
            elements *= n
            size = sizes[name]
            if n < 1 or n > 2 * power_of_two(hint(size)):
                return False
            if name in even and (not size.is_const or hint(size) % n):
                return False
        return 1 <= c.warps <= 32 and 1 <= elements // (32 * c.warps) <= 128

    return (default, *(c for c in tries if c is not default and c != default and fits(c)))
