"""How far indices reach: whether a kernel counts in 32 bits, and which sizes let it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from litz.index import Expr, Product, Substitution, Sum, Var, coefficient, const, exact_quotient
from litz.ir.body import Index, Load, walk
from litz.kernel.nodes import extent, roots
from litz.kernel.plan import KernelPlan

LIMIT = (1 << 31) - (1 << 16)  # a block may reach beyond the end


def is_wide(plan: KernelPlan) -> bool:
    """Whether an index or a position may not fit in 32 bits."""
    sizes = 1
    for d in plan.dims:
        high = extent(d.var).hi
        sizes *= LIMIT if high is None else max(1, high)
    if sizes >= LIMIT or not all(map(_is_short, index_ints(plan))):
        return True
    ints = frozenset(plan.ints)
    return not all(fits(e, ints) for e in _computed(plan))


def index_ints(plan: KernelPlan) -> frozenset[Expr]:
    """The integer arguments that sizes and indices are computed from.

    They have one width in a kernel, which is that of the loops' variables: of sums that wrap around
    in 32 bits no part may be computed in 64.
    """
    return frozenset(v for e in _computed(plan) for v in e.free) & frozenset(plan.ints)


def _computed(plan: KernelPlan) -> list[Expr]:
    """Where the kernel stores and loads, and how far its loops go."""
    loads = [n.index for n in walk(roots(plan.stores)) if isinstance(n, Load)]
    return [*(s.index for s in plan.stores), *loads, *(extent(d.var) for d in plan.dims)]


def fits(e: Expr, ints: AbstractSet[Expr] | None = None) -> bool:
    """Whether 32 bits are enough to compute an index in; see ``_measured``."""
    return all(map(_is_short, _measured(e, ints)))


def _is_short(e: Expr) -> bool:
    return e.lo is not None and e.hi is not None and -LIMIT < e.lo and e.hi < LIMIT


def _measured(e: Expr, ints: AbstractSet[Expr] | None) -> Iterator[Expr]:
    """An index, and what in it is divided, compared or chosen from.

    These have to be right.  Other sums and products may wrap around: what they add up to will be.
    But what comes from data has 64 bits, as have literals beyond 32: beside them nothing may wrap.
    ints: all symbols that are not data; None: there is no data in it.
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
        if isinstance(top, Sum):
            yield from (const(c) for c in (top.const, *(c for _, c in top.terms)) if abs(c) >> 31)
        exact = not isinstance(top, (Sum, Product)) or (ints is not None and _has_data(top, ints))
        stack += [(child, exact) for child in top.children() if child.children()]


def _has_data(e: Expr, ints: AbstractSet[Expr]) -> bool:
    return any(not isinstance(v, Var) and v not in ints for v in e.free)


def reaches(plan: KernelPlan) -> tuple[Expr, ...] | None:
    """Expressions in sizes: if all lie below ``LIMIT``, 32 bits hold every index and position.

    None where an index cannot be bounded in such terms.
    """
    out: dict[Expr, None] = {}
    total: Expr = const(1)
    for d in plan.dims:
        total = total * extent(d.var)
    out[total] = None
    counted = index_ints(plan)
    for size in (v for v in plan.ints if v in counted and not _is_short(v)):
        others = exact_quotient(total, size)
        if others is None or others.lo is None or others.lo < 1:
            out[size] = None  # else it is no more than the total
        if size.lo is None or size.lo <= -LIMIT:
            out[-size] = None
    ints = frozenset(plan.ints)
    exprs = _computed(plan)
    values = [n.expr for n in walk(roots(plan.stores)) if isinstance(n, Index)]
    exprs += [e for e in values if e not in ints]  # an argument by itself has the width it needs
    ends = {extent(d.var) for d in plan.dims}  # factors of the total
    for part in (part for e in exprs for part in _measured(e, ints)):
        if _is_short(part) or part in ends:
            continue
        if counted.issuperset(part.free) and (part.lo is None or part.lo <= -LIMIT):
            out[part] = out[-part] = None
            continue
        end = highest(part, plan.ints)
        if end is None:
            return None
        out[end] = None
    return tuple(out)


def highest(e: Expr, sizes: tuple[Expr, ...]) -> Expr | None:
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
