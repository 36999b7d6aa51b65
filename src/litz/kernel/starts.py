"""Plans that differ in nothing but where they begin in their buffers, as one plan.

The steps of a loop that a program spells out read the next rows of their inputs and write the next
ones of a result: the same kernel each time, which is told where.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import gcd

from litz.index import Const, Expr, Sum, const, symbol
from litz.ir.body import Load, Node, Rewriter, Store, load, loads
from litz.kernel.build import BoundKernel
from litz.kernel.nodes import roots
from litz.kernel.plan import KernelPlan

Starts = Mapping[str, Expr]
"""What to add to each place in a buffer, by the buffer's name."""


def told_where(bound: Mapping[str, BoundKernel], names: Collection[str]) -> dict[str, BoundKernel]:
    """The kernels, of which those named share plans: each takes as integers where it begins."""
    alike: dict[KernelPlan, dict[KernelPlan, tuple[int, ...]]] = {}
    for plan in dict.fromkeys(bound[name].plan for name in names):
        if plan.skeleton is None:
            at = _starts(plan)
            back: Starts = {p.name: const(-n) for p, n in zip(plan.params, at, strict=True)}
            alike.setdefault(_moved(plan, back) if any(at) else plan, {})[plan] = at
    made = {p: x for like, of in alike.items() if len(of) > 1 for p, x in _told(like, of).items()}
    own = {n: made.get(bound[n].plan) for n in names}
    return {
        n: b if (x := own.get(n)) is None else replace(b, plan=x[0], ints=(*b.ints, *x[1]))
        for n, b in bound.items()
    }


def _told(
    like: KernelPlan, members: Mapping[KernelPlan, Sequence[int]]
) -> dict[KernelPlan, tuple[KernelPlan, tuple[Expr, ...]]]:
    """For each of some plans the one of all, and the integers that it takes besides.

    Those count in what all starts are multiples of, so that vectors are known to be whole.
    """
    counts: dict[tuple[int, ...], Expr] = {}
    starts: dict[str, Expr] = {}
    for param, *at in zip(like.params, *members.values(), strict=True):
        if len({*at}) == 1:
            starts[param.name] = const(at[0])
            continue
        unit = gcd(*at)
        steps = tuple(n // unit for n in at)
        if steps not in counts:  # no size of a plan has this name; nor is it one, which 0 says
            counts[steps] = symbol(f"o{len(counts)}", 0, max(steps), 0)
        starts[param.name] = unit * counts[steps]
    plan = _moved(replace(like, ints=(*like.ints, *counts.values())), starts)
    given = zip(*counts, strict=True)
    return {p: (plan, tuple(map(const, row))) for p, row in zip(members, given, strict=True)}


def _starts(plan: KernelPlan) -> tuple[int, ...]:
    """The first place that a plan touches in each buffer, by what its indices begin with."""
    least: dict[str, int] = {}
    touched = [(n.buffer, n.index) for n in loads(roots(plan.stores))]
    for name, e in (*touched, *((s.buffer, s.index) for s in plan.stores)):
        own = int(e) if isinstance(e, Const) else e.const if isinstance(e, Sum) else 0
        least[name] = min(own, least.get(name, own))
    return tuple(max(0, least[p.name]) for p in plan.params)


def _moved(plan: KernelPlan, by: Starts) -> KernelPlan:
    def there(_: Node, n: Node) -> Node:
        if not isinstance(n, Load):
            return n
        return load(n.dtype, n.buffer, n.index + by[n.buffer], n.indirect)

    def stored(s: Store) -> Store:
        made = rewrite.store(s)
        return replace(made, index=made.index + by[s.buffer])

    rewrite = Rewriter(replace=there)
    return replace(plan, stores=tuple(map(stored, plan.stores)))
