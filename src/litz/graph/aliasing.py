"""Which values of a graph share memory, and which of that memory leaves the graph or is written."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import argument

aten = torch.ops.aten

# Ops that return their argument at times without saying so in their schema.
MAYBE_VIEWS = frozenset(
    {
        aten.reshape.default,
        aten.contiguous.default,
        aten._unsafe_view.default,
        aten._reshape_alias.default,
    }
)


@lru_cache(maxsize=1024)
def _is_view(target: torch._ops.OpOverload) -> bool:
    view = any(r.alias_info is not None for r in target._schema.returns)
    return view or target in MAYBE_VIEWS


@lru_cache(maxsize=1024)
def _written_parameters(target: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes into."""
    return tuple(
        (i, p.name)
        for i, p in enumerate(target._schema.arguments)
        if p.alias_info is not None and p.alias_info.is_write
    )


def shares_memory(n: Node) -> bool:
    """Whether results of a call may share memory with its arguments."""
    if n.op != "call_function":
        return False
    if n.target is operator.getitem:
        return True
    if not isinstance(n.target, torch._ops.OpOverload):
        # Numbers share nothing; what a higher-order operator does is not known.
        return isinstance(n.target, torch._ops.HigherOrderOperator)
    return _is_view(n.target)


def is_view(n: Node) -> bool:
    """Whether a call gives a view of its first argument, whatever that is, and writes nothing."""
    if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload):
        return False
    schema = n.target._schema
    view = any(r.alias_info is not None for r in schema.returns) and not schema.is_mutable
    return view and bool(n.args) and isinstance(n.args[0], Node)


def leaves(n: Node) -> bool:
    """Whether the result, or a view of its memory, leaves the graph."""
    return any(u.op == "output" or (shares_memory(u) and leaves(u)) for u in n.users)


def is_returned(n: Node) -> bool:
    """Whether the result itself is among those of the graph."""
    return any(u.op == "output" for u in n.users)


def written(gm: GraphModule) -> frozenset[Node]:
    """Values whose memory some call of the graph writes, or may write."""
    found: dict[Node, None] = {}
    todo = [a for n in gm.graph.nodes for a in _writes(n)]
    while todo:
        n = todo.pop()
        if n in found:
            continue
        found[n] = None
        todo += [u for u in n.users if shares_memory(u)]
        if shares_memory(n):
            todo += n.all_input_nodes
    return frozenset(found)


def _writes(n: Node) -> Iterator[Node]:
    """The arguments that a call writes into."""
    if n.op != "call_function":
        return
    if isinstance(n.target, torch._ops.HigherOrderOperator):
        yield from n.all_input_nodes
    elif isinstance(n.target, torch._ops.OpOverload):
        for i, name in _written_parameters(n.target):
            value = argument(n, i, name)
            items = value if isinstance(value, list | tuple) else (value,)
            yield from (v for v in items if isinstance(v, Node))
