"""FX passes over a functional ATen graph, before it is lowered.

A pass is a frozen dataclass with a name and one function that changes a graph in place and says
whether it did.  ``PIPELINE`` is the order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.graph.layout import convolutions_in_channels_last


@dataclass(frozen=True)
class GraphPass:
    """name: for logs.  run: changes the graph in place; True where it changed something.

    inference: only for graphs that no backward graph shares tensors with.
    """

    name: str
    run: Callable[[GraphModule], bool]
    inference: bool = False


def drop_dead_code(gm: GraphModule) -> bool:
    """Remove calls without effect whose result nobody reads."""
    return bool(gm.graph.eliminate_dead_code())


def _key(value: Any) -> Any:
    """A hashable form of an argument, in which 1, 1.0 and True differ; raises TypeError if none."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise TypeError
    hash(value)
    return (type(value).__name__, value)


def _is_pure(n: Node) -> bool:
    if n.op != "call_function":
        return False
    if n.target is operator.getitem:
        return True
    if not isinstance(n.target, torch._ops.OpOverload) or n.is_impure():
        return False
    schema = n.target._schema
    random = torch.Tag.nondeterministic_seeded in n.target.tags
    # A view of a mutated tensor must stay where it is; fresh empty memory is not a value.
    return not (random or schema.is_mutable or "empty" in schema.name)


def share_common_subexpressions(gm: GraphModule) -> bool:
    """Equal calls with equal arguments become one.  Graphs that write to memory are left alone."""
    nodes = list(gm.graph.nodes)
    for n in nodes:
        if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable:
            return False
    seen: dict[Any, Node] = {}
    changed = False
    for n in nodes:
        if not _is_pure(n):
            continue
        try:
            key = (n.target, _key(n.args), _key(n.kwargs))
        except TypeError:
            continue
        first = seen.setdefault(key, n)
        # Two results that are returned must stay two tensors.
        if first is not n and not (_returned(first) and _returned(n)):
            n.replace_all_uses_with(first)
            gm.graph.erase_node(n)
            changed = True
    return changed


def _returned(n: Node) -> bool:
    return any(u.op == "output" for u in n.users)


# Layout comes last: it looks at what the others left.
PIPELINE: tuple[GraphPass, ...] = (
    GraphPass("dead code", drop_dead_code),
    GraphPass("common subexpressions", share_common_subexpressions),
    GraphPass("channels-last convolutions", convolutions_in_channels_last, inference=True),
)


def run_passes(gm: GraphModule, *, inference: bool) -> tuple[str, ...]:
    """Run the pipeline; the names of the passes that changed something."""
    changed = [p.name for p in PIPELINE if (inference or not p.inference) and p.run(gm)]
    if changed:
        gm.graph.lint()
        gm.recompile()
    return tuple(changed)
