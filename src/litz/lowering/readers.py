"""Which memory the graph's values are read from, and what becomes of them when it is written.

A value that is not stored yet, or that is a view, reads memory later than the graph says it does.
So before a call writes into memory, every such value that is still wanted is computed or copied.
Few graphs write into memory that anything else reads: values are looked at no sooner than that,
and each once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.ir import body
from litz.lowering.context import Builder
from litz.lowering.values import Opaque, TensorValue


@dataclass
class Readers:
    """The graph nodes whose values read a piece of memory, by the buffer that owns it.

    b, env, uses_left, places, bind: of the lowering.
    unseen: nodes that have got a value since the last write, in the graph's order.
    loaded: what lazy values read, which many nodes share.
    """

    b: Builder
    env: Mapping[FxNode, Any]
    uses_left: Mapping[FxNode, int]
    places: Mapping[FxNode, int]
    bind: Callable[[FxNode, Any], None]
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
                names = (self.b.root(x.buffer) for x in body.loads((value.lazy,)))
                self.loaded[value.lazy] = tuple(dict.fromkeys(names))
            return dict.fromkeys(self.loaded[value.lazy])
        if isinstance(value, TensorValue | Opaque):
            assert value.ref is not None
            return {self.b.root(value.ref.buffer): None}
        return {}

    def wanted(self, n: FxNode, by: FxNode) -> int:
        """How often a value is read behind the call ``by``."""
        return self.uses_left[n] - (n in by.all_input_nodes)

    def is_last(self, n: FxNode, given: Sequence[Any], v: TensorValue, beside: Any = None) -> bool:
        """Whether ``v``, one of the arguments ``given`` to ``n``, is all that reads its memory.

        That has to be memory of the program's own, which nobody sees but through its values.
        beside: another argument, which may read it too.
        """
        if v.ref is None:
            return False
        root = self.b.root(v.ref.buffer)
        live = [a for a in given if a is not v]
        last = len(live) + 1 == len(given)
        live = [a for a in live if a is not beside or a is None]
        if not last or self.b.buffers[root].kind != "temp":
            return False
        for m, value in self.env.items():
            if self.wanted(m, n) > 0:
                live.append(value)
        return root not in self.reads((*live, *self.b.shared.values()))

    def before_mutation(self, root: str, by: FxNode) -> None:
        """Copy or compute every live value that reads ``root`` before its memory changes."""
        for n in self.unseen:
            for r in self.reads(self.env[n]):
                self.nodes.setdefault(r, {})[n] = None
        self.unseen.clear()
        for n in sorted(self.nodes.pop(root, ()), key=self.places.__getitem__):
            v = self.env[n]
            if self.wanted(n, by) > 0 and isinstance(v, TensorValue | tuple):
                several = v if isinstance(v, tuple) else (v,)
                kept = tuple(self._detached(x, root, n) for x in several)
                self.bind(n, kept if isinstance(v, tuple) else kept[0])

    def _detached(self, v: Any, root: str, n: FxNode) -> Any:
        """A tensor ``v`` in memory of its own, if it reads ``root``."""
        if not isinstance(v, TensorValue) or root not in self.reads(v):
            return v
        if v.lazy is not None:
            return self.b.realize(v)
        return v if n.op == "placeholder" else self.b.realize(v.without_memory())
