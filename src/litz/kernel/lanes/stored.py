"""Costly values that loops repeat: a phase of their own stores them first.

A function of a bias is the same in every row that the bias is added to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.index import Expr, product, size_hint
from litz.ir.body import Masked, Node, Op, Reduce, Scan, Store, load, replaced, walk
from litz.kernel.lanes.reuse import COSTLY, cost
from litz.kernel.lanes.space import CACHED, Space
from litz.kernel.nodes import extent, loaded, reads, roots
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
    for n in _repeated(plan, dims, lane, lanes):
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


def _repeated(plan: KernelPlan, dims: Sequence[Expr], lane: Expr, lanes: int) -> Iterator[Node]:
    """The largest of these values, in a fixed order.  dims: of the plan."""
    written = {s.buffer for s in plan.stores}
    nodes = roots(plan.stores)
    held = {a for n in walk(nodes) if isinstance(n, Masked) for a in walk((n.args[1],))}
    every = product(extent(v) for v in dims)
    seen: set[Node] = set()
    stack = list(reversed(nodes))
    while stack:
        n = stack.pop()
        if n in seen or n in held and reads(n):
            continue
        seen.add(n)
        own = product(extent(v) for v in dims if v in n.vars)
        times = size_hint(every) // max(1, size_hint(own))
        fixed = not any(isinstance(a, Reduce | Scan) for a in walk((n,)))
        if isinstance(n, Op) and lane in n.vars and times >= TIMES and fixed:
            saved = cost(n, lane, lanes) * times
            near = size_hint(own) * n.dtype.bytes <= CACHED
            worth = near or saved >= MEMORY * n.dtype.bytes
            much = saved >= COSTLY * times and saved * size_hint(own) >= WORK
            if worth and much and not loaded((n,)) & written:
                yield n
                continue
        stack.extend(reversed(n.args))
