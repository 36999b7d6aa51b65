"""Results that lie side by side, as one result: of tiles, and where there are more than two.

Stored one by one, each touches all lines of memory that the others do.  In a loop of their own
behind the one whose gaps they fill, they are rows without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import coefficient, const, var
from litz.ir import body
from litz.ir.body import Node, Store, op
from litz.ir.dtype import I64
from litz.kernel.nodes import loaded, roots
from litz.kernel.tiling import FULL_VECTOR, NEAR, Tiling, extent_of, runs

COST = 32  # of results of which each point computes all and stores one
SEVERAL = 3  # results of a row that are more than a pair, which one access stores


def woven(t: Tiling, stores: Sequence[Store]) -> tuple[Tiling, tuple[Store, ...]]:
    """Stores as one, with its loops; as they are where they do not fill rows."""
    same = t, tuple(stores)
    run = next(runs([(s.buffer, s.index) for s in stores]), [])
    plain = all(s.mode == "set" and s.mask is None and not s.indirect for s in stores)
    size = len(run)
    if t.lane is None or not plain or not size == len(stores) <= NEAR:
        return same
    start = run[0][1]
    if run[0][0] in loaded(roots(stores)):
        return same  # a point may read what another writes then
    pairs = ((t.lane, t.tile), *(((t.tile, t.lane),) if t.tile is not None else ()))
    found = [(v, across) for v, across in pairs if coefficient(start, v) == const(size)]
    values = {s.index: s.value for s in stores}
    if len(found) != 1 or sum(map(body.cost, values.values())) > COST:
        return same
    ((v, across),) = found
    sides = [extent_of(v) * size, *([] if across is None else [extent_of(across)])]
    if min(sides) < FULL_VECTOR or (across is None and size < SEVERAL):
        return same
    piece = var("piece", const(size))
    at = body.index(piece)
    node: Node = body.const(values[start].dtype, 0)
    for n, (_, place) in reversed([*enumerate(run)]):
        # Each is computed where it goes and nowhere else: both sides are conditions.
        low = [op("ge", at, body.const(I64, n))] if n else []
        high = [op("lt", at, body.const(I64, n + 1))] if n < size - 1 else []
        here = low[0] & high[0] if low and high else (*low, *high)[0]
        node = body.masked(here, values[place], node)
    dims = (v, piece) if across is None else (across, v, piece)
    rest = (x for x in t.parallel if x is not v and x is not across)
    store = replace(stores[0], index=start + piece, value=node)
    return Tiling(piece, across, (*rest, *dims)), (store,)
