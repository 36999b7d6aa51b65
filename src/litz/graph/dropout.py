"""Dropout that drops nothing is its argument, as in eager mode, and no copy of it.

AOTAutograd makes a copy of it: then what is written into the result no longer reaches the argument.
So this goes over Dynamo's graph, before AOTAutograd sees it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

# The operators' parameters in order, with their defaults.
CALLS: dict[object, dict[str, Any]] = {
    functional.dropout: {"input": None, "p": 0.5, "training": True, "inplace": False},
    torch.dropout: {"input": None, "p": None, "train": None},
}


def drop_idle_dropout(gm: GraphModule) -> int:
    """Let users of dropout with p = 0, or outside of training, read its argument; how many."""
    count = 0
    for part in gm.modules():
        if not isinstance(part, GraphModule):
            continue
        idle = [n for n in part.graph.nodes if n.op == "call_function" and _is_idle(n)]
        for n in idle:
            n.replace_all_uses_with(_given(n)[0])
            part.graph.erase_node(n)
        if idle:
            part.recompile()
        count += len(idle)
    return count


def _is_idle(n: Node) -> bool:
    if n.target not in CALLS:
        return False
    x, p, training, *_ = _given(n)
    # What a program computes is a node, and not known here.
    known = [v for v in (p, training) if isinstance(v, int | float)]
    return isinstance(x, Node) and 0 in known


def _given(n: Node) -> tuple[Any, ...]:
    """The call's arguments in order."""
    defaults = CALLS[n.target]
    return tuple({**defaults, **dict(zip(defaults, n.args, strict=False)), **n.kwargs}.values())
