"""Which values of a graph share memory, where they begin in it, and which leaves or is written.

That PyTorch's metadata says of values: the storage (``same_memory``) and the offset in it.  What a
call does with memory its operator's schema says: a row a target (``sharing``).  Writes count for
all of a storage, wherever they lie in it: functionalisation leaves few, most of them at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.calls import takes_objects
from litz.runtime.collectives import is_wait
from litz.runtime.torch_private import same_memory

aten = torch.ops.aten

# Views or copies of their argument, as its strides have it.
MAYBE_VIEWS = frozenset({
    aten.reshape.default, aten.contiguous.default, aten._unsafe_view.default,
    aten._reshape_alias.default,
})  # fmt: skip
DESCRIPTIONS: Final = "desc"  # of results, one each, where PyTorch's output nodes have them
HIDDEN = aten._unsafe_view.default
"""Of these, the one whose schema doesn't say so."""

Parameters = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a call does with the memory of its arguments.

    view: it gives views of its first argument, or at times a copy, and writes nothing.
    shared: positions and names of the arguments whose memory it may return; written: of those that
    it writes into.  None: all, as far as anybody knows.
    """

    view: bool = False
    shared: Parameters | None = ()
    written: Parameters | None = ()


@lru_cache(maxsize=4096)
def sharing(target: object) -> Sharing:
    """The row of a call's target: what an operator's schema says of it."""
    if isinstance(target, torch._ops.OpOverload):
        return _of_schema(target)
    if isinstance(target, torch._ops.HigherOrderOperator) and not takes_objects(target):
        return Sharing(shared=None, written=None)
    # Functions of numbers share nothing.
    return Sharing(shared=None if target is operator.getitem else ())


def _of_schema(target: torch._ops.OpOverload) -> Sharing:
    if target is HIDDEN:
        return Sharing(True, ((0, target._schema.arguments[0].name),))
    if is_wait(target):  # it hands on what it is given, whose schema does not say so
        return Sharing(shared=((0, target._schema.arguments[0].name),))
    parameters = [(k, p.name, p.alias_info) for k, p in enumerate(target._schema.arguments)]
    known = [(k, name, info) for k, name, info in parameters if info is not None]
    returned = [r.alias_info for r in target._schema.returns if r.alias_info is not None]
    sets = [info.before_set - {"*"} for info in returned]
    names = frozenset().union(*sets)
    # Of a list of views PyTorch does not tell the set: it is any of the arguments'.
    any_set = not all(sets)
    return Sharing(
        bool(returned) and not target._schema.is_mutable,
        tuple((k, name) for k, name, info in known if any_set or names & info.before_set),
        tuple((k, name) for k, name, info in known if info.is_write),
    )


def is_view_op(target: object) -> bool:
    """Whether an operator's results share its first argument's memory, which it does not write."""
    return sharing(target).view


def viewed(n: Node) -> Node | None:
    """What a call, or the pick of one of its results, gives a view of."""
    call = n.args[0] if n.target is operator.getitem else n
    if not isinstance(call, Node) or not is_view_op(call.target) or not n.args:
        return None
    source = n.args[0]
    return source if isinstance(source, Node) else None


def readers(n: Node) -> Iterator[Node]:
    """What reads a value: its users, and for those that are views of it theirs."""
    for u in n.users:
        yield from readers(u) if is_view_op(u.target) else (u,)


def owner(n: Node, *, copies: bool = False) -> Node:
    """The value whose memory ``n`` is, or is a view of, through calls that write it too.

    copies: whether what eager copies, where strides allow no view, has memory of its own.
    """
    while True:
        call: Any = n.args[0] if n.target is operator.getitem else n
        source = next(iter(_nodes(call, sharing(call.target).shared or ())), None)
        maybe = copies and call.target in MAYBE_VIEWS
        if source is None or maybe and not same_memory(n.meta["val"], source.meta["val"]):
            return n
        n = source


def offset_of(n: Node) -> Any:
    """Where a tensor begins in its storage (a plain number where it is known)."""
    return n.meta["val"].storage_offset()


def shares_memory(n: Node) -> bool:
    """Whether results of a call may share memory with its arguments."""
    return sharing(n.target).shared != ()


def leaves(n: Node) -> bool:
    """Whether the result, or a view of its memory, leaves the graph."""
    return any(u.op == "output" or (n in _sources(u) and leaves(u)) for u in n.users)


def is_returned(n: Node) -> bool:
    """Whether the result itself is among those of the graph."""
    return any(u.op == "output" for u in n.users)


def shown(n: Node) -> list[Node]:
    """The value, views of it, and views of those, as far as the graph returns them."""
    views = (u for u in n.users if viewed(u) is n)
    return [n] * is_returned(n) + [v for u in views for v in shown(u)]


def told_of(output: Node, kept: Sequence[int]) -> dict[str, Any]:
    """What is known of an output node of which some results stay, by their numbers."""
    known = dict(output.meta)
    if told := known.get(DESCRIPTIONS):
        known[DESCRIPTIONS] = [told[i] for i in kept]
    return known


def roles(output: Node) -> Sequence[str]:
    """What becomes of each result of a graph, which is its output node's to say.

    "saved": the backward pass reads it.  "made anew": PyTorch hands out a view of another result in
    its place.  "": who called has it.
    """
    results = output.args[0]
    count = len(results) if isinstance(results, tuple | list) else 1
    told = output.meta.get(DESCRIPTIONS) or [None] * count
    based = [d.base_of for d in told if hasattr(d, "base_of")]
    return [
        "saved" if type(d).__name__.startswith("SavedForBackwards")
        else "made anew" if d in based else ""
        for d in told
    ]  # fmt: skip


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
            unknown = sharing(n.target).written is None
            found.update((self.first[a], None) for a in writes(n) if unknown or not _is_given(a))
        return found


def _is_given(n: Node) -> bool:
    return n.op in ("placeholder", "get_attr")


def written(gm: GraphModule) -> frozenset[Node]:
    """Values whose memory some call of the graph writes, or may write."""
    sets = AliasSets.of(gm)
    found = sets.written()
    return frozenset(n for n, first in sets.first.items() if first in found)


def writes(n: Node) -> Sequence[Node]:
    """The arguments that a call writes into, or may."""
    return _nodes(n, sharing(n.target).written)


def _sources(n: Node) -> Sequence[Node]:
    """The arguments whose memory the results of a call may be."""
    return _nodes(n, sharing(n.target).shared)


def _nodes(n: Node, parameters: Parameters | None) -> Sequence[Node]:
    if parameters is None:
        return n.all_input_nodes
    if not parameters:
        return ()
    return [v for v in passed(parameters, n.args, n.kwargs) if isinstance(v, Node)]


def passed(
    parameters: Parameters | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[object]:
    """What a call is given for some parameters, of lists the items."""
    for k, name in parameters or ():
        value = args[k] if k < len(args) else kwargs.get(name)
        yield from value if isinstance(value, list | tuple) else (value,)
