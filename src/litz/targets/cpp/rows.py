"""What loop trees have at each row beside its values: what is asked for, and positions."""

from __future__ import annotations

from litz.index import Expr, min_
from litz.ir.body import Node, Op, Reduce, substitute
from litz.ir.dtype import F32, F64
from litz.kernel.lanes.recipe import Fetch
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope


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
