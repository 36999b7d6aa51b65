"""Sorts in loop trees: a row of ranks in memory of the thread, filled in a loop of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litz.index import const, min_, render
from litz.ir.body import Scan
from litz.ir.scans import wanted_of
from litz.kernel.nodes import extent
from litz.targets.cpp import scans, tree
from litz.targets.cpp.scope import Scope
from litz.targets.cpp.tree import Ref
from litz.targets.cpp.values import DIALECT

if TYPE_CHECKING:
    from litz.targets.cpp.loops import TreeBuilder


LONGEST = 1 << 31  # elements of a row that its ranks tell apart


def at(n: Scan, b: TreeBuilder, scope: Scope) -> Ref:
    """The element of a sorted row that belongs where loops are; the row is sorted before them.

    Lanes along the row follow each other in memory; those that are rows of their own lie beside
    each other at every place.
    """
    found = b.rows.get(n)
    if found is None or scope.at(found[1].depth) is not found[1]:
        found = b.rows[n] = _sorted(n, b, scope)
    name, vec = found[0], b.lane is not None
    place = _place(n, b, name)
    return Ref(f"litz::load<{b.lanes}>({place})" if vec else f"*({place})", n.dtype, vec)


def _place(n: Scan, b: TreeBuilder, name: str) -> str:
    step = b.lanes if b.lane is not None and b.lane is not n.axis else 1
    return f"{name} + {n.axis}" if step == 1 else f"{name} + {n.axis} * {step}"


def _sorted(n: Scan, b: TreeBuilder, scope: Scope) -> tuple[str, Scope]:
    columns = b.lane is not None and b.lane is not n.axis
    own = [v for v in n.vars if v is not n.axis]
    home = scope.at(b.bound_depth([*own, *([b.lane] if b.lane is not None and columns else [])], scope))
    levels, _ = b.open_levels([n.axis], home)
    inner = levels[-1].scope
    b.reduce_first(n.args, inner)
    scans.first(n.args, b, inner)
    value, name = b.place(n.args[0], inner), b.name("m")
    place = _place(n, b, name)
    if b.lane is None:
        inner.body.append(tree.Line(f"*({place}) = {value.text};"))
    else:
        inner.body.append(tree.Keep(name, value, place))
    b.close(levels)
    size = extent(n.axis)
    b.kernel.arrays.append(tree.Array(name, n.dtype, size * b.lanes if columns else b.room(size)))
    call = f"sort_columns<{b.lanes}>({name}, {render(size, DIALECT)}"
    if not columns:
        wanted = wanted_of(n, b.stores)
        wanted = size if wanted is None else min_(size, const(wanted))
        call = f"sort_row<{b.lanes}>({name}, {render(size, DIALECT)}, {render(wanted, DIALECT)}"
    if size.hi is None or size.hi > LONGEST:
        check = f"if ({render(size, DIALECT)} > {LONGEST}) return litz::no_memory;"
        home.body.append(tree.Line(check))
    home.body.append(tree.Line(f"litz::{call});"))
    return name, home
