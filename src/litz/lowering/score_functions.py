"""Functions of attention's scores: what they say of one score, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from litz.graph.constants import is_literal
from litz.graph.values import add_call, attribute_value, fake_mode
from litz.index import Expr, const, linear, split_linear
from litz.ir import body
from litz.ir.body import Load, Node, Rewriter, load
from litz.ir.dtype import F32, I64, DType
from litz.lowering.state import GraphLowering
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes

EXACT: Final = 1 << 24  # up to which a float32 is any integer
Inline = Callable[[GraphModule, list[Any]], list[Any]]
Steps = Callable[..., tuple[Any, ...]]


def of_one_score(
    low: GraphLowering,
    n: FxNode,
    names: Sequence[str],
    shape: Shape,
    captured: Sequence[Sequence[Any]],
    steps: Steps,
    accept: Callable[[Sequence[DType]], bool],
    inline: Inline,
) -> list[Node] | None:
    """The results of ``steps`` at one score, from loads of ``names``; None: they are no expression.

    shape: of all scores.  captured: what functions take besides.  steps: takes ``over`` and float32
    scores, a tensor for each name; ``over(fn, which, *scores)`` calls a function of some scores,
    their places and ``captured[which]`` over all of them.  accept: the results' types.
    """
    others = [list(some) for some in captured]
    taken = [a for a in dict.fromkeys(a for some in others for a in some) if isinstance(a, FxNode)]

    def over_all(*given: Any) -> tuple[Any, ...]:
        scores, operands = given[: len(names)], given[len(names) :]
        known = dict(zip(taken, operands, strict=True))
        places = [torch.arange(size, device=scores[0].device) for size in scores[0].shape]

        def over(fn: Callable[..., Any], which: int, *own: Any) -> Any:
            more = [known.get(a, a) for a in others[which]]
            return _over_places(fn, len(own), len(more))(*own, *places, *more)

        return steps(over, *scores)

    query, key = n.args[:2]
    with fake_mode(n.graph), _Picking():
        q, k = query.meta["val"], key.meta["val"]  # type: ignore[union-attr]
        size = (*q.shape[:3], k.shape[2])
        scores = (q.new_empty(size, dtype=torch.float32) for _ in names)
        gm = make_fx(functionalize(over_all))(*scores, *(a.meta["val"] for a in taken))
    _say_numbers(gm, q.device)
    gm.graph.eliminate_dead_code()  # gradients that nobody asked for
    if any(x.op == "get_attr" for x in gm.graph.nodes):
        return None
    device, where = str(q.device), linear(axes(shape), (ZERO, ZERO, ONE, ONE))
    given = [TensorValue(F32, shape, device, lazy=load(F32, name, where)) for name in names]
    mark = len(low.b.nodes)
    found = inline(gm, [*given, *(low.env[a] for a in taken)])
    touched = {x for node in low.b.nodes[mark:] for x in node.read_buffers()}
    values = [x for x in found if isinstance(x, TensorValue)]
    whole = len(values) == len(found) and accept([x.dtype for x in values])
    if not whole or not touched.isdisjoint(names):
        low.b.roll_back(mark)
        return None
    where_scores_are = axes(shape)
    positions = Rewriter(replace=_positions)
    apart = Rewriter(replace=lambda _, x: _apart(x, where_scores_are))
    return [apart(positions(x.node)) for x in values]


def is_of(n: Node, name: str) -> bool:
    return isinstance(n, Load) and n.buffer == name


def _say_numbers(gm: GraphModule, device: torch.device) -> None:
    """Have numbers be such that PyTorch traces as tensors, indices for example."""
    for n in gm.graph.find_nodes(op="get_attr"):
        value = attribute_value(gm, n)
        if isinstance(value, torch.Tensor) and not value.ndim and is_literal(n):
            kind = {"dtype": value.dtype, "device": device}
            with gm.graph.inserting_before(n):
                n.replace_all_uses_with(
                    add_call(n, torch.ops.aten.full.default, ([], value.item()), kind)
                )
            gm.graph.erase_node(n)


def _positions(_: Node, n: Node) -> Node:
    """A sum or difference of positions as a position."""
    if not isinstance(n, body.Op) or n.name not in ("add", "sub") or n.dtype is not I64:
        return n
    a, b = (_place(x) for x in n.args)
    if a is None or b is None:
        return n
    return body.index(a + b if n.name == "add" else a - b)


def _apart(n: Node, places: Shape) -> Node:
    """A float of a sum of positions as the sum of their floats: a row's and a column's are few."""
    if not isinstance(n, body.Op) or n.name != "cast" or n.dtype is not F32:
        return n
    split = split_linear(n.args[0].expr, places) if isinstance(n.args[0], body.Index) else None
    if split is None:
        return n
    steps, rest = split
    parts = [p for p in (*(steps[v] * v for v in steps), rest) if p is not ZERO]
    most = [max(-p.lo, p.hi) for p in parts if p.lo is not None and p.hi is not None]
    if len(most) < len(parts) or sum(most) > EXACT:
        return n
    first, *others = (body.cast(body.index(p), F32) for p in parts)
    return sum(others, first)


def _place(n: Node) -> Expr | None:
    if isinstance(n, body.Index):
        return n.expr
    return const(int(n.value)) if isinstance(n, body.Const) else None


class _Picking(TorchFunctionMode):
    """Has numbers pick elements as rows of one: ``vmap`` fails at some where tensors are fake."""

    def __torch_function__(self, fn: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        picks = list(args[1]) if fn is torch.ops.aten.index.Tensor else []
        which = [k for k, p in enumerate(picks) if p is not None]
        if len(which) < 2 or any(picks[k].ndim for k in which):
            return fn(*args, **(kwargs or {}))
        rows = [p if p is None else p.unsqueeze(0) for p in picks]
        apart = which[-1] - which[0] >= len(which)
        return fn(args[0], rows).squeeze(0 if apart else which[0])


def _over_places(fn: Callable[..., Any], scores: int, others: int) -> Callable[..., Any]:
    """A function of one score and its four places over all of them."""
    for place in (3, 2, 1, 0):
        mapped = tuple(0 if k == place else None for k in range(4))
        fn = torch.vmap(fn, in_dims=((0,) * scores + mapped + (None,) * others))
    return fn
