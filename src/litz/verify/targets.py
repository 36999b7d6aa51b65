"""Which graph values each step of a run makes visible, and what they are to be computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import torch
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.aliasing import AliasSets, is_view_op, writes, written
from litz.graph.calls import argument, is_random, takes_objects
from litz.ir.program import Binding, Extern, Program
from litz.schedule.groups import Schedule
from litz.verify.reference import RULES, reads_storage

# The step before the first: inputs, constants and views of them are there from the start.
START = -1

Key = tuple[Node, int | None]


@dataclass(frozen=True)
class Target:
    """A graph value that can be read from memory after a step.

    key: the node, and the position if it is one result of a random operator with several.
    nodes: what to evaluate to know its meaning, in order, the node itself last; empty if it is only
    recorded (a random number).  leaves: values to evaluate them from, recorded in earlier steps.
    """

    key: Key
    binding: Binding
    nodes: tuple[Node, ...]
    leaves: tuple[Key, ...]


@dataclass(frozen=True)
class Targets:
    """by_step: what to check after each step.  last_use: the last step that needs a recorded value.

    unchecked: names of nodes that lie in memory and whose meaning cannot be computed.
    """

    by_step: Mapping[int, tuple[Target, ...]]
    last_use: Mapping[Key, int]
    unchecked: tuple[str, ...]


def find_targets(gm: GraphModule, program: Program, schedule: Schedule) -> Targets:
    """Everything that is known before the program runs.

    gm: the FX graph that ``program`` was lowered from.
    """
    return _Finder(gm, program, schedule).run()


@dataclass
class _Finder:
    gm: GraphModule
    program: Program
    schedule: Schedule
    order: dict[Node, int] = field(default_factory=dict)
    seen: dict[Key, int] = field(default_factory=dict)
    unknown: frozenset[Node] = frozenset()
    # Views whose memory, not only whose elements, somebody looks at: no copy will do.
    whole: frozenset[Node] = frozenset()
    # By buffer that owns memory: (number of the program node that writes it, its step).
    writes: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)
    touched: list[frozenset[str]] = field(default_factory=list)
    number: dict[str | None, int] = field(default_factory=dict)

    def run(self) -> Targets:
        self._survey()
        self.order = {n: k for k, n in enumerate(self.gm.graph.nodes)}
        mutated = written(self.gm)
        undefined = set(_undefined(self.gm.graph))
        self.unknown = frozenset((*_stale(self.gm), *(n for n in self.order if _is_opaque(n))))
        self.whole = frozenset(m for n in self.order if reads_storage(n) for m in _views_under(n))
        found: list[tuple[int, Key, Binding]] = []
        for key, b in self._observable(mutated):
            step = self._step(b)
            if step is not None:
                self.seen[key] = min(step, self.seen.get(key, step))
                found.append((step, key, b))
        by_step: dict[int, list[Target]] = {}
        last_use: dict[Key, int] = {}
        unchecked: dict[str, None] = {}
        for step, key, b in sorted(found, key=lambda f: (f[0], self.order[f[1][0]])):
            target = self._target(step, key, b, key[0] in undefined)
            by_step.setdefault(step, []).append(target)
            if not target.nodes and step != START:
                unchecked[key[0].name] = None
            for leaf in target.leaves:
                last_use[leaf] = max(step, last_use.get(leaf, step))
        return Targets({k: tuple(v) for k, v in by_step.items()}, last_use, tuple(unchecked))

    # --- where values are visible ----------------------------------------------------------

    def _observable(self, mutated: frozenset[Node]) -> Iterator[tuple[Key, Binding]]:
        """Bindings worth looking at, each place once."""
        nodes = {n.name: n for n in self.order}
        places: set[tuple[Key, object]] = set()
        first: set[Key] = set()
        for b in self.program.bindings:
            n = nodes[b.node]
            key = (n, b.position)
            # Results of one call among several are looked at where the graph picks them.
            if b.ref.buffer not in self.program.buffers:
                continue  # of a lowering that was given up
            if b.position is not None and not _shows_draw(n, b.position):
                continue
            # Another place of a value whose memory is written later may hold the later value.
            again = key in first and n in mutated
            if not again and (key, b.ref) not in places:
                places.add((key, b.ref))
                first.add(key)
                yield key, b

    def _step(self, b: Binding) -> int | None:
        """The step after which the value is there; None if memory never holds it."""
        writes = self.writes.get(self.program.root(b.ref.buffer), [])
        if b.behind not in self.number:
            return None
        ready = self.number[b.behind]
        earlier = [step for k, step in writes if k <= ready]
        later = [step for k, step in writes if k > ready and step is not None]
        if not earlier:
            there = b.ref.buffer in (*self.program.inputs, *self.program.constants)
            return START if there else None
        if None in earlier:
            return None
        step = max(s for s in earlier if s is not None)
        if any(s <= step for s in later) or b.ref.buffer not in self.touched[step]:
            return None
        return step

    def _survey(self) -> None:
        """Which steps write what: a store that the schedule dropped is written in none."""
        steps = self.schedule.steps
        self.touched = [frozenset((*s.read_buffers(), *s.write_buffers())) for s in steps]
        of_node: dict[str, tuple[int, frozenset[str]]] = {}
        for k, s in enumerate(steps):
            names = () if isinstance(s, Extern) else s.nodes
            names = names or (s.name,)
            of_node.update(dict.fromkeys(names, (k, frozenset(s.write_buffers()))))
        self.number[None] = -1
        for number, n in enumerate(self.program.nodes):
            self.number[n.name] = number
            step, written = of_node.get(n.name, (None, frozenset()))
            for x in n.write_buffers():
                at = step if x in written else None
                self.writes.setdefault(self.program.root(x), []).append((number, at))

    # --- what they are computed from -------------------------------------------------------

    def _target(self, step: int, key: Key, b: Binding, undefined: bool) -> Target:
        n, position = key
        is_leaf = n.op in ("placeholder", "get_attr") or position is not None
        gathered = None if is_leaf or undefined else self._gather(step, n)
        if gathered is None:
            return Target(key, b, (), ())
        nodes, leaves = gathered
        return Target(key, b, nodes, leaves)

    def _gather(self, step: int, n: Node) -> tuple[tuple[Node, ...], tuple[Key, ...]] | None:
        nodes: dict[Node, None] = {}
        leaves: dict[Key, None] = {}
        todo = [n]
        while todo:
            m = todo.pop()
            if m in nodes:
                continue
            if m is not n and self._is_leaf(step, (m, None)):
                leaves[m, None] = None
                continue
            if m.op in ("placeholder", "get_attr"):
                leaves[m, None] = None
                continue
            if m in self.unknown or m.op != "call_function":
                return None
            rule = RULES.get(m.target)
            if rule is not None:
                drawn = (m, rule.drawn)
                # Numbers that are drawn in this very step are known too.
                if drawn not in self.seen or self.seen[drawn] > step:
                    return None
                leaves[drawn] = None
            nodes[m] = None
            todo += m.all_input_nodes
        by_order = sorted(nodes, key=self.order.__getitem__)
        return tuple(by_order), tuple(sorted(leaves, key=lambda k: (self.order[k[0]], k[1] or 0)))

    def _is_leaf(self, step: int, key: Key) -> bool:
        seen = None if key[0] in self.whole else self.seen.get(key)
        return seen is not None and (seen < step or (seen == step and _is_opaque(key[0])))


def _views_under(n: Node) -> Iterator[Node]:
    """The views that a call's first argument is made of."""
    a = n.args[0]
    while isinstance(a, Node) and is_view_op(a.target):
        yield a
        a = a.args[0]


def _shows_draw(n: Node, position: int) -> bool:
    """Whether a result of several is what a random operator drew."""
    rule = RULES.get(n.target)
    return _is_opaque(n) if rule is None else position == rule.drawn


def _is_opaque(n: Node) -> bool:
    """Whether the value depends on random numbers, or script objects, that nothing else shows."""
    if takes_objects(n.target):
        return True
    if not is_random(n.target) or n.target in RULES:
        return False
    p = _argument(n, "dropout_p")
    return p is None or p != 0


def _argument(n: Node, name: str) -> object:
    assert isinstance(n.target, torch._ops.OpOverload)
    for k, a in enumerate(n.target._schema.arguments):
        if a.name == name:
            return argument(n, k, name, a.default_value)
    return None


def _undefined(graph: Graph) -> Iterator[Node]:
    """Nodes whose elements have no defined value: fresh memory, and views of it."""
    found: set[Node] = set()
    for n in graph.nodes:
        if not isinstance(n.target, torch._ops.OpOverload):
            continue
        first = n.args[0] if n.args else None
        viewed = is_view_op(n.target) and isinstance(first, Node) and first in found
        if viewed or "empty" in n.target._schema.name:
            found.add(n)
            yield n


def _stale(gm: GraphModule) -> Iterator[Node]:
    """Calls that read a value after its memory has been written."""
    sets = AliasSets.of(gm)
    seen: dict[Node, list[Node]] = {}
    order = {n: k for k, n in enumerate(sets.first)}
    for n, first in sets.first.items():
        for a in writes(n):
            for m in seen.get(sets.first[a], ()):
                yield from (u for u in m.users if order[u] > order[n] and u.op != "output")
        seen.setdefault(first, []).append(n)
