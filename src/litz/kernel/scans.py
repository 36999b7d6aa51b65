"""Scans of few long rows, in parts: what each part comes to, a scan of that, and the parts again.

Each step combines in an order that sizes alone decide, so that results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, Substitution, ceildiv, const, product, var
from litz.ir import body as nodes
from litz.ir.body import Node, Reduce, Rewriter, Scan, Store, walk
from litz.ir.reductions import TABLE
from litz.ir.scans import run_along, scans_of
from litz.kernel.nodes import extent, int_value, over_all, roots
from litz.kernel.phases import Phases, Temporary, linear, normalised
from litz.kernel.plan import KernelPlan


def can_divide(plan: KernelPlan) -> bool:
    """Whether all that a plan does are scans of one row each, and what is computed along."""
    found = scans_of(plan.stores)
    if not found or not run_along(plan.stores, plan.reduced) or not extent(found[0].axis).is_const:
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


class _Divided:
    def __init__(self, plan: KernelPlan, part: Expr, wide: bool) -> None:
        self.plan, self.part, self.wide = plan, part, wide
        (self.axis,) = plan.reduced
        self.size = extent(self.axis)
        self.parts = ceildiv(self.size, part)
        self.p, self.q = var("xpart", self.parts), var("rpart", part)
        self.r = var("rparts", self.parts)
        self.points = product(extent(v) for v in plan.parallel)
        self.at = linear(plan.parallel)
        self.move = Rewriter(Substitution({self.axis: self.p * part + self.q}))
        self.temps: list[Temporary] = []

    def run(self) -> Phases:
        ends: list[Store] = []
        between: list[Store] = []
        known: dict[object, tuple[Node, ...]] = {}
        for n in scans_of(self.plan.stores):
            elements = tuple(self.element(n, i) for i in range(len(n.elements)))
            key = n.kind, n.args
            if key not in known:
                known[key] = self.starts(n, elements, ends, between)
            starts = known[key]
            made = nodes.scan(n.kind, n.part, self.q, self.q, (*elements, *starts))
            self.move.memo[n] = nodes.cast(made, n.dtype)
        stores = [self.within(self.move.store(s)) for s in self.plan.stores]
        parallel = (self.p, *self.plan.parallel)
        plans = (
            self.phase(parallel, (self.q,), ends),
            self.phase(self.plan.parallel, (self.r,), between),
            self.phase(parallel, (self.q,), stores),
        )
        return Phases(plans, tuple(self.temps))

    def phase(
        self, parallel: tuple[Expr, ...], reduced: tuple[Expr, ...], stores: Sequence[Store]
    ) -> KernelPlan:
        return normalised(self.plan, self.temps, parallel, reduced, tuple(dict.fromkeys(stores)))

    def element(self, n: Scan, i: int) -> Node:
        """A part of an element; behind the row's end, of one that changes nothing."""
        value = self.move(n.elements[i])
        value = nodes.cast(value, n.row.carried(value.dtype)) if self.wide else value
        none = nodes.const(value.dtype, n.row.state[i].identity(value.dtype))
        inside = self.inside
        return value if inside is None else nodes.masked(inside, value, none)

    @property
    def inside(self) -> Node | None:
        """Whether a position lies within the row, unless all do."""
        if int_value(self.size) % int_value(self.part) == 0:
            return None
        return nodes.op("lt", nodes.index(self.p * self.part + self.q), nodes.index(self.size))

    def within(self, s: Store) -> Store:
        inside = self.inside
        if inside is None:
            return s
        mask = inside
        if s.mask is not None:
            mask = nodes.masked(inside, s.mask, nodes.const(s.mask.dtype, False))
        return replace(s, mask=mask)

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
        left = [self.temp(e) for e in elements]
        states = [nodes.load(t.dtype, t.name, self.r * self.points + self.at) for t in left]
        after = [self.temp(e) for e in elements]
        out = []
        last = nodes.op("eq", nodes.index(self.q), nodes.index(self.part - 1))
        started = nodes.op("gt", nodes.index(self.p), nodes.index(const(0)))
        simple = n.kind in TABLE.results
        for i, part in enumerate(n.row.state):
            where = self.p * self.points + self.at
            value = nodes.scan(n.kind, part.name, self.q, self.q, elements)
            total = nodes.reduce(n.kind, (self.q,), elements[i]) if simple else value
            ends.append(Store(left[i].name, where, total, mask=None if simple else last))
            found = nodes.scan(n.kind, part.name, self.r, self.r, (*states, *start))
            between.append(Store(after[i].name, self.r * self.points + self.at, found))
            before = nodes.load(after[i].dtype, after[i].name, where - self.points)
            none = nodes.const(before.dtype, part.identity(before.dtype))
            out.append(nodes.masked(started, before, start[i] if start else none))
        return tuple(out)

    def temp(self, like: Node) -> Temporary:
        name = f"left{len(self.temps)}"
        self.temps.append(Temporary(name, like.dtype, self.points * self.parts))
        return self.temps[-1]
