"""Reductions in simpler terms."""

from __future__ import annotations

from collections.abc import Callable

from litz.index import Expr, product
from litz.ir.body import Node, Op, Reduce, Rewriter, Store
from litz.ir.body import cast as cast_node
from litz.ir.body import const as const_node
from litz.ir.body import index as index_node
from litz.ir.body import op as op_node
from litz.ir.body import reduce as reduce_node
from litz.ir.dtype import DType
from litz.kernel.nodes import extent


def simplify(stores: tuple[Store, ...], two_sums: Callable[[Reduce], bool]) -> tuple[Store, ...]:
    """Drop reductions over no dims; write mean and deviations as two sums where that is asked.

    Two passes over a row that sits in cache cost less than Welford's division per element, and
    err less.
    """

    def replace(old: Node, new: Node) -> Node:
        if not isinstance(old, Reduce):
            return new
        value, gives = new.args[0], old.gives
        if not old.axes:
            return value if gives.single is None else const_node(old.dtype, gives.single)
        if old.row.counts and two_sums(old):
            mean, m2 = chunk_moments(value, old.axes, product(extent(a) for a in old.axes))
            return mean if gives.part == "mean" else m2
        return new

    rewrite = Rewriter(replace=replace)
    return tuple(rewrite.store(s) for s in stores)


def chunk_moments(
    value: Node,
    axes: tuple[Expr, ...],
    count: Expr,
    weighted: Callable[[Node], Node] | None = None,
    most: int | None = None,
) -> tuple[Node, Node]:
    """Mean and sum of squared deviations of ``value`` over ``axes``, in two corrected passes.

    A sum that rounds gives a mean that is off, of equal values too.  The deviations tell by how
    much: their sum is 0 from the true mean (Chan, Golub and LeVeque, 1983).

    count: of all values; most: as many at most, where ``count`` does not say.
    weighted: a term as sums take it: times how many values it stands for, or 0 where it is none.
    """

    def total(n: Node) -> Node:
        return reduce_node("sum", axes, n if weighted is None else weighted(n))

    terms = cast_node(index_node(count), value.dtype)
    mean = op_node("div", total(value), terms)
    off = op_node("sub", value, mean)
    squares = total(op_node("mul", off, off))
    if _sums_exactly(value, count.hi if most is None else most):
        return mean, squares
    left = total(off)
    rest = op_node("div", left, terms)
    excess = op_node("mul", rest, left)
    # Beyond the numbers of the type there is nothing left that could be corrected.
    known, small = (
        op_node("lt", op_node("abs", n), const_node(value.dtype, float("inf")))
        for n in (rest, excess)
    )
    squares = op_node("where", small, op_node("sub", squares, excess), squares)
    return (
        op_node("where", known, op_node("add", mean, rest), mean),
        op_node("maximum", squares, const_node(value.dtype, 0)),
    )


def _sums_exactly(value: Node, most: int | None) -> bool:
    """Whether the sum of up to ``most`` equal numbers has all its digits: they have few."""
    while isinstance(value, Op) and value.name in ("neg", "abs"):
        (value,) = value.args
    if most is None or not isinstance(value, Op) or value.name not in ("round_to", "cast"):
        return False
    through = value.param if value.name == "round_to" else value.args[0].dtype
    return through is not None and _digits(through) + most.bit_length() <= _digits(value.dtype)


def _digits(dtype: DType) -> int:
    """The binary digits that every number of a type has at most."""
    return {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}.get(dtype.name, dtype.bits)
