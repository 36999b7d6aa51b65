"""Reductions of rows, and reductions of columns of the same matrix, in one group.

The gradient of a norm, say: what each row's gradient needs is reduced along the row, the weight's
gradient down the columns, of the same two matrices.  A program of a GPU goes over some whole rows:
it holds one at a time, and what it has of each column's reduction; a second kernel reduces what
all programs have.  So the matrices are read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from litz.dataclass import dataclass
from litz.index import ONE, Const, Expr, coefficient, size_hint
from litz.ir.body import REDUCES, Load, Node, Reduce, Store, loads, loops_of, scans, walk

BLOCK: Final = 1 << 11  # elements of short rows that a program holds at once
UNDER_WAY: Final = 1 << 20  # elements that all programs of a large machine hold at once
DEEP: Final = 4  # rows of a program at least: what it leaves of them is little beside them
FEW: Final = 128  # programs, of fewer of which a kernel by itself for the columns is quicker
HELD: Final = 1 << 16  # registers that a program has
BESIDE: Final = 2  # for each element of a row, beside those of what is loaded and summed
OTHER: Final = "its rows and columns are not those of one matrix in memory"
OPEN: Final = "sizes are open"
LONG: Final = "no program holds its rows beside what it has of their columns"
AGAIN: Final = "rows would be reduced again for each of their columns"
SHORT: Final = "it has too few rows for programs that go over several"


@dataclass(frozen=True, slots=True)
class Crossed:
    """rows, columns: the loops over them; of the latter one runs along memory.

    down: the reductions of columns.
    """

    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    down: tuple[Reduce, ...]

    @property
    def programs(self) -> int:
        """How many share the rows."""
        return max(1, min(UNDER_WAY // max(BLOCK, self.row), _size(self.rows) // DEEP))

    @property
    def row(self) -> int:
        """Elements that a block holds of each row."""
        return int(1 << (_size(self.columns) - 1).bit_length())

    @property
    def left(self) -> int:
        """Bytes that programs leave for the second kernel."""
        return self.programs * _size(self.columns) * sum(n.dtype.bytes for n in self.down)


def crossed(stores: Sequence[Store], reduced: Sequence[Expr]) -> Crossed | None:
    """How some of the reductions run over the rows and the others over the columns of a matrix."""
    roots = [r for s in stores for r in s.roots()]
    if not any(n.folds & REDUCES for n in roots) or scans(roots):
        return None
    nodes = list(walk(roots))
    reduces = [n for n in nodes if isinstance(n, Reduce)]
    kinds = list(dict.fromkeys(frozenset(n.axes) for n in reduces))
    if len(kinds) == 1:  # a matrix of which only columns are reduced, or only rows
        kinds.append(frozenset(reduced) - kinds[0])
    if len(kinds) != 2 or kinds[0] & kinds[1] or kinds[0] | kinds[1] != set(reduced):
        return None
    if any(s.mode != "set" or s.indirect for s in stores) or not all(kinds):
        return None
    for columns in kinds:
        found = Crossed(
            tuple(v for v in reduced if v not in columns),
            tuple(v for v in reduced if v in columns),
            tuple(n for n in reduces if set(n.axes) != columns),
        )
        if found.down and _runs_along(found, nodes) and _is_apart(found, stores):
            return found
    return None


def _runs_along(c: Crossed, nodes: Sequence[Node]) -> bool:
    """Whether rows are contiguous wherever all of the matrix is read."""
    whole = [
        n.index
        for n in nodes
        if isinstance(n, Load) and all(v in n.vars for v in (*c.rows, *c.columns))
    ]
    return bool(whole) and all(any(coefficient(e, v) is ONE for v in c.columns) for e in whole)


def _is_apart(c: Crossed, stores: Sequence[Store]) -> bool:
    """Whether columns' reductions alone are stored a column, and nothing else needs them."""
    down = set(c.down)
    if any(n.row.positional or n.row.counts for n in down):
        return False
    for s in stores:
        found = list(_outermost(s.roots()))
        if any(n in down for n in walk(a for r in found for a in r.args)):
            return False
        if bool(loops_of(s, c.rows)) is any(n in down for n in found):
            return False
        if not loops_of(s, c.rows) and not down.issuperset(found):
            return False
    return True


def _outermost(roots: Sequence[Node]) -> Iterator[Reduce]:
    """The reductions that are in no other."""
    stack = list(roots)
    while stack:
        n = stack.pop()
        if isinstance(n, Reduce):
            yield n
        elif n.folds & REDUCES:
            stack += n.args


def why_not(c: Crossed | None, stores: Sequence[Store], saved: int, before: int) -> str:
    """Why reductions of rows and of columns stay in kernels of their own; empty if they need not.

    saved: bytes that are read once less.  before: that one of the two leaves by itself.
    """
    if c is None:
        return OTHER
    if not all(isinstance(v.extent, Const) for v in (*c.rows, *c.columns)):  # type: ignore[attr-defined]
        return OPEN
    read = loads(r for s in stores for r in s.roots())
    whole = sum(any(v in n.vars for v in c.columns) for n in read)
    if c.row * (whole + len(c.down) + BESIDE) > HELD:
        return LONG
    if c.programs < FEW or 2 * (c.left - before) > saved:
        return SHORT
    return ""


def reduced_again(stores: Sequence[Store], reduced: Sequence[Expr]) -> bool:
    """Whether a reduction would run within a loop over a dim of its own: at each of its points."""
    done: set[tuple[Node, tuple[Expr, ...]]] = set()
    stack = [(r, loops_of(s, reduced)) for s in stores for r in s.roots()]
    while stack:
        n, loops = found = stack.pop()
        if found in done or not n.folds & REDUCES:
            continue
        done.add(found)
        if isinstance(n, Reduce):
            while loops and loops[-1] not in n.vars:  # it is done before them
                loops = loops[:-1]
            if not set(n.axes).isdisjoint(loops):
                return True
            loops = (*loops, *n.axes)
        stack += [(a, loops) for a in n.args]
    return False


def _size(loops: Sequence[Expr]) -> int:
    return prod(size_hint(v.extent) for v in loops)  # type: ignore[attr-defined, misc]
