"""Kernels in several phases, one after the other over all of memory.

Where a reduction's rows do not stay in the cache until the next pass, or are too few to occupy
threads, every pass over them may as well run over the whole space, with all threads: sums first,
then what needs them.  A phase is a plan of its own; between phases, what was reduced waits in
temporary memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.index import Expr, const, product, size_hint
from litz.ir.body import Load, Node, Reduce, Store, walk
from litz.ir.body import load as load_node
from litz.ir.dtype import DType
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.targets.cpp.loops import loops_of
from litz.targets.cpp.prepare import CACHED, NARROW, Space, extent, rebuild, roots
from litz.targets.cpp.reuse import mergeable, reduce_levels

FEW = 12  # rows that are too few for threads
LONG = 1 << 15  # elements of a row that is worth dividing


@dataclass(frozen=True, slots=True)
class Temp:
    """Memory between phases: a value of every point, in cells of 8 bytes."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Phases:
    """Plans to run in order.  temps: parameters of theirs that are not the kernel's."""

    plans: tuple[KernelPlan, ...]
    temps: tuple[Temp, ...]
    points: Expr


def divide(plan: KernelPlan, space: Space) -> Phases | None:
    """The phases of a plan that is better run in several, else None."""
    if space.serial or not space.reduced or not _worthwhile(space):
        return None
    dims = set(space.reduced)
    levels = reduce_levels(roots(space.stores))
    reduces = [n for n in walk(roots(space.stores)) if isinstance(n, Reduce)]
    full = [s for s in space.stores if loops_of(s, space.reduced)]
    if not reduces or any(set(n.axes) != dims for n in reduces):
        return None
    if any(any(v in dims for v in n.vars) for n in reduces):
        return None
    if any(s.mode != "set" or s.indirect for s in full):
        return None
    last = max(levels[n] for n in reduces)
    if last == 0 and not full:
        return None
    made = _Maker(plan, space, levels, reduces).run(full, last)
    return made if made is not None and len(made.plans) > 1 else None


def _worthwhile(space: Space) -> bool:
    rows = size_hint(product(extent(v) for v in space.reduced))
    points = size_hint(product(extent(v) for v in space.units))
    if space.lane is None or space.lane in space.reduced:
        return points <= FEW and rows >= LONG
    row = sum(n.dtype.bytes for n in walk(roots(space.stores)) if isinstance(n, Load)) or 4
    return rows * row * NARROW > CACHED


class _Maker:
    def __init__(
        self, plan: KernelPlan, space: Space, levels: dict[Node, int], reduces: Sequence[Reduce]
    ) -> None:
        self.plan = plan
        self.space = space
        self.levels = levels
        self.reduces = reduces
        self.temps: dict[Node, Temp] = {}

    def at(self) -> Expr:
        index: Expr = const(0)
        for v in self.space.units:
            index = index * extent(v) + v
        return index

    def run(self, full: list[Store], last: int) -> Phases | None:
        flat = [s for s in self.space.stores if s not in full]
        plans: list[KernelPlan] = []
        for level in range(last + 1):
            now = [r for r in self.reduces if self.levels[r] == level]
            final = level == last
            ready = [s for s in full if max(self.levels[n] for n in s.roots()) < level]
            later = [r.args[0] for r in self.reduces if self.levels[r] > level]
            others = [s for s in self.space.stores if s not in ready]
            merged = mergeable(ready, [*later, *roots(others)])
            full = [s for s in full if s not in merged]
            stores = [*merged, *(flat if final else ())]
            wanted = [r.args[0] for r in self.reduces if self.levels[r] > level]
            wanted += roots([*full, *(() if final else flat)])
            needed = set(walk(wanted))
            earlier = dict(self.temps)
            for r in now:
                if r in needed:
                    self.temps[r] = Temp(f"m{len(self.temps)}_", r.dtype)
                    stores.append(Store(self.temps[r].name, self.at(), r))
            plans.append(self.phase(stores, earlier, self.plan.dims))
        if full:
            read = {n.buffer for n in walk(roots(full)) if isinstance(n, Load)}
            if {s.buffer for s in flat} & read:
                return None  # a later phase reads what an earlier one replaces
            dims = tuple(replace(d, role="p") for d in self.plan.dims)
            plans.append(self.phase(full, self.temps, dims))
        points = product(extent(v) for v in self.space.units)
        return Phases(tuple(plans), tuple(self.temps.values()), points)

    def phase(
        self, stores: Sequence[Store], known: dict[Node, Temp], dims: tuple[Dim, ...]
    ) -> KernelPlan:
        """A plan of ``stores``, in which the reductions of earlier phases are loads."""
        memo: dict[Node, Node] = {}
        for n in walk(roots(stores)):
            if n in known:
                memo[n] = load_node(n.dtype, known[n].name, self.at())
            else:
                memo[n] = rebuild(n, tuple(memo[a] for a in n.args))
        new = tuple(
            replace(
                s,
                value=memo[s.value],
                indirect=tuple((sym, memo[v]) for sym, v in s.indirect),
                mask=None if s.mask is None else memo[s.mask],
            )
            for s in stores
        )
        return replace(self.plan, dims=dims, params=self.params(new), stores=new, tile=None)

    def params(self, stores: Sequence[Store]) -> tuple[Param, ...]:
        read = {n.buffer for n in walk(roots(stores)) if isinstance(n, Load)}
        read |= {s.buffer for s in stores if s.mode != "set"}
        written = {s.buffer for s in stores}
        known = {p.name: p.dtype for p in self.plan.params}
        known |= {t.name: t.dtype for t in self.temps.values()}
        out = []
        for name, dtype in known.items():
            if name in written:
                out.append(Param(name, dtype, "inout" if name in read else "out"))
            elif name in read:
                out.append(Param(name, dtype, "in"))
        return tuple(out)
