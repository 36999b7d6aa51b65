"""The fake tensors of a graph (``meta["val"]``): comparing them, and computing those of new nodes.

Comparisons of symbolic sizes take no guards: sizes are equal where that is known already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

EAGER_VAL = "eager_val"


def same_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether sizes or strides are equal for every input."""
    return len(a) == len(b) and all(map(_same, a, b))


def _same(a: Any, b: Any) -> bool:
    if type(a) is int and type(b) is int:
        return a == b
    if not all(isinstance(x, torch.SymInt) or type(x) is int for x in (a, b)):
        return False
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr:
        return True
    return bool(statically_known_true(a == b))


def same_value(a: object, b: object, idle: bool = True) -> bool:
    """Whether two fake tensors agree in type, device, layout, sizes and strides.

    idle: whether strides of single elements count, by which nothing is ever found.
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    plain = a.layout is torch.strided and b.layout is torch.strided
    strides = zip(a.stride(), b.stride(), a.shape, strict=False) if plain else ()
    return (
        plain
        and a.dtype is b.dtype
        and a.device == b.device
        and same_dims(a.shape, b.shape)
        and all(_same(s, t) for s, t, n in strides if idle or not _same(n, 1))
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def eager_value(n: Node) -> Any:
    """The fake tensor that eager has for a value, where a pass has given it another layout too."""
    return n.meta.get(EAGER_VAL, n.meta.get("val"))


def attribute_value(gm: GraphModule, n: Node) -> Any:
    """What a graph's module has under the name of a node ``get_attr``."""
    value: Any = gm
    for part in str(n.target).split("."):
        value = getattr(value, part)
    return value


def give_value(n: Node) -> None:
    """Compute ``meta["val"]`` of a call from those of its arguments."""
    args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    assert callable(n.target)
    with fake_mode(n.graph):
        n.meta["val"] = n.target(*args, **kwargs)


def add_call(at: Node, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Node:
    """A new call with its value, made for the same line of the user's as the node ``at``.

    Arguments may be symbolic sizes: lowering takes them as expressions.
    """
    made = at.graph.call_function(target)  # which warns of sizes that are no nodes
    made.args, made.kwargs = tuple(args), dict(kwargs)
    made.meta["stack_trace"] = at.meta.get("stack_trace")
    give_value(made)
    return made


def give_values(gm: GraphModule) -> None:
    """Compute what is missing, of calls and of constants, for nodes that a user's pass added."""
    for n in gm.graph.nodes:
        if "val" in n.meta:
            continue
        if n.op == "call_function":
            give_value(n)
        elif n.op == "get_attr":
            value = attribute_value(gm, n)
            if isinstance(value, torch.Tensor):
                n.meta["val"] = value


def fake_mode(graph: torch.fx.Graph) -> Any:
    for n in graph.nodes:
        mode = getattr(n.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    return contextlib.nullcontext()
