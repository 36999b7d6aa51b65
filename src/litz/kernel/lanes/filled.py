"""Kernels that fill what they update.

Where threads have rows of their own and data says where in a row, each row is filled just before:
it is in the cache.  Where data says which row, the updates are sorted by their rows: each row is
computed in registers, and written once, past the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Const as Number
from litz.index import Expr, Symbol, Var, coefficient, const, mixed_radix, product, var
from litz.ir import body
from litz.ir.body import Load, Node, Store, op
from litz.ir.dtype import I32
from litz.kernel.lanes.space import CACHED, Space
from litz.kernel.nodes import extent, int_value
from litz.kernel.phases import Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan, Param

SHORT = 1 << 9  # bytes of a row: sorting takes long beside updates of less
WIDE = 1 << 12  # bytes of a row that threads divide, so that each has as much of every row
STRIPE = 128  # bytes of a row that registers hold at once, at least
FEWEST = 2  # vectors of a stripe: a loop over a list of updates takes as long as some
MOST = 1 << 30  # rows, or updates: they are counted in 32 bits
PLACES, FROM, ORDER = "places_", "from_", "order_"


def row_of(s: Store, space: Space) -> Expr | None:
    """How many elements a unit fills, one row of its own, before it updates it; None where not so.

    Data says where in the row.
    """
    units = [v for v in space.units if isinstance(v, Var)]
    count = product(map(extent, units))
    if s.fill is None or not units or space.lane in units or not isinstance(count, Number):
        return None
    row, left = divmod(s.fill.size, count.value) if count.value else (0, 1)
    if left or row * s.value.dtype.bytes > CACHED:
        return None
    start = start_of(s, units)
    place = var("w_", row)
    assert isinstance(place, Var)
    if start is None or (radix := mixed_radix(start + place, [*units, place])) is None:
        return None
    whole = radix.dense and radix.offset is const(0)
    return const(row) if whole and coefficient(start + place, place) is const(1) else None


def start_of(s: Store, units: Sequence[Expr]) -> Expr | None:
    """Where the row of a unit begins."""
    start: Expr = const(0)
    for v in units:
        step = coefficient(s.index, v)
        if step is None:
            return None
        start = start + step * v
    return start


def apart(plan: KernelPlan) -> tuple[KernelPlan, ...]:
    """Plans that fill, and the plan of all updates."""
    first = []
    for s in plan.stores:
        if s.fill is not None:
            x = var("x0", s.fill.size)
            store = Store(s.buffer, x, s.fill.value)
            first.append(phase(plan, (), (Dim(x, "p"),), (store,), x))
    rest = tuple(replace(s, fill=None) for s in plan.stores)
    modes = {s.buffer for s in rest if s.updates}
    params = tuple(replace(p, mode="inout") if p.name in modes else p for p in plan.params)
    return (*first, replace(plan, stores=rest, params=params))


# --- by rows ---


@dataclass(frozen=True, slots=True)
class Rows:
    """Updates of rows that data picks.

    over: the loop over them; lane: the one along a row.  data: the symbol of the row, its number;
    rows: how many there are.
    """

    store: Store
    over: Expr
    lane: Expr
    data: Expr
    number: Node
    rows: int


def rows_of(plan: KernelPlan) -> Rows | None:
    """The one store of a plan, if it updates whole rows that it also fills."""
    lane = plan.lane
    if len(plan.stores) != 1 or len(plan.parallel) != 2 or plan.reduced or lane is None:
        return None
    (s,) = plan.stores
    over = next(v for v in plan.parallel if v is not lane)
    if s.fill is None or len(s.indirect) != 1 or lane not in plan.parallel:
        return None
    ((data, number),) = s.indirect
    row = extent(lane)
    if s.index is not data * row + lane or not isinstance(row, Number) or row.value < 1:
        return None
    within = all(v is over or isinstance(v, Symbol) for v in number.vars)
    if s.mask is not None:
        within = within and lane not in s.mask.vars
    rows, left = divmod(s.fill.size, row.value)
    known = extent(over).hi
    if not within or left or max(rows, MOST if known is None else known) > MOST:
        return None
    # Maxima and minima of 16-bit numbers run one by one (sums of such are of float32).
    fit = row.value * s.value.dtype.bytes >= SHORT and s.value.dtype.bits != 16
    return Rows(s, over, lane, data, number, rows) if fit else None


def sorting(
    plan: KernelPlan, r: Rows
) -> tuple[tuple[KernelPlan, KernelPlan], tuple[Temporary, ...]]:
    """The plan that stores the row of each update, -1 for none, and that of the updates by rows."""
    count = extent(r.over)
    temps = (
        Temporary(PLACES, I32, count),
        Temporary(FROM, I32, const(r.rows + 2)),
        Temporary(ORDER, I32, count + 1),
    )
    place = body.cast(r.number, I32)
    if r.store.mask is not None:
        place = op("where", r.store.mask, place, body.const(I32, -1))
    stored = Store(PLACES, linear((r.over,)), place)
    first = phase(plan, temps, (Dim(r.over, "p"),), (stored,), r.over)
    own = (Param(t.name, t.dtype, "inout") for t in temps)
    return (first, replace(plan, params=(*plan.params, *own))), temps


def ahead(r: Rows) -> tuple[Load, ...]:
    """What updates read along their rows, of which the next one's is fetched."""
    loads = (n for n in body.loads((r.store.value,)) if coefficient(n.index, r.lane) is const(1))
    rows = (n for n in loads if [v for _, v in n.indirect] in ([], [r.number]))
    return tuple(n for n in rows if n.indirect or r.over in n.index.free)


def stripe(width: int, lanes: int) -> int:
    """Vectors of a row that are computed at once."""
    return max(FEWEST, STRIPE // (width * lanes))


def is_wide(r: Rows) -> bool:
    return int_value(extent(r.lane)) * r.store.value.dtype.bytes >= WIDE
