"""Effects without their tokens.

PyTorch keeps operators with effects in order (`torch.linalg` checks its errors by one) by tokens
that each takes and gives.  Operators that return nothing and calls of script objects keep their
place without: nobody removes them, and such calls stay in order.
"""

from __future__ import annotations

import operator

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from litz.graph.calls import higher_order_name, takes_objects


def drop_tokens(gm: GraphModule) -> bool:
    """Call operators with effects directly, where all of them keep their place."""
    wrapped = [n for n in gm.graph.nodes if higher_order_name(n.target) == "with_effects"]
    if not wrapped or not all(map(_keeps_its_place, wrapped)):
        return False
    for n in wrapped:
        token, target, *args = n.args
        _, *vals = n.meta["val"]
        with gm.graph.inserting_before(n):
            call = gm.graph.call_function(target, tuple(args), n.kwargs)
            picks = [gm.graph.call_function(operator.getitem, (call, k)) for k in range(len(vals))]
        call.meta = {**n.meta, "val": vals[0] if len(vals) == 1 else tuple(vals)}
        for pick, val in zip(picks, vals, strict=True):
            pick.meta = {**n.meta, "val": val}
        results = [call] if len(vals) == 1 else picks
        for user in list(n.users):
            at = user.args[1]
            assert isinstance(at, int)
            user.replace_all_uses_with(results[at - 1] if at else token)
            gm.graph.erase_node(user)
        gm.graph.erase_node(n)
        for pick in picks:
            if not pick.users:
                gm.graph.erase_node(pick)
    return True


def _keeps_its_place(n: Node) -> bool:
    """Whether a call of a script object, or nothing but the next token is read of a call."""
    target = n.args[1]
    if not all(u.target is operator.getitem for u in n.users):
        return False
    if isinstance(target, OpOverload) and not target._schema.returns:
        return all(u.args[1] == 0 for u in n.users)
    return callable(target) and takes_objects(target)
