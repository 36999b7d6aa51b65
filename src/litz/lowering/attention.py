"""Attention with functions of scores as a template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node as FxNode

from litz.graph.calls import higher_order_name
from litz.graph.dialect import FLEX
from litz.graph.values import attribute_value
from litz.index import Const, Expr, Substitution, const, floordiv, provably_le, var
from litz.ir import attention, body
from litz.ir.body import Node, Rewriter, Store
from litz.ir.dtype import BOOL, F32
from litz.ir.program import Skeleton, Template, TensorRef
from litz.lowering.externs import argument
from litz.lowering.numbers import require
from litz.lowering.score_functions import Inline, is_of, of_one_score
from litz.lowering.state import GraphLowering
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes

WIDEST = 256  # elements of a query or a value that a block can hold whole
UNBLOCKED = 1 << 30  # keys of one block of a mask where PyTorch was given no blocks
SMALLEST = 16  # sides of a block that a matrix unit takes
TYPES = ("f16", "bf16", "f32")


def lower_attention(low: GraphLowering, n: FxNode, inline: Inline) -> tuple[Any, ...] | None:
    """The results of ``flex_attention``; None where it is to be computed step by step.

    inline: lowers a graph's calls on given values, whose results stay expressions.
    """
    if higher_order_name(n.target) != FLEX or low.settings.keep_random:
        return None
    given: Any = n.args
    query, key, value, _, mask, scale, *_ = given
    results = [r for v in n.meta["val"] if (r := low.result(v)) is not None]
    own = [r for a in (query, key, value) if (r := low.result(a.meta["val"])) is not None]
    if len(results) + len(own) < 6:
        return None
    if not fits(own) or not isinstance(scale, int | float):
        return None
    q, k, v = (operand(low, a, n) for a in (query, key, value))
    b, h, m, e = q.shape
    keys, columns = k.shape[2], v.shape[3]
    require(low, *q.shape, *k.shape, *v.shape)
    # One query has a variable too: a skeleton's kernel is over blocks of queries.
    loops = (*axes((b, h)), var("i2", m), var("i3", keys))
    at_inner, at_column = var("e", e), var("c", columns)
    group = h // k.shape[1]
    raw = attention.dot(
        at(q, (*loops[:3], at_inner)),
        at(k, (broadcast(k, loops[0]), floordiv(loops[1], group), loops[3], at_inner)),
        at_inner,
    )
    score = _score(low, n, (b, h, m, keys), float(scale), inline)
    if score is None:
        return None
    name = f"{n.name}_score"
    score = Rewriter(replace=lambda _, x: raw if is_of(x, name) else x)(score)
    element = at(v, (broadcast(v, loops[0]), floordiv(loops[1], group), loops[3], at_column))
    values = (
        attention.out_value(score, element, loops[3], own[0].dtype),
        attention.lse_value(score, loops[3]),
        attention.top_value(score, loops[3]),
    )
    used = {u.args[1] for u in n.users}
    out: list[TensorValue | None] = []
    stores: list[Store] = []
    for i, (r, node) in enumerate(zip(results, values, strict=True)):
        if i and i not in used:
            out.append(None)
            continue
        made = low.b.allocate(r.dtype, r.shape, r.device, r.strides)
        where = (*loops[:3], at_column) if i == 0 else loops[:3]
        stores.append(made.memory.store(where, node))
        out.append(made)
    slots = [(mask[k - 1], mask[k]) for k in (3, 5) if mask[k] is not None]
    skeleton, visits = visited(low, n, attention.KIND, slots, mask[-3:-1], loops)
    if group is not ONE:  # heads that share keys have a variable of their own
        kv, shared = var("kv", k.shape[1]), var("shared", group)
        heads = tuple(x for x, n in ((kv, k.shape[1]), (shared, group)) if n is not ONE)
        h_place = shared if k.shape[1] is ONE else kv * group + shared
        apart = Rewriter(Substitution({loops[1]: h_place}))
        stores = [apart.store(s) for s in stores]
        skeleton = replace(skeleton, slots=tuple(apart(x) for x in skeleton.slots))
        loops = (loops[0], *heads, *loops[2:])
    reduced = loops[-1], at_inner, *visits
    add_template(low, "attention", (*loops[:-1], at_column), reduced, stores, skeleton)
    return tuple(out)


def add_template(
    low: GraphLowering,
    name: str,
    parallel: Sequence[Expr],
    reduced: Sequence[Expr],
    stores: Sequence[Store],
    skeleton: Skeleton,
) -> None:
    """Add a nest that a skeleton runs, over those of its variables that count anything."""
    b = low.b
    axes, over = (tuple(x for x in some if x is not ZERO) for some in (parallel, reduced))
    name, device = f"{name}{len(b.nodes)}", b.buffers[stores[0].buffer].device
    b.nodes.append(Template(name, axes, over, tuple(stores), device, skeleton, b.origins))


def fits(own: list[Any]) -> bool:
    """Whether a block holds rows of query and value, and matrix units take their type."""
    q, k, v = own
    if q.dtype.name not in TYPES or not q.dtype is k.dtype is v.dtype:
        return False
    widths = (q.shape[3], v.shape[3])
    if not all(isinstance(w, Const) and 1 < w.value <= WIDEST for w in widths):
        return False
    heads = q.shape[1], k.shape[1]
    if heads[0] is not heads[1]:
        few = all(isinstance(x, Const) for x in heads)
        if not few or heads[0].value % heads[1].value:
            return False
    some = k.shape[2] is not ONE and ZERO not in (*q.shape, k.shape[2])
    return some and v.shape[:3] == k.shape[:3]


def operand(low: GraphLowering, a: Any, n: FxNode) -> TensorRef:
    """A tensor in memory, each element of a row at a place of its own."""
    ref = argument(low, a, n)
    assert isinstance(ref, TensorRef)
    rows = zip(ref.shape[2:], ref.strides[2:], strict=True)
    if any(step is ZERO and size is not ONE for size, step in rows):
        return low.b.realize(low.env[a].without_memory()).memory
    return ref


def at(ref: TensorRef, index: tuple[Expr, ...]) -> Node:
    """An element; batches and heads may be one for all."""
    alike = zip(ref.shape[:2], index[:2], strict=True)
    return ref.load((*(ZERO if s is ONE else i for s, i in alike), *index[2:]))


def broadcast(ref: TensorRef, at: Expr) -> Expr:
    return ZERO if ref.shape[0] is ONE else at


def _score(
    low: GraphLowering, n: FxNode, shape: Shape, scale: float, inline: Inline
) -> Node | None:
    """The score of one query and key, from a load of ``<n>_score``; None: it is no expression."""
    given: Any = n.args
    _, _, _, modify, block_mask, _, _, *captured = given
    fn, mask = (attribute_value(low.gm, a) for a in (modify, block_mask[-1]))

    def steps(over: Any, scores: Any) -> tuple[Any, ...]:
        return over(mask, 1), over(fn, 0, scores * scale)

    others = (*captured, (), ())[:2]
    found = of_one_score(
        low, n, (f"{n.name}_score",), shape, others, steps, lambda d: d[1] is F32, inline
    )
    if found is None:
        return None
    return attention.where_seen(body.cast(found[0], BOOL), found[1], -math.inf)


def visited(
    low: GraphLowering,
    n: FxNode,
    kind: str,
    slots: Sequence[tuple[Any, Any]],
    sizes: tuple[Any, Any],
    loops: Sequence[Expr],
) -> tuple[Skeleton, tuple[Expr, ...]]:
    """The skeleton, and the variable that counts visits.

    slots: how many blocks are visited, and which.  sizes: of a block of rows, and of what they
    meet.  loops: batch, head, row, and what it meets.
    """
    rows, met = sizes
    tiles = all(isinstance(s, int) and s >= SMALLEST and not s & (s - 1) for s in sizes)
    whole = isinstance(met, int) and (
        met >= UNBLOCKED or provably_le(loops[3].extent, const(met))  # type: ignore[attr-defined]
    )
    if not tiles or whole:
        return Skeleton(kind), ()
    found: list[Node] = []
    visit: Expr = ZERO
    for pair in slots:
        count, which = (argument(low, a, n) for a in pair)
        assert isinstance(count, TensorRef) and isinstance(which, TensorRef)
        require(low, *which.shape)
        visit = var("visit", which.shape[3])
        place = (loops[0], loops[1], floordiv(loops[2], rows))
        found += [at(count, place), at(which, (*place, visit))]
    return Skeleton(kind, tuple(found), (rows, met)), (visit,)
