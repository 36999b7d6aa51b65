"""Programs of Dynamo's that gain nothing: eager mode runs them at less cost than any wrapper."""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from litz.graph.calls import is_random, leaves
from litz.runtime.torch_private import address


def views_alone(gm: GraphModule) -> bool:
    """Whether all that Dynamo's graph makes lies in its inputs' memory, which it does not write."""
    if any(n.op in ("call_module", "get_attr") for n in gm.graph.nodes):
        return False
    # PyTorch does not count what calls on lists write, and none of them makes views.
    if any("_foreach_" in str(getattr(n.target, "__name__", "")) for n in gm.graph.nodes):
        return False
    inputs = _values(gm.graph.find_nodes(op="placeholder"))
    calls = _values(n for n in gm.graph.nodes if n.op.startswith("call"))
    try:
        memory = {address(x) for x in inputs if isinstance(x, Tensor)}
        return all(
            address(x) in memory and not x._version
            if isinstance(x, Tensor)
            else isinstance(x, int | torch.SymInt)
            for x in calls
        )
    except (RuntimeError, NotImplementedError):  # of tensors without memory, say
        return False


def one_call(gm: GraphModule) -> bool:
    """Whether Dynamo's graph is one call of an operator and picks of its results."""
    calls = [n for n in gm.graph.nodes if n.op.startswith("call") and n.target is not getitem]
    return len(calls) == 1 and not [*gm.children()] and not gm.graph.find_nodes(op="get_attr")


def on_cpus(gm: GraphModule) -> bool:
    """Whether all tensors of Dynamo's graph are on CPUs."""
    return all(x.device.type == "cpu" for x in _values(gm.graph.nodes) if isinstance(x, Tensor))


FUNCTION = {"cpu": 3, "cuda": 2}
"""Calls of eager mode, each with that of its gradient, that cost what an autograd function in
Python does: so many a compiled training program has to spare.  On GPUs one is as many kernels."""
ELEMENTS = {"cpu": 1 << 13, "cuda": 1 << 21}
"""Elements for which such a call takes twice as long as for one."""

_NO_CALLS = (getitem, torch.ops.aten.detach.default)
"""What eager mode does without: PyTorch's trace detaches what is saved."""


def less_than_a_function(graph: GraphModule, recorded: bool) -> str:
    """Why a training program costs eager mode less than the function around a compiled one.

    graph: its forward part, of ATen's calls.  recorded: as a CUDA graph on GPUs.  "" where it costs
    more, draws random numbers, has open sizes or is on several devices.
    """
    work, elements = dict.fromkeys(FUNCTION, 0.0), dict[Node, int]()
    kinds = set[str]()
    for n in graph.graph.nodes:
        if n.op == "output":
            break
        values = [x for x in leaves([n.meta.get("val")]) if x is not None]
        counts = [x.numel() for x in values if isinstance(x, Tensor)]
        kinds |= {x.device.type for x in values if isinstance(x, Tensor)}
        if len(counts) != len(values) or not all(type(c) is int for c in counts):
            return ""
        elements[n] = sum(counts)
        if n.op == "placeholder" or n.target in _NO_CALLS:
            continue
        if getattr(n.target, "namespace", "") != "aten" or is_random(n.target):
            return ""
        most = max(elements[x] for x in (n, *n.all_input_nodes))
        for kind, size in ELEMENTS.items():
            work[kind] += 1 + most / size
    kind = kinds.pop() if len(kinds) == 1 else ""
    if work.get(kind, 0) >= FUNCTION.get(kind, 0) or (kind == "cuda" and recorded):
        return ""
    few = FUNCTION[kind]
    return f"its calls' work, {work[kind]:.2g}, is less than that of an autograd function, {few}"


def _values(nodes: Iterable[Node]) -> list[Any]:
    """What Dynamo's trace has computed for nodes, one by one; None for what gives nothing."""
    return leaves([n.meta.get("example_value") for n in nodes])
