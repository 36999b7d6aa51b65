"""Updates at places that data picks as a template: a result is all that goes to its place.

Over parallel axes, of which ``place`` counts what data picks, and reduced ones, stores say::

    found = sum over the reduced of where(number == place, value, 0)
    out   = any body over first[.., place] + found, positions and loads; several stores

with 0 as what changes nothing; there are products, maxima and minima as well.  Neither number nor
value depends on ``place``: no kernel compares them at each place.  A row of results, along the last
of their axes, is what stays in a cache or in registers: either data picks within it, and the row's
own updates run one after the other, or it picks the row for all of it, by a number that depends on
reduced axes alone.  ``value`` builds the sum and ``parts`` knows it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.index import Const as Number
from litz.index import Expr, coefficient, const
from litz.ir import body
from litz.ir.body import Index, Load, Node, Op, Reduce, Store, StoreMode, loads, op, reduce, walk
from litz.ir.dtype import I64
from litz.ir.program import Template
from litz.ir.reductions import by_update

KIND: Final = "updates"
NONE: Final = body.const(I64, -1)  # the number of what changes nothing


@dataclass(frozen=True, slots=True)
class Parts:
    """What recipes and printers need of such stores.

    whole: ``first`` and all that goes there, which stores are computed from.  number: of the place,
    ``NONE`` where there is none.  lane: the axis along which results are neighbours.
    """

    whole: Node
    first: Node
    found: Reduce
    number: Node
    value: Node
    place: Expr
    lane: Expr

    @property
    def mode(self) -> StoreMode:
        mode: StoreMode = self.found.row.update  # type: ignore[assignment]
        return mode

    @property
    def within(self) -> bool:
        """Whether data picks within rows."""
        return self.lane is self.place


def value(
    first: Node, number: Node, item: Node, place: Expr, over: tuple[Expr, ...], mode: StoreMode
) -> Node:
    """What is at a place in the end.  item: of each update; over: the axes that count them."""
    row = by_update(mode)
    none = body.const(item.dtype, row.identity(item.dtype))
    mine = op("eq", number, body.index(place))
    return op(row.op, first, reduce(row.name, over, op("where", mine, item, none)))


def parts(stores: Sequence[Store], axes: Sequence[Expr]) -> Parts:
    """The parts of such stores over their parallel axes.  Raises ValueError for others."""
    nodes = list(walk(r for s in stores for r in s.roots()))
    sums = [n for n in nodes if isinstance(n, Reduce)]
    whole = [n for n in nodes if any(a in sums for a in n.args)]
    if len(sums) != 1 or len(whole) != 1 or not sums[0].row.update or len(whole[0].args) != 2:
        raise ValueError("there is more than one sum")
    (found,), first, (where,) = sums, whole[0].args[0], sums[0].args
    if not isinstance(where, Op) or where.name != "where":
        raise ValueError("something counts at every place")
    mine, item, _ = where.args
    number, at = mine.args if len(mine.args) == 2 else (mine, mine)
    if not isinstance(at, Index):
        raise ValueError("something counts wherever data says")
    place = at.expr
    made = value(first, number, item, place, found.axes, found.row.update)  # type: ignore[arg-type]
    if made is not whole[0] or place not in axes or place in (*number.vars, *item.vars):
        raise ValueError("something else counts")
    if any(s.mode != "set" or s.indirect or s.mask is not None for s in stores):
        raise ValueError("memory is changed here and there")
    lane = next((v for v in (place, *axes[::-1]) if _along(stores, nodes, v)), None)
    if lane is None:
        raise ValueError("results are no neighbours")
    p = Parts(whole[0], first, found, number, item, place, lane)
    rest = {*axes} - {place}
    if p.within and rest <= {*where.vars}:
        return p
    if rest == {lane} and {*number.vars} <= {*found.axes}:
        return p
    raise ValueError("rows of results do not have updates of their own")


def reads_once(t: Template, buffer: str) -> bool:
    """Whether such a template computes but once what it reads of a buffer below the sum."""
    p = parts(t.stores, t.axes)
    rest = {*t.axes, *t.reduce_axes} - {p.place}
    return all(rest <= {*n.vars} for n in loads((p.found,)) if n.buffer == buffer)


def _along(stores: Sequence[Store], nodes: Sequence[Node], v: Expr) -> bool:
    """Whether all is stored, and read where it is, one element after the other along an axis."""
    known = isinstance(v.extent, Number)  # type: ignore[attr-defined]
    sums = {n for n in nodes if isinstance(n, Reduce)}
    below = {x for n in sums for x in walk(n.args)}
    read = (n for n in nodes if isinstance(n, Load) and n not in below)
    plain = all(not n.indirect and coefficient(n.index, v) in (const(0), const(1)) for n in read)
    return known and plain and all(coefficient(s.index, v) is const(1) for s in stores)
