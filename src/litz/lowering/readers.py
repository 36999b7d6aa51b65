"""Which memory the graph's values are read from, and what becomes of them when it is written.

A value that is not stored yet, or that is a view, reads memory later than the graph says it does.
So before a call writes into memory, every such value that is still wanted is computed or copied.
Few graphs write into memory that anything else reads: values are looked at no sooner than that,
and each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.fx import Node as FxNode

from litz.ir import body
from litz.lowering.externs import Opaque
from litz.lowering.values import TensorValue

if TYPE_CHECKING:
    from litz.lowering.graph import GraphLowering


@dataclass
class Readers:
    """The graph nodes whose values read a piece of memory, by the buffer that owns it.

    unseen: nodes that have got a value since the last write, in the graph's order.
    loaded: what lazy values read, which many nodes share.
    """

    low: GraphLowering
    nodes: dict[str, dict[FxNode, None]] = field(default_factory=dict)
    unseen: dict[FxNode, None] = field(default_factory=dict)
    loaded: dict[body.Node, tuple[str, ...]] = field(default_factory=dict)

    def note(self, n: FxNode) -> None:
        """To be called when a node gets a value, or another one."""
        self.unseen[n] = None

    def reads(self, value: Any) -> dict[str, None]:
        """The memory that a value of the graph, or several, lies in or is computed from."""
        if isinstance(value, list | tuple):
            return {root: None for v in value for root in self.reads(v)}
        if isinstance(value, TensorValue) and value.lazy is not None:
            if value.lazy not in self.loaded:
                names = (self.low.b.root(x.buffer) for x in body.loads((value.lazy,)))
                self.loaded[value.lazy] = tuple(dict.fromkeys(names))
            return dict.fromkeys(self.loaded[value.lazy])
        if isinstance(value, TensorValue | Opaque):
            assert value.ref is not None
            return {self.low.b.root(value.ref.buffer): None}
        return {}

    def is_last(self, n: FxNode, given: Sequence[Any], v: TensorValue) -> bool:
        """Whether ``v``, one of the arguments ``given`` to ``n``, is all that reads its memory.

        That has to be memory of the program's own, which nobody sees but through its values.
        """
        if v.ref is None:
            return False
        low = self.low
        root = low.b.root(v.ref.buffer)
        live = [a for a in given if a is not v]
        if len(live) + 1 != len(given) or low.b.buffers[root].kind != "temp":
            return False
        for m, value in low.env.items():
            if low.uses_left[m] > (1 if m in n.all_input_nodes else 0):
                live.append(value)
        return root not in self.reads((*live, *low.b.shared.values()))

    def before_mutation(self, root: str, by: FxNode) -> None:
        """Copy or compute every live value that reads ``root`` before its memory changes."""
        low = self.low
        for n in self.unseen:
            for r in self.reads(low.env[n]):
                self.nodes.setdefault(r, {})[n] = None
        self.unseen.clear()
        for n in sorted(self.nodes.pop(root, ()), key=low.places.__getitem__):
            v = low.env[n]
            left = low.uses_left[n] - (1 if n in by.all_input_nodes else 0)
            if left <= 0:
                continue
            if isinstance(v, TensorValue):
                low.bind(n, self._detached(v, root, n))
            elif isinstance(v, tuple):
                low.bind(
                    n,
                    tuple(
                        self._detached(x, root, n) if isinstance(x, TensorValue) else x for x in v
                    ),
                )

    def _detached(self, v: TensorValue, root: str, n: FxNode) -> TensorValue:
        """``v`` in memory of its own, if it reads ``root``."""
        if root not in self.reads(v):
            return v
        if v.lazy is not None:
            return self.low.b.realize(v)
        if n.op == "placeholder":
            return v
        return self.low.b.realize(v.without_memory())
