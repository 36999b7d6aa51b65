"""Random operators that draw nothing, out of PyTorch's wrapping of them.

Where a checkpointed region is computed again in the backward pass, PyTorch wraps each operator that
may draw, so that it draws the same twice.  Attention without dropout may and does not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from litz.graph.calls import DRAWN_TWICE, RESTORES, SAVES, higher_order_name
from litz.graph.values import add_call, give_value


def unwrap_what_draws_nothing(gm: GraphModule) -> bool:
    """Call such operators directly; the state that is handed on is any that can be restored."""
    changed = False
    for n in list(gm.graph.nodes):
        name = higher_order_name(n.target)
        if name not in DRAWN_TWICE:
            continue
        target, *args = n.args[name == RESTORES :]
        if not _draws_nothing(target, args, n):
            _give_values(n, target, args)
            continue
        with gm.graph.inserting_before(n):
            call = add_call(n, target, args, n.kwargs)
        if name == RESTORES:
            n.replace_all_uses_with(call)
        for user in list(n.users):
            with gm.graph.inserting_before(user):
                user.replace_all_uses_with(call if user.args[1] else _state(gm, user))
            gm.graph.erase_node(user)
        gm.graph.erase_node(n)
        changed = True
    return changed


def fix_states(gm: GraphModule) -> None:
    """Give the generator's states between the two passes the length that they have.

    PyTorch takes it for an open size, whose name is another one in each trace.
    """
    for n in gm.graph.nodes:
        name = higher_order_name(n.target)
        if name == RESTORES:
            _fix(n.args[0])
        elif name == SAVES:
            for user in n.users:
                if user.args[1] == 0:
                    _fix(user)


def _fix(state: Node) -> None:
    val = state.meta["val"]
    if isinstance(val.shape[0], torch.SymInt):
        with val.fake_mode:
            state.meta["val"] = torch.empty(val.shape[0].node.hint, dtype=val.dtype)


def _give_values(n: Node, target: Any, args: Sequence[Any]) -> None:
    """PyTorch leaves the metadata of such calls out, and of tuples that are picked of them."""
    if "val" in n.meta:
        return
    call = n.graph.call_function(target, tuple(args), dict(n.kwargs))
    give_value(call)
    n.meta["val"] = val = call.meta["val"]
    n.graph.erase_node(call)
    if higher_order_name(n.target) == RESTORES:
        return
    picked = {u.args[1]: u for u in n.users}
    n.meta["val"] = (picked[0].meta["val"] if 0 in picked else None, val)
    if 1 in picked:
        picked[1].meta["val"] = val


def _draws_nothing(target: object, args: Sequence[object], n: Node) -> bool:
    """Whether it is attention without dropout, and its results are read one by one."""
    if not isinstance(target, OpOverload) or any(u.target is not operator.getitem for u in n.users):
        return False
    at = [k for k, a in enumerate(target._schema.arguments) if a.name == "dropout_p"]
    given = args[at[0]] if at and at[0] < len(args) else n.kwargs.get("dropout_p", 0.0)
    return bool(at) and given == 0


def _state(gm: GraphModule, user: Node) -> Node:
    """A state of the length of the device's: of the CPU's generator as it is after seeding."""
    size = user.meta["val"].shape
    state = torch.Generator().manual_seed(0).get_state()
    name = f"_litz_state_{user.name}"
    gm.register_buffer(name, state if state.shape == size else torch.zeros_like(state[: size[0]]))
    made = gm.graph.get_attr(name)
    made.meta = {**user.meta}
    return made
