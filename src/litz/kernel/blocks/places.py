"""Where accesses lie that are not one after the other along the lane.

Elements that lie beside each other in memory and that one point reads, or writes, both are pairs:
parts of complex numbers, say.  A loop along the lane, or the tile, steps over two elements at a
time; loaded one after the other, each access would take half of what it touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from litz.index import Const, Expr, Sum, coefficient, sum_
from litz.ir.body import Load, Masked, Node, Store, loads
from litz.ir.dtype import BOOL
from litz.kernel.nodes import roots
from litz.kernel.plan import KernelPlan
from litz.kernel.tiling import Place, runs


def pairs_of(plan: KernelPlan) -> tuple[dict[Load, Load], dict[Store, Store]]:
    """Loads, and stores, each with the one that lies behind it."""
    if plan.lane is None:
        return {}, {}
    several = Counter(s.buffer for s in plan.stores)
    read = [n for n in _unguarded(roots(plan.stores)) if not n.indirect]
    kept = [s for s in plan.stores if s.mode == "set" and s.mask is None and not s.indirect]
    reads = _runs(plan, [(n.buffer, n.index) for n in read])
    # Of other stores to a buffer one might have to come between.
    writes = [
        run
        for run in _runs(plan, [(s.buffer, s.index) for s in kept])
        if len(run) == several[kept[run[0]].buffer]
    ]
    return (
        {read[a]: read[b] for run in reads for a, b in zip(run[::2], run[1::2], strict=False)},
        {kept[a]: kept[b] for run in writes for a, b in zip(run[::2], run[1::2], strict=False)},
    )


def _unguarded(nodes: Sequence[Node]) -> list[Load]:
    """The loads that are made at every point."""
    found: dict[Node, None] = {}
    stack = list(reversed(nodes))
    while stack:
        n = stack.pop()
        if n not in found:
            found[n] = None
            stack += n.args[::2] if isinstance(n, Masked) else n.args
    return [n for n in found if isinstance(n, Load)]


def _runs(plan: KernelPlan, places: Sequence[Place]) -> Iterator[list[int]]:
    """Which places lie one behind the other, no more than steps along the lane or the tile take.

    Such steps are even: pairs are the places' first two, the next two and so on.
    """
    along = [v for v in (plan.lane, plan.tile) if v is not None]
    number = {place: i for i, place in enumerate(places)}
    left_out = {p.name for p in plan.params if p.by_value or p.dtype is BOOL}
    for run in runs(tuple(number)):
        buffer, index = run[0]
        found = (coefficient(index, v) for v in along)
        steps = [c.value for c in found if isinstance(c, Const) and c.value > 0 == c.value % 2]
        if steps and buffer not in left_out:
            yield [number[place] for place in run[: min(steps)]]


def rows_of(plan: KernelPlan) -> dict[Load, Expr]:
    """What of a load's index the lane does not change, where neighbours are no one access."""
    found: dict[Load, Expr] = {}
    for n in loads(roots(plan.stores)):
        if n.indirect or plan.lane is None:
            continue
        e, lane = n.index, plan.lane
        if isinstance(e, Sum) and lane in e.free and coefficient(e, lane) is None:
            row = sum_(c * t for t, c in e.terms if lane not in t.free)
            if row.free:
                found[n] = row
    return found
