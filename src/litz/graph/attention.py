"""What attention with functions of scores is handed and does not read."""

from __future__ import annotations

from torch.fx import GraphModule

from litz.graph.calls import higher_order_name
from litz.graph.dialect import FLEX

# Lengths, and the key blocks of each query block, come first; then what a backward reads.
FORWARD = 6


def leave_out_unread_blocks(gm: GraphModule) -> bool:
    """Which query blocks a key block meets: of a mask, computed for the backward alone."""
    changed = False
    for n in gm.graph.nodes:
        if n.op != "call_function" or higher_order_name(n.target) != FLEX:
            continue
        *before, mask = n.args[:5]
        *found, rows, columns, fn = mask
        kept = [v if k < FORWARD else None for k, v in enumerate(found)]
        if kept != found:
            n.args = (*before, (*kept, rows, columns, fn), *n.args[5:])
            changed = True
    return changed
