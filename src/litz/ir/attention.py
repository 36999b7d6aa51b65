"""Attention as a template: softmax of modified scores, times values, without the scores in memory.

For each batch, head and query (parallel axes; the last is a column of the result) the stores say::

    dot    = sum over e of query[.., e] * key[.., k, e]
    score  = any body over dot, positions and loads; -inf where it is masked
    weight = exp(score - max over k of score)
    out    = sum over k of weight * value[.., k, d]  /  sum over k of weight

and, where wanted, the logarithm (base 2) of the sum of exponentials, and the maximum.  A row that
is masked as a whole gives zeros.  ``attention`` builds these stores and ``parts`` knows them
again: equal nodes are one object.

Slots of its skeleton: the number of key blocks that a query block visits, and which (at the
variable that counts visits); then the same of blocks in which nothing is masked.  Without slots all
keys are visited.  sizes: of a query block and of a key block.  Who is not visited is masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from litz.index import Expr
from litz.ir.body import (
    Load,
    Masked,
    Node,
    Op,
    Reduce,
    Store,
    cast,
    const,
    masked,
    op,
    reduce,
    walk,
)
from litz.ir.dtype import F32, DType

KIND: Final = "attention"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a printer needs of attention's stores.

    dot: query times key; score: from dot, masked; rows, columns, keys, inner: the variables that
    count queries, a value's elements, keys, and a key's elements.  out, lse, top: the stores, where
    there are such.
    """

    query: Load
    key: Load
    value: Load
    dot: Node
    score: Node
    rows: Expr
    columns: Expr
    keys: Expr
    inner: Expr
    out: Store
    lse: Store | None
    top: Store | None

    @property
    def unmasked(self) -> Node:
        """The score where nothing is masked."""
        s = self.score
        return s.args[1] if isinstance(s, Masked) else s


def dot(query: Node, key: Node, inner: Expr) -> Node:
    return reduce("sum", (inner,), op("mul", cast(query, F32), cast(key, F32)))


def masked_score(mask: Node, score: Node) -> Node:
    return masked(mask, score, const(F32, -math.inf))


def out_value(score: Node, value: Node, keys: Expr, dtype: DType, *, guarded: bool = True) -> Node:
    """A result; guarded: zeros where all is masked, which is nan otherwise, as of a softmax."""
    weight, total, _ = _weights(score, keys)
    whole = masked(op("eq", total, const(F32, 0)), const(F32, 1), total) if guarded else total
    return cast(reduce("sum", (keys,), weight * cast(value, F32)) / whole, dtype)


def lse_value(score: Node, keys: Expr) -> Node:
    _, total, top = _weights(score, keys)
    value = op("log", total) * (1 / math.log(2)) + top * (1 / math.log(2))
    return masked(op("eq", top, const(F32, math.inf)), top, value)


def top_value(score: Node, keys: Expr) -> Node:
    return reduce("max", (keys,), score) * (1 / math.log(2))


def _weights(score: Node, keys: Expr) -> tuple[Node, Node, Node]:
    """Each key's weight, their sum, and the maximum, which is 0 where all is masked."""
    top = reduce("max", (keys,), score)
    top = masked(op("eq", top, const(F32, -math.inf)), const(F32, 0), top)
    weight = op("exp", score - top)
    return weight, reduce("sum", (keys,), weight), top


def parts(stores: Sequence[Store], axes: Sequence[Expr]) -> Parts:
    """The parts of attention's stores over its parallel axes.  Raises ValueError for others."""
    nodes = list(walk(r for s in stores for r in s.roots()))
    top = next((n for n in nodes if isinstance(n, Reduce) and n.kind == "max"), None)
    if top is None:
        raise ValueError("stores without a maximum are not attention's")
    (keys,), (score,) = top.axes, top.args
    lse, best = lse_value(score, keys), top_value(score, keys)
    known = {lse: "lse", best: "top"}
    roles = {known.get(s.value, "out"): s for s in stores}
    out = roles["out"]
    product = next(
        n for n in nodes if isinstance(n, Op) and n.name == "mul" and n.args[0] is _exp(score, keys)
    )
    value = _load(product.args[1])
    found = next(
        n for n in walk((score,)) if isinstance(n, Reduce) and n.kind == "sum" and _is_dot(n)
    )
    query, key = (_load(a) for a in found.args[0].args)
    dtype = out.value.dtype
    if not any(out.value is out_value(score, value, keys, dtype, guarded=g) for g in (True, False)):
        raise ValueError("a store is not attention's")
    return Parts(
        query, key, value, found, score, axes[-2], axes[-1], keys, found.axes[0], out,
        roles.get("lse"), roles.get("top"),
    )  # fmt: skip


def _exp(score: Node, keys: Expr) -> Node:
    return _weights(score, keys)[0]


def _is_dot(n: Reduce) -> bool:
    product = n.args[0]
    return isinstance(product, Op) and product.name == "mul"


def _load(n: Node) -> Load:
    """A load below casts."""
    while isinstance(n, Op) and n.name == "cast":
        (n,) = n.args
    if not isinstance(n, Load):
        raise ValueError(f"an operand of attention is computed: {n!r}")
    return n
