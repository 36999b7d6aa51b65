"""When a value of the graph is stored, and how it lies in memory then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode

from litz.graph.aliasing import is_returned, is_view_op, sharing, shown
from litz.graph.calls import is_random
from litz.graph.values import eager_value, same_dims
from litz.index import product, size_hint
from litz.ir import body
from litz.ir.ops import op
from litz.lowering.context import NEAR, RECOMPUTE_COST, RECOMPUTE_FAR, RECOMPUTE_GPU
from litz.lowering.layouts import laid_out
from litz.lowering.places import is_quick, place_of
from litz.lowering.registry import Result
from litz.lowering.state import GraphLowering
from litz.lowering.strides import dense, in_order, spaced
from litz.lowering.values import ZERO, Shape, TensorValue, axes

CONVERGES = 8  # calls that are looked at
# Of what a GPU computes from positions alone: a table of it would be a launch of its own.
TABLE_COST = 32


def settle(low: GraphLowering, n: FxNode, out: TensorValue, r: Result, n_users: int) -> TensorValue:
    """Store the value now if it will be wanted from memory, else keep it lazy."""
    if is_view_op(n.target):
        return out
    if out.lazy is None:
        return own(low, n, out, r)
    loads = body.loads((out.lazy,))
    shared = n_users > 1 and (_reads_more(out, loads) or _takes_long(low, out, n_users))
    shared = shared and not _converges(n) and not _is_table(low, out)
    wanted = shared or is_returned(n)
    wanted = wanted or (low.settings.keep_random and is_random(n.target))
    constant = not loads and body.cost(out.lazy) == 0
    if (constant or not wanted) and shows_memory(low, n):
        return low.b.realize(out, r.strides if dense(r) else None)
    if wanted and not constant:
        if is_returned(n):
            r = low.result(eager_value(n)) or r
        return stored(low, n, out, r)
    return low.b.limit(out)


def _reads_more(v: TensorValue, loads: Sequence[body.Load]) -> bool:
    """Whether a value is computed from more than it is, beside what is one number a row, say."""
    own = [a for a in axes(v.shape) if a is not ZERO]
    whole = [n.dtype.bytes for n in loads if all(a in n.vars for a in own)]
    return len(loads) > 1 and (len(whole) > 1 or sum(whole) > v.dtype.bytes)


def _takes_long(low: GraphLowering, v: TensorValue, users: int) -> bool:
    """Whether a value is better loaded than computed by each of its readers."""
    assert v.lazy is not None
    on_gpu = low.settings.on_gpu(v.device)
    if not on_gpu and size_hint(product(v.shape), 0) * v.dtype.bytes <= NEAR:
        return body.cost(v.lazy) > RECOMPUTE_COST
    own = {a for a in axes(v.shape) if a is not ZERO}
    each = [n for n in body.walk((v.lazy,)) if isinstance(n, body.Op) and own <= set(n.vars)]
    most = RECOMPUTE_GPU if on_gpu else RECOMPUTE_FAR
    return sum(op(n.name).cost for n in each) * (users - 1) > most


def _is_table(low: GraphLowering, v: TensorValue) -> bool:
    """Whether a value that nothing is loaded for is better computed where it is read."""
    assert v.lazy is not None
    on_gpu = low.settings.on_gpu(v.device)
    if (place := place_of(v.lazy)) is not None:
        return is_quick(place, on_gpu)
    return on_gpu and not body.loads((v.lazy,)) and body.cost(v.lazy) <= TABLE_COST


def _converges(n: FxNode) -> bool:
    """Whether all that reads a value is elementwise and goes into one value, soon."""
    left = dict.fromkeys(n.users)
    for _ in range(CONVERGES):
        u = min(left)
        if len(left) == 1:
            return not is_view_op(u.target)
        if not _is_elementwise(u, n):
            return False
        del left[u]
        left.update(dict.fromkeys(u.users))
    return False


def _is_elementwise(u: FxNode, n: FxNode) -> bool:
    """Whether a call computes one tensor of the sizes of its argument ``n``, each element alone."""
    if torch.Tag.pointwise not in getattr(u.target, "tags", ()):
        return False
    val = u.meta["val"]
    return isinstance(val, torch.Tensor) and same_dims(val.shape, n.meta["val"].shape)


def stored(low: GraphLowering, n: FxNode, v: TensorValue, r: Result | None) -> TensorValue:
    """A lazy value in memory as eager has it."""
    seen = r is not None and (dense(r) or is_returned(n) and spaced(r))
    strides = r.strides if r is not None and seen else in_order(v.shape, r)
    return low.b.realize(v, strides)


def settled(
    low: GraphLowering, n: FxNode, v: TensorValue, stated: Result | None = None
) -> TensorValue:
    """Store a lazy argument, and keep the stored form.

    It has the strides that eager has here, without gaps unless ``stated`` asks for them.
    """
    meta = low.result(n.meta["val"])
    outer, low.b.origins = low.b.origins, low.sources[n]
    if stated is None or dense(stated):
        found = stored(low, n, v, meta)
    else:
        found = laid_out(low.b, v, stated)
    low.b.origins = outer
    low.bind(n, found)
    return found


def in_memory(low: GraphLowering, n: Any) -> TensorValue:
    """The value of a node, stored if it was not."""
    v = low.env[n]
    assert isinstance(v, TensorValue)
    return settled(low, n, v) if v.ref is None else v


def copied(low: GraphLowering, n: FxNode, v: TensorValue, strides: Shape | None) -> TensorValue:
    """The stored value of a node once more, with other strides; the node's from here on.

    What shares the copy's memory, or is written there, shares it with the node.
    """
    found = low.b.realize(v.without_memory(), strides)
    low.bind(n, found)
    return found


def own(
    low: GraphLowering, n: FxNode, out: TensorValue, r: Result, call: FxNode | None = None
) -> TensorValue:
    """Memory of its own, if results show it, for what lies in an argument's: ``trunc(int)``."""
    if sharing(n.target).shared or not shows_memory(low, n):
        return out
    given = (low.env.get(a) for a in (call or n).all_input_nodes)
    roots = (low.b.root(v.ref.buffer) for v in given if isinstance(v, TensorValue) and v.ref)
    if low.b.root(out.memory.buffer) not in roots:
        return out
    lazy = out.without_memory()
    return low.b.realize(lazy, r.strides if dense(r) else None)


# --- who sees a value -----------------------------------------------------------------------------


def shows_memory(low: GraphLowering, n: FxNode) -> bool:
    """Whether results show that they lie in this value's memory: several, or one with gaps.

    Or one that begins later: PyTorch makes views of arguments anew by the offset of a result.
    """
    found = shown(n)
    if len(found) != 1 or found[0] is n:
        return len(found) > 1
    val = eager_value(found[0])
    if not isinstance(val, torch.Tensor) or (r := low.result(val)) is None:
        return False
    return not dense(r) or low.expr(val.storage_offset()) is not ZERO
