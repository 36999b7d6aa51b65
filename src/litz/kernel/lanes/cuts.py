"""How loops over reduced dims are cut and unrolled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.index import Expr, product, size_hint
from litz.ir.body import Const, Load, Masked, Node, Op, Reduce, walk
from litz.ir.ops import op as op_row
from litz.kernel.lanes.access import in_ranges, uniform
from litz.kernel.lanes.fetch import LARGE
from litz.kernel.lanes.recipe import Chunk, Copies, LanePlan, Limit
from litz.kernel.lanes.reuse import cost
from litz.kernel.nodes import below, extent, goes_along, int_value, reads, roots

TERMS = 16  # additions into one accumulator before it is added to an outer one, of 64 bits
UNROLL = 4
MOMENTS = 4096  # elements of a chunk whose mean and deviations are taken in two passes
ROWS = 16  # rows of a block whose mean and deviations are taken together
BRANCH = 3  # additions in a masked region that are worth asking whether any lane needs them
SKIPPED = 8  # additions that a branch takes
STREAMS = 4  # rows that are read at once
PAGE = 1 << 12  # bytes of a row, at least


def adds(r: Reduce) -> bool:
    """Whether partial results come together in a wider type: sums err by their roundings."""
    return r.row.totals is not None and r.dtype.is_float


def order(n: Reduce, reduced: Sequence[Expr]) -> tuple[Expr, ...]:
    """The dims of a reduction in the order of its loops."""
    return tuple(v for v in reduced if v in n.axes) or n.axes


def limit(dims: Sequence[Expr], sizes: Sequence[int | None], steps: Sequence[int]) -> Limit:
    """So that an accumulator takes at most TERMS.

    sizes: iterations over each dim at most; steps: those that are done at once.
    """
    found: list[int] = []
    done = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        found.append(step * max(1, TERMS // done))
        done *= max(1, (size or 1) // step)
    return Limit(tuple(dims), tuple(reversed(found)))


class Cuts:
    """The cuts of one plan, of which all else is chosen.  nodes: the plan's."""

    def __init__(self, made: LanePlan, nodes: Sequence[Node]) -> None:
        self.made = made
        self.space, self.lanes = made.space, made.lanes
        self.reduces = [n for n in nodes if isinstance(n, Reduce)]
        self.masked = [n for n in nodes if isinstance(n, Masked)]

    def chosen(self) -> LanePlan:
        self.made = replace(self.made, branches=self.branches())
        cut = replace(self.made, limits=self.limits(), chunks=self.chunks())
        cut = replace(cut, copies=self.copies()) if self.reduces else cut
        return replace(cut, rows=self.rows(cut))

    def most(self, v: Expr) -> int | None:
        """The largest number of iterations over ``v``, where one is known."""
        return None if v is self.made.divided else extent(v).hi

    def step(self, v: Expr) -> int:
        return self.lanes * UNROLL if v is self.space.lane else 1

    def limits(self) -> tuple[Limit, ...]:
        """For sums over the same dims, where one is cut."""
        found: dict[tuple[Expr, ...], Limit] = {}
        for n in self.reduces:
            dims = order(n, self.space.reduced)
            if dims and dims not in found and (adds(n) or n.row.counts):
                made = self.limit(dims)
                if n.row.counts or self.cut(made) is not None:
                    found[dims] = made
        return tuple(found.values())

    def limit(self, dims: Sequence[Expr]) -> Limit:
        return limit(dims, [self.most(v) for v in dims], [self.step(v) for v in dims])

    def cut(self, limit: Limit) -> tuple[Expr, int] | None:
        """The innermost dim that has more than its limit, and that."""
        for v, n in zip(reversed(limit.dims), reversed(limit.most), strict=True):
            size = self.most(v)
            if size is None or size > n:
                return v, n
        return None

    def chunks(self) -> tuple[Chunk, ...]:
        """Of means and deviations, and of softmaxes whose sum and maximum share a pass."""
        found: dict[tuple[Expr, int], list[Reduce]] = {}
        for n in self.reduces:
            if n.row.counts:
                found.setdefault(self.moments(n), []).append(n)
        for pair in self.made.totals:
            some = [self.made.reductions[i] for i in sorted(pair)]
            at = self.cut(self.limit(order(some[0], self.space.reduced)))
            assert at is not None
            found.setdefault(at, []).extend(some)
        return tuple(Chunk(tuple(of), by, size) for (by, size), of in found.items())

    def moments(self, n: Reduce) -> tuple[Expr, int]:
        """Which dim is cut into chunks, of how many elements each."""
        dims = order(n, self.space.reduced)
        if self.made.form == "columns" and self.space.lane in n.vars:
            return dims[0], ROWS
        room = MOMENTS
        for v in reversed(dims[1:]):
            size = self.most(v)
            if size is None or size >= room:
                return v, self.whole(v, room)
            room = max(1, room // max(1, size))
        return dims[0], self.whole(dims[0], room)

    def whole(self, v: Expr, room: int) -> int:
        step = self.step(v)
        return max(step, room // step * step)

    def branches(self) -> tuple[Node, ...]:
        """Masked regions that vectors which the mask excludes as a whole should skip."""
        lane = self.space.lane
        if lane is None:
            return ()
        return tuple(n for n in self.masked if self.worth(n, lane))

    def worth(self, n: Masked, lane: Expr) -> bool:
        cond, value, _ = n.args
        if lane not in cond.vars or not in_ranges(cond, lane):
            return False
        if any(isinstance(a, Reduce) for a in walk((value,))) or not reads(value):
            return False
        return cost(value, lane, self.lanes) >= BRANCH

    def copies(self) -> tuple[Copies, ...]:
        """Of accumulators, where short loops along the lane would wait for one; rows at once."""
        made, lane = self.made, self.space.lane
        if lane is None:
            return ()
        found: dict[int, list[Reduce]] = {}
        down = made.form == "columns"
        known: set[Node] = set(made.shared)
        for p in made.passes:
            if down and p.stores:  # they would keep what is the same in all lanes from being so
                continue
            some = [made.reductions[i] for g in p.groups for i in g]
            values = [*(n.args[0] for n in some), *roots(made.plan.stores[i] for i in p.stores)]
            for group in [[n] for n in some] if made.totals else [some]:
                at = [n.args[0] for n in group] if made.totals else values
                extra = 2 * any(n.row.counts for n in group)  # a deviation and its square
                along = order(group[0], self.space.reduced)[-1] if down and group else lane
                found.setdefault(self.unroll(at, known, along, extra), []).extend(group)
            known |= set(made.kept) & below(values).keys()
        for n in self.reduces:
            if n not in made.reductions:
                found.setdefault(self.unroll(n.args, set(), lane), []).append(n)
        alone = {
            k: [n for n in of if lane in (n.vars if down else n.axes)] for k, of in found.items()
        }
        return tuple(Copies(tuple(of), k) for k, of in sorted(alone.items()) if of and k > 1)

    def rows(self, made: LanePlan) -> int:
        """How many rows, or parts of one, are reduced at once: each is a stream from memory.

        A machine fetches ahead no further than to the end of a page: of one stream alone it then
        waits for memory, of several it has others.
        """
        lane, units = self.space.lane, self.space.units
        alone = len(self.reduces) == len(made.passes) == 1 and not made.passes[0].stores
        whole_rows = made.divided is None and units != () and not self.space.serial
        if lane is None or not alone or made.form != "rows":
            return 1
        if not whole_rows and made.divided is not lane:
            return 1
        (n,) = self.reduces
        once = n in made.reductions and not n.row.counts and not n.row.positional
        if not once or self.space.reduced != (lane,) or made.copies != (Copies((n,), UNROLL),):
            return 1
        nodes = [x for x in below(n.args) if not isinstance(x, Const)]
        loads = [x for x in nodes if isinstance(x, Load)]
        plain = all(isinstance(x, (Load, Op)) and lane in x.vars for x in nodes)
        if not plain or not all(goes_along(x, lane) for x in loads):
            return 1
        own = (x for x in loads if not whole_rows or units[-1] in x.vars)
        row = sum(x.dtype.bytes for x in own) * size_hint(extent(lane), 0)
        whole = row * size_hint(product(map(extent, units)), 0)
        return STREAMS if row >= PAGE and whole >= LARGE else 1

    def unroll(self, values: Sequence[Node], known: set[Node], along: Expr, extra: int = 0) -> int:
        """How many iterations over ``along`` run in turn; along the lane, vectors."""
        lane = self.space.lane
        assert lane is not None
        total = sum(self.costs(values, known, lane)) + extra
        unroll = UNROLL if total <= 8 else 2 if total <= 20 else 1
        if extent(along).is_const:
            steps = int_value(extent(along)) // (self.lanes if along is lane else 1)
            while unroll > 1 and steps < unroll:
                unroll //= 2
        return unroll

    def costs(self, values: Sequence[Node], known: set[Node], lane: Expr) -> Iterator[int]:
        """Additions in a loop along the lane.  known: what an earlier pass has kept."""
        for n in below(values, known):
            if isinstance(n, Op) and lane in n.vars:
                yield op_row(n.name).cost
            elif isinstance(n, Masked) and reads(n.args[1]):
                cond = n.args[0]
                same = lane not in cond.vars
                same = same or (isinstance(cond, Op) and uniform(cond, lane, self.lanes))
                yield SKIPPED * ((same and lane in n.vars) or n in self.made.branches)
