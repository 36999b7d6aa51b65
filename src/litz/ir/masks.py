"""Conditions, and which reductions may run before the masks around them are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litz.index import Expr, Var
from litz.ir.body import REDUCES, Masked, Node, Op, Reduce, walk


def open_reduces(nodes: Sequence[Node]) -> list[Reduce]:
    """The reductions that may run before what ``nodes`` are computed for, each once, in order.

    One below a mask may too if the condition says nothing of the point that it is computed for:
    ``masked(i < 20, f(maximum of row j))`` needs the maximum of every row, so that its loads are
    those of elements that are there.  A condition on sizes alone, or on ``j``, may guard them.
    """
    below = list(walk(n for n in nodes if n.folds & REDUCES))
    found: dict[Reduce, None] = {}
    sources = list(nodes)
    for r in reversed(below):  # users first
        if isinstance(r, Reduce) and _reached(r, sources):
            found[r] = None
            sources += r.args
    return [n for n in _in_order(nodes) if n in found] if found else []


def conjuncts(cond: Node) -> list[Node]:
    """The parts of a condition that all have to hold."""
    if isinstance(cond, Op) and cond.name == "and_":
        return [c for a in cond.args for c in conjuncts(a)]
    return [cond]


def _reached(r: Reduce, sources: Sequence[Node]) -> bool:
    """Whether ``r`` is needed whatever masks between say that could guard its loads."""
    own = set(r.vars)
    seen: set[Node] = set()
    stack = list(sources)
    while stack:
        n = stack.pop()
        if n is r:
            return True
        if n in seen or isinstance(n, Reduce):
            continue
        seen.add(n)
        guarded = isinstance(n, Masked) and any(_guards(c, own) for c in conjuncts(n.args[0]))
        stack.extend((n.args[0], n.args[2]) if guarded else n.args)
    return False


def _guards(cond: Node, own: set[Expr]) -> bool:
    loops = {v for v in cond.vars if isinstance(v, Var)}
    return not loops or not loops.isdisjoint(own)


def _in_order(nodes: Sequence[Node]) -> Iterator[Reduce]:
    """Reductions, users first, in the order of arguments."""
    seen: set[Node] = set()
    stack = list(reversed(nodes))
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            if isinstance(n, Reduce):
                yield n
            stack.extend(reversed(n.args))
