"""Costly values that loops repeat: a phase of their own stores them first.

A function of a bias is the same in every row that the bias is added to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.index import Expr, product, size_hint
from litz.ir.body import Load, Node, Op, Reduce, Scan, Store, load, replaced, walk
from litz.kernel.lanes.reuse import COSTLY, cost
from litz.kernel.lanes.space import CACHED, Space
from litz.kernel.nodes import extent, guarded, roots
from litz.kernel.phases import Phases, Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan

TIMES = 4  # that a value is computed: fewer may as well be repeated
WORK = 1 << 14  # additions in all that are worth another loop
MEMORY = 16  # additions that take as long as a byte which goes through memory


def divide(plan: KernelPlan, space: Space, lanes: int) -> Phases | None:
    """Phases that store such values, and the plan that reads them; None where there are none."""
    lane = space.lane
    if lane is None:
        return None
    dims = (*space.units, *space.serial, *space.reduced)
    dims = (*(v for v in dims if v is not lane), lane)
    found: dict[tuple[Expr, ...], list[Store]] = {}
    temps: list[Temporary] = []
    known: dict[Node, Node] = {}
    # Columns keep what their rows share.
    around = dims if lane in space.reduced else (*space.units, *space.serial)
    for n in _repeated(plan, dims, around, lanes):
        own = tuple(v for v in dims if v in n.vars)
        name = f"v{len(temps)}_"
        temps.append(Temporary(name, n.dtype, product(extent(v) for v in own)))
        known[n] = load(n.dtype, name, linear(own))
        found.setdefault(own, []).append(Store(name, linear(own), n))
    if not known:
        return None
    first = [
        phase(plan, temps, tuple(Dim(v, "p") for v in own), tuple(stores), lane)
        for own, stores in found.items()
    ]
    rest = phase(plan, temps, plan.dims, replaced(plan.stores, known), plan.lane)
    return Phases((*first, replace(rest, tile=plan.tile)), tuple(temps))


def _repeated(
    plan: KernelPlan, dims: Sequence[Expr], around: Sequence[Expr], lanes: int
) -> Iterator[Node]:
    """The largest of these values, in a fixed order.

    dims: of the plan, the lane last.  around: those whose loops would repeat values.
    """
    lane = dims[-1]
    written = {s.buffer for s in plan.stores}
    nodes = list(walk(roots(plan.stores)))
    held = guarded(nodes)
    fixed: dict[Node, bool] = {}  # what needs no reduction, and nothing that changes
    for n in nodes:
        own = isinstance(n, Reduce | Scan) or isinstance(n, Load) and n.buffer in written
        fixed[n] = not own and all(fixed[a] for a in n.args)
    seen: set[Node] = set()
    stack = list(reversed(roots(plan.stores)))
    while stack:
        n = stack.pop()
        if n in seen or n in held:
            continue
        seen.add(n)
        if isinstance(n, Op) and lane in n.vars and fixed[n]:
            times = size_hint(product(extent(v) for v in around if v not in n.vars))
            if times >= TIMES and _worth(n, times, dims, lanes):
                yield n
                continue
        stack.extend(reversed(n.args))


def _worth(n: Node, times: int, dims: Sequence[Expr], lanes: int) -> bool:
    added = cost(n, dims[-1], lanes)
    points = size_hint(product(extent(v) for v in dims if v in n.vars))
    near = points * n.dtype.bytes <= CACHED or added * times >= MEMORY * n.dtype.bytes
    return near and added >= COSTLY and added * times * points >= WORK
