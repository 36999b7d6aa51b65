"""The gradient of attention with functions of scores, as templates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.dataclass import dataclass
from litz.graph.calls import higher_order_name
from litz.graph.dialect import FLEX_GRADIENT
from litz.graph.values import attribute_value, fake_mode
from litz.index import Expr, Substitution, floordiv, var
from litz.ir import attention, body
from litz.ir.body import Node, Rewriter, Store, load, reduce
from litz.ir.dtype import BOOL, F32
from litz.ir.program import Template, TensorRef
from litz.lowering.attention import (
    Inline,
    at,
    fits,
    is_of,
    operand,
    over_places,
    positions,
    visited,
)
from litz.lowering.numbers import require
from litz.lowering.state import GraphLowering
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes, linear


@dataclass(frozen=True)
class Functions:
    """What the user's functions say of one score.

    score: modified, where nothing is masked.  slope: the gradient of the product of query and key.
    Both read the product as ``<name>_score``, the slope what comes into it as ``<name>_grad``.
    """

    name: str
    mask: Node
    score: Node
    slope: Node


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
    if len(results) + len(own) < 6 or wanted_of_captured(n):
        return None
    if (
        not low.settings.on_gpu(own[0].device)
        or not fits(own)
        or not isinstance(scale, int | float)
    ):
        return None
    if own[0].shape[0] is not own[1].shape[0] or grad is None:
        return None
    q, k, v, g, logs = (operand(low, a, n) for a in (query, key, value, grad, lse))
    require(low, *q.shape, *k.shape, *v.shape)
    b, h, m, _ = q.shape
    found = _functions(low, n, (b, h, m, k.shape[2]), own[0].device, float(scale), inline)
    if found is None:
        return None
    delta = _delta(low, low.env[out], low.env[grad], grad_lse and low.env[grad_lse])
    make = _Gradients(low, n, found, (q, k, v, g, logs, delta), tuple(mask), own[0].device)
    return (
        make.of_query(results[0]),
        *make.of_keys(results[1], results[2]),
        (None,) * len(n.meta["val"][3]),
    )


def wanted_of_captured(n: FxNode) -> set[int]:
    """Which of what the functions capture somebody asks the gradient of."""
    picked = (u for u in n.users if u.args[1] == 3)
    return {int(u.args[1]) for some in picked for u in some.users}  # type: ignore[arg-type]


def _delta(low: GraphLowering, out: TensorValue, grad: TensorValue, lse: Any) -> TensorRef:
    """What every slope of a row is less by: result times gradient, less that of ``lse``."""
    loops, c = axes(out.shape[:3]), var("c", out.shape[3])
    product = body.cast(out.at((*loops, c)), F32) * body.cast(grad.at((*loops, c)), F32)
    found = reduce("sum", (c,), product)
    if lse is not None:
        found = found - lse.at(loops) * (1 / math.log(2))
    made = low.b.new_buffer(F32, out.shape[:3], _rows(out.shape[:3]), out.device)
    store = Store(made.name, linear(loops, made.strides), found)
    low.b.add_loops(loops, (c,), (store,), out.device)
    ref = low.b.of_buffer(made).ref
    assert ref is not None
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
    device: str

    def of_query(self, result: Any) -> TensorValue:
        """A block of queries meets keys."""
        q, k, *_ = self.given
        b, h, i, j = (*axes(q.shape[:2]), var("i2", q.shape[2]), var("i3", k.shape[2]))
        inner, c, column = self._inner("column")
        slope, _ = self._tiles((b, h, i, j), h, inner, c)
        key = self._of(1, (b, self._group(h), j, column))
        value = attention.gradient_value(slope, key, (j,), result.dtype)
        kind = attention.GRADIENT
        visits = visited(self.low, self.n, kind, self._slots(2), self.mask[-3:-1], (b, h, i, j))
        made, store = self._result(result, (b, h, i, column), value)
        self._add((b, h, i, column), (j, inner, c), (store,), visits)
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
        inner, c, column = self._inner("column")
        other = var("other", v.shape[3])
        slope, weight = self._tiles((b, h, i, j), kv, inner, c)
        values = (
            attention.gradient_value(
                slope, self._of(0, (b, h, i, column)), (*heads, i), of_key.dtype
            ),
            attention.gradient_value(
                weight, self._of(3, (b, h, i, other)), (*heads, i), of_value.dtype
            ),
        )
        rows, met = self.mask[-3:-1]
        visits = visited(
            self.low, self.n, attention.GRADIENT, self._slots(6), (met, rows), (b, h, j, i)
        )
        made, store = self._result(of_key, (b, kv, j, column), values[0])
        made_too, store_too = self._result(of_value, (b, kv, j, other), values[1])
        self._add((b, kv, j, column, other), (*heads, i, inner, c), (store, store_too), visits)
        return made, made_too

    def _inner(self, name: str) -> tuple[Expr, Expr, Expr]:
        e, c = self.given[0].shape[3], self.given[2].shape[3]
        return var("e", e), var("c", c), var(name, e)

    def _group(self, h: Expr) -> Expr:
        return floordiv(h, self.given[0].shape[1] // self.given[1].shape[1])

    def _of(self, which: int, place: tuple[Expr, ...]) -> Node:
        return at(self.given[which], place)

    def _slots(self, first: int) -> list[tuple[Any, Any]]:
        found = [(self.mask[k], self.mask[k + 1]) for k in (first, first + 2)]
        return [pair for pair in found if pair[1] is not None]

    def _tiles(
        self, place: tuple[Expr, ...], group: Expr, inner: Expr, c: Expr
    ) -> tuple[Node, Node]:
        """The slope and the weight at batch, head, query and key.  group: the key's head."""
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
        mask, score, slope = (with_dot(moved(x)) for x in (f.mask, f.score, f.slope))
        weight = attention.weight(score, self._of(4, (b, h, i)))
        comes = weight * (grads - self._of(5, (b, h, i)))
        slope = Rewriter(replace=lambda _, x: comes if is_of(x, f"{f.name}_grad") else x)(slope)
        kind = self.given[0].dtype
        return tuple(  # type: ignore[return-value]
            body.masked(mask, body.cast(x, kind), body.const(kind, 0)) for x in (slope, weight)
        )

    def _result(self, r: Any, place: tuple[Expr, ...], value: Node) -> tuple[TensorValue, Store]:
        made = self.low.b.new_buffer(r.dtype, r.shape, r.strides, r.device)
        return self.low.b.of_buffer(made), Store(made.name, linear(place, made.strides), value)

    def _add(
        self,
        parallel: tuple[Expr, ...],
        reduced: tuple[Expr, ...],
        stores: tuple[Store, ...],
        visits: tuple[Any, tuple[Expr, ...]],
    ) -> None:
        skeleton, over = visits
        b = self.low.b
        b.nodes.append(
            Template(
                f"gradient{len(b.nodes)}",
                tuple(x for x in parallel if x is not ZERO),
                tuple(x for x in (*reduced, *over) if x is not ZERO),
                stores,
                self.device,
                skeleton,
                b.origins,
            )
        )


def _functions(
    low: GraphLowering, n: FxNode, shape: Shape, device: str, scale: float, inline: Inline
) -> Functions | None:
    """The user's functions as expressions; None where they are none."""
    gm, taken = _graph(low, n, scale)
    if any(x.op == "get_attr" for x in gm.graph.nodes):
        return None
    own = axes(shape)
    where = linear(own, (ZERO, ZERO, ONE, ONE))
    names = f"{n.name}_score", f"{n.name}_grad"
    given = [TensorValue(F32, shape, device, lazy=load(F32, name, where)) for name in names]
    mark = len(low.b.nodes)
    found = inline(gm, [*given, *(low.env[a] for a in taken)])
    touched = {x for node in low.b.nodes[mark:] for x in node.read_buffers()}
    floats = [x.dtype.is_float for x in found if isinstance(x, TensorValue)]
    if not touched.isdisjoint(names) or len(floats) != 3 or not all(floats[1:]):
        low.b.roll_back(mark)
        return None
    mask, score, slope = (Rewriter(replace=positions)(x.node) for x in found)
    # Their gradient may be of the query's type: PyTorch traces it with scores that are.
    return Functions(n.name, body.cast(mask, BOOL), body.cast(score, F32), body.cast(slope, F32))


def _graph(low: GraphLowering, n: FxNode, scale: float) -> tuple[GraphModule, list[FxNode]]:
    """Mask, modified score and slope of all scores, from these and what comes into the slope."""
    given: Any = n.args
    query, key, *_, modify, joint, block_mask, _, _ = given[:12]
    others = [list(c) for c in (*given[12:], (), ())[:2]]
    taken = [a for a in dict.fromkeys(a for some in others for a in some) if isinstance(a, FxNode)]
    functions = (attribute_value(low.gm, a) for a in (modify, joint, block_mask[-1]))
    forward, both, mask = functions

    def one(score: Any, grad: Any, *more: Any) -> Any:
        return both(score, *more[:4], grad, *more[4:])[0]

    def steps(scores: Any, grads: Any, *operands: Any) -> tuple[Any, ...]:
        known = dict(zip(taken, operands, strict=True))
        of_score, of_mask = ([known.get(a, a) for a in some] for some in others)
        places = [torch.arange(size, device=scores.device) for size in scores.shape]
        scaled = scores * scale
        masked = over_places(mask, 0, len(of_mask))(*places, *of_mask)
        found = over_places(forward, 1, len(of_score))(scaled, *places, *of_score)
        slopes = over_places(one, 2, len(of_score))(scaled, grads, *places, *of_score)
        return masked, found, slopes * scale

    with fake_mode(n.graph):
        q, k = query.meta["val"], key.meta["val"]
        scores, grads = (
            q.new_empty((*q.shape[:3], k.shape[2]), dtype=torch.float32) for _ in range(2)
        )
        operands = (a.meta["val"] for a in taken)
        gm = make_fx(functionalize(steps))(scores, grads, *operands)
    gm.graph.eliminate_dead_code()  # gradients that nobody asked for
    return gm, taken
