"""Attention as a template: softmax of modified scores, times values, without the scores in memory.

For each batch, head and query (parallel axes; the last is a column of the result) the stores say::

    dot    = sum over e of query[.., e] * key[.., k, e]
    score  = any body over dot, positions and loads; -inf where it is masked
    weight = exp(score - max over k of score)
    out    = sum over k of weight * value[.., k, d]  /  sum over k of weight

and, where wanted, the logarithm (base 2) of the sum of exponentials, and the maximum (times 1 /
log(2)); of a share of the keys the sum of weights and the maximum as it is.  A row that is masked
as a whole gives zeros.  ``attention`` builds these stores and ``parts`` knows them again: equal
nodes are one object.

Its gradient is two such nests, of which ``out`` and ``lse`` are known.  With what is above::

    weight = exp(score - lse)
    slope  = any body over dot, positions, loads and d = weight * (sum over c of grad[.., c] *
             value[.., k, c] - delta); 0 where it is masked
    query's, over keys: out = sum over k of slope * key[.., k, e]
    key's, over queries q and the heads that share a key: out = sum of slope * query[.., q, e];
    value's: out = sum of weight * grad[.., q, c]
    an update, for each query and key: buffer[any place] += any body, as slope's; 0 where masked

Slots of a skeleton: the number of key blocks that a query block visits, and which (at the
variable that counts visits); then the same of blocks in which nothing is masked.  Without slots
all keys are visited.  sizes: of a query block and of a key block.  Who is not visited is masked.
Of a gradient over queries both change places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.index import Expr, Var
from litz.ir.body import (
    Const,
    Load,
    Masked,
    Node,
    Op,
    Reduce,
    Rewriter,
    Store,
    cast,
    const,
    masked,
    op,
    reduce,
    walk,
)
from litz.ir.dtype import BF16, F16, F32, DType

KIND: Final = "attention"
GRADIENT: Final = "attention_gradient"
LN2: Final = math.log(2)
STEPS: Final = ("sign", "floor", "ceil", "trunc", "round", "fmod", "nextafter")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a printer needs of attention's stores.

    dot: query times key; score: from dot, masked; rows, columns, keys, inner: the variables that
    count queries, a value's elements, keys, and a key's elements.  out, lse, top: the stores, where
    there are such; total, best: those of a share of the keys.  guarded: as of ``out_value``.
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
    total: Store | None
    best: Store | None
    guarded: bool


def dot(query: Node, key: Node, inner: Expr) -> Node:
    return reduce("sum", (inner,), op("mul", cast(query, F32), cast(key, F32)))


def where_seen(mask: Node, value: Node, other: float = 0) -> Node:
    """A tile or score where a mask of blocks holds; what a user masks in it is part of it."""
    if isinstance(mask, Const) and isinstance(value, Masked):
        value = op("where", *value.args)
    return masked(mask, value, const(value.dtype, other))


def out_value(score: Node, value: Node, keys: Expr, dtype: DType, *, guarded: bool = True) -> Node:
    """A result; guarded: zeros where all is masked, which is nan otherwise, as of a softmax."""
    weight, total, _ = _weights(score, keys)
    whole = masked(op("eq", total, const(F32, 0)), const(F32, 1), total) if guarded else total
    return cast(reduce("sum", (keys,), weight * cast(value, F32)) / whole, dtype)


def lse_value(score: Node, keys: Expr) -> Node:
    _, total, top = _weights(score, keys)
    return _lse(total, top)


def total_value(score: Node, keys: Expr) -> Node:
    return _weights(score, keys)[1]


def best_value(score: Node, keys: Expr) -> Node:
    return reduce("max", (keys,), score)


def top_value(score: Node, keys: Expr) -> Node:
    return best_value(score, keys) * (1 / LN2)


@dataclass(frozen=True, slots=True)
class Merged:
    """Results of attention over all keys, from those over shares of them."""

    out: Node
    lse: Node
    top: Node


def merged(out: Node, total: Node, best: Node, share: Expr, *, guarded: bool) -> Merged:
    """out, total, best: of one share, over the variable that counts shares; out's are guarded.

    The logarithm of a share's sum would not do: the lowest number times 1 / log(2) is no number,
    and beside a large one the logarithm of what is below 1 is lost.
    """
    whole_best = reduce("max", (share,), best)
    most = _shift(whole_best)
    weights = op("exp", best - most) * total
    sums = reduce("sum", (share,), weights)
    whole = masked(op("eq", sums, const(F32, 0)), const(F32, 1), sums) if guarded else sums
    found = reduce("sum", (share,), weights * out) / whole
    return Merged(found, _lse(sums, most), whole_best * (1 / LN2))


def _lse(total: Node, top: Node) -> Node:
    """The logarithm (base 2) of a sum of exponentials that ``top`` was taken off."""
    value = op("log", total) * (1 / LN2) + top * (1 / LN2)
    return masked(op("eq", top, const(F32, math.inf)), top, value)


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
    known = {lse_value(score, keys): "lse", top_value(score, keys): "top"}
    known |= {total_value(score, keys): "total", top: "best"}
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
    guarded = out.value is out_value(score, value, keys, dtype)
    if not guarded and out.value is not out_value(score, value, keys, dtype, guarded=False):
        raise ValueError("a store is not attention's")
    return Parts(
        query, key, value, found, score, axes[-2], axes[-1], keys, found.axes[0], out,
        roles.get("lse"), roles.get("top"), roles.get("total"), roles.get("best"), guarded,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two loads, summed over ``inner``: along the block that stays, and that moves."""

    node: Node
    left: Load
    right: Load
    inner: Expr


@dataclass(frozen=True, slots=True)
class Growing:
    """What a store sums up: a tile, times a load at ``column``."""

    store: Store
    tile: Node
    operand: Load
    column: Expr


@dataclass(frozen=True, slots=True)
class Gradient:
    """The parts of a gradient's stores.

    rows, over: the variables that count the block that stays, and the one that moves.  heads: that
    of the heads that share a row; None: there is one.  weight, score, shift: a node of weights, the
    score that it is of, and what that is shifted by.  updates: stores that add at each score.
    """

    rows: Expr
    over: Expr
    heads: Expr | None
    products: tuple[Product, ...]
    sums: tuple[Growing, ...]
    weight: Node
    score: Node
    shift: Node
    updates: tuple[Store, ...]


def weight(score: Node, lse: Node) -> Node:
    """The weight of a score, from the logarithm (base 2) of the sum of its row's exponentials."""
    return op("exp", score - _shift(lse) * LN2)


def gradient_value(tile: Node, operand: Node, over: tuple[Expr, ...], dtype: DType) -> Node:
    return cast(reduce("sum", over, op("mul", cast(tile, F32), cast(operand, F32))), dtype)


def gradient_parts(stores: Sequence[Store], parallel: Sequence[Expr]) -> Gradient:
    """The parts of a gradient's stores.  Raises ValueError for others."""
    updates = tuple(s for s in stores if s.mode == "add")
    sums = tuple(_growing(s, parallel) for s in stores if s not in updates)
    (over,) = {_sum(g.store).axes for g in sums}
    nodes = list(walk([*(g.tile for g in sums), *(r for s in updates for r in s.roots())]))
    columns = {g.column for g in sums}
    rows = [v for v in parallel if v not in columns][-1]
    products: dict[Node, Product] = {}
    for n in nodes:
        if isinstance(n, Reduce):
            a, b = (_load(x) for x in n.args[0].args)
            left, right = (a, b) if rows in a.index.free else (b, a)
            products[n] = Product(n, left, right, n.axes[0])
    found = next(n for n in nodes if _is_weight(n))
    score, shifted = found.args[0].args
    return Gradient(
        rows, over[-1], over[0] if len(over) > 1 else None, tuple(products.values()), sums,
        found, score, shifted.args[0], updates,
    )  # fmt: skip


def unmasked(tile: Node) -> Node:
    """A tile or score where nothing is masked."""
    return tile.args[1] if isinstance(tile, Masked) else tile


def condition(tile: Node) -> Node | None:
    """Where a tile or score counts; None: everywhere."""
    return tile.args[0] if isinstance(tile, Masked) else None


def visit_of(count: Load, which: Load) -> Expr | None:
    """The variable that counts a block's visits, in the slots that say how many and which.

    None: there is one visit at most, which needs no variable.
    """
    counted = (v for v in which.index.free if isinstance(v, Var) and v not in count.index.free)
    return next(counted, None)


def without_roundings(n: Node, known: dict[Node, Node] | None = None) -> Node:
    """A value whose float32 parts are as they were before they became 16-bit floats in between.

    What a step is taken of (a comparison, say) is rounded still: it would be on the other side.
    known: what stands for some of its nodes.
    """
    known = dict(known or {})
    as_it_is = Rewriter(memo={**known})
    known |= {x: as_it_is(x) for x in walk((n,)) if _is_step(x)}
    return Rewriter(memo=known, replace=_wide)(n)


def _is_step(n: Node) -> bool:
    """Whether a little more or less of a float may make much of a difference."""
    floats = isinstance(n, Op) and any(a.dtype.is_float for a in n.args)
    return floats and (not n.dtype.is_float or n.name in STEPS)  # type: ignore[attr-defined]


def _wide(_: Node, n: Node) -> Node:
    if _is_op(n, "round_to"):
        return n.args[0]
    low = _is_op(n, "cast") and n.dtype is F32 and n.args[0].dtype in (F16, BF16)
    return _unrounded(n.args[0]) if low else n


def _unrounded(n: Node) -> Node:
    if _is_op(n, "cast") and n.args[0].dtype is F32:
        return n.args[0]
    if _is_op(n, "where"):
        return op("where", n.args[0], *map(_unrounded, n.args[1:]))
    if isinstance(n, Masked):
        return masked(n.args[0], *map(_unrounded, n.args[1:]))
    return cast(n, F32)


def _is_op(n: Node, name: str) -> bool:
    return isinstance(n, Op) and n.name == name


def factored(tile: Node) -> tuple[float, Node]:
    """A positive number and what, times it, a tile or score is.

    A number in front of a rounding to bfloat16, whose range is as wide, may as well follow it.
    """
    if _is_op(tile, "cast") and tile.dtype is BF16 and tile.args[0].dtype is F32:
        number, value = factored(tile.args[0])
        return number, cast(value, BF16)
    if isinstance(tile, Masked):
        cond, value, other = tile.args
        if isinstance(other, Const) and other.value in (0, -math.inf):
            number, value = factored(value)
            return number, masked(cond, value, other)
    if _is_op(tile, "where"):
        cond, *values = tile.args
        for k, v in enumerate(values):
            if isinstance(v, Const) and v.value in (0, -math.inf):
                number, values[1 - k] = factored(values[1 - k])
                return number, op("where", cond, *values)
    if _is_op(tile, "mul"):
        for by, rest in (tile.args, tile.args[::-1]):
            if (own := _positive(by)) is not None:
                number, rest = factored(rest)
                return own * number, rest
    if _is_op(tile, "div") and (own := _positive(tile.args[1])) is not None:
        number, rest = factored(tile.args[0])
        return number / own, rest
    return 1.0, tile


def _positive(n: Node) -> float | None:
    """A positive number, or one over one, as divisions by numbers are lowered on GPUs."""
    if _is_op(n, "div"):
        over, under = map(_positive, n.args)
        return None if over is None or under is None else over / under
    return float(n.value) if isinstance(n, Const) and 0 < n.value < math.inf else None


def _shift(lse: Node) -> Node:
    return masked(op("eq", lse, const(F32, -math.inf)), const(F32, 0), lse)


def _is_weight(n: Node) -> bool:
    if not isinstance(n, Op) or n.name != "exp" or not isinstance(n.args[0], Op):
        return False
    if n.args[0].name != "sub":
        return False
    score, shifted = n.args[0].args
    loads = [x for x in walk((shifted,)) if isinstance(x, Load)]
    return len(loads) == 1 and n is weight(score, loads[0])


def _sum(s: Store) -> Reduce:
    n = s.value
    while isinstance(n, Op) and n.name == "cast":
        (n,) = n.args
    if not isinstance(n, Reduce) or not isinstance(n.args[0], Op) or n.args[0].name != "mul":
        raise ValueError("a store that is no sum of products is no gradient of attention")
    return n


def _growing(s: Store, parallel: Sequence[Expr]) -> Growing:
    tile, operand = _sum(s).args[0].args
    load = _load(operand)
    column = next(
        (
            v
            for v in parallel
            if v in s.index.free
            and v in load.index.free
            and not any(isinstance(x, Load) and v in x.index.free for x in walk((tile,)))
        ),
        None,
    )
    if column is None:
        raise ValueError("a gradient of attention without columns")
    while isinstance(tile, Op) and tile.name == "cast" and tile.dtype is F32:
        (tile,) = tile.args
    return Growing(s, tile, load, column)


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
