"""Kernels in several phases, one after the other over all of memory.

Where a reduction's rows do not stay in the cache until the next pass, or are too few to occupy
threads, every pass over them may as well run over the whole space, with all threads: sums first,
then what needs them.  A phase is a plan of its own; between phases, what was reduced waits in
temporary memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.index import product, size_hint
from litz.ir.body import Load, Node, Reduce, Store, replaced, walk
from litz.ir.body import load as load_node
from litz.ir.scans import scans_of
from litz.kernel.lanes import nests
from litz.kernel.lanes.space import CACHED, NARROW, Space, reductions_of
from litz.kernel.nodes import extent, loaded, loops_of, over_all, reduce_levels, roots
from litz.kernel.passes import along_passes, by_level
from litz.kernel.phases import Phases, Temporary, in_tiles, linear, phase, values_between
from litz.kernel.plan import Dim, KernelPlan

FEW = 12  # rows that are too few for threads
LONG = 1 << 15  # elements of a row that is worth dividing
WIDE = 1 << 10  # columns that occupy threads, block by block
LARGE = 1 << 25  # bytes that are better read from memory once


def divide(plan: KernelPlan, space: Space, lanes: int) -> Phases | None:
    """The phases of a plan that is better run in several, else None.  lanes: of a vector."""
    if space.serial or not space.reduced or not _worthwhile(plan, space, lanes):
        return None
    dims = set(space.reduced)
    levels = reduce_levels(roots(plan.stores))
    reduces = [n for n in walk(roots(plan.stores)) if isinstance(n, Reduce)]
    full = [s for s in plan.stores if loops_of(s, space.reduced)]
    if not reduces or any(set(n.axes) != dims for n in reduces) or scans_of(plan.stores):
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


def _worthwhile(plan: KernelPlan, space: Space, lanes: int) -> bool:
    rows = size_hint(product(extent(v) for v in space.reduced))
    points = size_hint(product(extent(v) for v in space.units))
    if space.lane is None or space.lane in space.reduced:
        return points <= FEW and rows >= LONG
    row = sum(n.dtype.bytes for n in walk(roots(plan.stores)) if isinstance(n, Load)) or 4
    if rows * row * NARROW <= CACHED:
        return False
    large = points >= WIDE and rows * points * row >= LARGE
    return not (large and _held(plan.stores, space, lanes))


def _held(stores: Sequence[Store], space: Space, lanes: int) -> bool:
    """Whether a block of columns keeps all that later passes need of its rows."""
    reduces = reductions_of(stores)
    kept = nests.block_values(stores, space, reduces, nests.passes(stores, space, reduces), lanes)
    return any(isinstance(n, Load) for n in kept)


class _Maker:
    def __init__(
        self, plan: KernelPlan, space: Space, levels: dict[Node, int], reduces: Sequence[Reduce]
    ) -> None:
        self.plan = plan
        self.space = space
        self.levels = levels
        self.reduces = reduces
        self.at = linear(space.units)
        self.temps: dict[Node, Temporary] = {}

    def run(self, full: list[Store], last: int) -> Phases | None:
        flat = [s for s in self.plan.stores if s not in full]
        rounds = by_level(self.reduces, self.levels)
        merged = along_passes(full, self.plan.stores, rounds, self.levels, own=False)
        left = [s for s in full if not any(s in stores for stores in merged)]
        if not all(over_all(s, self.space.reduced) for s in left):
            return None  # it would run more than once, upon what it has written
        if {s.buffer for s in flat} & loaded(roots(left)):
            return None  # a later phase would read what an earlier one replaces
        contexts = [(n, last + 1) for n in roots(left)] + [(n, last) for n in roots(flat)]
        contexts += [(n, i) for i, stores in enumerate(merged) for n in roots(stores)]
        between = values_between(contexts, self.levels, self.space.reduced)
        points = product(extent(v) for v in self.space.units)
        self.temps = {n: Temporary(f"m{i}_", n.dtype, points) for i, n in enumerate(between)}
        plans: list[KernelPlan] = []
        for level in range(last + 1):
            stores = merged[level] + (flat if level == last else [])
            known = {n: t for n, t in self.temps.items() if self.levels[n] < level}
            new = [n for n in between if self.levels[n] == level]
            stores += [Store(self.temps[n].name, self.at, n) for n in new]
            plans.append(self.phase(stores, known, self.plan.dims))
        if left:
            dims = tuple(replace(d, role="p") for d in self.plan.dims)
            plans.append(in_tiles(self.phase(left, self.temps, dims)))
        return Phases(tuple(plans), tuple(self.temps.values()))

    def phase(
        self, stores: Sequence[Store], known: Mapping[Node, Temporary], dims: tuple[Dim, ...]
    ) -> KernelPlan:
        """A plan of ``stores``, in which what earlier phases have left is loaded."""
        loads: dict[Node, Node] = {n: load_node(t.dtype, t.name, self.at) for n, t in known.items()}
        new = replaced(stores, loads)
        return phase(self.plan, tuple(self.temps.values()), dims, new, self.space.lane)
