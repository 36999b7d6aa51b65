"""The types of a norm's statistics, which PyTorch's metadata have wrong on CPUs.

There 16-bit rows with float32 weights have float32 statistics, and running ones keep their type.
Rounded to what the metadata say, gradients would be a thousand times less exact than eager's.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, Node

from litz.graph.calls import op_name
from litz.graph.values import fake_mode, give_value

# How many running statistics stand behind the mean, 1 / std and what is reserved.
NORMS: Final = {
    "native_layer_norm": 0,
    "native_group_norm": 0,
    "native_batch_norm": 0,
    "_native_batch_norm_legit": 0,
    "_native_batch_norm_legit_functional": 2,
    "_batch_norm_with_update_functional": 2,
}


def give_true_types(graph: Graph) -> bool:
    """Mend the metadata of norms and of what reads their statistics; True where any was wrong."""
    changed: set[Node] = set()
    for n in graph.nodes:
        if n.op != "call_function":
            continue
        if op_name(n.target) in NORMS and _mended(n):
            changed.add(n)
        elif not changed.isdisjoint(n.all_input_nodes) and _passes_on(n):
            before = n.meta["val"].dtype
            give_value(n)
            if n.meta["val"].dtype != before:
                changed.add(n)
    return bool(changed)


def _passes_on(n: Node) -> bool:
    return n.target is operator.getitem or isinstance(n.meta.get("val"), Tensor)


def _mended(n: Node) -> bool:
    results = n.meta["val"]
    given: list[Any] = [a.meta.get("val") if isinstance(a, Node) else None for a in n.args]
    x, weights = given[0], [v for v in given[1:] if isinstance(v, Tensor)]
    if x.device.type != "cpu" or x.dtype.itemsize != 2:
        return False
    to: dict[int, torch.dtype] = {}
    if any(w.dtype is torch.float32 for w in weights):
        to = dict.fromkeys((1, 2), torch.float32)
    if running := NORMS[op_name(n.target)]:
        to |= {len(results) - running + k: given[3 + k].dtype for k in range(running)}
    wrong = {k: t for k, t in to.items() if results[k].dtype is not t}
    if wrong:
        with fake_mode(n.graph):
            n.meta["val"] = tuple(v.to(wrong.get(k, v.dtype)) for k, v in enumerate(results))
    return bool(wrong)
