"""Plans that differ in nothing but where they begin in their buffers, as one plan.

The steps of a loop that a program spells out read the next rows of their inputs and write the next
ones of a result: the same kernel each time, which is told where.  Of rows of an open size that is
a multiple of the size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import gcd

from litz.index import ZERO, Expr, const, exact_quotient, provably_le, substitute, symbol
from litz.index.arith import from_terms, parts
from litz.ir.body import Load, Node, Rewriter, Store, load, loads
from litz.kernel.build import BoundKernel
from litz.kernel.nodes import roots
from litz.kernel.plan import KernelPlan

Starts = Mapping[str, Expr]
"""What to add to each place in a buffer, by the buffer's name."""


def told_where(bound: Mapping[str, BoundKernel], names: Collection[str]) -> dict[str, BoundKernel]:
    """The kernels, of which those named share plans: each takes as integers where it begins."""
    alike: dict[KernelPlan, dict[KernelPlan, tuple[Expr, ...]]] = {}
    for plan in dict.fromkeys(bound[name].plan for name in names):
        if plan.skeleton is None:
            at = _starts(plan)
            back: Starts = {p.name: -e for p, e in zip(plan.params, at, strict=True)}
            like = plan if {*at} <= {ZERO} else _moved(plan, back)
            alike.setdefault(like, {})[plan] = at
    made = {p: x for like, of in alike.items() if len(of) > 1 for p, x in _told(like, of).items()}
    own = {n: made.get(bound[n].plan) for n in names}
    return {n: b if (x := own.get(n)) is None else _given(b, *x) for n, b in bound.items()}


def _given(b: BoundKernel, plan: KernelPlan, starts: Sequence[Expr]) -> BoundKernel:
    """starts: in sizes as the kernel's own plan names them."""
    sizes = dict(zip(b.plan.ints, b.ints, strict=True))
    return replace(b, plan=plan, ints=(*b.ints, *(substitute(e, sizes) for e in starts)))


def _told(
    like: KernelPlan, members: Mapping[KernelPlan, Sequence[Expr]]
) -> dict[KernelPlan, tuple[KernelPlan, tuple[Expr, ...]]]:
    """For each of some plans the one of all, and the integers that it takes besides.

    Those count in what all starts are multiples of, so that vectors are known to be whole.
    """
    counts: dict[tuple[Expr, ...], Expr] = {}
    starts: dict[str, Expr] = {}
    for param, *at in zip(like.params, *members.values(), strict=True):
        if len({*at}) == 1:
            starts[param.name] = at[0]
            continue
        unit = _unit(at)
        steps = tuple(q for e in at if (q := exact_quotient(e, unit)) is not None)
        if steps not in counts:  # no size of a plan has this name; nor is it one, which 0 says
            most = None if any(q.hi is None for q in steps) else max(q.hi or 0 for q in steps)
            counts[steps] = symbol(f"o{len(counts)}", 0, most, 0)
        starts[param.name] = unit * counts[steps]
    plan = _moved(replace(like, ints=(*like.ints, *counts.values())), starts)
    given = zip(*counts, strict=True)
    return {p: (plan, row) for p, row in zip(members, given, strict=True)}


def _unit(starts: Sequence[Expr]) -> Expr:
    """What they are multiples of: a number, or that times a size that stands in all."""
    split = [parts(e) for e in starts]
    of = {t for _, terms in split for t, _ in terms}
    own = gcd(*(k for k, _ in split), *(c for _, terms in split for _, c in terms))
    return own * of.pop() if len(of) == 1 and not any(k for k, _ in split) else const(own)


def _starts(plan: KernelPlan) -> tuple[Expr, ...]:
    """The first place that a plan touches in each buffer, by what its indices begin with."""
    least: dict[str, int] = {}
    begins: dict[str, dict[Expr, None]] = {}
    touched = [(n.buffer, n.index) for n in loads(roots(plan.stores))]
    for name, e in (*touched, *((s.buffer, s.index) for s in plan.stores)):
        own, terms = parts(e)
        least[name] = min(own, least.get(name, own))
        sizes = {t: c for t, c in terms if {*t.free} <= {*plan.ints} and provably_le(ZERO, c * t)}
        begins.setdefault(name, {})[from_terms(0, sizes)] = None
    shared = {name: of.popitem()[0] if len(of) == 1 else ZERO for name, of in begins.items()}
    return tuple(shared[p.name] + max(0, least[p.name]) for p in plan.params)


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
