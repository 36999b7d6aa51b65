"""Plans whose size is an argument, so that kernels over different sizes are one."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Substitution, symbol, var
from litz.ir.body import Rewriter
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import Dim, KernelPlan

SIZE = "n0"  # no size of a plan has this name


def opened(plan: KernelPlan, most: int = LIMIT, hint: int | None = None) -> KernelPlan:
    """The plan with the size of its one parallel dim as its last integer.

    most, hint: of that size.  A plan that has several such dims, or whose dim is of a size that is
    one already, stays as it is.
    """
    if len(plan.parallel) != 1 or plan.skeleton is not None:
        return plan
    (v,) = plan.parallel
    if not extent(v).is_const or not 0 < int_value(extent(v)) <= most:
        return plan
    size = symbol(SIZE, 1, most, hint)
    new = var(str(v), size)
    rewriter = Rewriter(Substitution({v: new}))
    return replace(
        plan,
        dims=tuple(Dim(new if d.var is v else d.var, d.role) for d in plan.dims),
        ints=(*plan.ints, size),
        stores=tuple(rewriter.store(s) for s in plan.stores),
        lane=new if plan.lane is v else plan.lane,
        tile=new if plan.tile is v else plan.tile,
    )
