"""Parallel loops inside of the lane's: values that they do not change are computed once for all.

Where to sample an image, and with which weights, is the same for all of its channels.  A loop over
channels around the pixels would compute it again for each.  Within a vector, or a block of vectors,
it finds these values done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, product, size_hint
from litz.ir.body import Load, Node, Op, Reduce, Scan, walk
from litz.ir.ops import op as op_row
from litz.kernel.lanes import pieces
from litz.kernel.lanes.access import access
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.reuse import COSTLY, SCATTERED
from litz.kernel.lanes.space import CACHED, Space
from litz.kernel.nodes import extent, guarded, over_all, roots
from litz.kernel.plan import Dim, KernelPlan

PART = 5  # of a point's work: less is not worth another order of the loops
FEW_VECTORS = 12  # that are too few for threads
FEW_LANES = 1 << 14  # whose rows are better read whole by each thread
SMALL = 1 << 18  # additions that one thread may do alone


def inside(plan: KernelPlan, space: Space, lanes: int) -> tuple[KernelPlan, Space]:
    """The plan with some parallel dims as loops inside of the lane's, where that saves work.

    In plan and space these are reduced dims, over which nothing is reduced.
    """
    units, lane = space.units, space.lane
    if lane is None or lane not in units or space.serial or space.reduced or len(units) < 2:
        return plan, space
    if plan.tile is not None or not all(over_all(s, units) for s in plan.stores):
        return plan, space
    nodes = list(walk(roots(plan.stores)))
    if any(isinstance(n, Reduce | Scan) for n in nodes) or pieces.cuts(plan.stores, space, lanes):
        return plan, space
    own = _own(nodes, units)
    costs = [(_cost(n, lane, lanes), vars) for n, vars in own.items() if lane in vars]
    whole = sum(c for c, _ in costs)
    sets = dict.fromkeys(tuple(v for v in units if v not in vars) for c, vars in costs if c)
    best = 0.0
    dims: tuple[Expr, ...] = ()
    for some in sets:
        times = size_hint(product(extent(v) for v in some))
        apart = sum(c for c, vars in costs if not set(some) & vars)
        saved = apart * (1 - 1 / max(1, times))
        if (
            some
            and saved > best
            and _divides(units, some, whole, gathers(plan, some, lane, lanes), lanes)
        ):
            best, dims = saved, some
    if best < max(COSTLY, whole / PART):
        return plan, space
    left = tuple(v for v in units if v not in dims)
    loops = (*(Dim(v, "p") for v in left), *(Dim(v, "r") for v in dims))
    return replace(plan, dims=loops), replace(space, units=left, reduced=dims)


def gathers(plan: KernelPlan, dims: Sequence[Expr], lane: Expr | None, lanes: int) -> bool:
    """Whether what runs over ``dims`` reads lane by lane, where data says.

    That takes longer than going from row to row with each vector, which leaves values in registers,
    as long as the lines of all rows stay in the cache.
    """
    if size_hint(product(extent(v) for v in dims)) * lanes * LINE > CACHED:
        return False
    nodes = list(walk(roots(plan.stores)))
    if any(isinstance(n, Reduce | Scan) for n in nodes):
        return False
    found = (n for n in nodes if isinstance(n, Load) and set(dims) & set(n.vars))
    return any(lane in data.vars for n in found for _, data in n.indirect)


def _divides(
    units: Sequence[Expr], dims: Sequence[Expr], work: int, gathered: bool, lanes: int
) -> bool:
    """Whether enough is left outside of ``dims`` for threads, if there is work for several."""
    left = size_hint(product(extent(v) for v in units if v not in dims))
    all_work = size_hint(product(extent(v) for v in units)) * work
    return all_work <= SMALL or left >= (FEW_VECTORS * lanes if gathered else FEW_LANES)


def _own(nodes: Sequence[Node], units: Sequence[Expr]) -> dict[Node, set[Expr]]:
    """The dims within whose loops each node is computed."""
    held = guarded(nodes)
    return {n: {v for v in units if v in n.vars or v in held.get(n, ())} for n in nodes}


def _cost(n: Node, lane: Expr, lanes: int) -> int:
    """Additions; what lies side by side is as well read again."""
    if isinstance(n, Op):
        return op_row(n.name).cost
    if isinstance(n, Load):
        near = not any(lane in data.vars for _, data in n.indirect)
        return 0 if near and access(n.index, lane, lanes).kind in ("next", "same") else SCATTERED
    return 0
