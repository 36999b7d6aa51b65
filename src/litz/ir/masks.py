"""Reductions and the masks around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litz.index import Expr, Var
from litz.ir.body import Masked, Node, Op, Reduce

Conds = tuple[Node, ...]


def open_reduces(nodes: Sequence[Node]) -> list[Reduce]:
    """The reductions that may run before what ``nodes`` are computed for, each once, in order.

    One below a mask may too, if no part of the condition is the same for all that it stands for:
    ``masked(i < 20, f(max of a row))`` needs the row's maximum, whatever ``i`` is.
    """
    out: dict[Reduce, None] = {}
    seen: set[tuple[Node, Conds]] = set()
    stack: list[tuple[Node, Conds]] = [(n, ()) for n in reversed(nodes)]
    while stack:
        n, conds = stack.pop()
        if (n, conds) in seen or (n, ()) in seen:
            continue
        seen.add((n, conds))
        below = [(a, conds) for a in n.args]
        if isinstance(n, Masked):
            below[1] = (n.args[1], tuple(dict.fromkeys((*conds, *_parts(n.args[0])))))
        elif isinstance(n, Reduce):
            own = set(n.vars)
            if not any(_loops(c) <= own for c in conds):
                out[n] = None
                conds = ()
            # Inside, the reduced axes are others than those around.
            kept = tuple(c for c in conds if not _loops(c) & set(n.axes))
            below = [(a, kept) for a in n.args]
        stack.extend(reversed(below))
    return list(out)


def _parts(cond: Node) -> Iterator[Node]:
    if isinstance(cond, Op) and cond.name == "and_":
        for a in cond.args:
            yield from _parts(a)
    else:
        yield cond


def _loops(cond: Node) -> set[Expr]:
    return {v for v in cond.vars if isinstance(v, Var)}
