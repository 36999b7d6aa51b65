"""Sorts in loop trees: a row of ranks in memory of the thread, filled in a loop of its own.

Lanes along the row follow each other in memory; those that are rows of their own lie beside each
other at every place.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, const, min_, render
from litz.ir.body import Scan, Store
from litz.ir.scans import wanted_of
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer
from litz.targets.cpp.tree import Ref, Stmt
from litz.targets.cpp.values import DIALECT

LONGEST = 1 << 31  # elements of a row that its ranks tell apart


def beside(n: Scan, b: Placer) -> bool:
    """Whether lanes are rows of their own."""
    return b.lane is not None and b.lane is not n.axis


def around(n: Scan, b: Placer) -> tuple[Expr, ...]:
    """What tells rows apart."""
    lane = (b.lane,) if b.lane is not None and beside(n, b) else ()
    return (*(v for v in n.vars if v is not n.axis), *lane)


def _place(n: Scan, name: str, b: Placer) -> str:
    return f"{name} + {n.axis}" + (f" * {b.lanes}" if beside(n, b) else "")


def element(n: Scan, name: str, b: Placer) -> Ref:
    """What belongs where loops are."""
    place, vec = _place(n, name, b), b.lane is not None
    return Ref(f"litz::load<{b.lanes}>({place})" if vec else f"*({place})", n.dtype, vec)


def keep(n: Scan, rank: Ref, name: str, b: Placer) -> Stmt:
    """Write a rank to where loops are."""
    place = _place(n, name, b)
    if b.lane is None:
        return tree.Line(f"*({place}) = {rank.text};")
    return tree.Keep(name, rank, place)


def array(n: Scan, name: str, b: Placer) -> tree.Array:
    """Memory of one row, or of one for each lane: of one, a power of two elements."""
    size = extent(n.axis)
    if beside(n, b):
        room = size * b.lanes
    elif size.is_const:
        room = const(max(b.lanes, 1 << (int_value(size) - 1).bit_length()))
    else:
        room = 2 * size + b.lanes
    return tree.Array(name, n.dtype, room)


def calls(n: Scan, name: str, b: Placer, stores: Sequence[Store]) -> list[Stmt]:
    """The sort of what has been kept."""
    size = extent(n.axis)
    form, given = "columns", [name, render(size, DIALECT)]
    if not beside(n, b):
        count = wanted_of(n, stores)
        wanted = size if count is None else min_(size, const(count))
        form, given = "row", [*given, render(wanted, DIALECT)]
    call = tree.Line(f"litz::sort_{form}<{b.lanes}>({', '.join(given)});")
    if size.hi is not None and size.hi <= LONGEST:
        return [call]
    return [tree.Line(f"if ({given[1]} > {LONGEST}) return litz::no_memory;"), call]
