"""Questions about bodies that plans and their printers ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeGuard

from litz.index import Const as IndexConst
from litz.index import Expr, Var, as_expr, coefficient, const, ge, gt, le, lt
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Store, loads, walk
from litz.ir.body import loops_of as loops_of
from litz.ir.dtype import I64
from litz.ir.ops import CHECKS, RANDOM


def extent(v: Expr) -> Expr:
    """The extent of a loop variable."""
    assert isinstance(v, Var)
    return as_expr(v.extent)


def as_index(n: Node) -> Expr:
    """The index expression of an i64 constant or index value."""
    if isinstance(n, Index):
        return n.expr
    assert isinstance(n, Const)
    return as_expr(int(n.value))


COMPARISONS: Final = {"lt": lt, "le": le, "gt": gt, "ge": ge}


def is_comparison(n: Node) -> TypeGuard[Op]:
    """Whether a node compares two indices."""
    known = isinstance(n, Op) and n.name in COMPARISONS
    return known and all(isinstance(a, Index | Const) and a.dtype is I64 for a in n.args)


def roots(stores: Iterable[Store]) -> tuple[Node, ...]:
    return tuple(r for s in stores for r in s.roots())


def row_start(e: Expr, v: Expr) -> Expr | None:
    """Where a row begins, if ``e`` steps through it by ones."""
    start = e - v
    return None if v in start.free else start


def over_all(s: Store, dims: Sequence[Expr]) -> bool:
    """Whether a store runs over all of some loops."""
    return len(loops_of(s, dims)) == len(dims)


def int_value(e: Expr) -> int:
    assert isinstance(e, IndexConst)
    return e.value


def reduce_levels(
    nodes: Sequence[Node], along: Callable[[Node], bool] = lambda n: False
) -> dict[Node, int]:
    """Reductions in the longest chain down from each node, less one.

    along: which of them come along with the reductions that they need.
    """
    levels: dict[Node, int] = {}
    for n in walk(nodes):
        own = isinstance(n, Reduce) and not along(n)
        levels[n] = max((levels[a] for a in n.args), default=-1) + own
    return levels


def unconditional(
    roots: Iterable[Node], known: Collection[Node] = (), ends: Callable[[Node], bool] | None = None
) -> set[Node]:
    """Nodes that are computed whatever holds: those that conditions guard stand below others.

    known: some that are, with all below them.  ends: those below which nothing is looked for.
    """
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n in found or n in known:
            continue
        found.add(n)
        if ends is None or not ends(n):
            stack += (n.args[0], n.args[2]) if isinstance(n, Masked) else n.args
    return found


def below(roots: Sequence[Node], known: Collection[Node] = ()) -> dict[Node, None]:
    """Nodes that one point of a pass computes: down to reductions, which are done by then.

    known: others that are.
    """
    seen: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in seen and n not in known:
            seen[n] = None
            if not isinstance(n, Reduce):
                stack.extend(n.args)
    return seen


def mergeable(candidates: Sequence[Store], outside: Sequence[Node]) -> list[Store]:
    """Stores that may run within a pass although others run after it: nobody else reads there.

    outside: what is computed after the pass, besides the candidates themselves.
    """
    inside = list(candidates)
    while True:
        later = [n for s in candidates if s not in inside for n in s.roots()]
        read = {n.buffer for n in below([*outside, *later]) if isinstance(n, Load)}
        kept = [s for s in inside if s.buffer not in read]
        if len(kept) == len(inside):
            return kept
        inside = kept


def readers_first(
    groups: Sequence[Sequence[Store]], done: Collection[Node] = ()
) -> list[Sequence[Store]] | None:
    """The groups in an order in which none replaces what a later one reads; None without one.

    They stay as they are where nothing speaks against it.  done: reductions that are known before.
    """
    heads = [[n for n in below(roots(stores)) if n not in done] for stores in groups]
    reads = [loaded([n for n in ns if isinstance(n, (Load, Reduce))]) for ns in heads]
    writes = [{s.buffer for s in stores} for stores in groups]
    left = list(range(len(groups)))
    out = []
    while left:
        free = (i for i in left if not any(writes[i] & reads[k] for k in left if k != i))
        found = next(free, None)
        if found is None:
            return None
        left.remove(found)
        out.append(groups[found])
    return out


def reads(value: Node) -> bool:
    """Whether a value loads, or checks an index."""
    return any(map(is_guarded_kind, walk((value,))))


def checks(value: Node) -> bool:
    """Whether a value checks an index or a divisor."""
    return any(map(is_check, walk((value,))))


def is_check(n: Node) -> bool:
    return isinstance(n, Op) and n.name in CHECKS


def is_draw(n: Node) -> bool:
    """Whether ``n`` is a random number, of a seed that is the same at every point."""
    return isinstance(n, Op) and n.name in RANDOM and not n.args[0].vars


def is_guarded_kind(n: Node) -> bool:
    """Whether ``n`` itself must not run where a mask around it does not hold."""
    return isinstance(n, Load) or is_check(n)


def by_loops(
    stores: Iterable[Store], loops: Callable[[Store], tuple[Expr, ...]]
) -> dict[tuple[Expr, ...], list[Store]]:
    """Stores by the loops that they run over, as they come."""
    groups: dict[tuple[Expr, ...], list[Store]] = {}
    for s in stores:
        groups.setdefault(loops(s), []).append(s)
    return groups


def goes_along(n: Load, lane: Expr) -> bool:
    """Whether a load reads one element after the other along a dim, at no place of data's."""
    return not n.indirect and coefficient(n.index, lane) is const(1)


def loaded(nodes: Sequence[Node]) -> set[str]:
    """The buffers that ``nodes`` read."""
    return {n.buffer for n in loads(nodes)}


def guarded(nodes: Sequence[Node]) -> dict[Node, set[Expr]]:
    """What reads within masked regions alone, which stay around it, and their variables.

    nodes: in the order of ``walk``.
    """
    taken = {a for n in nodes for a in n.args}
    outside = unconditional(n for n in nodes if n not in taken)
    reads: dict[Node, bool] = {}
    for n in nodes:
        own = is_guarded_kind(n) or any(reads[a] for a in n.args)
        reads[n] = own and n not in outside
    held: dict[Node, set[Expr]] = {}
    for n in reversed(nodes):
        for i, a in enumerate(n.args):
            own = isinstance(n, Masked) and i == 1
            if reads[a] and (own or n in held):
                held.setdefault(a, set()).update(held.get(n, ()), n.vars if own else ())
    return held
