"""Reductions that many programs share: few rows, each of them long.

A first kernel reduces parts of every row and leaves what it finds in temporary memory; a second
reduces the parts.  Where more follows along the rows, each further pass is done likewise, and the
stores of the full space come last, as a kernel without reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.index import Expr, Substitution, ceildiv, const, min_, product, size_hint, symbol, var
from litz.ir import body as nodes
from litz.ir.body import Node, Reduce, Rewriter, Store, walk
from litz.ir.dtype import I64, DType
from litz.kernel.nodes import extent, loaded, loops_of, reduce_levels, roots
from litz.kernel.phases import Temp as PlanTemp
from litz.kernel.phases import linear, phase, rewritten, values_between
from litz.kernel.plan import Dim, KernelPlan
from litz.targets.triton.blocks import PROGRAMS
from litz.targets.triton.spell import neutral_scalar

LONG = 1 << 13  # elements of a row that is worth dividing
PART = 1 << 11  # elements of a part at least
ALIGNED = 64  # elements that a part is a multiple of


@dataclass(frozen=True, slots=True)
class Temp:
    """Memory between kernels: ``size`` elements."""

    name: str
    dtype: DType
    size: Expr


@dataclass(frozen=True, slots=True)
class Several:
    """Plans to run in order."""

    plans: tuple[KernelPlan, ...]
    temps: tuple[Temp, ...]


def divide(plan: KernelPlan) -> Several | None:
    """A plan as several that use more of the machine, or None where one serves better."""
    reduces = [n for n in walk(roots(plan.stores)) if isinstance(n, Reduce)]
    if not reduces or any(set(n.axes) != set(plan.reduced) for n in reduces):
        return None
    if any(v in plan.reduced for n in reduces for v in n.vars):
        return None
    # The flat position along a row is that of an argument reduction too.
    if any(n.kind.startswith("arg") and n.axes != plan.reduced for n in reduces):
        return None
    if any(s.mode != "set" or s.indirect for s in plan.stores):
        return None
    size = product(extent(v) for v in plan.reduced)
    if not size.is_const or size_hint(size) < LONG:
        return None
    parts = _parts(plan, size_hint(size))
    full = [s for s in plan.stores if loops_of(s, plan.reduced)]
    flat = [s for s in plan.stores if s not in full]
    if parts < 2 or {s.buffer for s in flat} & loaded(roots(full)):
        return None
    return _Maker(plan, parts).run(flat, full)


def _parts(plan: KernelPlan, size: int) -> int:
    """How many programs share a row: enough to fill the machine, none with too little to do."""
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    if plan.lane is not None and plan.lane in plan.parallel:
        rows = -(-rows // 64)
        return min(PROGRAMS // max(rows, 1), size // 64)
    return min(PROGRAMS // max(rows, 1), size // PART)


class _Maker:
    def __init__(self, plan: KernelPlan, parts: int) -> None:
        self.plan = plan
        self.size = product(extent(v) for v in plan.reduced)
        # Whole accesses of every thread: parts begin where vectors may.
        self.part = ceildiv(ceildiv(self.size, parts), ALIGNED) * ALIGNED
        self.parts = ceildiv(self.size, self.part)
        self.points = product(extent(v) for v in plan.parallel)
        self.at = linear(plan.parallel)
        self.temps: list[Temp] = []
        self.moment_temps: dict[Node, tuple[Temp, Temp]] = {}
        self.levels = reduce_levels(roots(plan.stores))
        self.p = var("xpart", self.parts)
        self.q = var("rpart", self.part)
        self.r = var("rparts", self.parts)

    def temp(self, dtype: DType, size: Expr) -> Temp:
        self.temps.append(Temp(f"m{len(self.temps)}", dtype, size))
        return self.temps[-1]

    def run(self, flat: Sequence[Store], full: Sequence[Store]) -> Several:
        reduces = [n for n in walk(roots(self.plan.stores)) if isinstance(n, Reduce)]
        last = max(self.levels[n] for n in reduces)
        known: dict[Node, Node] = {}
        plans: list[KernelPlan] = []
        contexts = [(n, last + 1) for n in (*roots(full), *roots(flat))]
        between = values_between(contexts, self.levels, self.plan.reduced)
        for level in range(last + 1):
            here = [n for n in reduces if self.levels[n] == level]
            combined = self.reduce_parts(here, known, plans)
            stores: list[Store] = []
            if level == last:
                stores += rewritten(flat, {**known, **combined})
            left = [n for n in between if self.levels[n] == level]
            if level < last or full:
                for n in left:
                    t = self.temp(n.dtype, self.points)
                    value = rewritten([Store(t.name, self.at, n)], {**known, **combined})
                    stores += value
                    known[n] = nodes.load(t.dtype, t.name, self.at)
            if stores:
                dims = [Dim(v, "p") for v in self.plan.parallel]
                plans.append(self.phase([*dims, Dim(self.r, "r")], stores, self.r))
        if full:
            every = tuple(replace(d, role="p") for d in self.plan.dims)
            plans.append(self.phase(every, rewritten(full, known), self.plan.lane))
        return Several(tuple(plans), tuple(self.temps))

    def reduce_parts(
        self, reduces: Sequence[Reduce], known: dict[Node, Node], plans: list[KernelPlan]
    ) -> dict[Node, Node]:
        """Adds the plan that reduces parts; returns what each reduction is in terms of them."""
        rest: Expr = self.p * self.part + self.q
        index: dict[Expr, Expr] = {}
        for v in reversed(self.plan.reduced[1:]):
            index[v] = rest % extent(v)
            rest = rest // extent(v)
        index[self.plan.reduced[0]] = rest
        move = Rewriter(Substitution(index))
        stores: list[Store] = []
        out: dict[Node, Node] = {}
        for n in reduces:
            value = rewritten([Store("", const(0), n.args[0])], known)[0].value
            out[n] = self.one(n, move(value), stores)
        dims = [Dim(v, "p") for v in self.plan.parallel]
        lane = self.plan.lane if self.plan.lane in self.plan.parallel else self.q
        order = [Dim(self.p, "p"), *dims]
        plans.append(self.phase([*order, Dim(self.q, "r")], stores, lane))
        return out

    def one(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        """The stores of one reduction's parts, and the reduction of what they leave."""
        if n.kind.startswith("welford"):
            return self.moments(n, value, stores)
        value = self.inside(value, neutral_value(n.kind, value.dtype))
        if n.kind in ("argmax", "argmin"):
            return self.argument(n, value, stores)
        left = self.leave(stores, nodes.reduce(n.kind, (self.q,), value))
        return nodes.reduce(n.kind, (self.r,), self.back(left))

    def inside(self, value: Node, other: Node) -> Node:
        """``value`` within the row; the last part may reach beyond its end."""
        if self.parts * self.part is self.size:
            return value
        at = nodes.index(self.p * self.part + self.q)
        return nodes.masked(nodes.op("lt", at, nodes.index(self.size)), value, other)

    def leave(self, stores: list[Store], part: Node) -> Temp:
        """Memory for a value of every part, and the store that fills it."""
        t = self.temp(part.dtype, self.points * self.parts)
        stores.append(Store(t.name, self.at * self.parts + self.p, part))
        return t

    def back(self, t: Temp) -> Node:
        return nodes.load(t.dtype, t.name, self.at * self.parts + self.r)

    def argument(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        kind: nodes.ReduceKind = "max" if n.kind == "argmax" else "min"
        best = self.leave(stores, nodes.reduce(kind, (self.q,), value))
        where = nodes.reduce(n.kind, (self.q,), value)
        first = nodes.index(self.p * self.part)
        spots = self.leave(stores, nodes.op("add", where, first))
        winner = nodes.reduce(n.kind, (self.r,), self.back(best))
        t = symbol(f"t{len(self.temps)}w", 0, self.parts.hi)
        return nodes.load(I64, spots.name, self.at * self.parts + t, ((t, winner),))

    def moments(self, n: Reduce, value: Node, stores: list[Store]) -> Node:
        """Mean and squared deviations of each part, then of all (Chan et al., 1979)."""
        dtype = n.dtype
        zero = nodes.const(dtype, 0)
        if value not in self.moment_temps:
            count = nodes.index(min_(self.part, self.size - self.p * self.part))
            total = nodes.reduce("sum", (self.q,), self.inside(value, zero))
            mean = nodes.op("div", total, nodes.cast(count, dtype))
            off = nodes.op("sub", value, mean)
            squares = self.inside(nodes.op("mul", off, off), zero)
            pair = (
                self.leave(stores, mean),
                self.leave(stores, nodes.reduce("sum", (self.q,), squares)),
            )
            self.moment_temps[value] = pair
        means, squared = (self.back(t) for t in self.moment_temps[value])
        count = nodes.cast(nodes.index(min_(self.part, self.size - self.r * self.part)), dtype)
        total = nodes.reduce("sum", (self.r,), nodes.op("mul", means, count))
        mean = nodes.op("div", total, nodes.cast(nodes.index(self.size), dtype))
        if n.kind == "welford_mean":
            return mean
        off = nodes.op("sub", means, mean)
        between = nodes.op("mul", nodes.op("mul", off, off), count)
        return nodes.reduce("sum", (self.r,), nodes.op("add", squared, between))

    def phase(self, dims: Sequence[Dim], stores: Sequence[Store], lane: Expr | None) -> KernelPlan:
        temps = [PlanTemp(t.name, t.dtype) for t in self.temps]
        return phase(self.plan, temps, tuple(dims), tuple(stores), lane)


def neutral_value(kind: str, dtype: DType) -> Node:
    """What changes nothing in a reduction."""
    return nodes.const(dtype, neutral_scalar(kind, dtype))
