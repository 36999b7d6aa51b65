"""Recipes of updates at places that data picks, which no memory but the results has to hold.

Where data picks within rows, a thread has room for one row, which stays in its cache: that is what
there is first, then it is updated, then written.  Where data picks the row, updates are sorted by
their rows: each is computed in registers, a part at a time, and written once, past the caches.
"""

from __future__ import annotations

from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Expr, coefficient, const, product
from litz.ir import body, updates
from litz.ir.body import Load, Node, Op, Store, loads, op, replaced
from litz.ir.dtype import I32
from litz.ir.updates import Parts
from litz.kernel.nodes import extent, goes_along, int_value
from litz.kernel.phases import Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan, Param

WIDE = 1 << 12  # bytes of a row that threads divide, so that each has as much of every row
STRIPE = 128  # bytes of a row that registers hold at once, at least
FEWEST = 2  # vectors of a stripe: a loop over a list of updates takes as long as some
BLOCK = 256  # updates whose values are computed before: what vectors store is not read at once
PLACES, FROM, ORDER, ROOM, VALUES = "places_", "from_", "order_", "room_", "values_"


def parts(plan: KernelPlan) -> Parts | None:
    """Those of a plan's stores, if its skeleton is of such updates."""
    if plan.skeleton is None or plan.skeleton.kind != updates.KIND:
        return None
    return updates.parts(plan.stores, plan.parallel)


# --- within rows ---


@dataclass(frozen=True, slots=True)
class Room:
    """What a row's room along ``place`` holds first, which place of it each update over ``over``
    (the lane last) changes by which value, and what is stored of it in the end."""

    first: Store
    number: Node
    value: Node
    last: tuple[Store, ...]
    over: tuple[Expr, ...]


def room(plan: KernelPlan, p: Parts) -> Room:
    number = p.number
    if isinstance(number, Op) and number.args[-1] is updates.NONE:  # behind the row
        number = op("where", *number.args[:2], body.index(extent(p.place)))
    held = body.load(p.whole.dtype, ROOM, p.place)
    read = loads((p.number, p.value))
    lane = max(plan.reduced, key=lambda v: sum(goes_along(n, v) for n in read))
    return Room(
        Store(ROOM, p.place, p.first),
        body.cast(number, I32),
        p.value,
        replaced(plan.stores, {p.whole: held}),
        (*(v for v in plan.reduced if v is not lane), lane),
    )


# --- by rows ---


def sorting(
    plan: KernelPlan, p: Parts
) -> tuple[tuple[KernelPlan, KernelPlan], tuple[Temporary, ...]]:
    """The plan that stores the row of each update, -1 for none, and that of the updates by rows."""
    count = product(map(extent, plan.reduced))
    temps = (
        Temporary(PLACES, I32, count),
        Temporary(FROM, I32, extent(p.place) + 2),
        Temporary(ORDER, I32, count + 1),
    )
    stored = Store(PLACES, linear(plan.reduced), body.cast(p.number, I32))
    dims = tuple(Dim(v, "p") for v in plan.reduced)
    first = phase(plan, temps, dims, (stored,), plan.reduced[-1])
    own = (Param(t.name, t.dtype, "inout") for t in temps)
    return (first, replace(plan, params=(*plan.params, *own))), temps


def ahead(p: Parts) -> tuple[Load, ...]:
    """What updates read along their rows, of which the next one's is fetched."""
    over, own = {*p.found.axes}, [picked(p)]
    found = (n for n in loads((p.value,)) if coefficient(n.index, p.lane) is const(1))
    rows = (n for n in found if not n.indirect or [v for _, v in n.indirect] == own)
    return tuple(n for n in rows if n.indirect or not over.isdisjoint(n.index.free))


def picked(p: Parts) -> Node:
    """The number of the row of an update that has one."""
    n = p.number
    return n.args[1] if isinstance(n, Op) and n.args[-1] is updates.NONE else n


def is_wide(p: Parts) -> bool:
    return int_value(extent(p.lane)) * p.whole.dtype.bytes >= WIDE
