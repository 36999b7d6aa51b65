"""Which argument a computed value is a later state of."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

aten = torch.ops.aten


def states_before(n: Node) -> list[Node]:
    """``n`` and the earlier states of the argument whose memory holds its value for a while in
    eager, the argument last; empty for a value in memory of its own.

    A graph writes an argument once, at its end (``copy_``).  What it writes is the last of the
    argument's states, each of which is made from the one before.
    """
    if n.op == "placeholder":
        return [n]
    for write in n.graph.find_nodes(op="call_function", target=aten.copy_.default):
        states = [write.args[1]]
        while isinstance(states[-1], Node) and states[-1].op != "placeholder":
            states.append(_before(states[-1]))
        if n in states:
            earlier = [s for s in states[states.index(n) :] if isinstance(s, Node)]
            return [*earlier, *(w for w in write.args[:1] if w not in earlier)]
    return []


def _before(state: Node) -> Node | None:
    """The state of the same memory before: in-place operators have it as their first argument."""
    if state.op != "call_function":
        return None
    source = state.args[0] if state.args else None
    if state.target is operator.getitem and isinstance(source, Node):
        bases = source.kwargs.get("_all_bases")
        if isinstance(bases, list | tuple):
            at = int(state.args[1]) - (_results(source) - len(bases))  # type: ignore[arg-type]
            base = bases[at] if at >= 0 else None
            return base if isinstance(base, Node) else None
    return source if isinstance(source, Node) else None


def _results(call: Node) -> int:
    return len(call.meta["val"])
