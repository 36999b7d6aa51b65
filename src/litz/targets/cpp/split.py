"""Reductions that threads share: few results, each of many terms.

Every thread reduces its part of one reduced dim, for all points of the parallel dims, and leaves
what it has in its room, a cell of 8 bytes a value.  Then one thread combines the rooms in their
order and runs what follows the reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, ceildiv, const, product, symbol
from litz.ir.body import Reduce, Store
from litz.ir.dtype import F64, I64, DType
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, loops_of
from litz.targets.cpp import columns, tree
from litz.targets.cpp.loops import DimRange, TreeBuilder
from litz.targets.cpp.scope import Scope
from litz.targets.cpp.streams import Streams
from litz.targets.cpp.tree import Acc, Kernel, Ref, Stmt
from litz.targets.cpp.values import converted


class Cells:
    """The cells of a room: one for every value that a point's reductions leave."""

    def __init__(self, space: Space) -> None:
        self.slots: list[tree.Slot] = []
        self.of: dict[Reduce, tuple[tree.Slot, ...]] = {}
        self.units = space.units
        self.points = product(extent(v) for v in space.units)

    def add(self, r: Reduce, dtypes: Sequence[DType]) -> tuple[tree.Slot, ...]:
        start = len(self.slots)
        new = tuple(tree.Slot(f"p{start + i}_", t) for i, t in enumerate(dtypes))
        self.slots.extend(new)
        self.of[r] = new
        return new

    def index(self) -> Expr:
        at: Expr = const(0)
        for v in self.units:
            at = at * extent(v) + v
        return at


class Parts(Streams):
    """What a thread does: reduce its part of a dim, leave the accumulators in its room."""

    cells: Cells

    def divide(self, by: Expr, cells: Cells) -> None:
        self.cells = cells
        self.ranges[by] = DimRange(symbol("from_"), symbol("to_"), None, 0)

    def point(self, scope: Scope) -> None:
        for group in map(self.reduced_in, self.made.passes):
            home = scope.at(self.home_depth(group[0], scope))
            if group[0].row.counts:
                self.leave(group, self.moment_loops(group[0], home), home, scope)
                continue
            for r, acc in zip(group, self.reduce_loops(group, home), strict=True):
                self.leave([r], acc, home, scope)

    def reduce_loops(self, group: list[Reduce], home: Scope) -> list[Acc]:
        """In streams of a thread's part that run at once, and what is left of it."""
        by, rows = self.made.divided, self.made.rows
        if rows == 1 or by is None:
            return super().reduce_loops(group, home)
        part, each = self.ranges[by], symbol("each_")
        start = const(0) if part.start is None else part.start
        found = []
        for self.at_once, begin, stop in (
            (rows, start, start + each), (1, start + rows * each, part.stop),
        ):  # fmt: skip
            self.ranges[by] = replace(part, start=begin, stop=stop)
            found.append(super().reduce_loops(group, home))
        self.ranges[by] = part
        text = f"const int64_t each_ = (to_ - from_) / {rows * LINE} * {LINE};"
        home.body.insert(0, tree.Line(text))
        home.body += [tree.Merge(a, b) for a, b in zip(*found, strict=True)]
        return found[0]

    def turns(self, body: list[Stmt]) -> tree.Turns:
        assert self.lane is not None
        return tree.Turns(self.lane, self.at_once, body, symbol("each_"), rows=True)

    def leave(self, group: list[Reduce], acc: Acc, home: Scope, scope: Scope) -> None:
        refs = self.state(acc, home)
        slots = self.cells.add(group[0], [r.dtype for r in refs])
        self.cells.of.update(dict.fromkeys(group, slots))
        puts: list[Stmt] = [
            tree.Put(Store(slot.name, self.cells.index(), group[0]), ref)
            for slot, ref in zip(slots, refs, strict=True)
        ]
        scope.body.extend(self.for_lanes(puts))

    def for_lanes(self, puts: list[Stmt]) -> list[Stmt]:
        return puts

    def state(self, acc: Acc, home: Scope) -> list[Ref]:
        """All that an accumulator holds, as values."""
        refs = []
        for part in acc.row.state[:2]:
            dtype = part.dtype or acc.dtype
            ref = Ref(self.name(), dtype, acc.vec and not acc.folded)
            home.body.append(tree.Finish(ref.text, acc, dtype, part.name))
            refs.append(ref)
        if acc.row.counts:
            refs.append(Ref(f"{acc.name}_n", F64))
        return refs


class ColumnParts(Parts, columns.ColumnBuilder):
    """The same with accumulators in arrays, for lanes that are not reduced."""

    def for_lanes(self, puts: list[Stmt]) -> list[Stmt]:
        return [self.lanes_stmt(puts)]

    def state(self, acc: Acc, home: Scope) -> list[Ref]:
        if acc.block is None:
            return super().state(acc, home)
        refs = [self.fetch(acc.name, acc.dtype)]
        if acc.position is not None:
            refs.append(self.fetch(f"{acc.name}i", I64))
        if acc.row.counts:
            refs += [self.fetch(f"{acc.name}q", F64), Ref(f"{acc.name}_n", F64)]
        return refs


class Ends(TreeBuilder):
    """What one thread does at the end: combine the rooms, and all that follows."""

    cells: Cells

    def emit_reduce(self, n: Reduce, scope: Scope) -> None:
        home = scope.at(self.bound_depth(self.cells.units, scope))
        vec = self.lane is not None
        slots = self.cells.of[n]
        same = [r for r, s in self.cells.of.items() if s is slots]
        name = self.name()
        home.body.append(tree.Combine(name, n.row, slots, self.cells.index(), vec))
        for r in same:
            first = r.gives.part == r.row.state[0].name
            text = name if first else f"{name}q"
            text = converted(text, slots[0 if first else 1].dtype, r.dtype)
            home.env[r] = Ref(text, r.dtype, vec)


def build(made: LanePlan, name: str, by: Expr) -> Kernel:
    """The loop tree of a kernel whose threads divide the reduced dim ``by``."""
    space = made.space
    cells = Cells(space)
    alone = replace(made, space=replace(space, units=(), serial=space.units))
    parts = (ColumnParts if made.form == "columns" else Parts)(alone, name)
    parts.divide(by, cells)
    kernel = parts.build()
    across = space.lane if space.lane in space.units else None
    flat = tuple(s for s in made.plan.stores if not loops_of(s, space.reduced))
    rest = replace(alone.space, reduced=(), lane=across)
    plan = replace(made.plan, stores=flat)
    ends = Ends(replace(alone, plan=plan, space=rest, passes=(), kept=(), streamed=()), name)
    ends.cells = cells
    size = made.unit
    kernel.split = tree.Split(
        by, size, ceildiv(extent(by), size), tuple(cells.slots), cells.points, ends.build()
    )
    kernel.checks = kernel.checks or ends.checks
    return kernel
