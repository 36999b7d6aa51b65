"""Attention written by hand that trains: one call of ATen, whose gradient keeps no weights.

A softmax of scaled products, times values, has its weights saved for the backward graph, which
computes products of their size anew.  ATen's fused calls save one number for each row.  So this
goes over Dynamo's graph, before AOTAutograd differentiates it; what does not train is found later,
in whatever form it is written (``passes.attend``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg
from torch.nn import functional

from litz.dataclass import dataclass
from litz.graph.calls import argument, leaves
from litz.graph.mistraced import memory_of
from litz.graph.original import copy_of
from litz.graph.recurrences import add_call, erase, is_disturbed, is_written, value_of
from litz.graph.values import same_dims
from litz.runtime.attention import WHOLE, WIDEST
from litz.runtime.fake import FakeTensor
from litz.runtime.torch_private import attention_choice

aten = torch.ops.aten

PRODUCTS: Final = frozenset((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"))
SOFTMAXES: Final = frozenset((torch.softmax, functional.softmax, "softmax"))
TIMES: Final = frozenset((operator.mul, torch.mul, "mul", operator.imul, "mul_"))
OVER: Final = frozenset((operator.truediv, torch.div, "div", operator.itruediv, "div_"))
WRITES: Final = frozenset((operator.imul, "mul_", operator.itruediv, "div_"))
MOVES: Final = frozenset((torch.transpose, "transpose", torch.permute, "permute"))
COPIES: Final = frozenset((torch.reshape, "reshape", torch.flatten, "flatten", "contiguous"))
CASTS: Final = frozenset(("to", "float", "half", "bfloat16", "type_as"))
TYPES: Final = (torch.float16, torch.bfloat16)
WIDER: Final = (*TYPES, torch.float32)  # that scores and weights may have in between
DEVICE: Final = "cuda"
# By whose kernel it is, and what follows the operands.
CALLS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "cudnn": (aten._scaled_dot_product_cudnn_attention.default, (None, True)),
    "flash": (aten._scaled_dot_product_flash_attention.default, ()),
}
SMALLEST: Final = torch.finfo(torch.float32).tiny
Choice = Callable[["Sizes", str], "str | None"]


@dataclass(frozen=True)
class Sizes:
    """Of attention, as they are likely: scores, elements of queries, elements of a head."""

    scores: int
    elements: int
    head: int


@dataclass(frozen=True)
class _Attention:
    """``softmax(query @ columns * scale) @ values``."""

    query: Node
    columns: Node
    values: Node
    scale: float


def fuse_attention(gm: GraphModule, choose: Choice) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace attention that trains on a GPU where it pays.

    choose: told of what size it is and whose kernel PyTorch has for it (``cudnn`` or ``flash``),
    says why that is called; None: it is not.  Returns the program as it was, for eager mode, whose
    gradients can be differentiated again, and what was said of each.
    """
    plain, said = gm, dict[str, None]()
    if torch.are_deterministic_algorithms_enabled():
        return gm, ()  # as written it is, and those kernels' gradients are not
    for last in [n for n in gm.graph.nodes if n.target in PRODUCTS]:
        found = _found(last)
        if found is None or value_of(last).device.type != DEVICE:  # type: ignore[union-attr]
            continue
        plain = copy_of(gm) if plain is gm else plain
        if why := _replaced(last, found, choose):
            said[why] = None
    if not said:
        return gm, ()
    gm.recompile()
    return plain, tuple(said)


def _found(last: Node) -> _Attention | None:
    """The attention whose last product a call is."""
    out = value_of(last)
    if out is None or not out.requires_grad or out.dtype not in TYPES:
        return None
    weights, values = argument(last, 0, "input"), argument(last, 1, "other")
    own: list[Node] = []

    def down(n: Any, taken: Callable[[Node], Any]) -> Any:
        """What a call that only one reads is made of, by what takes casts and such."""
        while isinstance(n, Node) and len(n.users) == 1:
            made = taken(n)
            if made is None:
                return n
            own.append(n)
            n = made
        return None

    soft = down(weights, _cast)
    if soft is None or soft.target not in SOFTMAXES or not _over_last(soft):
        return None
    own.append(soft)
    scale = 1.0

    def scaled(n: Node) -> Any:
        nonlocal scale
        if (made := _scaled(n)) is None:
            return _cast(n)
        scale *= made[1]
        return made[0]

    first = down(argument(soft, 0, "input"), scaled)
    if first is None or first.target not in PRODUCTS:
        return None
    own.append(first)
    query, columns = argument(first, 0, "input"), argument(first, 1, "other")
    while isinstance(query, Node) and len(query.users) == 1 and query.target not in WRITES:
        if (made := _scaled(query)) is None:
            break
        own.append(query)
        query, scale = made[0], scale * made[1]
    if not _is_plain(scale) or any(t is None or t.dtype not in WIDER for t in map(value_of, own)):
        return None
    if value_of(first).dtype is not out.dtype or not _fit(query, columns, values):  # type: ignore[union-attr]
        return None
    # All is read at the last call now.
    if is_disturbed(min(own), last, own):
        return None
    return _Attention(query, columns, values, scale)


def _cast(n: Node) -> Any:
    """What a call has as another type."""
    if n.target not in CASTS:
        return None
    (given, *_), made = n.args, value_of(n)
    value = value_of(given) if isinstance(given, Node) else None
    if made is None or value is None or made.device != value.device:
        return None
    return given


def _scaled(n: Node) -> tuple[Any, float] | None:
    """What a call multiplies, with which positive number."""
    if n.target not in TIMES and n.target not in OVER or n.kwargs or len(n.args) != 2:
        return None
    for by, rest in (n.args[::-1], n.args)[: 2 if n.target in TIMES else 1]:
        if isinstance(by, int | float) and isinstance(rest, Node) and _is_plain(by):
            return rest, float(by) if n.target in TIMES else 1 / by
    return None


def _is_plain(scale: float) -> bool:
    """Whether it is a positive number of float32, as kernels take it, and one over it is."""
    return SMALLEST <= scale <= 1 / SMALLEST


def _over_last(n: Node) -> bool:
    """Whether a softmax is over the last dimension."""
    given, dim = value_of(n), argument(n, 1, "dim")
    return given is not None and dim in (-1, given.ndim - 1)


def _fit(*nodes: Any) -> bool:
    """Whether three operands are heads that ATen's kernels take, row by row."""
    found = [value_of(n) for n in nodes if isinstance(n, Node)]
    if len(found) < 3 or any(type(x) is not FakeTensor for x in found):
        return False  # what is laid out otherwise, or in parts
    query, columns, values = (x for x in found if x is not None)
    head = query.shape[-1]
    if type(head) is not int or head % WHOLE or head > WIDEST or query.ndim not in (3, 4):
        return False
    *batch, rows, _ = query.shape
    keys = columns.shape[-1]
    dims = (head, keys), (keys, head)
    for x, sides in zip((columns, values), dims, strict=True):
        if x.dtype not in WIDER or not same_dims(x.shape, (*batch, *sides)):
            return False
    steps = query.stride(-1), columns.stride(-2), values.stride(-1)
    return query.dtype in WIDER and same_dims(steps, (1, 1, 1))


def _replaced(last: Node, a: _Attention, choose: Choice) -> str:
    """Why attention is one call now; "" where it is not."""
    graph, out, columns = last.graph, value_of(last), value_of(a.columns)
    assert out is not None and columns is not None
    *batch, rows, head = out.shape
    queries, keys = math.prod(map(_hint, (*batch, rows))), _hint(columns.shape[-1])
    sizes = Sizes(queries * keys, queries * head, head)
    before = last.prev
    with graph.inserting_before(last):
        key = add_call(graph, torch.transpose, a.columns, -2, -1)
        given = {memory_of(n) for n in graph.nodes if n.op in ("placeholder", "get_attr")}
        made = [_operand(n, out, given) for n in (a.query, key, a.values)]
        values = [n.meta["example_value"] for n in made]
        whole = all(_is_whole(value_of(n), memory_of(n) in given) for n in made)
        kind = attention_choice(values, a.scale) if whole else ""
        why = choose(sizes, kind) if kind and sizes.scores else None
        if why is not None:
            new = _called(graph, kind, made, a.scale)
            new = new if len(batch) == 2 else add_call(graph, torch.squeeze, new, 1)
            if not _may_be_a_view(last, new):
                new = add_call(graph, torch.clone, new, memory_format=torch.contiguous_format)
    if why is None:
        erase([n for n in made if n not in (a.query, a.values)])
        return ""
    while (before := before.next) is not last:
        before.meta["stack_trace"] = last.meta.get("stack_trace")
    new.meta = {**last.meta, "example_value": value_of(new)}
    last.replace_all_uses_with(new)
    erase([last])
    return why


def _operand(n: Node, out: Tensor, given: Collection[int | None]) -> Node:
    """A value as a result's type, with a dimension of heads.

    given: memory that comes from outside.
    """
    value = value_of(n)
    assert value is not None
    if value.dtype is not out.dtype:
        n = add_call(n.graph, aten.to.dtype, n, out.dtype)
    elif memory_of(n) in given and not _is_whole(value, True):
        n = add_call(n.graph, torch.clone, n, memory_format=torch.contiguous_format)
    return n if value.ndim == 4 else add_call(n.graph, torch.unsqueeze, n, 1)


def _is_whole(x: Any, outside: bool) -> bool:
    """Whether libraries read rows of an operand, in vectors of 16 bytes, at addresses they may.

    outside: it lies in memory from outside; the host program looks where (``litz.host.aligned``).
    """
    outer = [n for size, n in zip(x.shape, x.stride()[:-1], strict=False) if size != 1]
    begins = () if outside else (x.storage_offset(),)
    return all(statically_known_true(n % WHOLE == 0) for n in (*begins, *outer))


def _may_be_a_view(last: Node, new: Node) -> bool:
    """Whether nobody can tell a product from what the gradient reads too, and may lie otherwise.

    Whoever writes into it, or is handed it, has memory of its own.
    """
    returned = {memory_of(n) for n in leaves(last.graph.output_node().args)}

    def is_copied(n: Node, now: Tensor) -> bool:
        """Whether what moves the dimensions is laid out in order behind that, now as before."""
        return all(
            (u.target in MOVES and is_copied(u, _again(u, n, now)))
            or (u.target in COPIES and not u.kwargs and is_free(u) and is_in_order(u, n, now))
            for u in n.users
        )

    def is_in_order(u: Node, n: Node, now: Tensor) -> bool:
        """Whether a call copied, and what it gives now lies as that copy."""
        was = value_of(u)
        if was is None or not was.is_contiguous() or memory_of(u) == memory_of(last):
            return False
        return same_dims(was.stride(), _again(u, n, now).stride())

    def is_free(n: Node) -> bool:
        return not is_written(n) and memory_of(n) not in returned

    value = value_of(new)
    assert value is not None
    return is_free(last) and (value.is_contiguous() or is_copied(last, value))


def _again(u: Node, n: Node, now: Tensor) -> Any:
    """What a call gives of another value in place of a node's."""
    args, kwargs = map_arg((u.args, u.kwargs), lambda a: now if a is n else a.meta["example_value"])
    if u.op == "call_method":
        return getattr(args[0], str(u.target))(*args[1:], **kwargs)
    return u.target(*args, **kwargs)  # type: ignore[operator]


def _called(graph: Graph, kind: str, given: Sequence[Node], scale: float) -> Node:
    target, more = CALLS[kind]
    call = add_call(graph, target, *given, *more, scale=scale)
    return add_call(graph, operator.getitem, call, 0)


def _hint(size: Any) -> int:
    """A size as it is likely; 0 where nobody knows."""
    return size if isinstance(size, int) else size.node.hint or 0
