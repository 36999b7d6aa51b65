"""The gradient of attention with functions of scores, as templates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.graph.calls import higher_order_name
from litz.graph.dialect import FLEX_GRADIENT
from litz.graph.values import attribute_value
from litz.index import Expr, Substitution, floordiv, var
from litz.ir import attention, body
from litz.ir.body import Node, Rewriter, Store, reduce
from litz.ir.dtype import BOOL, F32, DType
from litz.ir.program import TensorRef
from litz.lowering.attention import add_template, at, fits, operand, visited
from litz.lowering.attention_captured import Captured
from litz.lowering.numbers import require
from litz.lowering.score_functions import Inline, is_of, of_one_score
from litz.lowering.state import GraphLowering
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes


@dataclass(frozen=True)
class Functions:
    """What the user's functions say of one score.

    score: modified, where nothing is masked.  slope: the gradient of the product of query and key.
    added: what is added to gradients of captured tensors, and where.  All read the product as
    ``<name>_score``, gradients what comes into the score as ``<name>_grad``.
    """

    name: str
    mask: Node
    score: Node
    slope: Node
    added: tuple[Node, ...]


@dataclass(frozen=True)
class _Tiles:
    """Slope, weight and what is added to sums at one score.  mask: where it counts."""

    slope: Node
    weight: Node
    mask: Node
    added: tuple[Node, ...]


def lower_attention_gradient(
    low: GraphLowering, n: FxNode, inline: Inline
) -> tuple[Any, ...] | None:
    """The results of ``flex_attention_backward``; None where it is to be computed step by step."""
    if higher_order_name(n.target) != FLEX_GRADIENT or low.settings.keep_random:
        return None
    given: Any = n.args
    query, key, value, out, lse, grad, grad_lse, _, _, mask, scale, *_ = given
    results = [r for v in n.meta["val"][:3] if (r := low.result(v)) is not None]
    own = [r for a in (query, key, value) if (r := low.result(a.meta["val"])) is not None]
    captured = Captured.of(low, n)
    if len(results) + len(own) < 6 or captured is None:
        return None
    if not fits(own) or not isinstance(scale, int | float):
        return None
    if own[0].shape[0] is not own[1].shape[0] or grad is None:
        return None
    q, k, v, g, logs = (operand(low, a, n) for a in (query, key, value, grad, lse))
    require(low, *q.shape, *k.shape, *v.shape)
    b, h, m, _ = q.shape
    found = _functions(low, n, (b, h, m, k.shape[2]), float(scale), captured, inline)
    if found is None:
        return None
    delta = _delta(low, low.env[out], low.env[grad], grad_lse and low.env[grad_lse])
    make = _Gradients(low, n, found, (q, k, v, g, logs, delta), tuple(mask))
    sums = captured.sums(found.added, own[0].device)
    return (
        make.of_query(results[0], captured, sums),
        *make.of_keys(results[1], results[2]),
        captured.results(sums, inline),
    )


def _delta(low: GraphLowering, out: TensorValue, grad: TensorValue, lse: Any) -> TensorRef:
    """What every slope of a row is less by: result times gradient, less that of ``lse``."""
    loops, c = axes(out.shape[:3]), var("c", out.shape[3])
    product = body.cast(out.at((*loops, c)), F32) * body.cast(grad.at((*loops, c)), F32)
    found = reduce("sum", (c,), product)
    if lse is not None:
        found = found - lse.at(loops) * (1 / math.log(2))
    ref = low.b.allocate(F32, out.shape[:3], out.device, _rows(out.shape[:3])).memory
    low.b.add_loops(loops, (c,), (ref.store(loops, found),), out.device)
    return ref


def _rows(shape: Shape) -> Shape:
    _, h, m = shape
    return h * m, m, ONE


@dataclass(frozen=True)
class _Gradients:
    """Makes the templates.  given: query, key, value, gradient, logarithms of sums, deltas."""

    low: GraphLowering
    n: FxNode
    functions: Functions
    given: tuple[TensorRef, ...]
    mask: tuple[Any, ...]

    def of_query(self, result: Any, captured: Captured, sums: list[TensorValue]) -> TensorValue:
        """A block of queries meets keys, and what each pair adds to ``sums``."""
        q, k, *_ = self.given
        b, h, i, j = (*axes(q.shape[:2]), var("i2", q.shape[2]), var("i3", k.shape[2]))
        inner, c, column = self._inner()
        tiles = self._tiles((b, h, i, j), h, inner, c)
        key = self._of(1, (b, self._group(h), j, column))
        value = attention.gradient_value(tiles.slope, key, (j,), result.dtype)
        kind = attention.GRADIENT
        loops = b, h, i, j
        skeleton, visit = visited(self.low, self.n, kind, self._slots(2), self.mask[-3:-1], loops)
        made, store = self._result(result, (b, h, i, column), value)
        stores = store, *captured.stores(sums, tiles.added, tiles.mask)
        reduced = j, inner, c, *visit
        add_template(self.low, "gradient", (b, h, i, column), reduced, stores, skeleton)
        return made

    def of_keys(self, of_key: Any, of_value: Any) -> tuple[TensorValue, TensorValue]:
        """A block of keys meets queries, of all heads that share it."""
        q, k, v, *_ = self.given
        count = q.shape[1] // k.shape[1]
        b, kv = axes(k.shape[:2])
        i, j = var("i2", q.shape[2]), var("i3", k.shape[2])
        several = var("head", count)
        heads = () if count is ONE else (several,)
        h = kv if count is ONE else kv * count + several
        inner, c, column = self._inner()
        other = var("other", v.shape[3])
        tiles = self._tiles((b, h, i, j), kv, inner, c)
        values = (
            attention.gradient_value(
                tiles.slope, self._of(0, (b, h, i, column)), (*heads, i), of_key.dtype
            ),
            attention.gradient_value(
                tiles.weight, self._of(3, (b, h, i, other)), (*heads, i), of_value.dtype
            ),
        )
        rows, met = self.mask[-3:-1]
        skeleton, visit = visited(
            self.low, self.n, attention.GRADIENT, self._slots(6), (met, rows), (b, h, j, i)
        )
        made, store = self._result(of_key, (b, kv, j, column), values[0])
        made_too, store_too = self._result(of_value, (b, kv, j, other), values[1])
        parallel, reduced = (b, kv, j, column, other), (*heads, i, inner, c, *visit)
        add_template(self.low, "gradient", parallel, reduced, (store, store_too), skeleton)
        return made, made_too

    def _inner(self) -> tuple[Expr, Expr, Expr]:
        e, c = self.given[0].shape[3], self.given[2].shape[3]
        return var("e", e), var("c", c), var("column", e)

    def _group(self, h: Expr) -> Expr:
        return floordiv(h, self.given[0].shape[1] // self.given[1].shape[1])

    def _of(self, which: int, place: tuple[Expr, ...]) -> Node:
        return at(self.given[which], place)

    def _slots(self, first: int) -> list[tuple[Any, Any]]:
        found = [(self.mask[k], self.mask[k + 1]) for k in (first, first + 2)]
        return [pair for pair in found if pair[1] is not None]

    def _tiles(self, place: tuple[Expr, ...], group: Expr, inner: Expr, c: Expr) -> _Tiles:
        """At batch, head, query and key.  group: the key's head."""
        f, (b, h, i, j) = self.functions, place
        shared = group if group is not h else self._group(h)
        dot = attention.dot(
            self._of(0, (b, h, i, inner)), self._of(1, (b, shared, j, inner)), inner
        )
        grads = attention.dot(self._of(3, (b, h, i, c)), self._of(2, (b, shared, j, c)), c)
        own = axes((*self.given[0].shape[:3], self.given[1].shape[2]))
        there = {v: e for v, e in zip(own, place, strict=True) if v is not ZERO and v is not e}
        moved = Rewriter(Substitution(there))
        with_dot = Rewriter(replace=lambda _, x: dot if is_of(x, f"{f.name}_score") else x)
        weight = attention.weight(with_dot(moved(f.score)), self._of(4, (b, h, i)))
        comes = weight * (grads - self._of(5, (b, h, i)))
        with_grad = Rewriter(replace=lambda _, x: comes if is_of(x, f"{f.name}_grad") else x)
        mask, slope, *added = (with_grad(with_dot(moved(x))) for x in (f.mask, f.slope, *f.added))
        kind = self.given[0].dtype
        slope, weight = (attention.where_seen(mask, body.cast(x, kind)) for x in (slope, weight))
        return _Tiles(slope, weight, mask, tuple(added))

    def _result(self, r: Any, place: tuple[Expr, ...], value: Node) -> tuple[TensorValue, Store]:
        made = self.low.b.allocate(r.dtype, r.shape, r.device, r.strides)
        return made, made.memory.store(place, value)


def _functions(
    low: GraphLowering, n: FxNode, shape: Shape, scale: float, captured: Captured, inline: Inline
) -> Functions | None:
    """The user's functions as expressions; None where they are none."""
    given: Any = n.args
    fn, mask = (attribute_value(low.gm, a) for a in (given[7], given[9][-1]))

    def points(score: Any, grad: Any, *more: Any) -> Any:
        return captured.points(score, *more[:4], grad, *more[4:])

    def steps(over: Any, scores: Any, grads: Any) -> tuple[Any, ...]:
        scaled = scores * scale
        slope, *added = over(points, 0, scaled, grads)
        return over(mask, 1), over(fn, 0, scaled), slope * scale, *added

    def accept(kinds: Sequence[DType]) -> bool:
        floats = (True, True, *captured.kinds())
        return all(k.is_float is f for k, f in zip(kinds[1:], floats, strict=True))

    others = (*given[12:], (), ())[:2]
    names = f"{n.name}_score", f"{n.name}_grad"
    found = of_one_score(low, n, names, shape, others, steps, accept, inline)
    if found is None:
        return None
    mask, score, *rest = found
    wide = (body.cast(x, x.dtype.opmath) if x.dtype.is_float else x for x in rest)
    if low.env[given[0]].dtype is not F32:
        # Gradients of the query's type, as PyTorch traces them, are rounded at the end.
        wide = (attention.without_roundings(x) for x in wide)
    slope, *added = wide
    mask, score = body.cast(mask, BOOL), body.cast(score, F32)
    return Functions(n.name, mask, score, slope, tuple(added))
