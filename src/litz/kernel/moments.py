"""Reductions in simpler terms."""

from __future__ import annotations

from collections.abc import Callable

from litz.index import Expr, product
from litz.ir.body import Node, Reduce, Store, walk
from litz.ir.body import cast as cast_node
from litz.ir.body import const as const_node
from litz.ir.body import index as index_node
from litz.ir.body import op as op_node
from litz.ir.body import reduce as reduce_node
from litz.kernel.nodes import extent, rebuild, roots


def simplify(stores: tuple[Store, ...], two_sums: Callable[[Reduce], bool]) -> tuple[Store, ...]:
    """Drop reductions over no dims; write mean and deviations as two sums where that is asked.

    Two passes over a row that sits in cache cost less than Welford's division per element, and
    err less.
    """
    memo: dict[Node, Node] = {}
    for n in walk(roots(stores)):
        args = tuple(memo[a] for a in n.args)
        if isinstance(n, Reduce) and not n.axes:
            memo[n] = _of_one(n, args[0])
        elif isinstance(n, Reduce) and n.kind.startswith("welford") and two_sums(n):
            mean, m2 = chunk_moments(args[0], n.axes, product(extent(a) for a in n.axes))
            memo[n] = mean if n.kind == "welford_mean" else m2
        else:
            memo[n] = rebuild(n, args)
    return tuple(
        Store(
            s.buffer,
            s.index,
            memo[s.value],
            s.mode,
            tuple((sym, memo[v]) for sym, v in s.indirect),
            None if s.mask is None else memo[s.mask],
        )
        for s in stores
    )


def _of_one(n: Reduce, value: Node) -> Node:
    """A reduction of a single value."""
    return const_node(n.dtype, 0) if n.kind in ("argmax", "argmin", "welford_m2") else value


def chunk_moments(value: Node, axes: tuple[Expr, ...], count: Expr) -> tuple[Node, Node]:
    """Mean and sum of squared deviations of ``value`` over ``axes``, in two passes."""
    terms = cast_node(index_node(count), value.dtype)
    mean = op_node("div", reduce_node("sum", axes, value), terms)
    off = op_node("sub", value, mean)
    return mean, reduce_node("sum", axes, op_node("mul", off, off))
