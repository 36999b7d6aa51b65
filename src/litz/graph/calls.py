"""What the calls of a graph are given, and what they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.runtime.drawing import DRAWS

CALL_METHOD = "call_torchbind"

SAVES, RESTORES = DRAWN_TWICE = ("run_and_save_rng_state", "run_with_rng_state")
"""How PyTorch wraps random operators of checkpointed regions, in the first pass and the second."""


def argument(n: Node, position: int, name: str, default: Any = None) -> Any:
    """What a call is given for one parameter, by position or by name."""
    return n.args[position] if position < len(n.args) else n.kwargs.get(name, default)


def copied(
    n: Node, graph: Graph, given: Callable[[Node], Node | None], name: str | None = None
) -> Node:
    """A call like another, where the graph inserts.  given: what it reads in place of a node.

    Arguments come after the call: PyTorch looks for open sizes in those that it is made with, which
    takes as long as all else.
    """
    args, kwargs = map_arg((n.args, n.kwargs), given)
    new = graph.create_node(n.op, n.target, name=name)
    give(new, args, kwargs)
    return new


def give(new: Node, args: object, kwargs: object) -> None:
    """Give a node that has just been made its arguments.

    An assignment would also move it to the end of the graph's table, where it is.
    """
    object.__setattr__(new, "args", args)
    if kwargs:
        object.__setattr__(new, "kwargs", kwargs)


def op_name(target: object) -> str:
    """``mm`` for ``aten.mm.default``; "" for what is no operator."""
    return getattr(getattr(target, "overloadpacket", None), "__name__", "")


def in_place_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The overload of ATen that writes its first argument: ``scatter_.src`` for ``scatter.src``."""
    form: torch._ops.OpOverload = getattr(
        getattr(torch.ops.aten, f"{op_name(target)}_"), target._overloadname
    )
    return form


def higher_order_name(target: object) -> str:
    """The name of an operator that takes functions or kernels; "" for others."""
    is_higher = isinstance(target, torch._ops.HigherOrderOperator)
    return str(getattr(target, "__name__", "")) if is_higher else ""


def count_calls(gm: GraphModule) -> int:
    """How many operators a graph calls."""
    return sum(n.op == "call_function" for n in gm.graph.nodes)


def add_body(gm: GraphModule, kind: str, body: GraphModule) -> Node:
    """A body for an operator that takes functions; its node stands where nodes are inserted."""
    number = sum(name.startswith(f"{kind}_") for name, _ in gm.named_children())
    gm.add_module(f"{kind}_{number}", body)
    return gm.graph.get_attr(f"{kind}_{number}")


def is_random(target: object) -> bool:
    """Whether an operator draws random numbers."""
    if isinstance(target, torch._ops.OpOverload):
        return _draws(target)
    return target in DRAWS or higher_order_name(target) in DRAWN_TWICE


@lru_cache(maxsize=1024)
def _draws(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


@lru_cache(maxsize=1024)
def takes_objects(target: object) -> bool:
    """Whether a call is of a script object's method or takes such an object, which it may change.

    Such calls keep their order, and none is left out.
    """
    if isinstance(target, torch._ops.OpOverload):
        return any(a.type.kind() == "ClassType" for a in target._schema.arguments)
    return higher_order_name(target) == CALL_METHOD


def operator_called(n: Node) -> object:
    """What a call runs: of one that draws twice, the operator within."""
    name = higher_order_name(n.target)
    return n.args[name == RESTORES] if name in DRAWN_TWICE else n.target


def leaves(value: object) -> list[Any]:
    """What lists and tuples hold, however they are nested."""
    if not isinstance(value, (tuple, list)):
        return [value]
    found = []
    for v in value:
        if isinstance(v, (tuple, list)):
            found += leaves(v)
        else:
            found.append(v)
    return found
