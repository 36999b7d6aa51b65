"""Which argument a computed value is a later state of, and where PyTorch loses track of that.

A graph without mutation gives a written argument's next state memory of its own.  An offset into
the argument's memory, which PyTorch still counts from where that began, then leads elsewhere.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from litz.graph.aliasing import owner
from litz.lowering.context import EagerOnly

aten = torch.ops.aten
READS = (aten.as_strided.default, aten.as_strided_copy.default)
WRITE = aten.as_strided_scatter.default


def check_offsets(graph: Graph) -> None:
    """Raise EagerOnly where a graph counts an offset from where an argument began that it changed,
    or changes by it.

    Also where that is where its storage begins: nobody guards that it is so in the next call.
    """
    for target, states in ((READS[0], 2), (READS[1], 2), (WRITE, 1)):
        for n in graph.find_nodes(op="call_function", target=target):
            x = n.args[0]
            if isinstance(x, Node) and len(states_before(owner(x))) >= states:
                raise EagerOnly(
                    f"{target} on an argument that the graph changes, and PyTorch's graph does "
                    "not tell where it begins: such graphs run in eager mode"
                )


def states_before(n: Node) -> list[Node]:
    """``n`` and the earlier states of the argument whose memory holds its value for a while in
    eager, the argument last; empty for a value in memory of its own.

    A graph writes an argument once, at its end (``copy_``).  What it writes is the last of the
    argument's states, each of which is made from the one before.
    """
    if n.op == "placeholder":
        return [n]
    for write in n.graph.find_nodes(op="call_function", target=aten.copy_.default):
        argument, state = write.args[:2]
        states: list[Node] = []
        while isinstance(state, Node) and state.op != "placeholder":
            states.append(state)
            state = _before(state)
        if n in states and isinstance(argument, Node):
            return [*states[states.index(n) :], argument]
    return []


def _before(state: Node) -> Node | None:
    """The state of the same memory before: in-place operators have it as their first argument."""
    if state.op != "call_function":
        return None
    source = state.args[0] if state.args else None
    if state.target is operator.getitem and isinstance(source, Node):
        bases = source.kwargs.get("_all_bases")
        if isinstance(bases, list | tuple):
            own = len(source.meta["val"]) - len(bases)  # the operator's results come first
            at = int(state.args[1]) - own  # type: ignore[arg-type]
            base = bases[at] if at >= 0 else None
            return base if isinstance(base, Node) else None
    return source if isinstance(source, Node) else None
