"""Kernels of which all that runs along the lanes reads and writes both of two neighbours.

Complex numbers, for one: the first elements of a vector's pairs are one operand, the second ones
another.  No lane asks which it is then, and shuffles may leave them in whatever order.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, coefficient, const
from litz.ir.body import Load, Node, Op, Reduce, Scan, Store, walk
from litz.ir.dtype import F32, F64
from litz.ir.ops import CHECKS
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, int_value, roots

Place = tuple[str, Expr]


def first_of_pairs(stores: Sequence[Store], space: Space, lanes: int) -> tuple[Node, ...]:
    """The loads of pairs' first elements; none where something else depends on the lane."""
    lane, nodes = space.lane, tuple(walk(roots(stores)))
    if lane is None or not extent(lane).is_const or int_value(extent(lane)) % lanes:
        return ()
    along = [n for n in nodes if lane in n.vars]
    loads = [n for n in along if isinstance(n, Load)]
    plain = all(isinstance(n, Load) or isinstance(n, Op) and n.name not in CHECKS for n in along)
    if not plain or any(isinstance(n, Reduce | Scan) for n in nodes):
        return ()
    if any(n.indirect for n in loads) or {n.dtype for n in loads} not in ({F32}, {F64}):
        return ()
    if any(
        s.mode != "set" or s.indirect or s.mask or s.value.dtype != loads[0].dtype for s in stores
    ):
        return ()
    read = [(n.buffer, n.index) for n in loads]
    written = [(s.buffer, s.index) for s in stores]
    firsts = [at for at in written if _next(at) in written]
    ordered = all(written.index(at) < written.index(_next(at)) for at in firsts)
    if not ordered or not (_paired(read, lane) and _paired(written, lane)):
        return ()
    return tuple(n for n in loads if _next((n.buffer, n.index)) in read)


def _next(at: Place) -> Place:
    return at[0], at[1] + 1


def _paired(places: Sequence[Place], lane: Expr) -> bool:
    """Whether each place is one of two, every second along the lanes."""
    firsts = [at for at in places if _next(at) in places]
    both = {*firsts, *map(_next, firsts)}
    even = all(coefficient(index, lane) is const(2) for _, index in places)
    return even and len(both) == len(places) == 2 * len(firsts)
