"""Which call reads a value's memory for the last time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import Node as FxNode

from litz.ir import body
from litz.lowering.externs import Opaque
from litz.lowering.values import TensorValue

if TYPE_CHECKING:
    from litz.lowering.graph import GraphLowering


def is_last_use(low: GraphLowering, n: FxNode, given: Sequence[Any], v: TensorValue) -> bool:
    """Whether ``v``, one of the arguments ``given`` to call ``n``, is all that reads its memory.

    That has to be memory of the program's own, which nobody sees but through its values.
    """
    if v.ref is None:
        return False
    root = low.b.root(v.ref.buffer)
    live = [a for a in given if a is not v]
    if len(live) + 1 != len(given) or low.b.buffers[root].kind != "temp":
        return False
    for m, value in low.env.items():
        if low.uses_left[m] > (1 if m in n.all_input_nodes else 0):
            live.append(value)
    return not any(_reads(low, value, root) for value in (*live, *low.b.shared.values()))


def _reads(low: GraphLowering, value: Any, root: str) -> bool:
    """Whether a value lies in memory, or is computed from it."""
    if isinstance(value, list | tuple):
        return any(_reads(low, v, root) for v in value)
    if isinstance(value, Opaque):
        return low.b.root(value.ref.buffer) == root
    if not isinstance(value, TensorValue):
        return False
    return any(low.b.root(x.buffer) == root for x in body.loads((value.node,)))
