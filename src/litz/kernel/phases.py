"""Plans that run one after the other for one kernel; what is reduced waits in temporary memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Expr, const
from litz.ir.body import Node, Reduce, Store
from litz.ir.dtype import DType
from litz.kernel.merge import merge_loops
from litz.kernel.nodes import extent, loaded, roots
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.kernel.tiling import accesses_of, choose_tile, choose_tiling, loop_order


@dataclass(frozen=True, slots=True)
class Temporary:
    """Memory between the kernels of one plan: ``size`` elements."""

    name: str
    dtype: DType
    size: Expr


@dataclass(frozen=True, slots=True)
class Phases:
    """Plans to run in order.  temps: parameters of theirs that are not the plan's."""

    plans: tuple[KernelPlan, ...]
    temps: tuple[Temporary, ...]


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


def phase(
    plan: KernelPlan,
    temps: Sequence[Temporary],
    dims: tuple[Dim, ...],
    stores: tuple[Store, ...],
    lane: Expr | None,
) -> KernelPlan:
    """A plan for some of a kernel's stores, with the parameters that they need."""
    read = loaded(roots(stores)) | {s.buffer for s in stores if s.updates}
    written = {s.buffer for s in stores}
    params = []
    for p in (*plan.params, *(Param(t.name, t.dtype, "in") for t in temps)):
        if p.name in written:
            params.append(replace(p, mode="inout" if p.name in read else "out"))
        elif p.name in read:
            params.append(replace(p, mode="in"))
    return KernelPlan(dims, tuple(params), plan.ints, stores, lane)


def in_tiles(plan: KernelPlan) -> KernelPlan:
    """A plan of parallel dims with a tile beside its lane, where an access lies across that."""
    accesses = accesses_of(plan.stores, sizes_of(plan))
    tile = choose_tile(plan.parallel, (), accesses, plan.lane)
    if tile is None:
        return plan
    order = loop_order(plan.parallel, accesses, plan.lane, tile)
    return replace(plan, dims=tuple(Dim(v, "p") for v in order), tile=tile)


def sizes_of(plan: KernelPlan) -> dict[str, int]:
    """Bytes of an element of each parameter."""
    return {p.name: p.dtype.bytes for p in plan.params}


def normalised(
    plan: KernelPlan,
    temps: Sequence[Temporary],
    parallel: tuple[Expr, ...],
    reduced: tuple[Expr, ...],
    stores: Sequence[Store],
) -> KernelPlan:
    """A plan of some stores, with loops merged, in order, and its lane chosen anew."""
    axes, left, merged = merge_loops(
        parallel, reduced, tuple(stores), {t.name for t in temps} if not reduced else ()
    )
    accesses = accesses_of(merged, sizes_of(plan))
    if not accesses:  # temporary memory is small: what is left there decides by itself
        own = accesses_of(merged, {t.name: t.dtype.bytes for t in temps})
        accesses = [a for a in own if a.is_store]
    tiling = choose_tiling(axes, left, accesses)
    dims = (*(Dim(v, "p") for v in tiling.parallel), *(Dim(v, "r") for v in left))
    made = phase(plan, temps, dims, merged, tiling.lane)
    return replace(made, tile=tiling.tile)
