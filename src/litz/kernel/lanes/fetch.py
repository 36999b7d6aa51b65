"""Lines that are asked for before they are needed, where no machine guesses which come next.

Rows within which data says what is read or written: a store that waits for its line holds up all
that follow it.  While a loop walks along one row, it asks for the next in order.

Several short rows at once: each is over before a machine takes it for a stream.

Rows that data picks: no machine guesses which comes next.

Windows over rows: where a row ends, what follows was read already, and the stream goes on behind.

What each lane changes at a place of its own: the numbers of the places are in memory long before.

Streams beside arithmetic: a machine that fetches by itself stops at the end of a page, and while it
computes it does not get far enough ahead to ask for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from litz.index import (
    Expr,
    Var,
    coefficient,
    const,
    min_,
    product,
    size_hint,
    split_linear,
    substitute,
)
from litz.index.arith import parts
from litz.ir.body import Const, Load, Node, Op, Store, walk
from litz.ir.ops import op as op_row
from litz.kernel.lanes.recipe import Fetch
from litz.kernel.lanes.reuse import COSTLY
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, goes_along, guarded, int_value, roots

ROW = 1 << 11, 1 << 16  # bytes of a row, at least and at most, of which the next is fetched
LINE = 64  # bytes that memory hands out at once
LINES = 8  # at most that are asked for at each vector
SHORT = 1 << 10  # bytes of a row that is no stream
FAR = 1 << 10  # bytes from what is read to what is fetched: memory takes longer than less
LARGE = 1 << 20  # bytes that no cache near a core holds
NEAR = 1 << 16  # bytes that the nearest cache does not hold
EACH = 32  # elements from one that is changed to one whose place is fetched
PLAIN = frozenset(("check_index", "cast", "where", "lt", "add"))  # that make places of numbers
AHEAD = 1 << 11  # bytes from what is read of a stream to what is fetched
LONG = 1 << 14  # bytes along the lane of a stream
STREAMS = 4  # at most
PICKED = 1 << 8  # bytes of a row that data picks: one of less is over before the next comes


def fetches(
    stores: Sequence[Store], space: Space, lanes: int, streamed: Sequence[int] = ()
) -> tuple[Fetch, ...]:
    """Those of each such row, or of streams.  Empty where loops are not over rows, and along them.

    streamed: places of stores that go past the caches.
    """
    lane = space.lane
    around = [v for v in (*space.units, *space.serial) if v is not lane]
    if lane is None or space.reduced:
        return ()
    # Serial dims run within those that threads divide.
    found = _of_rows(stores, lane, around[-1], lanes) if around else ()
    if around:
        found = found or _of_picked(stores, lane, around[-1])
    found = found or _of_places(stores, lane) or _of_streams(stores, streamed, lane)
    return found or (_of_windows(stores, lane, around[-1], lanes) if around else ())


def fetches_of_updates(
    nodes: Sequence[Node], lane: Expr, units: Sequence[Expr], lanes: int
) -> tuple[Fetch, ...]:
    """What is read along rows of updates: these wait for each other, and get no further ahead."""
    found = dict[Fetch, None]()
    for n in walk(nodes):
        if isinstance(n, Load) and units:
            ends = _next(n, n.dtype.bytes, lane, units[-1], lanes)
            found.update((Fetch(n.buffer, at), None) for at in ends)
        if isinstance(n, Load) and goes_along(n, lane):
            width = n.dtype.bytes
            for at in range(AHEAD, AHEAD + lanes * width, LINE):
                found[Fetch(n.buffer, n.index + at // width)] = None
    return tuple(found) if len(found) <= LINES else ()


def _of_picked(stores: Sequence[Store], lane: Expr, across: Expr) -> tuple[Fetch, ...]:
    """Of rows of large tables, one picked by data for each iteration across."""
    nodes = list(walk(roots(stores)))
    hidden, found = guarded(nodes), dict[Fetch, None]()
    for n in nodes:
        if not isinstance(n, Load) or len(n.indirect) != 1 or n in hidden:
            continue
        ((data, value),) = n.indirect
        step, width = coefficient(n.index, data), n.dtype.bytes
        plain = all(isinstance(x, Load | Const) or _is_plain(x) for x in walk((value,)))
        if step is None or not step.is_const or data.hi is None or not plain:
            continue
        row = across in value.vars and lane not in value.vars
        large = (data.hi + 1) * abs(int_value(step)) * width >= LARGE
        long = size_hint(extent(lane), 0) * width >= PICKED
        if row and large and long and coefficient(n.index, lane) is const(1):
            at = substitute(n.index, {data: const(0)})
            found[Fetch(n.buffer, at, step=step, picked=value, over=across)] = None
    return tuple(found) if len(found) <= STREAMS else ()


def _is_plain(n: Node) -> bool:
    return isinstance(n, Op) and n.name in PLAIN


def _of_places(stores: Sequence[Store], lane: Expr) -> tuple[Fetch, ...]:
    """Where later elements along the lane are changed, in more memory than is near."""
    found, later = [], {lane: lane + EACH}
    for s in stores:
        if len(s.indirect) != 1 or s.mask is not None:
            continue
        ((data, value),) = s.indirect
        n = _number(value, lane)
        step, apart = coefficient(s.index, data), coefficient(s.index, lane)
        if n is None or apart is None or step is None or not step.is_const or data.hi is None:
            continue
        if (data.hi + 1) * abs(int_value(step)) * s.value.dtype.bytes >= NEAR:
            rest, at = substitute(s.index, {data: const(0), **later}), substitute(n.index, later)
            left = extent(lane) - lane - EACH
            found.append(Fetch(s.buffer, rest, True, n.buffer, at, step, apart, left))
    return tuple(found)


def _number(value: Node, lane: Expr) -> Load | None:
    """The whole numbers that are read for each lane, one behind the other, to tell a place."""
    nodes = [n for n in walk((value,)) if not isinstance(n, Const)]
    loads = [n for n in nodes if isinstance(n, Load) and not n.indirect]
    plain = sum(map(_is_plain, nodes)) == len(nodes) - 1
    there = plain and len(loads) == 1 and goes_along(loads[0], lane)
    return loads[0] if there and not loads[0].dtype.is_float else None


def _of_streams(stores: Sequence[Store], streamed: Sequence[int], lane: Expr) -> tuple[Fetch, ...]:
    """What is read and written along the lane, where the arithmetic is worth it."""
    nodes = list(walk(roots(stores)))
    if sum(op_row(n.name).cost for n in nodes if isinstance(n, Op)) < COSTLY:
        return ()
    found: dict[Fetch, None] = {}
    for n in nodes:
        if isinstance(n, Load) and _is_stream(n, n.dtype.bytes, lane):
            found[Fetch(n.buffer, n.index + AHEAD // n.dtype.bytes)] = None
    for i, s in enumerate(stores):
        width = s.value.dtype.bytes
        if i not in streamed and s.mode == "set" and _is_stream(s, width, lane):
            found[Fetch(s.buffer, s.index + AHEAD // width, True)] = None
    return tuple(found) if len(found) <= STREAMS else ()


def _is_stream(access: Load | Store, width: int, lane: Expr) -> bool:
    if access.indirect or coefficient(access.index, lane) is not const(1):
        return False
    loops = (v for v in access.index.free if isinstance(v, Var))
    bytes = size_hint(product(map(extent, loops)), 0) * width
    return bytes >= LARGE and size_hint(extent(lane), 0) * width >= LONG


def _of_rows(stores: Sequence[Store], lane: Expr, across: Expr, lanes: int) -> tuple[Fetch, ...]:
    """Of rows within which data says what is read or written, or of several short ones."""
    found: dict[Fetch, None] = {}
    for s in stores:
        ends = _next(s, s.value.dtype.bytes, lane, across, lanes)
        found.update((Fetch(s.buffer, at, True), None) for at in ends)
    for n in walk(roots(stores)):
        if isinstance(n, Load):
            ends = _next(n, n.dtype.bytes, lane, across, lanes)
            found.update((Fetch(n.buffer, at), None) for at in ends)
    return tuple(found) or _of_short_rows(stores, lane, across, lanes)


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


def _of_windows(stores: Sequence[Store], lane: Expr, across: Expr, lanes: int) -> tuple[Fetch, ...]:
    """What windows over several rows read next, in memory's order; empty where they leave gaps."""
    size = max(1, size_hint(extent(lane), 1))
    windows: dict[tuple[str, int, int, int, Expr], set[int]] = {}
    for n in walk(roots(stores)):
        split = split_linear(n.index, (lane, across)) if isinstance(n, Load) else None
        if not isinstance(n, Load) or n.indirect or split is None:
            continue
        step, row = (int_value(c) if c.is_const else 0 for c in split[0].values())
        first = parts(n.index)[0]
        if 0 < step < row:
            key = n.buffer, n.dtype.bytes, step * size, row, n.index - step * lane - first
            windows.setdefault(key, set()).add(first)
    found: list[Fetch] = []
    for (buffer, width, reach, row, base), starts in windows.items():
        places = sorted(starts)
        gaps = [b - a for a, b in pairwise(places)]
        whole = max(gaps, default=0) <= reach and sum(gaps) + reach >= row
        loops = (v for v in base.free if isinstance(v, Var))
        large = size_hint(product(map(extent, loops)), 0) * row * width >= LARGE
        if any(gap * width > LINE for gap in gaps) and whole and large and row * width <= ROW[1]:
            times = -(-row // size)  # elements that are new to one of the lane
            later = places[-1] + reach - reach // size + 1 + row * ((FAR - 1) // (row * width))
            lines = range(0, times * lanes, LINE // width)
            found += (Fetch(buffer, base + times * lane + later + at) for at in lines)
    return tuple(found) if len(found) <= LINES else ()


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
