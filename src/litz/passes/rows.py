"""Reductions over all elements, by rows where rows are reduced besides.

The loss of a normalised matrix, say: a program that has a row's scale holds the row, and adds up
what the loss has of it.  By itself such a reduction would read all of it again.  The same goes for
what is stored along the rows because of what they come to: a softmax, say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import (
    ONE,
    Expr,
    Substitution,
    coefficient,
    contiguous_strides,
    floordiv,
    linear,
    product,
    size_hint,
    var,
)
from litz.ir.body import (
    Load,
    Node,
    Reduce,
    Rewriter,
    Store,
    load,
    loads,
    reduce,
    reduces_evenly,
    replaced,
    walk,
)
from litz.ir.program import Buffer, Loops, Program, ProgramNode
from litz.ir.unfold import cut_loop

ROWS = 512  # that keep a large machine busy
ROW = 64  # elements, so that what rows come to is little beside them
LONG = 1 << 13  # elements that several programs share, in two kernels


@dataclass(frozen=True)
class ReduceByRows:
    """Such a reduction becomes two: of each row, beside the nest that does so, and of the rest.

    blocks: kinds of devices whose kernels run over blocks.
    """

    blocks: tuple[str, ...] = ()
    name: ClassVar[str] = "reduce by rows"

    def __call__(self, program: Program) -> Program:
        nodes: list[ProgramNode] = []
        rows: list[_Rows] = []  # nests that reduce rows, so far
        buffers = dict(program.buffers)
        names = (x for n in count(len(buffers)) if (x := f"buf{n}") not in buffers)
        for n in program.nodes:
            if isinstance(n, Loops) and n.device.partition(":")[0] in self.blocks:
                found = ((r, _cut(n, r.loops)) for r in rows if not n.axes)
                pair = next(((r, c) for r, c in found if _shares(r, c)), None)
                if pair is not None:
                    own, n = _parts(pair[1], len(pair[0].nest.axes), names, buffers)
                    nodes.append(own)
                elif n.axes and n.reduce_axes:
                    rows.append(_Rows(n))
                elif n.axes:
                    rows = [_follow(r, n) for r in rows]
            nodes.append(n)
        if len(nodes) == len(program.nodes):
            return program
        return replace(program, nodes=tuple(nodes), buffers=buffers)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A nest that reduces rows; stored: places, in its loops, of what goes on along the rows."""

    nest: Loops
    stored: frozenset[tuple[str, Expr]] = frozenset()

    @property
    def loops(self) -> tuple[Expr, ...]:
        return (*self.nest.axes, *self.nest.reduce_axes)


def _follow(rows: _Rows, n: Loops) -> _Rows:
    """With what another nest stores at every point of the rows, if it needs what they come to."""
    if not _same_loops(rows, n.axes):
        return rows
    turn = Substitution(dict(zip(n.axes, rows.loops, strict=True)))
    made = {s.buffer for s in rows.nest.stores}
    read = {(x.buffer, turn(x.index)) for x in loads(tuple(r for s in n.stores for r in s.roots()))}
    if made.isdisjoint(b for b, _ in read) and rows.stored.isdisjoint(read):
        return rows
    plain = (s for s in n.stores if s.mode == "set" and not s.indirect and s.mask is None)
    return replace(rows, stored=rows.stored.union((s.buffer, turn(s.index)) for s in plain))


def _same_loops(rows: _Rows, loops: Sequence[Expr]) -> bool:
    return [v.extent for v in loops] == [v.extent for v in rows.loops]  # type: ignore[attr-defined]


def _cut(n: Loops, loops: Sequence[Expr]) -> Loops:
    """A nest with its loops cut as others are, of groups of channels say, as far as they go on."""
    sizes = [v.extent for v in loops]  # type: ignore[attr-defined]
    nest = (n.axes, n.reduce_axes, n.stores)
    for v in n.reduce_axes:
        whole, steps = v.extent, [ONE]  # type: ignore[attr-defined]
        while sizes and steps[-1] is not whole:
            steps.append(steps[-1] * sizes.pop(0))
        if steps[-1] is not whole:
            return n
        if len(steps) > 2:
            cuts = tuple(floordiv(whole, step) for step in reversed(steps[1:-1]))
            nest = cut_loop(nest, v, cuts)
    return replace(n, reduce_axes=nest[1], stores=nest[2])


def _shares(rows: _Rows, n: Loops) -> bool:
    """Whether a nest reduces all of what another reads by rows that are not short.

    They are many, or whole in a program and of several that would take two kernels by themselves.
    """
    if n.axes or not _same_loops(rows, n.reduce_axes):
        return False
    nest, loops = rows.nest, rows.loops
    count, row = (
        size_hint(product(v.extent for v in some), default=0)  # type: ignore[attr-defined]
        for some in (nest.axes, nest.reduce_axes)
    )
    if row < ROW or (count < ROWS and not row <= LONG < count * row):
        return False
    found = _reduces(n)
    plain = all(not r.row.positional and not r.row.counts for r in found)
    even = reduces_evenly(found, n.reduce_axes) and all(
        s.mode == "set" and not s.indirect and s.mask is None for s in n.stores
    )
    if not found or not plain or not even:
        return False
    turn = Substitution(dict(zip(loops, n.reduce_axes, strict=True)))
    along = (x for x in _whole(nest, loops) if _is_along(x, nest.reduce_axes))
    read = {(x.buffer, turn(x.index)) for x in along}
    read |= {(b, turn(e)) for b, e in rows.stored}
    return any((x.buffer, x.index) in read for x in _whole(n, n.reduce_axes))


def _is_along(x: Load, row: Sequence[Expr]) -> bool:
    """Whether rows are contiguous, so that a program holds or walks along one."""
    return any(coefficient(x.index, v) is ONE for v in row)


def _reduces(n: Loops) -> list[Reduce]:
    return [x for x in walk(r for s in n.stores for r in s.roots()) if isinstance(x, Reduce)]


def _whole(n: Loops, loops: Sequence[Expr]) -> Iterator[Load]:
    """What a nest loads at each of its points."""
    for x in walk(r for s in n.stores for r in s.roots()):
        if isinstance(x, Load) and not x.indirect and all(v in x.vars for v in loops):
            yield x


def _parts(
    n: Loops, axes: int, names: Iterator[str], buffers: dict[str, Buffer]
) -> tuple[Loops, Loops]:
    """The nest of rows, of which the first loops count so many, and the one of what they give."""
    extents = [v.extent for v in n.reduce_axes]  # type: ignore[attr-defined]
    shape = tuple(extents[:axes])
    own = [var(f"i{k}", e) for k, e in enumerate(shape)]
    inner = [var(f"r{k}", e) for k, e in enumerate(extents[axes:])]
    again = [var(f"r{k}", e) for k, e in enumerate(shape)]
    move = Rewriter(Substitution(dict(zip(n.reduce_axes, (*own, *inner), strict=True))))
    stores: list[Store] = []
    left: dict[Node, Node] = {}
    for r in _reduces(n):
        name, strides = next(names), contiguous_strides(shape)
        buffers[name] = Buffer(name, r.dtype, shape, strides, n.device)
        stores.append(
            Store(name, linear(own, strides), reduce(r.kind, tuple(inner), move(r.args[0])))
        )
        left[r] = reduce(r.kind, tuple(again), load(r.dtype, name, linear(again, strides)))
    rows = replace(
        n, name=f"{n.name}_rows", axes=tuple(own), reduce_axes=tuple(inner), stores=tuple(stores)
    )
    return rows, replace(n, reduce_axes=tuple(again), stores=tuple(replaced(n.stores, left)))
