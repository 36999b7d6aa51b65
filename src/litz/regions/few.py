"""A traced graph with few of a region's equal parts, from which the compiler goes on.

Where parts between others are wired alike, a graph with some of them repeats as that with all does:
what ``litz.repeats.shorten`` leaves out of it, with the parts that it never had, is what would be
left out of the whole graph.  That one is put together only where somebody looks at it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.aliasing import told_of
from litz.graph.calls import copied
from litz.graph.short import SHORT, Short
from litz.regions.find import NotEqual, value
from litz.regions.place import OUTSIDE, Region, hidden_name, named, place, reveal
from litz.repeats.shorten import CALLS, FEWEST, NotRepeating, shortened
from litz.runtime.torch_private import LazyGraphModule, address, tracing_mode

EARLY: Final = 3  # parts in front of those that are left out; the second copy's calls are there
SECOND: Final = 1  # of the four copies that stay


# --- what parts have for themselves ---


@dataclass(frozen=True)
class Long:
    """A region of the whole graph.

    own: which of the graph's inputs each part has for itself, by input of the part.
    """

    number: int
    parts: int
    own: Mapping[int, tuple[int, ...]]


def long_region(
    region: Region, calls: Sequence[Node], position: Callable[[int], int | None]
) -> Long:
    """What may be left out of a region.

    calls: those that stand for it, forward and backward.  position: which of the graph's inputs
    each of the region's is, if it is one and has no other reader.
    Raises NotEqual where parts between others are not wired alike.
    """
    count = len(region.reads)
    if any(k != count - 1 for k, _ in region.results):
        raise NotEqual("others read what parts between others give")
    variants: list[Any] = [n.args[1] for n in calls[1:]]
    if any(len(set(v[2:-1])) > 1 or min(v[1:]) < 0 for v in variants):
        raise NotEqual("parts' gradients are laid out in several ways")
    own: dict[int, tuple[int, ...]] = {}
    for i, row in enumerate(zip(*region.reads, strict=True)):
        if all(j == k for k, (j, _) in enumerate(row[1:])):
            if len({o for _, o in row[1:]}) > 1:
                raise NotEqual("parts read other results of those before them")
        elif len(set(row)) > 1:
            places = [position(at) for j, at in row if j == OUTSIDE]
            known = [at for at in places if at is not None]
            if len(set(known)) < count:
                raise NotEqual("parts read what is made before them")
            own[i] = tuple(known)
    return Long(region.number, count, own)


def without(graph: Graph, gone: Collection[Node], kept: Sequence[int]) -> Graph:
    """A copy of a graph without some inputs.  kept: which of its results stay."""
    new = Graph()
    copies: dict[Node, Node] = {}
    output = graph.output_node()
    results: Any = output.args[0]
    read = {results[i] for i in kept}
    for n in graph.nodes:
        idle = n.target is operator.getitem and n not in read and set(n.users) == {output}
        if n is not output and n not in gone and not idle:
            copies[n] = made = copied(n, new, copies.get, n.name)
            made.meta.update(n.meta)
    end = new.output(tuple(copies.get(results[i]) for i in kept))
    end.meta = told_of(output, kept)
    return new


# --- few parts ---


def with_few_parts(
    gm: GraphModule, regions: Sequence[Region], inputs: Sequence[Node], hidden: Collection[int]
) -> GraphModule:
    """A traced graph without gradients, whose parts are put into it for who looks at it.

    inputs: those of Dynamo's graph; hidden: which of them AOTAutograd has not seen.
    Raises NotEqual or NotRepeating, with the graph as it was, where they have to be there now.
    """
    graph = gm.graph
    region = max(regions, key=lambda r: len(r.reads) * len(r.first.forward))
    few = FEWEST + max(1, -(-CALLS // len(region.first.forward)))
    more = len(region.reads) - few
    results: Any = graph.output_node().args[0]
    plain = all(isinstance(x, Node) for x in results)
    if more < 1 or not plain or any(isinstance(n.target, HigherOrderOperator) for n in graph.nodes):
        raise NotEqual("too little repeats")
    if len({address(value(n)) for n in inputs}) < len(inputs):
        raise NotEqual("inputs share memory")
    long = long_region(region, (), region.hidden.get)
    left_out = range(EARLY, EARLY + more)
    gone = {row[k] for row in long.own.values() for k in left_out}
    mode = tracing_mode()
    made = without(graph, (), range(len(results)))
    own = reveal(made, inputs, hidden, gone, mode)
    parts = [k for k in range(long.parts) if k not in left_out]
    copies = place(made, regions, {region.number: parts}, own)[region.number]
    calls = [n for n in region.first.forward if all(copies[k][n].users for k in parts)]
    rows = [[named(n, k) for k in range(long.parts)] for n in calls]
    names = [hidden_name(i) if n is None else n.name for i, n in enumerate(own)]
    alike = (copies[k][n].name == row[k] for n, row in zip(calls, rows, strict=True) for k in parts)
    if not all(alike) or any(own[i] and names[i] != hidden_name(i) for i in hidden):
        raise NotEqual("parts' calls have other names than theirs")
    rows += [[names[i] for i in row] for row in long.own.values()]
    short = shortened(LazyGraphModule(gm, made, type(gm).__name__))
    short = _whole(short, rows, len(calls), left_out, names)

    def put(graph: Graph) -> None:
        place(graph, regions, {}, reveal(graph, inputs, hidden, (), mode))

    return Unplaced(gm, short, put)


def _whole(
    few: Short, rows: Sequence[Sequence[str]], calls: int, left_out: range, inputs: Sequence[str]
) -> Short:
    """What is left out of the whole graph, by what is left out of that without some parts.

    rows: what is called so in each part: first its calls, then its own inputs.
    Raises NotRepeating unless one copy is like a part, and the four that stay are around the gap.
    """
    at = {name: (i, k) for i, row in enumerate(rows) for k, name in enumerate(row)}
    copies = few.copies + len(left_out)
    second = {name: images for name, images in few.named.items() if few.copy_of[name] == SECOND}
    made: dict[str, tuple[str, ...]] = {}
    for name, images in second.items():
        i, k = at.get(name, (0, EARLY))
        there = [x for part, x in enumerate(rows[i]) if part > k and part not in left_out]
        every = rows[i][k + 1 : k + 2 + copies]
        if k >= EARLY or tuple(there[: len(images)]) != images or every[-1] != images[-1]:
            raise NotRepeating("copies are no parts")
        made[name] = tuple(every)
    if sorted(i for name in second if (i := at[name][0]) < calls) != [*range(calls)]:
        raise NotRepeating("a copy has other calls than a part")
    for name in few.named.keys() - second.keys():
        images = few.named[name]
        if images != (images[0], *second.get(images[0], ())[:-1]):
            raise NotRepeating("the first copy is another one")
    # In the order of the rows: what is named is part of a key.
    first = {n: (x[0], *made[x[0]][:-1]) for n, x in few.named.items() if n not in second}
    if any(k for _, k in few.outputs):
        raise NotRepeating("copies give results")
    return replace(few, copies=copies, named={**made, **first}, inputs=tuple(inputs))


class Unplaced(LazyGraphModule):
    """A traced graph into which parts are put when somebody looks at it; ``SHORT`` until then."""

    def __init__(self, gm: GraphModule, short: Short, put: Callable[[Graph], None]) -> None:
        super().__init__(gm, gm.graph, type(gm).__name__)
        self.put = put
        self.meta[SHORT] = short

    @property
    def _graph(self) -> Graph:
        graph: Graph = vars(self)["_graph"]
        if vars(self).get("meta", {}).pop(SHORT, None) is not None:
            self.put(graph)
            del self.put
        return graph

    @_graph.setter
    def _graph(self, graph: Graph) -> None:
        vars(self)["_graph"] = graph

    def __deepcopy__(self, memo: Any) -> GraphModule:
        return deepcopy(GraphModule(self, self.graph, type(self).__name__), memo)
