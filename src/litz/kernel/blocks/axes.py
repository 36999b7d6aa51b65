"""Axes: how a plan's loops become the axes of a program's blocks.

Every axis is a flat range over some of the plan's dims, the last of which runs fastest.  ``x`` is
the fastest axis of memory.  ``y`` is a second one that blocks span: of a transposing tile, of
several results of each column, or of rows that share what they compute.  ``z`` holds what is left,
one point a program; ``r`` is reduced.  A block has the axes y, x, r in this order.
"""

from __future__ import annotations

from litz.index import Expr, coefficient, const, product, size_hint
from litz.ir.body import Load, walk
from litz.kernel.blocks.recipe import Axes, Axis
from litz.kernel.nodes import extent, int_value, roots
from litz.kernel.plan import KernelPlan

BLOCK = 1024  # elements of a block of one axis
WHOLE = 16  # elements that rows are to be multiples of, so that whole accesses divide them
WASTE = 25  # one part in so many of a row may be left to masks
SHORT = 64  # elements of a reduction that a block holds with results of several
SECOND = 2  # results of each column in a block at least
PART = 64  # elements of a row at least, for blocks over several rows
TILE = 16  # extent of a dim below which it is not worth an axis of a tile


def choose_axes(plan: KernelPlan) -> Axes:
    """The axes of a plan: flat, or with two dims beside each other where blocks should span both.

    That is where each is contiguous somewhere, or where rows share what they compute.
    """
    dims, reduced = plan.parallel, plan.reduced
    r = Axis("r", reduced) if reduced else None
    second = _second(plan) if reduced else _tiled(plan)
    if second is not None and plan.lane is not None:
        rest = tuple(v for v in dims if v is not plan.lane and v is not second)
        z = (Axis("z", rest),) if rest else ()
        return Axes((*z, Axis("y", (second,)), Axis("x", (plan.lane,))), r)
    if r is None and _rows_apart(plan):
        return Axes((Axis("z", dims[:-1]), Axis("x", dims[-1:])), None)
    if r is None and plan.tile is None and _rows_together(plan):
        return Axes((Axis("y", dims[:-1]), Axis("x", dims[-1:])), None)
    return Axes((Axis("x", dims),), r)


def _tiled(plan: KernelPlan) -> Expr | None:
    """The tile of a plan without reductions, if it and the lane are long enough for an axis."""
    if plan.tile is None or plan.lane is None:
        return None
    sizes = [size_hint(extent(v), default=256) for v in (plan.tile, plan.lane)]
    return plan.tile if min(sizes) >= TILE else None


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
    loads = (n for n in walk(roots(plan.stores)) if isinstance(n, Load) and not n.indirect)
    return any(
        dims[-1] in n.index.free and not any(v in n.index.free for v in dims[:-1]) for n in loads
    )


def _rows_apart(plan: KernelPlan) -> bool:
    """Whether a block should lie within one row: what rows differ in is then computed once."""
    dims = plan.parallel
    if len(dims) < 2 or dims[-1] is not plan.lane or not extent(dims[-1]).is_const:
        return False
    size = int_value(extent(dims[-1]))
    left = -size % BLOCK
    return size % WHOLE == 0 and left * WASTE <= size
