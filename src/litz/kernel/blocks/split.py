"""Reductions that many programs share: few rows, each of them long.

A first kernel reduces parts of every row and leaves what it finds in temporary memory; a second
reduces the parts.  Where more follows along the rows, each further pass is done likewise.  Stores
of the full space run along with the first pass that knows what they need; those that need the last
reductions come at the end, as a kernel without reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.index import (
    Expr,
    Substitution,
    coefficient,
    const,
    product,
    size_hint,
    symbol,
    var,
)
from litz.ir import body as nodes
from litz.ir.body import (
    Node,
    Op,
    Reduce,
    Rewriter,
    Store,
    loads,
    reduces_evenly,
    replaced,
    scans,
    walk,
)
from litz.ir.dtype import I64, DType
from litz.ir.reductions import MAX
from litz.ir.scans import scans_of
from litz.kernel.blocks import lookback
from litz.kernel.blocks.axes import combined_along
from litz.kernel.blocks.sizes import PERSISTENT, PROGRAMS, columns_held, power_of_two, streams
from litz.kernel.merge import merge_loops
from litz.kernel.moments import chunk_moments
from litz.kernel.nodes import (
    by_loops,
    extent,
    loaded,
    loops_of,
    over_all,
    readers_first,
    reduce_levels,
    roots,
)
from litz.kernel.opened import SIZE
from litz.kernel.parts import Parts, digits
from litz.kernel.passes import along_passes, by_level
from litz.kernel.phases import Phases, Temporary, in_tiles, linear, sizes_of, values_between
from litz.kernel.plan import KernelPlan
from litz.kernel.scans import can_divide, part_of
from litz.kernel.scans import divide as divide_scans
from litz.kernel.softmax import is_total, lowered
from litz.kernel.tiling import accesses_of, best_score

Loops = tuple[Expr, ...]

LONG = 1 << 13  # elements of a row that is worth dividing
TALL = 1 << 9  # likewise of a column
AGAIN = 1 << 8  # elements of a column's part that is read again
LINES = 64  # of a part that a block holds in lines: for each byte of one, two warps' registers
PART = 1 << 11  # loads of a part of a row at least
DEEP = 64  # likewise of a column
WIDTH = 64  # columns of a block
ALIGNED = 64  # elements that a part is a multiple of
NARROW = 64  # extent of a reduced dim that may stay parallel in the first kernel
GAIN = 1.5  # by which that has to make more bytes contiguous
FEW = 1 << 10  # parts of a row that every program may combine by itself
HELD = 1 << 13  # elements of a row's part that a block holds


def divide(plan: KernelPlan, wanted: bool = False) -> Phases | None:
    """A plan as several that use more of the machine, or None where one serves better.

    wanted: None only where it cannot be divided.
    """
    if scans_of(plan.stores) and not lookback.why_not(plan):
        return _scans(plan) if wanted else lookback.divide(plan)
    reduces = [n for n in walk(roots(plan.stores)) if isinstance(n, Reduce)]
    if not reduces or not reduces_evenly(reduces, plan.reduced) or scans(reduces):
        return None
    # The flat position along a row is that of an argument reduction too.
    positional = [n for n in reduces if n.row.positional]
    if any(n.axes != plan.reduced for n in positional):
        return None
    if any(s.mode != "set" or s.indirect for s in plan.stores):
        return None
    size = product(extent(v) for v in plan.reduced)
    if not size.is_const and str(size) != SIZE:
        return None
    kept = () if positional else _kept(plan, reduces)
    if not kept and not wanted and columns_held(plan):
        return None
    parts = _parts(plan, kept, any(n.row.counts for n in reduces), wanted)
    if parts < (1 if kept else 2):
        return None
    full = [s for s in plan.stores if loops_of(s, plan.reduced)]
    flat = [s for s in plan.stores if s not in full]
    return _Maker(plan, parts, kept).run(flat, full)


def _scans(plan: KernelPlan) -> Phases | None:
    """Parts of rows that many programs scan, in three kernels."""
    if not can_divide(plan):
        return None
    size = size_hint(product(extent(v) for v in plan.reduced))
    half = size // 2
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    part = part_of(size, min(PART, half), min(LONG, half), rows, PROGRAMS)
    return divide_scans(plan, part, False) if half >= ALIGNED else None


def _kept(plan: KernelPlan, reduces: Sequence[Reduce]) -> Loops:
    """A short reduced dim that goes on in memory where a parallel one leaves off.

    As long as it is not reduced, lanes run along both.
    """
    stores = tuple(Store("", const(0), n.args[0]) for n in reduces)
    sizes = sizes_of(plan)
    best: tuple[float, Loops] = (0.0, ())
    for kept in ((), *((v,) for v in plan.reduced)):
        left = tuple(v for v in plan.reduced if v not in kept)
        if kept and (not left or not 1 < size_hint(extent(kept[0])) <= NARROW):
            continue
        axes, reduced, merged = merge_loops((*plan.parallel, *kept), left, stores)
        score = best_score((*axes, *reduced), accesses_of(merged, sizes))
        if score > best[0] * (GAIN if kept else 1.0):
            best = (score, kept)
    return best[1]


def _parts(plan: KernelPlan, kept: Loops, again: bool, wanted: bool) -> int:
    """How many programs share a row: enough to fill the machine, none with too little to do.

    again: whether a part is read more than once, unless a block holds it.
    wanted: two at least, where a row has so many parts.
    """
    outer = [v for v in plan.reduced if v not in kept]
    size = size_hint(product(map(extent, outer)))
    rows = size_hint(product(extent(v) for v in (*plan.parallel, *kept)), default=1 << 10)
    down = bool(kept) or plan.down
    blocks = max(-(-rows // WIDTH) if down else rows, 1)
    least = DEEP if down else PART // min(4, streams(plan))
    parts = min(PROGRAMS // blocks, size // least)
    if again and parts > 1:
        each = AGAIN if plan.down else TALL if kept else HELD // streams(plan)
        if kept and plan.lane is outer[-1]:
            each = LINES * max(n.dtype.bytes for n in loads(roots(plan.stores)))
        parts = max(parts, min(FEW, -(-size // each)))
    if wanted:
        return max(2, parts) if size > ALIGNED else 0
    return parts if size >= (TALL if down else LONG) else 0


def _cut(sizes: Sequence[int], parts: int) -> tuple[int, int]:
    """Which of a row's dims is divided, and into how many pieces.

    Parts lie within those in front of it, so that nothing is divided along a part's elements.
    """
    k, before = 0, 1
    while k + 1 < len(sizes) and before * sizes[k] < parts:
        before, k = before * sizes[k], k + 1
    return k, -(-parts // before)


def _part(size: int, parts: int, aligned: int) -> Expr:
    """Elements of a part: all of one length where that can be, else multiples of ``aligned``.

    Of uneven parts there are more where these would fill their blocks badly.
    """
    even = [size // n for n in range(parts, parts // 2, -1) if size % (n * aligned) == 0]
    uneven = -(-size // (parts * aligned)) * aligned
    block = power_of_two(uneven)
    if aligned < block <= PERSISTENT and uneven < block - block // 8:
        uneven = block // 2
    return const([*even, uneven][0])


class _Maker(Parts):
    """kept: reduced dims that the first kernel of every pass leaves to the second.

    loops: over a part: over its elements, or over turns of the dim that is divided and those
    behind it.
    """

    def __init__(self, plan: KernelPlan, parts: int, kept: Loops) -> None:
        self.kept = kept
        self.outer = tuple(v for v in plan.reduced if v not in kept)
        k, pieces = _cut([size_hint(extent(v)) for v in self.outer], parts)
        before, cut, others = self.outer[:k], self.outer[k], self.outer[k + 1 :]
        aligned = 1 if others or (before and plan.down) else ALIGNED
        each = extent(cut) if pieces == 1 else _part(size_hint(extent(cut)), pieces, aligned)
        inner = product(extent(v) for v in others)
        stretches = product(extent(v) for v in before)
        super().__init__(plan, extent(cut) * inner, each * inner, stretches)
        turn = var("rturn", each) if others else self.q
        self.loops: Loops = (turn, *others)
        self.q = linear(self.loops)
        self.moved = digits(self.p // self.pieces, before) if before else {}
        self.moved[cut] = self.p % self.pieces * each + turn
        self.cells = self.points * product(extent(v) for v in kept)  # of one part
        self.cell = linear((*plan.parallel, *kept))
        self.left: dict[Node, Temporary] = {}  # of each part of a state
        self.levels = reduce_levels(roots(plan.stores), is_total)

    def run(self, flat: Sequence[Store], full: Sequence[Store]) -> Phases | None:
        reduces = [n for n in walk(roots(self.plan.stores)) if isinstance(n, Reduce)]
        last = max(self.levels[n] for n in reduces)
        whole = [s for s in full if over_all(s, self.plan.reduced) and not scans_of((s,))]
        rounds = by_level(reduces, self.levels)
        along = along_passes(whole, self.plan.stores, rounds, self.levels, own=True)
        left = [s for s in full if not any(s in stores for stores in along)]
        if {s.buffer for s in flat} & loaded(roots(left)):
            return None  # a later kernel would read what an earlier one replaces
        known: dict[Node, Node] = {}
        plans: list[KernelPlan] = []
        contexts = [(n, last + 1) for n in (*roots(left), *roots(flat))]
        contexts += [(n, i) for i, stores in enumerate(along) for n in roots(stores)]
        between = values_between(contexts, self.levels, self.plan.reduced)
        for level in range(last + 1):
            here = [n for n in reduces if self.levels[n] == level]
            combined = self.reduce_parts(here, along[level], known, plans)
            stores: list[Store] = []
            # What this kernel leaves for later ones it does not read itself.
            before = {**known, **combined}
            if level == last and (final := self.at_once(flat, left, before)):
                plans.append(final)
                return Phases(tuple(plans), tuple(self.temps))
            if level == last:
                stores += replaced(flat, before)
            if level < last or left:
                for n in between:
                    if self.levels[n] != level:
                        continue
                    t = self.temp(n.dtype, self.points)
                    stores += replaced([Store(t.name, self.at, n)], before)
                    known[n] = nodes.load(t.dtype, t.name, self.at)
            if stores:
                made = self.phase(self.plan.parallel, (self.r, *self.kept), stores)
                plans.append(replace(made, lane=made.reduced[-1]) if self.kept else made)
        # What does not run over all reduced dims must not be done more than once: it may read
        # what it replaces.
        spaces = by_loops(left, lambda s: loops_of(s, self.plan.reduced))
        order = readers_first([replaced(stores, known) for stores in spaces.values()])
        if order is None:
            return None
        for some in order:
            dims = loops_of(some[0], self.plan.reduced)
            if scans_of(some):
                rows = self.phase(self.plan.parallel, dims, some)
                several = lookback.divide(rows)
                plans += several.plans if several else (rows,)
                self.temps += several.temps if several else ()
            else:
                plans.append(self.phase((*self.plan.parallel, *dims), (), some))
        return Phases(tuple(plans), tuple(self.temps))

    def at_once(
        self, flat: Sequence[Store], left: Sequence[Store], known: Mapping[Node, Node]
    ) -> KernelPlan | None:
        """The last stores as one kernel, each program of which combines the parts by itself.

        flat: one a row, by the program that has its first element; left: of the full space.
        known: reductions in terms of their parts.  None where those would be too many, or done
        more than once in a program, or where something could be replaced before it is read.
        """
        if not left or len(by_loops(left, lambda s: loops_of(s, self.plan.reduced))) > 1:
            return None
        flat, left = replaced(flat, known), replaced(left, known)
        cells = product((self.parts, *(extent(v) for v in self.kept)))
        read = loaded(roots(flat))
        if scans_of(left) or size_hint(cells) > FEW or any(s.buffer in read for s in left):
            return None
        dims = loops_of(left[0], self.plan.reduced)
        first = nodes.op("eq", nodes.index(linear(dims)), nodes.index(const(0)))
        no = nodes.const(first.dtype, False)
        masks = [first if s.mask is None else nodes.masked(first, s.mask, no) for s in flat]
        once = [replace(s, mask=mask) for s, mask in zip(flat, masks, strict=True)]
        made = self.phase((*self.plan.parallel, *dims), (self.r, *self.kept), [*left, *once])
        if in_tiles(made).tile is not None:  # what lies across the lane is better read in tiles
            return None
        apart = made.lane is None or any(
            coefficient(s.index, made.lane) is not const(1) for s in made.stores[: len(left)]
        )
        return None if apart or not combined_along(made) else made

    def reduce_parts(
        self,
        reduces: Sequence[Reduce],
        along: Sequence[Store],
        known: dict[Node, Node],
        plans: list[KernelPlan],
    ) -> dict[Node, Node]:
        """Adds the plan that reduces parts; returns what each reduction is in terms of them."""
        move = Rewriter(Substitution(self.moved))
        stores: list[Store] = []
        out: dict[Node, Node] = {}
        for n in reduces:
            value = replaced([Store("", const(0), n.args[0])], known)[0].value
            value = move(value)
            less = lowered(n)
            top = None if less is None else less.args[1]
            if top in out:
                assert isinstance(value, Op) and top is not None
                out[n] = self.total(value.args[0].args[0], out[top], stores)
            else:
                out[n] = self.one(n, value, stores)
        stores += [self.within(move.store(s)) for s in replaced(along, known)]
        parallel = (self.p, *self.plan.parallel, *self.kept)
        made = self.phase(parallel, self.loops, stores)
        # A position in several loops hides that elements along the last are contiguous.
        if self.plan.lane is self.outer[-1] and made.reduced:
            made = replace(made, lane=made.reduced[-1])
        plans.append(made)
        return out

    def one(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        """The stores of one reduction's parts, and the reduction of what they leave."""
        if n.row.counts:
            return self.moments(n, value, stores)
        value = self.inside(value, nodes.const(value.dtype, n.row.identity(value.dtype)))
        if n.row.positional:
            return self.argument(n, value, stores)
        left = self.leave(stores, nodes.reduce(n.kind, self.loops, value))
        return nodes.reduce(n.kind, (self.r, *self.kept), self.back(left))

    def total(self, value: Node, top: Node, stores: list[Store]) -> Node:
        """The sum of exponentials below the maximum, from those below each part's own.

        Where all of a part is -inf, its sum is no number, but adds nothing; unless all of a row is.
        """
        least = nodes.const(value.dtype, MAX.identity(value.dtype))
        value = self.inside(value, least)
        own = nodes.reduce("max", self.loops, value)
        power = nodes.op("exp", nodes.op("sub", value, own))
        tops, sums = (
            self.back(self.leave(stores, n)) for n in (own, nodes.reduce("sum", self.loops, power))
        )
        less = nodes.op("mul", sums, nodes.op("exp", nodes.op("sub", tops, top)))
        less = nodes.masked(nodes.op("eq", tops, least), nodes.const(value.dtype, 0), less)
        part = nodes.masked(nodes.op("eq", tops, top), sums, less)
        return nodes.reduce("sum", (self.r, *self.kept), part)

    def leave(self, stores: list[Store], part: Node) -> Temporary:
        """Memory for a value of every part, and the store that fills it, unless there is one."""
        if part not in self.left:
            t = self.left[part] = self.temp(part.dtype, self.cells * self.parts)
            stores.append(Store(t.name, self.place(self.p), part))
        return self.left[part]

    def back(self, t: Temporary) -> Node:
        return nodes.load(t.dtype, t.name, self.place(self.r))

    def place(self, part: Expr) -> Expr:
        """Where memory has a part's value: beside it is what a block of the next kernel reads.

        That is the neighbour in a block along columns, or the next part of a row.
        """
        if self.kept or self.plan.down:
            return part * self.cells + self.cell
        return self.cell * self.parts + part

    def argument(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        best = self.leave(stores, nodes.reduce(n.row.best, self.loops, value))
        where = nodes.reduce(n.kind, self.loops, value)
        first = nodes.index(self.first)
        spots = self.leave(stores, nodes.op("add", where, first))
        winner = nodes.reduce(n.kind, (self.r,), self.back(best))
        t = symbol(f"t{len(self.temps)}w", 0, self.parts.hi)
        return nodes.load(I64, spots.name, self.place(t), ((t, winner),))

    def moments(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        """Mean and squared deviations of each part, then of all (Chan et al., 1979)."""
        dtype = n.dtype
        means, squared = (self.back(t) for t in self.part_moments(value, dtype, stores))
        axes = (self.r, *self.kept)
        count = nodes.cast(nodes.index(self.count(self.r)), dtype)
        whole = product(extent(v) for v in self.plan.reduced)
        mean, between = chunk_moments(means, axes, whole, lambda x: nodes.op("mul", x, count))
        if n.gives.part == "mean":
            return mean
        return nodes.op("add", nodes.reduce("sum", axes, squared), between)

    def part_moments(
        self, value: Node, dtype: DType, stores: list[Store]
    ) -> tuple[Temporary, Temporary]:
        """Mean and squared deviations of each part, in one pass where parts are of one length."""
        if self.ragged is None:
            mean = nodes.reduce("welford_mean", self.loops, value)
            squares = nodes.reduce("welford_m2", self.loops, value)
            return self.leave(stores, mean), self.leave(stores, squares)
        zero = nodes.const(dtype, 0)
        count = self.count(self.p)
        mean, deviations = chunk_moments(value, self.loops, count, lambda x: self.inside(x, zero))
        return self.leave(stores, mean), self.leave(stores, deviations)
