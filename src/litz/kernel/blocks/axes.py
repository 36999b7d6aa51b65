"""Axes: how a plan's loops become the axes of a program's blocks.

Every axis is a flat range over some of the plan's dims, the last of which runs fastest.  ``x`` is
the fastest axis of memory.  ``y`` is a second one that blocks span: of a transposing tile, of
several results of each column, or of rows that share what they compute.  ``z`` holds what is left,
one point a program; ``r`` is reduced.  A block has the axes y, x, r in this order.  ``t`` is what a
program goes through in turns (see ``litz.kernel.blocks.turns``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from litz.index import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    coefficient,
    const,
    product,
    size_hint,
)
from litz.ir.body import Load, Op, Reduce, loads, loops_of, walk
from litz.ir.ops import op
from litz.kernel.blocks.recipe import Axes, Axis
from litz.kernel.nodes import extent, int_value, roots
from litz.kernel.plan import KernelPlan

BLOCK = 1024  # elements of a block of one axis
WHOLE = 16  # elements that rows are to be multiples of, so that whole accesses divide them
WASTE = 25  # one part in so many of a row may be left to masks
SHORT = 64  # elements of a reduction that a block holds with results of several
SECOND = 2  # results of each column in a block at least
PART = 64  # elements of a row at least, for blocks over several rows
SHARED = 16  # cost of what rows and columns share, from which blocks over both are worth it
ROW_WASTE = 8  # one part in so many of a row may be left to masks in such blocks
TILE = 16  # extent of a dim below which it is not worth an axis of a tile


def choose_axes(plan: KernelPlan) -> Axes:
    """The axes of a plan: flat, or with two dims beside each other where blocks should span both.

    That is where each is contiguous somewhere, or where rows share what they compute.
    """
    dims, reduced = plan.parallel, plan.reduced
    r = Axis("r", reduced) if reduced else None
    second = _second(plan) if reduced else _tiled(plan)
    if along := combined_along(plan):
        rest = tuple(v for v in dims if v not in along)
        return Axes((*((Axis("z", rest),) if rest else ()), Axis("x", along)), r)
    if second is not None and plan.lane is not None:
        lanes = (plan.lane,) if r else _behind(plan)
        rest = tuple(v for v in dims if v is not second and v not in lanes)
        z = (Axis("z", rest),) if rest else ()
        return Axes((*z, Axis("y", (second,)), Axis("x", lanes)), r)
    if r is None and not spreads(plan) and _rows_apart(plan):
        return Axes((Axis("z", dims[:-1]), Axis("x", dims[-1:])), None)
    if r is None and plan.tile is None and (_rows_together(plan) or _rows_share(plan)):
        return Axes((Axis("y", dims[:-1]), Axis("x", dims[-1:])), None)
    return Axes((Axis("x", dims),), r)


def combined_along(plan: KernelPlan) -> tuple[Expr, ...]:
    """The parallel dims that no reduction depends on, the lane among them; else none.

    Along those a program has a block of what needs the reductions, which it computes itself.
    Nothing lies along both: what is stored along what is reduced meets them.
    """
    if not plan.reduced or plan.lane not in plan.parallel:
        return ()
    reduces = [n for n in walk(roots(plan.stores)) if isinstance(n, Reduce)]
    along = tuple(v for v in plan.parallel if not any(v in n.args[0].vars for n in reduces))
    if any(loops_of(s, plan.reduced) and loops_of(s, along) for s in plan.stores):
        return ()
    return along if reduces and plan.lane in along else ()


def _tiled(plan: KernelPlan) -> Expr | None:
    """The tile of a plan without reductions, if it and the lane are long enough for an axis."""
    if plan.tile is None or plan.lane is None:
        return None
    sizes = [
        size_hint(e, default=256)
        for e in (extent(plan.tile), product(extent(v) for v in _behind(plan)))
    ]
    return plan.tile if min(sizes) >= TILE else None


def _behind(plan: KernelPlan) -> tuple[Expr, ...]:
    """The lane of a tile, with the loop before it whose gaps it fills, if it does."""
    *_, before, last = plan.parallel
    assert plan.lane is not None
    return (before, last) if last is plan.lane and before is not plan.tile else (plan.lane,)


def _second(plan: KernelPlan) -> Expr | None:
    """A dim beside the lane that results of short reductions down columns are contiguous along.

    A block that spans some of it writes them in longer pieces.
    """
    size = product(extent(v) for v in plan.reduced)
    if plan.lane is None or plan.lane not in plan.parallel:
        return None
    if not size.is_const or int_value(size) > SHORT:
        return None
    for s in plan.stores:
        if s.mode != "set" or s.indirect or coefficient(s.index, plan.lane) is const(1):
            continue
        for v in plan.parallel:
            known = extent(v).is_const and whole_block(extent(v)) >= SECOND
            if v is not plan.lane and known and coefficient(s.index, v) is const(1):
                return v
    return None


def whole_block(size: Expr) -> int:
    """The largest power of two that divides a size, 0 if it is open."""
    return 0 if not size.is_const else int_value(size) & -int_value(size)


def _rows_together(plan: KernelPlan) -> bool:
    """Whether blocks should hold parts of several rows: what these share is computed once."""
    dims = plan.parallel
    if len(dims) < 2 or dims[-1] is not plan.lane or whole_block(extent(dims[-1])) < PART:
        return False
    found = (n.index.free for n in loads(roots(plan.stores)) if not n.indirect)
    return any(dims[-1] in free and not any(v in free for v in dims[:-1]) for free in found)


def spreads(plan: KernelPlan) -> bool:
    """Whether all that varies along a row is the same in all rows, which are stored at once."""
    dims = frozenset(plan.parallel[:-1])
    along = [n for n in loads(roots(plan.stores)) if plan.lane in n.vars]
    return _rows_together(plan) and not any(dims & set(n.vars) for n in along)


def _rows_share(plan: KernelPlan) -> bool:
    """Whether most of what is computed varies along rows alone, or down columns alone.

    Weights and places of an interpolation, say: a block over parts of several rows computes them
    once for each row and each column.
    """
    dims = plan.parallel
    if len(dims) < 2 or dims[-1] is not plan.lane or not extent(dims[-1]).is_const:
        return False
    if row_block(extent(dims[-1])) == 0:
        return False
    lane, nodes = frozenset(dims[-1:]), list(walk(roots(plan.stores)))

    def once(free: Collection[Expr]) -> bool:
        own = lane.union(dims) & set(free)
        return bool(own) and (own == lane or not own & lane)

    cost = sum(op(n.name).cost for n in nodes if isinstance(n, Op) and once(n.vars))
    parts = dict.fromkeys(p for n in nodes if isinstance(n, Load) for p in _computed(n.index))
    return cost + sum(once(p.free) for p in parts) >= SHARED


def _computed(e: Expr) -> Iterator[Expr]:
    """What takes more than a sum of products in an index."""
    for part in e.children():
        yield from _computed(part)
    if isinstance(e, FloorDiv | Mod | Min | Max):
        yield e


def row_block(size: Expr) -> int:
    """Elements of a row in a block over parts of several rows; 0 where too much were left over."""
    n = int_value(size)
    waste = {x: -n % x for x in (128, 64, 32)}
    best = min(waste, key=lambda x: (waste[x] * ROW_WASTE > n, -x))
    return best if waste[best] * ROW_WASTE <= n else 0


def _rows_apart(plan: KernelPlan) -> bool:
    """Whether a block should lie within one row: what rows differ in is then computed once."""
    dims = plan.parallel
    if len(dims) < 2 or dims[-1] is not plan.lane or not extent(dims[-1]).is_const:
        return False
    size = int_value(extent(dims[-1]))
    left = -size % BLOCK
    return size % WHOLE == 0 and left * WASTE <= size
