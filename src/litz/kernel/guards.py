"""Conditions that guard loads of what is there whether they hold or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from litz.index import Expr, const, product
from litz.ir import body
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Rewriter, Store, op, walk
from litz.ir.body import loads as loads_of
from litz.ir.ops import CHECKS
from litz.ir.program import Buffer

# Ops that not every argument allows: lanes in which the condition does not hold have any.
_PARTIAL = {*CHECKS, "floordiv", "truncdiv", "mod", "fmod"}
_MOST = 64  # nodes below a condition beyond which it stays


def unguarded(stores: tuple[Store, ...], buffers: Mapping[str, Buffer]) -> tuple[Store, ...]:
    """The stores with one load for those of an element that several conditions guard.

    The halves of a byte, say: the first number of a pair reads it, and so does the second.
    """
    masks = [n for n in walk(r for s in stores for r in s.roots()) if isinstance(n, Masked)]
    below = {m: tuple(_below(m.args[1], _MOST)) for m in masks}
    uses = Counter(n for nodes in below.values() for n in nodes if isinstance(n, Load))
    shared = {n for n, count in uses.items() if count > 1 and _is_there(n, buffers)}
    if not shared:
        return stores
    free = {m for m, nodes in below.items() if _runs_anywhere(nodes, shared)}

    def select(old: Node, new: Node) -> Node:
        if old not in free or not isinstance(new, Masked):
            return new
        cond, value, other = new.args
        return op("where", cond, _narrowed(value, cond), other)

    rewrite = Rewriter(replace=select)
    return tuple(rewrite.store(s) for s in stores)


def lifted(stores: tuple[Store, ...], buffers: Mapping[str, Buffer]) -> tuple[Store, ...]:
    """The stores with what all points share computed whether a condition holds or not.

    Under the condition each point would compute it by itself.  What else the condition guards is
    computed of zeros where it does not hold.
    """
    masks = [n for n in walk(r for s in stores for r in s.roots()) if isinstance(n, Masked)]
    free = set[Node]()
    for m in masks:
        nodes = tuple(_below(m.args[1], _MOST))
        loads = {n for n in nodes if isinstance(n, Load)}
        same = {n for n in loads if not n.vars and _is_there(n, buffers)}
        if same and not any(isinstance(n, Masked) for n in nodes) and _runs_anywhere(nodes, loads):
            free.add(m)
    if not free:
        return stores

    def guard(old: Node, new: Node) -> Node:
        if old not in free or not isinstance(new, Masked):
            return new
        cond, value, other = new.args
        return _selected(cond, value, other, [n for n in loads_of((value,)) if n.vars])

    rewrite = Rewriter(replace=guard)
    return tuple(rewrite.store(s) for s in stores)


def within(cond: Node, value: Node, other: Node, along: Collection[Expr]) -> Node:
    """``value`` where a condition holds that says which points of a row there are, else ``other``.

    along: the loops over the points, of which some are there: what these share is there, and
    computed, whether the condition holds or not.
    """
    nodes = tuple(walk((value,)))
    loads = {n for n in nodes if isinstance(n, Load)}
    own = [n for n in loads_of((value,)) if not {*n.vars}.isdisjoint(along)]
    plain = len(own) == len(loads) or any(isinstance(n, Masked) for n in nodes)
    if plain or not _runs_anywhere(nodes, loads):
        return body.masked(cond, value, other)
    return _selected(cond, value, other, own)


def _selected(cond: Node, value: Node, other: Node, own: Sequence[Load]) -> Node:
    """One of two values, of which the first computes with zeros for some loads otherwise."""
    kept = Rewriter(memo={n: body.masked(cond, n, body.const(n.dtype, 0)) for n in own})
    return op("where", cond, kept(value), other)


def _narrowed(value: Node, cond: Node) -> Node:
    """What a condition no longer guards: loads below conditions within it need both as before."""
    within = {n for n in _below(value) if isinstance(n, Masked) and n.args[0] is not cond}
    rewrite = Rewriter()
    for n in walk((value,)) if within else ():
        if n in within:
            own, guarded, other = n.args
            rewrite.memo[n] = body.masked(op("and_", cond, rewrite(own)), guarded, rewrite(other))
    return rewrite(value)


def _below(value: Node, most: int | None = None) -> Iterator[Node]:
    """What a condition of ``value`` guards, what has one of its own aside; about ``most`` nodes."""
    seen: set[Node] = set()
    stack: list[Node] = [value]
    while stack and (most is None or len(seen) <= most):
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            yield n
            stack.extend((n.args[0], n.args[2]) if isinstance(n, Masked) else n.args)


def _is_there(n: Load, buffers: Mapping[str, Buffer]) -> bool:
    """Whether memory has the element at every point of the loops."""
    b = buffers[n.buffer]
    extent: Expr = const(1)
    for size, stride in zip(b.shape, b.strides, strict=True):
        extent = extent + (size - 1) * stride
    known = extent.is_const and product(b.shape).is_const and product(b.shape) is not const(0)
    inside = n.index.lo is not None and n.index.lo >= 0 and n.index.hi is not None
    return not n.indirect and known and inside and n.index.hi < int(extent)  # type: ignore


def _runs_anywhere(nodes: Sequence[Node], shared: set[Load]) -> bool:
    return len(nodes) <= _MOST and all(
        n in shared
        if isinstance(n, Load)
        else isinstance(n, Const | Index | Masked) or (isinstance(n, Op) and n.name not in _PARTIAL)
        for n in nodes
    )
