"""Recipes of loops within loops: for plans whose reductions do not all run over the same dims.

Every reduced dim is a loop of its own and every reduction walks its dims point by point, so that
any nesting is right; only the parallel dims make blocks.  Updates that are not atomic make the
parallel dims loops too: one program then runs them in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from litz.index import Expr
from litz.ir.body import Reduce, Store
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config, Form
from litz.kernel.blocks.sizes import hint, power_of_two
from litz.kernel.nodes import below, by_loops, loaded, loops_of, readers_first, roots
from litz.kernel.passes import Pass, passes_of, reductions
from litz.kernel.plan import KernelPlan
from litz.kernel.values import Value, Values


def in_nest(plan: KernelPlan, form: Form, wide: bool) -> BlockPlan:
    """Parallel dims in blocks, or as loops too."""
    axis = Axis("x", () if form == "serial" else plan.parallel)
    block = min(128, power_of_two(hint(axis.size)))
    config = Config((("x", block),), 4 if block > 64 else 1)
    even = frozenset("x" if axis.size.is_const and hint(axis.size) % block == 0 else "")
    passes, late = _in_order(plan, axis)
    axes = Axes((axis,), None)
    return BlockPlan(plan, form, axes, (config,), even, wide, passes=passes, late=late)


def loops(plan: KernelPlan, axis: Axis) -> tuple[Expr, ...]:
    """The dims that are loops.  axis: of blocks."""
    return tuple(d.var for d in plan.dims if d.var not in axis.dims)


def values(plan: KernelPlan, axis: Axis) -> Values:
    return Values(dict.fromkeys(axis.dims, axis.name) | {v: str(v) for v in loops(plan, axis)})


def loops_around(s: Store, plan: KernelPlan, axis: Axis) -> tuple[Expr, ...]:
    parallel = tuple(v for v in loops(plan, axis) if v in plan.parallel)
    return (*parallel, *loops_of(s, plan.reduced))


def early(values: Values, stores: Sequence[Store], loops: Iterable[Expr]) -> list[Value]:
    """The reductions that depend on no loop, wherever they are used."""
    found, names = reductions(values, stores), {str(v) for v in loops}
    bound = {v.node for v in found if v.axes & names}
    return [v for v in found if v.node not in bound]


def _in_order(plan: KernelPlan, axis: Axis) -> tuple[tuple[Pass, ...], bool]:
    """Stores by their loops, the deepest first, but each behind those that read where it goes.

    And whether those outside of loops have to come last, with what they store computed first.
    """
    groups = by_loops(plan.stores, lambda s: loops_around(s, plan, axis))
    some = sorted(groups.items(), key=lambda g: -len(g[0]))
    order = readers_first([stores for _, stores in some])
    late = order is None
    if late:
        done = {v.node for v in early(values(plan, axis), plan.stores, loops(plan, axis))}
        order = readers_first([stores for dims, stores in some if dims], done)
    if order is None or any(_reads_late(loops_around(g[0], plan, axis), g) for g in order):
        raise ValueError("no order of loops reads all before it is replaced")
    last = [groups[()]] if late and () in groups else []
    return passes_of((), (), [*order, *last], plan.stores), late


def _reads_late(dims: Sequence[Expr], stores: Sequence[Store]) -> bool:
    """Whether a reduction within loops would read what their earlier turns have replaced.

    It does not if it depends on the outermost loops alone, at the head of which it is done.
    """
    written = {s.buffer for s in stores}
    for n in below(roots(stores)):
        if isinstance(n, Reduce) and loaded((n,)) & written:
            fixed = [v in n.vars for v in dims]
            if fixed != sorted(fixed, reverse=True):
                return True
    return False
