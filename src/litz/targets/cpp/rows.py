"""What loop trees have at each row beside its values: fills, and what is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, min_, var
from litz.ir.body import Node, Op, Reduce, Store, substitute
from litz.ir.dtype import F32, F64
from litz.kernel.lanes import filled
from litz.kernel.lanes.recipe import Fetch
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope
from litz.targets.cpp.tree import Stmt
from litz.targets.cpp.values import literal


def fills(stores: Sequence[Store], space: Space, lanes: int) -> list[Stmt]:
    """A loop that fills the row of a unit, where the one store updates it."""
    row = filled.row_of(stores[0], space) if len(stores) == 1 else None
    if row is None:
        return []
    (s,) = stores
    place, start = var("w_", row), filled.start_of(s, space.units)
    assert s.fill is not None and start is not None
    put = tree.Put(
        Store(s.buffer, start + place, s.fill.value),
        tree.Ref(literal(s.fill.value), s.value.dtype),
    )
    return [tree.Lanes(place, row, [put], exact=int_value(row) % lanes == 0)]


def asks(builder: Placer, f: Fetch, scope: Scope) -> tree.Ask:
    """Ask for memory, in the next of rows that data picks where it is such."""
    if f.picked is None:
        return tree.Ask(f)
    later = substitute(f.picked, {f.over: min_(f.over + 1, extent(f.over) - 1)})
    builder.analyse([later])
    return tree.Ask(f, builder.place(later, scope))


def position(r: Reduce) -> Expr:
    pos: Expr | None = None
    for v in r.axes:
        pos = v if pos is None else pos * extent(v) + v
    assert pos is not None
    return pos


def squared(r: Reduce) -> Node | None:
    """Of what a sum takes squares, which need not round before they are added."""
    n = r.args[0]
    same = isinstance(n, Op) and n.name == "mul" and n.args[0] is n.args[1]
    return n.args[0] if same and r.kind == "sum" and n.dtype in (F32, F64) else None
