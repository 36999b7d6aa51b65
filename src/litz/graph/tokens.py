"""Effects without their tokens.

PyTorch keeps operators with effects in order (`torch.linalg` checks its errors by one) by tokens
that each takes and gives.  An operator that returns nothing keeps its place without: nobody removes
it, and calls without results stay in order.
"""

from __future__ import annotations

import operator

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from litz.graph.calls import higher_order_name


def drop_tokens(gm: GraphModule) -> bool:
    """Call operators with effects directly, where none of them returns anything."""
    wrapped = [n for n in gm.graph.nodes if higher_order_name(n.target) == "with_effects"]
    if not wrapped or not all(map(_returns_nothing, wrapped)):
        return False
    for n in wrapped:
        token, target, *args = n.args
        with gm.graph.inserting_before(n):
            call = gm.graph.call_function(target, tuple(args), n.kwargs)
        call.meta = {**n.meta, "val": None}
        for user in list(n.users):
            user.replace_all_uses_with(token)
            gm.graph.erase_node(user)
        gm.graph.erase_node(n)
    return True


def _returns_nothing(n: Node) -> bool:
    """Whether nothing but the next token is read of a call."""
    target = n.args[1]
    if not isinstance(target, OpOverload) or target._schema.returns:
        return False
    return all(u.target is operator.getitem and u.args[1] == 0 for u in n.users)
