"""Recipes of updates at places that data picks, which no memory but the results has to hold.

Where data picks within rows, a thread has room for one row, which stays in its cache: that is what
there is first, then it is updated, then written.  Where data picks the row, updates are sorted by
their rows: each is computed in registers, a part at a time, and written once, past the caches.
"""

from __future__ import annotations

from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Expr, symbol
from litz.ir import body, updates
from litz.ir.body import Load, Op, Store, loads, replaced
from litz.ir.dtype import I32
from litz.ir.updates import Parts
from litz.kernel.nodes import extent, goes_along, int_value
from litz.kernel.phases import Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan, Param

WIDE = 1 << 12  # bytes of a row that threads divide, so that each has as much of every row
STRIPE = 128  # bytes of a row that registers hold at once, at least
FEWEST = 2  # vectors of a stripe: a loop over a list of updates takes as long as some
PLACES, FROM, ORDER, ROOM = "places_", "from_", "order_", "room_"


def parts(plan: KernelPlan) -> Parts | None:
    """Those of a plan's stores, if its skeleton is of such updates."""
    if plan.skeleton is None or plan.skeleton.kind != updates.KIND:
        return None
    return updates.parts(plan.stores, plan.parallel)


# --- within rows ---


@dataclass(frozen=True, slots=True)
class Room:
    """What is stored in a row's room along ``place``, how it is updated over ``over``, the lane of
    which comes last, and what is stored of it in the end."""

    first: Store
    update: Store
    last: tuple[Store, ...]
    place: Expr
    over: tuple[Expr, ...]


def room(plan: KernelPlan, p: Parts) -> Room:
    data = symbol("t_", 0, int_value(extent(p.place)) - 1)
    number, mask = p.number, None
    if isinstance(number, Op) and number.name == "where" and number.args[2] is updates.NONE:
        mask, number = number.args[:2]
    held = body.load(p.whole.dtype, ROOM, p.place)
    lane = max(plan.reduced, key=lambda v: sum(goes_along(n, v) for n in _read(p)))
    return Room(
        Store(ROOM, p.place, p.first),
        Store(ROOM, data, p.value, p.mode, ((data, number),), mask),
        replaced(plan.stores, {p.whole: held}),
        p.place,
        (*(v for v in plan.reduced if v is not lane), lane),
    )


def _read(p: Parts) -> tuple[Load, ...]:
    return loads((p.number, p.value))


# --- by rows ---


def sorting(
    plan: KernelPlan, p: Parts
) -> tuple[tuple[KernelPlan, KernelPlan], tuple[Temporary, ...]]:
    """The plan that stores the row of each update, -1 for none, and that of the updates by rows."""
    (over,) = plan.reduced
    count = extent(over)
    temps = (
        Temporary(PLACES, I32, count),
        Temporary(FROM, I32, extent(p.place) + 2),
        Temporary(ORDER, I32, count + 1),
    )
    stored = Store(PLACES, linear((over,)), body.cast(p.number, I32))
    first = phase(plan, temps, (Dim(over, "p"),), (stored,), over)
    own = (Param(t.name, t.dtype, "inout") for t in temps)
    return (first, replace(plan, params=(*plan.params, *own))), temps


def ahead(p: Parts) -> tuple[Load, ...]:
    """What updates read along their rows, of which the next one's is fetched."""
    (over,) = p.found.axes
    return tuple(n for n in loads((p.value,)) if over in n.index.free and goes_along(n, p.lane))


def stripe(width: int, lanes: int) -> int:
    """Vectors of a row that are computed at once."""
    return max(FEWEST, STRIPE // (width * lanes))


def is_wide(p: Parts) -> bool:
    return int_value(extent(p.lane)) * p.whole.dtype.bytes >= WIDE
