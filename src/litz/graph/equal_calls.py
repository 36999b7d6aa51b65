"""Equal calls of a joint graph as one, ahead of PyTorch's partitioner.

It does the same first of all, by way of a module of its own compiler that takes longer to import
than a small program to compile.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from litz.graph.calls import higher_order_name, is_random, op_name
from litz.graph.dialect import WITH_BODIES
from litz.graph.runs import literal
from litz.runtime.torch_private import address


def share_equal_calls(graph: Graph) -> bool:
    """Let the first of equal calls stand for all.

    Random numbers, memory without values, what shares memory with a result and what has graphs of
    its own stay apart.  False, with the graph as it was, where calls have effects or strange
    arguments.
    """
    returned = {_memory(n) for n in graph.output_node().all_input_nodes} - {None}
    first: dict[object, Node] = {}
    stands: dict[Node, Node] = {}
    for n in graph.nodes:
        if n.op in ("placeholder", "output", "get_attr"):
            continue
        if higher_order_name(n.target) in WITH_BODIES:
            continue
        if n.op != "call_function" or not _is_functional(n.target):
            return False
        if is_random(n.target) or op_name(n.target) == "empty" or _memory(n) in returned:
            continue
        try:
            own = literal((n.args, n.kwargs), lambda a: stands.get(a, a))
        except TypeError:
            return False
        if (known := first.setdefault((n.target, own), n)) is not n:
            stands[n] = known
    for n, known in stands.items():
        n.replace_all_uses_with(known)
    for n in reversed(stands):
        graph.erase_node(n)
    return True


def _is_functional(target: object) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    return getattr(target, "__module__", "") == operator.getitem.__module__


def _memory(n: Node) -> int | None:
    """The address of a tensor's memory; None where it has none."""
    x = n.meta.get("val")
    if not isinstance(x, torch.Tensor):
        return None
    try:
        return address(x)
    except NotImplementedError:
        return None
