"""Programs of Dynamo's that gain nothing: eager mode runs them at less cost than any wrapper."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.runtime.torch_private import storage_address


def views_alone(gm: GraphModule) -> bool:
    """Whether all that Dynamo's graph makes lies in its inputs' memory, which it does not write."""
    if any(n.op in ("call_module", "get_attr") for n in gm.graph.nodes):
        return False
    inputs = gm.graph.find_nodes(op="placeholder")
    calls = [n for n in gm.graph.nodes if n.op.startswith("call")]
    try:
        memory = {storage_address(t.untyped_storage()) for t in _tensors(inputs)}
        if not all(_in_memory(n.meta.get("example_value"), memory) for n in calls):
            return False
        with _Writes() as writes:  # type: ignore[no-untyped-call]
            gm(*(n.meta["example_value"] for n in inputs))
    except (RuntimeError, NotImplementedError, KeyError):  # of tensors without memory, say
        return False
    return not writes.found


def one_call(gm: GraphModule) -> bool:
    """Whether Dynamo's graph is one call of an operator, on CPUs, and picks of its results."""
    calls = [n for n in gm.graph.nodes if n.op.startswith("call") and n.target is not getitem]
    if len(calls) != 1 or [*gm.children()] or gm.graph.find_nodes(op="get_attr"):
        return False
    leaves = pytree.tree_leaves([n.meta.get("example_value") for n in gm.graph.nodes])
    return all(t.device.type == "cpu" for t in leaves if isinstance(t, Tensor))


def _tensors(nodes: Any) -> list[Tensor]:
    values = (n.meta.get("example_value") for n in nodes)
    return [t for t in values if isinstance(t, Tensor)]


def _in_memory(made: Any, memory: set[int]) -> bool:
    """Whether a call gives tensors, and numbers, and all tensors lie in that memory."""
    leaves = pytree.tree_leaves(made)
    known = all(isinstance(x, Tensor | int | torch.SymInt) for x in leaves)
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    return (
        bool(leaves)
        and known
        and all(storage_address(t.untyped_storage()) in memory for t in tensors)
    )


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether an operator that writes was called."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func._schema.is_mutable
        return func(*args, **(kwargs or {}))
