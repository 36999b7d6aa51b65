"""Kernels in several phases, one after the other over all of memory.

Where a reduction's rows do not stay in the cache until the next pass, or are too few to occupy
threads, every pass over them may as well run over the whole space, with all threads: sums first,
then what needs them.  A phase is a plan of its own; between phases, what was reduced waits in
temporary memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from litz.index import Expr, const, product, size_hint
from litz.ir.body import Load, Node, Reduce, Store, walk
from litz.ir.body import load as load_node
from litz.ir.dtype import DType
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.targets.cpp.loops import loaded, loops_of
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


def linear(dims: Sequence[Expr]) -> Expr:
    """The row-major position of a point of ``dims``."""
    index: Expr = const(0)
    for v in dims:
        index = index * extent(v) + v
    return index


def values_between(
    contexts: Sequence[tuple[Node, int]], levels: Mapping[Node, int], inner: Sequence[Expr]
) -> tuple[Node, ...]:
    """What phases leave for later ones: the largest values of a point that reductions give.

    contexts: what is computed, and in which phase: reductions of lower levels are done before it.
    inner: the dims within a point.
    """
    found: dict[Node, None] = {}
    seen: set[tuple[Node, int]] = set()
    stack = list(reversed(contexts))
    while stack:
        n, at = stack.pop()
        if (n, at) in seen or levels[n] < 0:
            continue
        seen.add((n, at))
        fixed = isinstance(n, Reduce) or not any(v in inner for v in n.vars)
        if fixed and levels[n] < at:
            found[n] = None
            stack.append((n, levels[n]))
        elif isinstance(n, Reduce):
            stack.append((n.args[0], levels[n]))
        else:
            stack.extend((a, at) for a in reversed(n.args))
    return tuple(found)


def rewritten(stores: Sequence[Store], known: Mapping[Node, Node]) -> tuple[Store, ...]:
    """``stores`` with nodes replaced."""
    memo: dict[Node, Node] = dict(known)
    for n in walk(roots(stores)):
        if n not in memo:
            memo[n] = rebuild(n, tuple(memo[a] for a in n.args))
    return tuple(
        replace(
            s,
            value=memo[s.value],
            indirect=tuple((sym, memo[v]) for sym, v in s.indirect),
            mask=None if s.mask is None else memo[s.mask],
        )
        for s in stores
    )


def phase(
    plan: KernelPlan,
    temps: Sequence[Temp],
    dims: tuple[Dim, ...],
    stores: tuple[Store, ...],
    lane: Expr | None,
) -> KernelPlan:
    """A plan for some of a kernel's stores, with the parameters that they need."""
    read = {n.buffer for n in walk(roots(stores)) if isinstance(n, Load)}
    read |= {s.buffer for s in stores if s.mode != "set"}
    written = {s.buffer for s in stores}
    params = []
    known = [(p.name, p.dtype) for p in plan.params] + [(t.name, t.dtype) for t in temps]
    for name, dtype in known:
        if name in written:
            params.append(Param(name, dtype, "inout" if name in read else "out"))
        elif name in read:
            params.append(Param(name, dtype, "in"))
    return KernelPlan(dims, tuple(params), plan.ints, stores, lane)


class _Maker:
    def __init__(
        self, plan: KernelPlan, space: Space, levels: dict[Node, int], reduces: Sequence[Reduce]
    ) -> None:
        self.plan = plan
        self.space = space
        self.levels = levels
        self.reduces = reduces
        self.at = linear(space.units)
        self.temps: dict[Node, Temp] = {}

    def run(self, full: list[Store], last: int) -> Phases | None:
        flat = [s for s in self.space.stores if s not in full]
        merged = self.merged(full, last)
        left = [s for s in full if not any(s in stores for stores in merged)]
        if {s.buffer for s in flat} & loaded(roots(left)):
            return None  # a later phase would read what an earlier one replaces
        contexts = [(n, last + 1) for n in roots(left)] + [(n, last) for n in roots(flat)]
        contexts += [(n, i) for i, stores in enumerate(merged) for n in roots(stores)]
        between = values_between(contexts, self.levels, self.space.reduced)
        self.temps = {n: Temp(f"m{i}_", n.dtype) for i, n in enumerate(between)}
        plans: list[KernelPlan] = []
        for level in range(last + 1):
            stores = merged[level] + (flat if level == last else [])
            known = {n: t for n, t in self.temps.items() if self.levels[n] < level}
            new = [n for n in between if self.levels[n] == level]
            stores += [Store(self.temps[n].name, self.at, n) for n in new]
            plans.append(self.phase(stores, known, self.plan.dims))
        if left:
            dims = tuple(replace(d, role="p") for d in self.plan.dims)
            plans.append(self.phase(left, self.temps, dims))
        points = product(extent(v) for v in self.space.units)
        return Phases(tuple(plans), tuple(self.temps.values()), points)

    def merged(self, full: Sequence[Store], last: int) -> list[list[Store]]:
        """Stores of the full space that run along with the reductions of each level."""
        left = list(full)
        out: list[list[Store]] = []
        for level in range(last + 1):
            ready = [s for s in left if max(self.levels[n] for n in s.roots()) < level]
            others = [
                s for s in self.space.stores if s not in ready and (s not in full or s in left)
            ]
            later = [r.args[0] for r in self.reduces if self.levels[r] > level]
            out.append(mergeable(ready, [*later, *roots(others)]))
            left = [s for s in left if s not in out[-1]]
        return out

    def phase(
        self, stores: Sequence[Store], known: Mapping[Node, Temp], dims: tuple[Dim, ...]
    ) -> KernelPlan:
        """A plan of ``stores``, in which what earlier phases have left is loaded."""
        loads: dict[Node, Node] = {n: load_node(t.dtype, t.name, self.at) for n, t in known.items()}
        new = rewritten(stores, loads)
        return phase(self.plan, tuple(self.temps.values()), dims, new, self.space.lane)
