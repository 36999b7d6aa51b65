"""Lines that are asked for before they are needed, where no machine guesses which come next.

Rows within which data says what is read or written: a store that waits for its line holds up all
that follow it.  While a loop walks along one row, it asks for the next in order.

Several short rows at once: each is over before a machine takes it for a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litz.index import Expr, Var, coefficient, const, min_, product, size_hint, substitute
from litz.ir.body import Load, Store, walk
from litz.kernel.lanes.recipe import Fetch
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, int_value, roots

ROW = 1 << 11, 1 << 16  # bytes of a row, at least and at most, of which the next is fetched
LINE = 64  # bytes that memory hands out at once
LINES = 8  # at most that are asked for at each vector
SHORT = 1 << 10  # bytes of a row that is no stream
FAR = 1 << 10  # bytes from what is read to what is fetched: memory takes longer than less
LARGE = 1 << 20  # bytes that no cache near a core holds


def fetches(stores: Sequence[Store], space: Space, lanes: int) -> tuple[Fetch, ...]:
    """Those of each such row.  Empty where loops are not over rows, and along them."""
    lane = space.lane
    around = [v for v in (*space.units, *space.serial) if v is not lane]
    # Serial dims run within those that threads divide.
    if lane is None or space.reduced or not around:
        return ()
    found: dict[Fetch, None] = {}
    for s in stores:
        ends = _next(s, s.value.dtype.bytes, lane, around[-1], lanes)
        found.update((Fetch(s.buffer, at, True), None) for at in ends)
    for n in walk(roots(stores)):
        if isinstance(n, Load):
            ends = _next(n, n.dtype.bytes, lane, around[-1], lanes)
            found.update((Fetch(n.buffer, at), None) for at in ends)
    return tuple(found) or _of_short_rows(stores, lane, around[-1], lanes)


def _of_short_rows(
    stores: Sequence[Store], lane: Expr, across: Expr, lanes: int
) -> tuple[Fetch, ...]:
    """What is read along short rows, some rows later; empty of one such row."""
    later: dict[tuple[str, Expr], int] = {}
    for n in walk(roots(stores)):
        rows = _rows_ahead(n, lane, across) if isinstance(n, Load) else 0
        if isinstance(n, Load) and rows:
            later[n.buffer, n.index] = rows
    found = []
    for (buffer, index), rows in later.items():
        ahead = [substitute(index, {across: across + i}) for i in range(1, rows + 1)]
        if not any((buffer, at) in later for at in ahead):
            found.append(Fetch(buffer, ahead[-1]))
    return tuple(found) if 1 < len(found) <= LINES else ()


def _rows_ahead(n: Load, lane: Expr, across: Expr) -> int:
    """How many rows later lines of a load along a short row are fetched; 0 of others."""
    row = coefficient(n.index, across)
    if n.indirect or coefficient(n.index, lane) is not const(1) or row is None or not row.is_const:
        return 0
    width, step = n.dtype.bytes, int_value(row) * n.dtype.bytes
    loops = (v for v in n.index.free if isinstance(v, Var))
    bytes = size_hint(product(map(extent, loops)), 0) * width
    short = size_hint(extent(lane), SHORT) * width <= SHORT
    return -(-FAR // step) if step >= LINE and short and bytes >= LARGE else 0


def _next(access: Load | Store, width: int, lane: Expr, across: Expr, lanes: int) -> Iterator[Expr]:
    """Indices in the next row for a vector along this one; none where there are no rows."""
    if len(access.indirect) != 1 or lane in access.index.free:
        return
    ((data, value),) = access.indirect
    step, row = coefficient(access.index, data), coefficient(access.index, across)
    if lane not in value.vars or step is not const(1) or data.lo != 0 or data.hi is None:
        return
    size, (least, most) = data.hi + 1, ROW
    if row is None or not row.is_const or abs(int_value(row)) < size:
        return
    if not least <= size * width <= most:
        return
    times = -(-size // max(1, size_hint(extent(lane), 1)))  # elements of the row to one of a lane
    lines = -(-times * lanes * width // LINE)
    if lines > LINES:
        return
    ends = size_hint(extent(lane) * times, 0) <= 2 * size  # soon behind the row, if not in it
    for i in range(lines):
        at = lane * times + i * LINE // width
        at = at if ends else min_(at, const(data.hi))
        yield substitute(access.index, {data: at, across: across + 1})
