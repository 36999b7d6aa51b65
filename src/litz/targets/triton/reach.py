"""How far indices reach: whether a kernel counts in 32 bits, and which sizes let it."""

from __future__ import annotations

from collections.abc import Iterator

from litz.index import Expr, Product, Substitution, Sum, Var, coefficient, const
from litz.ir.body import Index, Load, walk
from litz.kernel.nodes import extent, roots
from litz.kernel.plan import KernelPlan

LIMIT = (1 << 31) - (1 << 16)  # a block may reach beyond the end


def is_wide(plan: KernelPlan) -> bool:
    """Whether an index or a position may not fit in 32 bits."""
    exprs = [s.index for s in plan.stores]
    exprs += [n.index for n in walk(roots(plan.stores)) if isinstance(n, Load)]
    sizes = 1
    for d in plan.dims:
        high = extent(d.var).hi
        sizes *= LIMIT if high is None else max(1, high)
    return sizes >= LIMIT or not all(map(fits, exprs))


def fits(e: Expr) -> bool:
    """Whether 32 bits are enough to compute an index in."""
    return all(map(_is_short, _measured(e)))


def _is_short(e: Expr) -> bool:
    return e.lo is not None and e.hi is not None and -LIMIT < e.lo and e.hi < LIMIT


def _measured(e: Expr) -> Iterator[Expr]:
    """An index, and what in it is divided, compared or chosen from.

    These have to be right.  Other sums and products may wrap around: what they add up to will be.
    """
    seen: set[tuple[Expr, bool]] = set()
    stack = [(e, True)]
    while stack:
        part = stack.pop()
        if part in seen:
            continue
        seen.add(part)
        top, counts = part
        if counts:
            yield top
        exact = not isinstance(top, (Sum, Product))
        stack += [(child, exact) for child in top.children() if child.children()]


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
    for part in (part for e in exprs for part in _measured(e)):
        if _is_short(part):
            continue
        end = _highest(part, plan.ints)
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
