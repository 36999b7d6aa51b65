"""Scans of few long rows, in parts: what each part comes to, a scan of that, and the parts again.

Each step combines in an order that sizes alone decide, so that results are the same in every run.
"""

from __future__ import annotations

from litz.index import Expr, Substitution, const
from litz.ir import body as nodes
from litz.ir.body import Node, Reduce, Rewriter, Scan, Store, walk
from litz.ir.reductions import TABLE
from litz.ir.scans import applied, carried, run_along, scans_of, widened
from litz.kernel.nodes import extent, over_all, roots
from litz.kernel.parts import Parts
from litz.kernel.phases import Phases
from litz.kernel.plan import KernelPlan


def can_divide(plan: KernelPlan) -> bool:
    """Whether all that a plan does are scans of one row each, and what is computed along."""
    found = scans_of(plan.stores)
    if not found or any(n.row.whole for n in found) or not run_along(plan.stores, plan.reduced):
        return False
    if not extent(found[0].axis).is_const:
        return False
    below = [n for s in found for n in walk(s.args)]
    if any(isinstance(n, Scan) for n in below):
        return False
    if any(isinstance(n, Reduce) for n in walk(roots(plan.stores))):
        return False
    stores = plan.stores
    return all(s.mode == "set" and not s.indirect and over_all(s, plan.reduced) for s in stores)


def part_of(size: int, least: int, most: int, rows: int, programs: int) -> int:
    """Elements of a part: that all programs have some to do; of one length where that can be."""
    wanted = min(max(size * rows // programs, least), most)
    even = (n for n in range(wanted, wanted // 2, -1) if size % n == 0 and n % 16 == 0)
    return next(even, wanted)


def divide(plan: KernelPlan, part: int, wide: bool) -> Phases:
    """Three plans for one that ``can_divide``.

    wide: states between parts have the type in which C++ carries them.
    """
    return _Divided(plan, const(part), wide).run()


class _Divided(Parts):
    name = "left"

    def __init__(self, plan: KernelPlan, part: Expr, wide: bool) -> None:
        (axis,) = plan.reduced
        super().__init__(plan, extent(axis), part)
        self.wide = wide
        self.move = Rewriter(Substitution({axis: self.position}))

    def run(self) -> Phases:
        ends: list[Store] = []
        between: list[Store] = []
        known: dict[object, tuple[Node, ...]] = {}
        for n in scans_of(self.plan.stores):
            elements = tuple(self.element(n, i) for i in range(len(n.elements)))
            key = n.kind, n.args, n.combine
            if key not in known:
                known[key] = self.starts(n, elements, ends, between)
            starts = known[key]
            if n.combine:
                made = self.behind(n, elements, starts)
            else:
                made = nodes.scan(n.kind, n.part, self.q, self.q, (*elements, *starts))
            self.move.memo[n] = nodes.cast(made, n.dtype)
        stores = [self.within(self.move.store(s)) for s in self.plan.stores]
        parallel = (self.p, *self.plan.parallel)
        plans = (
            self.phase(parallel, (self.q,), list(dict.fromkeys(ends))),
            self.phase(self.plan.parallel, (self.r,), list(dict.fromkeys(between))),
            self.phase(parallel, (self.q,), stores),
        )
        return Phases(plans, tuple(self.temps))

    def element(self, n: Scan, i: int) -> Node:
        """A part of an element; behind the row's end, of one that changes nothing."""
        value = self.move(n.elements[i])
        value = nodes.cast(value, carried(n)[i]) if self.wide else value
        return self.inside(value, nodes.const(value.dtype, n.row.state[i].identity(value.dtype)))

    def function(self, n: Scan) -> tuple[Node, ...]:
        return widened(n.combine) if self.wide else n.combine

    def behind(self, n: Scan, elements: tuple[Node, ...], before: tuple[Node, ...]) -> Node:
        """The scan of a part behind all parts before it: nothing comes before the first."""
        combine = self.function(n)
        own = tuple(
            nodes.scan(n.kind, p.name, self.q, self.q, elements, combine) for p in n.row.state
        )
        i = [p.name for p in n.row.state].index(n.part)
        return nodes.masked(self.started, applied(combine, before, own)[i], own[i])

    @property
    def started(self) -> Node:
        return nodes.op("gt", nodes.index(self.p), nodes.index(const(0)))

    def starts(
        self,
        n: Scan,
        elements: tuple[Node, ...],
        ends: list[Store],
        between: list[Store],
    ) -> tuple[Node, ...]:
        """What comes before a part: the state of all parts before it."""
        start = tuple(
            nodes.cast(self.move(a), e.dtype) for a, e in zip(n.start, elements, strict=False)
        )
        left = [self.temp(e.dtype, self.points * self.parts) for e in elements]
        states = [nodes.load(t.dtype, t.name, self.r * self.points + self.at) for t in left]
        after = [self.temp(e.dtype, self.points * self.parts) for e in elements]
        out = []
        last = nodes.op("eq", nodes.index(self.q), nodes.index(self.part - 1))
        simple, combine = n.kind in TABLE.results, self.function(n)
        for i, part in enumerate(n.row.state):
            where = self.p * self.points + self.at
            value = nodes.scan(n.kind, part.name, self.q, self.q, elements, combine)
            total = nodes.reduce(n.kind, (self.q,), elements[i]) if simple else value
            ends.append(Store(left[i].name, where, total, mask=None if simple else last))
            found = nodes.scan(n.kind, part.name, self.r, self.r, (*states, *start), combine)
            between.append(Store(after[i].name, self.r * self.points + self.at, found))
            before = nodes.load(after[i].dtype, after[i].name, where - self.points)
            none = nodes.const(before.dtype, part.identity(before.dtype))
            other = start[i] if start else none
            out.append(before if combine else nodes.masked(self.started, before, other))
        return tuple(out)
