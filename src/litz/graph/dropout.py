"""Dropout that drops nothing is its argument, as in eager mode, and no copy of it.

AOTAutograd makes a copy of it: then what is written into the result no longer reaches the argument.
So this goes over Dynamo's graph, before AOTAutograd sees it; but not into the bodies of
higher-order operators, few of which may return what they are given.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from litz.graph.calls import argument

# The positions of the probability and of whether to drop at all, and their defaults.
OPERATOR: Final = {"p": (1, None), "train": (2, None)}
CALLS: Final[dict[object, dict[str, tuple[int, Any]]]] = {
    functional.dropout: {"p": (1, 0.5), "training": (2, True)},
    torch.dropout: OPERATOR,
    torch.ops.aten.dropout: OPERATOR,
    torch.ops.aten.dropout.default: OPERATOR,
}


def drop_idle_dropout(gm: GraphModule) -> None:
    """Let users of dropout with p = 0, or outside of training, read its argument."""
    idle = [n for n in gm.graph.nodes if n.op == "call_function" and _is_idle(n)]
    for n in idle:
        n.replace_all_uses_with(argument(n, 0, "input"))
        gm.graph.erase_node(n)
    if idle:
        gm.recompile()


def _is_idle(n: Node) -> bool:
    if n.target not in CALLS:
        return False
    given = [argument(n, at, name, value) for name, (at, value) in CALLS[n.target].items()]
    # What a program computes is a node, and not known here.
    return 0 in [v for v in given if isinstance(v, int | float)]
