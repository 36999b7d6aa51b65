"""Values that several passes over a row need: which to keep instead of computing them again."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, product, size_hint
from litz.ir.body import Load, Node, Op
from litz.ir.dtype import I64
from litz.ir.ops import op as op_row
from litz.kernel.lanes.access import access
from litz.kernel.nodes import below, extent

COSTLY = 8  # additions: more than a store and a load
SCATTERED = 16  # additions that a vector from many lines costs
NEAREST = 1 << 16  # bytes of the nearest cache
ROOM = 1 << 18  # bytes of a row's kept values: they and the row should stay near the core


def worth_keeping(
    passes: Sequence[Sequence[Node]],
    dims: Sequence[Expr],
    lane: Expr,
    lanes: int,
    room: int = ROOM,
) -> tuple[Node, ...]:
    """Costly values of every point of ``dims`` that more than one pass needs, in a fixed order.

    passes: what each of them computes.  room: bytes for all that is kept.
    """
    room //= max(1, size_hint(product(extent(v) for v in dims), room))
    uses = [below(roots) for roots in passes]
    shared = {n: None for n in (m for u in uses for m in u) if sum(n in u for u in uses) > 1}
    out: list[Node] = []
    for u in uses[1:]:
        users = [n for n in u if n not in shared]
        tops = {a: None for n in users for a in n.args if a in shared}
        for n in tops:
            new = n not in out and all(v in n.vars for v in dims)
            if new and n.dtype.bytes <= room and cost(n, lane, lanes, dims) >= COSTLY:
                out.append(n)
                room -= n.dtype.bytes
    return tuple(out)


def cost(root: Node, lane: Expr, lanes: int, dims: Sequence[Expr] = ()) -> int:
    """Additions that it takes to compute ``root`` at a point, once its reductions are done.

    dims: loops around; what is the same in all of them has been computed before.
    """
    total = 0
    for n in below((root,)):
        if dims and not any(v in n.vars for v in dims):
            continue
        if isinstance(n, Op):
            # Of whole numbers of 64 bits, places that is, a vector of lanes takes two registers.
            total += op_row(n.name).cost * (2 if n.dtype is I64 else 1)
        elif isinstance(n, Load) and access(n.index, lane, lanes).kind in ("step", "fixed", "any"):
            total += SCATTERED
    return total
