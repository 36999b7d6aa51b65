"""Rows in parts, each of which another program or thread has, and what those leave in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import ONE, Expr, ceildiv, min_, product, var
from litz.ir import body as nodes
from litz.ir.body import Node, Store
from litz.ir.dtype import DType
from litz.kernel.guards import within
from litz.kernel.nodes import extent
from litz.kernel.phases import Temporary, linear, normalised
from litz.kernel.plan import KernelPlan


def digits(position: Expr, loops: Sequence[Expr]) -> dict[Expr, Expr]:
    """Each of several loops at a position in all of them."""
    found: dict[Expr, Expr] = {}
    for v in reversed(loops[1:]):
        found[v] = position % extent(v)
        position = position // extent(v)
    return {**found, loops[0]: position}


class Parts:
    """Rows in parts of ``part`` elements, of which the last may reach beyond the end.

    A row is as many stretches of ``size`` elements as ``before`` says, each in parts of its own.
    p: counts parts; q: elements of one; r: parts again, where one program has them all.
    points: of the parallel dims; at: the place of one.  temps: memory between the plans, called
    ``name`` and a number: plans of several makers may run for one.
    """

    name = "part"

    def __init__(self, plan: KernelPlan, size: Expr, part: Expr, before: Expr = ONE) -> None:
        self.plan, self.size, self.part = plan, size, part
        self.pieces = ceildiv(size, part)  # of a stretch
        self.parts = before * self.pieces
        self.p: Expr = var("xpart", self.parts)
        self.q: Expr = var("rpart", part)
        self.r = var("rparts", self.parts)
        self.points = product(extent(v) for v in plan.parallel)
        self.at = linear(plan.parallel)
        self.temps: list[Temporary] = []

    def temp(self, dtype: DType, size: Expr) -> Temporary:
        self.temps.append(Temporary(f"{self.name}{len(self.temps)}", dtype, size))
        return self.temps[-1]

    @property
    def position(self) -> Expr:
        """The place of an element in its stretch of a row."""
        return self.p % self.pieces * self.part + self.q

    @property
    def first(self) -> Expr:
        """The place of a part's first element in its row."""
        return self.p // self.pieces * self.size + self.p % self.pieces * self.part

    def count(self, p: Expr) -> Expr:
        """Elements of a part."""
        return min_(self.part, self.size - p % self.pieces * self.part)

    @property
    def ragged(self) -> Node | None:
        """Whether a position lies within its stretch, unless all do."""
        if self.pieces * self.part is self.size:
            return None
        return nodes.op("lt", nodes.index(self.position), nodes.index(self.size))

    def inside(self, value: Node, other: Node) -> Node:
        """``value`` within the stretch."""
        cond = self.ragged
        return value if cond is None else within(cond, value, other, self.q.free)

    def within(self, s: Store) -> Store:
        """A store of the full space, within its stretch: nothing is read beyond its end either."""
        cond = self.ragged
        if cond is None:
            return s
        value = self.inside(s.value, nodes.const(s.value.dtype, 0))
        if s.mask is not None:
            cond = self.inside(s.mask, nodes.const(s.mask.dtype, False))
        return replace(s, value=value, mask=cond)

    def phase(
        self, parallel: tuple[Expr, ...], reduced: tuple[Expr, ...], stores: Sequence[Store]
    ) -> KernelPlan:
        return normalised(self.plan, self.temps, parallel, reduced, stores)
