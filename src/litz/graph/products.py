"""Products of bytes by the operator that computes them.

``out_dtype(mm, int32, a, b)`` takes an operator as its argument.  For matrices of int8 eager mode
calls ``_int_mm``, and so do graphs: other operators below it are left to eager mode.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import higher_order_name

aten = torch.ops.aten


def name_products_of_bytes(gm: GraphModule) -> bool:
    """Call ``_int_mm`` directly."""
    found = [n for n in gm.graph.nodes if higher_order_name(n.target) == "out_dtype"]
    found = [n for n in found if n.args[:2] == (aten.mm.default, torch.int32) and _are_bytes(n)]
    for n in found:
        n.target, n.args = aten._int_mm.default, n.args[2:]
    return bool(found)


def _are_bytes(n: Node) -> bool:
    return all(a.meta["val"].dtype is torch.int8 for a in n.all_input_nodes)
