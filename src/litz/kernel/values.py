"""Values: a plan's nodes under the conditions that hold where they are computed.

A load below a ``Masked`` may run only where the condition holds, so that one node can stand for
several values; what is needed whatever holds has one for all.  A value knows the axes that it
varies along, and the pass over the reduced axis after which it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir.body import Masked, Node, Op, Reduce, Scan, walk
from litz.kernel.nodes import is_draw, is_guarded_kind, unconditional


@dataclass(eq=False, slots=True)
class Value:
    """A node where ``conds`` hold.

    axes: names of the axes that it varies along.  stage: how many passes over the reduced axis
    come before it can be computed; of a reduction, the pass that computes it is ``stage - 1``.
    """

    node: Node
    args: tuple[Value, ...]
    conds: tuple[Value, ...]
    axes: frozenset[str]
    stage: int


Conds = tuple[Value, ...]


@dataclass
class Values:
    """The values of a plan, each once.

    axis_of: the axis of every dim.  needed: what is computed under no condition.
    """

    axis_of: dict[Expr, str]
    known: dict[tuple[Node, Conds], Value] = field(default_factory=dict)
    made: dict[tuple[Node, Conds, Conds], Value] = field(default_factory=dict)
    touching: dict[Node, bool] = field(default_factory=dict)
    needed: set[Node] = field(default_factory=set)

    def __call__(self, root: Node, conds: Conds = ()) -> Value:
        if not conds:
            self.needed |= unconditional((root,), self.needed, self._ends)
        stack: list[tuple[Node, Conds]] = [(root, conds)]
        while stack:
            node, under = stack[-1]
            under = self._conds(node, under)
            if (node, under) in self.known:
                stack.pop()
                continue
            wanted = self._wanted(node, under)
            missing = [w for w in wanted if (w[0], self._conds(*w)) not in self.known]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if isinstance(node, Masked):  # now that the condition is known, what it guards
                guarded = (node.args[1], self._both(under, self.get(node.args[0], under)))
                if (guarded[0], self._conds(*guarded)) not in self.known:
                    stack += [(node, under), guarded]
                    continue
                wanted = [wanted[0], guarded, wanted[1]]
            args = tuple(self.get(*w) for w in wanted)
            self.known[node, under] = self._make(node, args, under)
        return self.get(root, conds)

    def get(self, node: Node, conds: Conds) -> Value:
        return self.known[node, self._conds(node, conds)]

    def _wanted(self, node: Node, conds: Conds) -> list[tuple[Node, Conds]]:
        if isinstance(node, Masked):
            return [(node.args[0], conds), (node.args[2], conds)]
        return [(a, conds) for a in node.args]

    def _both(self, conds: Conds, cond: Value) -> Conds:
        return conds if cond in conds else (*conds, cond)

    def _conds(self, node: Node, conds: Conds) -> Conds:
        """The conditions as far as the node depends on them: through memory alone.

        A reduction, or a scan, runs over all of its axes, whatever holds where it is used.
        """
        if not conds or node in self.needed or not self._touches(node):
            return ()
        if isinstance(node, (Reduce, Scan)):
            along = node.axes if isinstance(node, Reduce) else (node.axis,)
            over = {self.axis_of[v] for v in along}
            return tuple(dict.fromkeys(c for cond in conds for c in _fixed(cond, over)))
        return conds

    def _ends(self, node: Node) -> bool:
        """Whether no memory is read where a node is: a reduction runs in a pass of its own."""
        return isinstance(node, (Reduce, Scan)) or not self._touches(node)

    def _touches(self, node: Node) -> bool:
        if node not in self.touching:
            for n in walk((node,)):
                if n not in self.touching:
                    args = n.args[is_draw(n) :]  # the seed is there, whatever holds
                    self.touching[n] = is_guarded_kind(n) or any(self.touching[a] for a in args)
        return self.touching[node]

    def _make(self, node: Node, args: tuple[Value, ...], conds: Conds) -> Value:
        own = conds if is_guarded_kind(node) else ()
        if (node, args, own) in self.made:
            return self.made[node, args, own]
        axes = {self.axis_of[v] for v in node.vars if v in self.axis_of}
        axes.update(*(c.axes for c in own), *(a.axes for a in args))
        stage = max((v.stage for v in (*args, *own)), default=0)
        if isinstance(node, Reduce):
            axes -= {self.axis_of[v] for v in node.axes}
            stage += 1
        made = self.made[node, args, own] = Value(node, args, own, frozenset(axes), stage)
        return made


def _fixed(cond: Value, axes: set[str]) -> Iterator[Value]:
    """The parts of a condition that do not vary along some axes."""
    if not cond.axes & axes:
        yield cond
    elif isinstance(cond.node, Op) and cond.node.name == "and_":
        for part in cond.args:
            yield from _fixed(part, axes)
