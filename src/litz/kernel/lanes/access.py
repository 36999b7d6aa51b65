"""What indices, and comparisons of them, do along the lanes of a vector."""

from __future__ import annotations

from collections.abc import Sequence

from litz.dataclass import dataclass
from litz.index import Const as ConstExpr
from litz.index import (
    Expr,
    Var,
    ceildiv,
    coefficient,
    const,
    divides,
    split_linear,
    substitute,
    var,
)
from litz.ir.body import Load, Node, Op, Store
from litz.kernel.lanes.steps import steps
from litz.kernel.nodes import as_index, extent, is_comparison


@dataclass(frozen=True, slots=True)
class Access:
    """What an index does along the lanes of a vector that starts at a multiple of the width.

    kind: ``same`` in all lanes; ``next`` element per lane; ``step`` by ``stride``; ``repeat``: the
    next element after every ``times`` lanes; ``fixed``: at constant ``offsets`` from the first
    lane's, which is ``first`` in every vector if that is known; ``near``: at most one further up
    (``up``) or down (``down``) from lane to lane; ``any``.
    """

    kind: str
    stride: Expr | None = None
    times: int = 1
    offsets: tuple[int, ...] = ()
    first: Expr | None = None
    up: bool = False
    down: bool = False


def in_vector(e: Expr, lane: Expr, lanes: int) -> tuple[Expr, Expr]:
    """``e`` within one aligned vector, and the variable that counts its lanes.

    Divisions and remainders by multiples of the width often vanish there.
    """
    block = var("block_", ceildiv(extent(lane), lanes))
    inner = var("inner_", lanes)
    return substitute(e, {lane: block * lanes + inner}), inner


# What is added to a bound so that "less" says the same, or its contrary.
_COMPARISONS = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def uniform(n: Op, lane: Expr, lanes: int) -> bool:
    """Whether a comparison of an index holds for all lanes of an aligned vector or for none.

    lane + rest < bound is decided by the first lane, if the bound less the rest is a multiple of
    the width.
    """
    if not is_comparison(n):
        return False
    name, (a, b) = n.name, (as_index(x) for x in n.args)
    a, inner = in_vector(a, lane, lanes)
    b, _ = in_vector(b, lane, lanes)
    if inner not in a.free:
        name, a, b = _TURNED[name], b, a
    if coefficient(a, inner) is not const(1) or inner in b.free:
        return inner not in a.free and inner not in b.free
    return divides(lanes, b - (a - inner) + _COMPARISONS[name])


def first_lanes(n: Op, lane: Expr) -> tuple[Expr, bool] | None:
    """How many first lanes of a vector a comparison of indices tells from the others.

    And whether it holds in those, rather than in the others; None where it is no such comparison.
    """
    if not is_comparison(n):
        return None
    name, (a, b) = n.name, (as_index(x) for x in n.args)
    if lane in b.free:
        name, a, b = _TURNED[name], b, a
    if lane in b.free or coefficient(a, lane) is not const(1):
        return None
    return b - a + _COMPARISONS[name], name in ("lt", "le")


def in_ranges(n: Node, lane: Expr) -> bool:
    """Whether a mask depends on nothing but where lanes lie: most vectors have it whole or not."""
    if not isinstance(n, Op) or lane not in n.vars:
        return not isinstance(n, Load)
    if n.name in ("and_", "or_", "not_"):
        return all(in_ranges(a, lane) for a in n.args)
    return first_lanes(n, lane) is not None


def turned(index: Expr, down: Expr, across: Expr) -> Expr | None:
    """The stride along the lanes of an access that is contiguous down the rows, else None."""
    if down not in index.free or coefficient(index, down) is not const(1):
        return None
    stride = coefficient(index, across)
    return None if stride is None or stride in (const(0), const(1)) else stride


def begins_at(index: Expr, lane: Expr, n: int) -> bool:
    """Whether loops along the lane begin at multiples of ``n`` elements."""
    split = split_linear(index, [v for v in index.free if isinstance(v, Var)])
    if split is None:
        return False
    steps, start = split
    return all(divides(n, c) for c in (start, *(c for v, c in steps.items() if v is not lane)))


@dataclass(frozen=True, slots=True)
class Move:
    """All that a kernel in tiles does: elements from ``load``, transposed, to ``store``.

    Each is contiguous along one loop, and steps by ``load_row``, ``store_row`` elements along the
    other's.
    """

    load: Load
    load_row: Expr
    store: Store
    store_row: Expr


def move(stores: Sequence[Store], down: Expr, across: Expr) -> Move | None:
    """What a kernel in tiles moves, if it computes nothing."""
    s, *more = stores
    if more or not isinstance(s.value, Load) or s.mode != "set" or s.mask is not None:
        return None
    if s.indirect or s.value.indirect:
        return None
    inner, outer = across, down
    if turned(s.value.index, down, across) is not None:
        inner, outer = outer, inner
    steps = [coefficient(a.index, v) for a in (s.value, s) for v in (inner, outer)]
    read, read_row, written_row, written = steps
    if read is not const(1) or written is not const(1):
        return None
    if read_row is None or written_row is None:
        return None
    return Move(s.value, read_row, s, written_row)


def access(e: Expr, lane: Expr, lanes: int, data: Sequence[Expr] = ()) -> Access:
    """data: symbols in ``e`` whose values differ from lane to lane."""
    free = e.free
    if any(s in free for s in data):
        return Access("any")
    if lane not in free:
        return Access("same")
    c = coefficient(e, lane)
    if c is None:
        first, inner = in_vector(e, lane, lanes)
        if inner not in first.free:
            return Access("same")
        c = coefficient(first, inner)
        if c is None:
            return _fixed(first, inner, lanes) or _near(e, lane)
        if not c.is_const:
            return Access("any")
    if c.is_const:
        value = c.value  # type: ignore[attr-defined]
        return Access("next") if value == 1 else Access("step", c) if value else Access("same")
    return Access("step", c)


def _fixed(e: Expr, inner: Expr, lanes: int) -> Access | None:
    """An index whose lanes lie apart by constants.  e: as ``in_vector`` gives it."""
    start = substitute(e, {inner: const(0)})
    apart = [substitute(e, {inner: const(j)}) - start for j in range(lanes)]
    offsets = tuple(d.value for d in apart if isinstance(d, ConstExpr))
    if len(offsets) < lanes:
        return None
    for times in (2, 4):
        if offsets == tuple(j // times for j in range(lanes)):
            return Access("repeat", times=times, offsets=offsets)
    return Access("fixed", offsets=offsets, first=start if start.is_const else None)


def _near(e: Expr, lane: Expr) -> Access:
    found = steps(e, lane)
    if found is None or not (found[1] == 1 or found[0] == -1):
        return Access("any")
    return Access("near", up=found[1] == 1, down=found[0] == -1)
