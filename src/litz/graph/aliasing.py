"""Which values of a graph share memory, and which of that memory leaves the graph or is written."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import argument

aten = torch.ops.aten

# Ops that return their argument at times without saying so in their schema.
MAYBE_VIEWS = frozenset(
    {
        aten.reshape.default,
        aten.contiguous.default,
        aten._unsafe_view.default,
        aten._reshape_alias.default,
    }
)


@lru_cache(maxsize=1024)
def _is_view(target: torch._ops.OpOverload) -> bool:
    view = any(r.alias_info is not None for r in target._schema.returns)
    return view or target in MAYBE_VIEWS


@lru_cache(maxsize=1024)
def _written_parameters(target: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes into."""
    return tuple(
        (i, p.name)
        for i, p in enumerate(target._schema.arguments)
        if p.alias_info is not None and p.alias_info.is_write
    )


@lru_cache(maxsize=1024)
def shared_parameters(target: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments whose memory an operator may return."""
    schema = target._schema
    sets = [r.alias_info.before_set - {"*"} for r in schema.returns if r.alias_info is not None]
    names = frozenset().union(*sets)
    # Of a list of views PyTorch does not tell the set: it is any of the arguments'.
    any_set = not all(sets)
    return tuple(
        (i, p.name)
        for i, p in enumerate(schema.arguments)
        if (p.alias_info is not None and (any_set or names & p.alias_info.before_set))
        or (i == 0 and target in MAYBE_VIEWS)
    )


def shares_memory(n: Node) -> bool:
    """Whether results of a call may share memory with its arguments."""
    if n.op != "call_function":
        return False
    if n.target is operator.getitem:
        return True
    if not isinstance(n.target, torch._ops.OpOverload):
        # Numbers share nothing; what a higher-order operator does is not known.
        return isinstance(n.target, torch._ops.HigherOrderOperator)
    return _is_view(n.target)


def is_view(n: Node) -> bool:
    """Whether a call gives a view of its first argument, whatever that is, and writes nothing."""
    if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload):
        return False
    schema = n.target._schema
    view = any(r.alias_info is not None for r in schema.returns) and not schema.is_mutable
    return view and bool(n.args) and isinstance(n.args[0], Node)


def leaves(n: Node) -> bool:
    """Whether the result, or a view of its memory, leaves the graph."""
    return any(u.op == "output" or (n in _sources(u) and leaves(u)) for u in n.users)


def is_returned(n: Node) -> bool:
    """Whether the result itself is among those of the graph."""
    return any(u.op == "output" for u in n.users)


@dataclass(frozen=True)
class AliasSets:
    """The values of a graph, those that may share memory together.

    first: the value that stands for a set, by each in it.
    """

    first: Mapping[Node, Node]

    @staticmethod
    def of(gm: GraphModule) -> AliasSets:
        """The sets of a graph, going by the schemas of what it calls."""
        parent: dict[Node, Node] = {}
        attributes: dict[object, Node] = {}

        def find(n: Node) -> Node:
            while parent[n] is not n:
                parent[n] = n = parent[parent[n]]
            return n

        for n in gm.graph.nodes:
            parent[n] = n
            same = (attributes.setdefault(n.target, n),) if n.op == "get_attr" else _sources(n)
            for source in same:
                parent[find(n)] = find(source)
        return AliasSets({n: find(n) for n in parent})

    def written(self) -> dict[Node, None]:
        """The sets that some call of the graph writes, or may write."""
        return {self.first[a]: None for n in self.first for a in writes(n)}

    def altered(self) -> dict[Node, None]:
        """Of these, the ones that are written otherwise than through the graph's inputs alone."""
        found: dict[Node, None] = {}
        for n in self.first:
            higher = isinstance(n.target, torch._ops.HigherOrderOperator)
            found.update((self.first[a], None) for a in writes(n) if higher or not _is_given(a))
        return found


def _is_given(n: Node) -> bool:
    return n.op in ("placeholder", "get_attr")


def written(gm: GraphModule) -> frozenset[Node]:
    """Values whose memory some call of the graph writes, or may write."""
    sets = AliasSets.of(gm)
    found = sets.written()
    return frozenset(n for n, first in sets.first.items() if first in found)


def writes(n: Node) -> Iterator[Node]:
    """The arguments that a call writes into, or may."""
    if n.op != "call_function":
        return
    if isinstance(n.target, torch._ops.HigherOrderOperator):
        yield from n.all_input_nodes
    elif isinstance(n.target, torch._ops.OpOverload):
        yield from _passed(n, _written_parameters(n.target))


def _sources(n: Node) -> Iterator[Node]:
    """The arguments whose memory the results of a call may be."""
    if n.op != "call_function":
        return
    if n.target is operator.getitem or isinstance(n.target, torch._ops.HigherOrderOperator):
        yield from n.all_input_nodes
    elif isinstance(n.target, torch._ops.OpOverload):
        yield from _passed(n, shared_parameters(n.target))


def _passed(n: Node, parameters: tuple[tuple[int, str], ...]) -> Iterator[Node]:
    for i, name in parameters:
        value = argument(n, i, name)
        items = value if isinstance(value, list | tuple) else (value,)
        yield from (v for v in items if isinstance(v, Node))
