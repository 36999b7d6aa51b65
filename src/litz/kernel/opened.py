"""Plans whose size is an argument, so that kernels over different sizes are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, Substitution, Symbol, symbol, var
from litz.ir.body import Rewriter
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import Dim, KernelPlan

SIZE = "n0"  # no size of a plan has this name


def has_size(plan: KernelPlan) -> bool:
    """Whether the size of a plan's one parallel dim is a number that can be an argument."""
    if len(plan.parallel) != 1 or plan.skeleton is not None:
        return False
    size = extent(plan.parallel[0])
    return size.is_const and 1 < int_value(size) <= LIMIT


def opened(
    plan: KernelPlan, most: int = LIMIT, hints: Sequence[int | None] | None = None
) -> KernelPlan:
    """The plan with the size of its one parallel dim as its last integer, where it has one.

    most: of that size.  hints: of all integers, the size last; none by default.
    """
    sized = has_size(plan)
    hints = hints or [None] * (len(plan.ints) + sized)
    known: dict[Expr, Expr] = {}
    for e, hint in zip(plan.ints, hints, strict=False):
        assert isinstance(e, Symbol)
        known[e] = symbol(e.name, e.lo, e.hi, hint)
    ints = tuple(known.values())
    if sized:
        ints += (symbol(SIZE, 1, most, hints[-1]),)
    sizes = Substitution(dict(known))
    for d in plan.dims:
        own = ints[-1] if sized and d.role == "p" else sizes(extent(d.var))
        known[d.var] = var(str(d.var), own)
    rewriter = Rewriter(Substitution(known))
    return replace(
        plan,
        dims=tuple(Dim(known[d.var], d.role) for d in plan.dims),
        ints=ints,
        stores=tuple(rewriter.store(s) for s in plan.stores),
        lane=None if plan.lane is None else known[plan.lane],
        tile=None if plan.tile is None else known[plan.tile],
    )
