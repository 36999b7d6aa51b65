"""How far indices reach: which sizes let a kernel count in 32 bits."""

from __future__ import annotations

from litz.index import Expr, Substitution, Var, coefficient, const
from litz.ir.body import Index, Load, walk
from litz.kernel.nodes import extent, roots
from litz.kernel.plan import KernelPlan

LIMIT = (1 << 31) - (1 << 16)  # a block may reach beyond the end


def reaches(plan: KernelPlan) -> tuple[Expr, ...] | None:
    """Expressions in sizes: if all lie below ``LIMIT``, 32 bits hold every index and position.

    None where an index cannot be bounded in such terms.
    """
    out: dict[Expr, None] = {}
    total: Expr = const(1)
    for d in plan.dims:
        total = total * extent(d.var)
    out[total] = None
    exprs = [s.index for s in plan.stores]
    for n in walk(roots(plan.stores)):
        if isinstance(n, Load):
            exprs.append(n.index)
        elif isinstance(n, Index):
            exprs.append(n.expr)
    for e in exprs:
        if e.hi is not None and e.lo is not None and -LIMIT < e.lo and e.hi < LIMIT:
            continue
        end = _highest(e, plan.ints)
        if end is None:
            return None
        out[end] = None
    return tuple(out)


def _highest(e: Expr, sizes: tuple[Expr, ...]) -> Expr | None:
    """The largest value of an index that rises with each of its loops.

    What comes from data has 64 bits by itself.
    """
    if e.lo is None or e.lo <= -LIMIT:
        return None
    ends: dict[Expr, Expr] = {}
    for v in e.free:
        if not isinstance(v, Var):
            if v not in sizes:
                ends[v] = const(0)
            continue
        c = coefficient(e, v)
        if c is None or c.lo is None or c.lo < 0:
            return None
        ends[v] = extent(v) - 1
    return Substitution(ends)(e)
