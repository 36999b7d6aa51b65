"""Rows, and columns of the same matrix, reduced by programs that go over rows.

See ``litz.schedule.crossed``.  A program has some neighbouring rows.  In every turn of its loop it
holds one of them or several short ones in a block; what reduces columns it combines with what it
has of these so far.  That goes to temporary memory in the end, and a second kernel reduces it.
"""

from __future__ import annotations

from litz.index import Substitution, const, min_, product, var
from litz.ir import body as nodes
from litz.ir.body import Node, Rewriter, Store, loads, replaced, walk
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config
from litz.kernel.blocks.sizes import power_of_two
from litz.kernel.nodes import extent, int_value, roots
from litz.kernel.parts import Parts, digits
from litz.kernel.phases import Phases, linear
from litz.kernel.plan import KernelPlan
from litz.schedule.crossed import BLOCK, HELD, Crossed, crossed

EACH = 16  # elements of a thread
AHEAD = 4  # bytes of each that a thread has registers for beside those at work


def divide(plan: KernelPlan) -> Phases | None:
    """A plan of rows and columns as one of programs that go over rows, and one of what they leave;
    None where it is none."""
    found = None if plan.parallel else crossed(plan.stores, plan.reduced)
    if found is None or not product(extent(v) for v in plan.reduced).is_const or found.row > HELD:
        return None
    return _Maker(plan, found).run()


class _Maker(Parts):
    """The last program may have fewer rows, the number of which depends on it."""

    def __init__(self, plan: KernelPlan, both: Crossed) -> None:
        rows = product(extent(v) for v in both.rows)
        super().__init__(plan, rows, const(_each(int_value(rows), both)))
        self.q = var("rpart", min_(self.part, self.size - self.p * self.part))
        self.both = both
        self.cells = product(extent(v) for v in both.columns)

    def run(self) -> Phases:
        move = Rewriter(Substitution(digits(self.position, self.both.rows)))
        down = set(self.both.down)
        of_columns = [s for s in self.plan.stores if down & set(walk(s.roots()))]
        stores = [move.store(s) for s in self.plan.stores if s not in of_columns]
        left: dict[Node, Node] = {}
        at = linear(self.both.columns)
        for n in self.both.down:
            t = self.temp(n.dtype, self.parts * self.cells)
            part = nodes.reduce(n.kind, (self.q,), move(n.args[0]))
            stores.append(Store(t.name, self.p * self.cells + at, part))
            again = nodes.load(t.dtype, t.name, self.r * self.cells + at)
            left[n] = nodes.reduce(n.kind, (self.r,), again)
        first = self.phase((self.p,), (self.q, *self.both.columns), stores)
        second = self.phase(self.both.columns, (self.r,), replaced(of_columns, left))
        return Phases((first, second), tuple(self.temps))


def _each(rows: int, both: Crossed) -> int:
    """Rows of a program, whole blocks: as many for all where that can be."""
    least = -(-rows // both.programs)
    few = max(1, power_of_two(least + 1) // 4)  # so that little is left of the last block
    block = min(max(1, BLOCK // both.row), few)
    first = -(-least // block) * block
    return next((n for n in range(first, 2 * least, block) if rows % n == 0), first)


def in_blocks(plan: KernelPlan, wide: bool) -> BlockPlan | None:
    """The kernel of programs that go over rows; None where a plan is none of those, or too wide."""
    found = crossed(plan.stores, plan.reduced)
    if found is None or not plan.parallel:
        return None
    rows, columns = Axis("x", found.rows), Axis("r", found.columns)
    if not columns.size.is_const or (r := found.row) > HELD:
        return None
    if plan.lane not in found.columns and rows.size.is_const:
        return None  # others go over it too, but not over fewer rows in the last program
    most = rows.size.hi or 1  # of all programs
    x = min(max(1, BLOCK // r), most & -most)
    warps = max(1, min(32, x * r // (32 * EACH)))
    config = Config((("x", x), ("r", r)), warps)
    axes = Axes((Axis("z", plan.parallel), rows), columns)
    even = axes.even((config,)) | {"x"} if x == 1 else axes.even((config,))
    read = loads(roots(plan.stores))
    whole = [n for n in read if all(any(v in n.vars for v in a.dims) for a in axes.blocked)]
    ahead = len(found.rows) == 1 and sum(n.dtype.bytes for n in whole) <= AHEAD
    return BlockPlan(plan, "crossed", axes, (config,), even, wide, ahead=ahead)
