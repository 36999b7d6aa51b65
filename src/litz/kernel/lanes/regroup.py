"""Group statistics whose rows are interleaved: group norm with channels last.

A group's elements lie in short runs of a few channels, so that vectors along a run would be nearly
empty.  Taken together, the dims that count groups and the channels in one are contiguous: phases
reduce the long dims for every channel at once, then the channels of each group, and last run over
all elements with one value a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as pairs

from litz.dataclass import dataclass
from litz.index import Expr, Substitution, coefficient, const, product, size_hint, substitute, var
from litz.ir import body as nodes
from litz.ir.body import Index, Load, Node, Reduce, Rewriter, Store, replaced, walk
from litz.ir.scans import scans_of
from litz.kernel.moments import chunk_moments
from litz.kernel.nodes import extent, loaded, loops_of, over_all, reduce_levels, roots
from litz.kernel.phases import Phases, Temporary, linear, phase, values_between
from litz.kernel.plan import Dim, KernelPlan

SHORT = 32  # channels of a group that leave lanes empty
LONG = 16  # elements of a channel that are worth a phase


@dataclass(frozen=True, slots=True)
class _Merge:
    """Dims ``outer`` and ``inner`` as one: ``dim`` = outer * extent(inner) + inner."""

    outer: Expr
    inner: Expr
    dim: Expr

    @property
    def size(self) -> Expr:
        return extent(self.inner)


def divide(plan: KernelPlan) -> Phases | None:
    """The phases of a plan over interleaved groups, else None."""
    reduces = [n for n in walk(roots(plan.stores)) if isinstance(n, Reduce)]
    full = [s for s in plan.stores if loops_of(s, plan.reduced)]
    if not all(over_all(s, plan.reduced) for s in full):
        return None  # it would run more than once, upon what it has written
    if not reduces or not full or plan.lane is None:
        return None
    if scans_of(plan.stores) or any(
        n.row.positional or set(n.axes) != set(plan.reduced) for n in reduces
    ):
        return None
    levels = reduce_levels(roots(plan.stores))
    if any(levels[n] for n in reduces) or any(s.mode != "set" or s.indirect for s in plan.stores):
        return None
    flat = [s for s in plan.stores if s not in full]
    if {s.buffer for s in flat} & loaded(roots(full)):
        return None
    for outer, inner in pairs(plan.parallel, plan.reduced):
        merge = _Merge(outer, inner, var(f"{outer}g", extent(outer) * extent(inner)))
        if plan.lane in (outer, inner) and _short(merge, plan) and _merges(merge, reduces, full):
            return _Maker(plan, merge).run(full, flat)
    return None


def _short(m: _Merge, plan: KernelPlan) -> bool:
    """Whether runs of few channels leave lanes empty, in rows that are worth a phase."""
    rows = product(extent(v) for v in plan.reduced if v is not m.inner)
    few = size_hint(m.size) < SHORT and size_hint(rows) >= LONG
    return few and extent(m.outer).is_const


def _merges(m: _Merge, reduces: Sequence[Reduce], full: Sequence[Store]) -> bool:
    """Whether every access of the full space steps through both dims as through one."""
    step = 0
    exprs = [s.index for s in full]
    for n in walk([*roots(full), *(r.args[0] for r in reduces)]):
        if isinstance(n, Load):
            if n.indirect:
                return False
            exprs.append(n.index)
        elif isinstance(n, Index):
            exprs.append(n.expr)
    for e in exprs:
        if m.outer not in e.free and m.inner not in e.free:
            continue
        a, b = coefficient(e, m.outer), coefficient(e, m.inner)
        if a is None or b is None or a is not b * m.size:
            return False
        step += b is const(1)
    return step > 0


class _Maker:
    def __init__(self, plan: KernelPlan, m: _Merge) -> None:
        self.plan = plan
        self.m = m
        self.rest = tuple(v for v in plan.reduced if v is not m.inner)
        self.points = tuple(m.dim if v is m.outer else v for v in plan.parallel)
        self.at = linear(self.points)
        self.size = product(extent(v) for v in self.points)
        self.temps: list[Temporary] = []
        self.merged = Rewriter(Substitution({m.outer: m.dim // m.size, m.inner: m.dim % m.size}))
        self.channels: dict[Node, Temporary] = {}

    def temp(self, n: Node) -> Temporary:
        self.temps.append(Temporary(f"m{len(self.temps)}_", n.dtype, self.size))
        return self.temps[-1]

    def run(self, full: list[Store], flat: list[Store]) -> Phases:
        reduces = [n for n in walk(roots(self.plan.stores)) if isinstance(n, Reduce)]
        m = self.m
        sums: list[Store] = []
        for r in reduces:
            for n in self.of_channel(r):
                if n not in self.channels:
                    self.channels[n] = self.temp(n)
                    sums.append(Store(self.channels[n].name, self.at, n))
        contexts = [(n, 1) for n in roots(full)]
        levels = reduce_levels(roots(full))
        between = values_between(contexts, levels, self.plan.reduced)
        one = var(f"{m.inner}g", m.size)
        wide: dict[Node, Node] = {
            r: self.of_group(r, (one,), (m.dim // m.size) * m.size + one) for r in reduces
        }
        values = {n: self.temp(n) for n in between}
        spread = [Store(t.name, self.at, n) for n, t in values.items()]
        spread = [self.turned(s) for s in replaced(spread, wide)]
        narrow: dict[Node, Node] = {
            r: self.of_group(r, (m.inner,), m.outer * m.size + m.inner) for r in reduces
        }
        loads: dict[Node, Node] = {
            n: nodes.load(n.dtype, t.name, self.at) for n, t in values.items()
        }
        last = [self.turned(s) for s in replaced(full, loads)]
        points = [Dim(v, "p") for v in self.points]
        rows = [Dim(v, "r") for v in self.rest]
        plans = [
            self.phase([*points, *rows], sums, m.dim),
            self.phase([*points, Dim(one, "r")], spread, m.dim),
        ]
        if flat:
            groups = [Dim(v, "p") for v in self.plan.parallel]
            plans.append(self.phase([*groups, Dim(m.inner, "r")], replaced(flat, narrow), None))
        plans.append(self.phase([*points, *(replace(d, role="p") for d in rows)], last, m.dim))
        return Phases(tuple(plans), tuple(self.temps))

    def phase(self, dims: Sequence[Dim], stores: Sequence[Store], lane: Expr | None) -> KernelPlan:
        return phase(self.plan, self.temps, tuple(dims), tuple(stores), lane)

    def turned(self, s: Store) -> Store:
        """A store over the merged dim."""
        return self.merged.store(s)

    def of_channel(self, r: Reduce) -> tuple[Node, ...]:
        """What a reduction needs of each channel: itself over the long dims."""
        value = self.merged(r.args[0])
        n = nodes.reduce(r.kind, self.rest, value)
        if r.gives.part != "m2":
            return (n,)
        return (nodes.reduce("welford_mean", self.rest, value), n)

    def of_group(self, r: Reduce, axes: tuple[Expr, ...], channel: Expr) -> Node:
        """A reduction, from what its channels have left."""
        at = substitute(self.at, {self.m.dim: channel})
        parts = [nodes.load(n.dtype, self.channels[n].name, at) for n in self.of_channel(r)]
        if not r.row.counts:
            return nodes.reduce(r.kind, axes, parts[0])
        mean, between = chunk_moments(parts[0], axes, self.m.size)
        if r.gives.part == "mean":
            return mean
        count = nodes.cast(nodes.index(product(extent(v) for v in self.rest)), r.dtype)
        within = nodes.reduce("sum", axes, parts[1])
        return nodes.op("add", within, nodes.op("mul", between, count))
