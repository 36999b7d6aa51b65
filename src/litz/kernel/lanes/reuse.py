"""Values that several passes over a row need: which to keep instead of computing them again."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, product, size_hint
from litz.ir.body import Load, Node, Op, Reduce, Store
from litz.ir.ops import op as op_row
from litz.kernel.lanes.access import access
from litz.kernel.nodes import below, extent, reduce_levels

COSTLY = 8  # additions: more than a store and a load
SCATTERED = 16  # additions that a vector from many lines costs
ROOM = 1 << 16  # bytes of a row's kept values: they should stay in the nearest cache


def passes(stores: Sequence[Store], reduces: Sequence[Reduce]) -> list[tuple[Node, ...]]:
    """The roots of each pass over the reduced dims: reductions by level, then the stores."""
    level = reduce_levels(reduces)
    out: dict[int, list[Node]] = {}
    for r in reduces:
        out.setdefault(level[r], []).append(r.args[0])
    last = [n for s in stores for n in s.roots()]
    return [tuple(out[k]) for k in sorted(out)] + ([tuple(last)] if last else [])


def worth_keeping(
    stores: Sequence[Store],
    reduces: Sequence[Reduce],
    dims: Sequence[Expr],
    lane: Expr,
    lanes: int,
) -> tuple[Node, ...]:
    """Costly values of every point of ``dims`` that more than one pass needs, in a fixed order.

    stores: those that run over ``dims``; reduces: the reductions over them.
    """
    room = ROOM // max(1, size_hint(product(extent(v) for v in dims), ROOM))
    uses = [below(roots) for roots in passes(stores, reduces)]
    shared = {n: None for n in (m for u in uses for m in u) if sum(n in u for u in uses) > 1}
    out: list[Node] = []
    for u in uses[1:]:
        users = [n for n in u if n not in shared]
        tops = {a: None for n in users for a in n.args if a in shared}
        for n in tops:
            new = n not in out and all(v in n.vars for v in dims)
            if new and n.dtype.bytes <= room and cost(n, lane, lanes) >= COSTLY:
                out.append(n)
                room -= n.dtype.bytes
    return tuple(out)


def cost(root: Node, lane: Expr, lanes: int) -> int:
    """Additions that it takes to compute ``root`` at a point, once its reductions are done."""
    total = 0
    for n in below((root,)):
        if isinstance(n, Op):
            total += op_row(n.name).cost
        elif isinstance(n, Load) and access(n.index, lane, lanes).kind in ("step", "any"):
            total += SCATTERED
    return total
