"""Plans whose size is an argument, so that kernels over different sizes are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Expr, Substitution, Symbol, symbol, var
from litz.ir.body import Rewriter, Store
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.nodes import extent, int_value, loaded, roots
from litz.kernel.plan import Dim, KernelPlan

SIZE = "n0"  # no size of a plan has this name
PLACES = 1 << 20  # of single elements, which can be arguments


def sized(plan: KernelPlan, reduced: bool) -> Dim | None:
    """The dim whose size is a number that can be an argument: the one parallel dim.

    reduced: or the one of those that are reduced to a single element.
    """
    dims = [d for d in plan.dims if d.role == "p"] or (list(plan.dims) if reduced else [])
    if len(dims) != 1 or plan.skeleton is not None:
        return None
    size = extent(dims[0].var)
    return dims[0] if size.is_const and 1 < int_value(size) <= LIMIT else None


def numbers(plan: KernelPlan, reduced: bool) -> tuple[Expr, ...]:
    """What ``opened`` makes arguments of: the size, and before it where single elements lie to
    which dims are reduced.

    reduced: see ``sized``.
    """
    dim = sized(plan, reduced)
    size = () if dim is None else (extent(dim.var),)
    placed = _placed(plan) if reduced else ()
    return (*(s.index for s in placed), *size)


def _placed(plan: KernelPlan) -> tuple[Store, ...]:
    if not plan.reduced:
        return ()
    single = [s for s in plan.stores if s.index.is_const and not s.indirect]
    read = loaded(roots(plan.stores)) if single else ()
    # What is read is read at its place.
    return tuple(s for s in single if s.buffer not in read and 0 <= int_value(s.index) < PLACES)


def opened(
    plan: KernelPlan,
    reduced: bool,
    most: int = LIMIT,
    hints: Sequence[int | None] | None = None,
) -> KernelPlan:
    """The plan with its ``numbers`` as its last integers.

    most: of the size.  hints: of all integers, in order; none by default.
    """
    free = sized(plan, reduced)
    hints = hints or [None] * (len(plan.ints) + len(numbers(plan, reduced)))
    known: dict[Expr, Expr] = {}
    for e, hint in zip(plan.ints, hints, strict=False):
        assert isinstance(e, Symbol)
        known[e] = symbol(e.name, e.lo, e.hi, hint)
    ints = tuple(known.values())
    placed = _placed(plan) if reduced else ()
    places: dict[tuple[str, Expr], Expr] = {}
    for i, s in enumerate(placed):
        places[s.buffer, s.index] = symbol(f"place{i}", 0, PLACES)
    ints += tuple(places.values())
    if free is not None:
        ints += (symbol(SIZE, 1, most, hints[-1]),)
    sizes = Substitution(dict(known))
    for d in plan.dims:
        own = ints[-1] if d is free else sizes(extent(d.var))
        known[d.var] = var(str(d.var), own)
    rewriter = Rewriter(Substitution(known))

    def moved(s: Store) -> Store:
        made = rewriter.store(s)
        return replace(made, index=places.get((s.buffer, s.index), made.index))

    return replace(
        plan,
        dims=tuple(Dim(known[d.var], d.role) for d in plan.dims),
        ints=ints,
        stores=tuple(map(moved, plan.stores)),
        lane=None if plan.lane is None else known[plan.lane],
        tile=None if plan.tile is None else known[plan.tile],
    )
