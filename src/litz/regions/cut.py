"""That the partitioner would cut the whole joint graph as it has cut one with four parts.

The network of the whole graph is the short one's, with the second part's nodes and edges for every
part between two others.  Its smallest cut is looked for; what is on which side has to be the same.

One of the partitioner's rules counts nodes from part to part: it forbids to compute anew what ends
a long chain of elementwise calls.  Where such chains run on, the cut has to be the same whether all
or none of their calls are forbidden, and then is with any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
from typing import Final, cast

from torch.fx import Graph, Node

from litz.regions.find import NotEqual
from litz.runtime.min_cut import Capacities, Cut, minimum_cut
from litz.runtime.torch_private import chained_calls

Key = tuple[int, object]
"""One of the four parts, and which of its nodes."""
FIRST, EARLY, LATE, LAST = range(4)  # the parts that stay, as their marks say
ENDS: Final = ("_in", "_out")  # of a graph's node in the network


def check_cut(
    graph: Graph, cut: Cut, regions: Collection[tuple[int, Callable[[Node], Key | None]]]
) -> None:
    """Raise NotEqual unless the parts between others are cut alike in the whole graph.

    graph: the joint graph with four parts of each region.  regions: how many parts they have, and
    which of the four a node is of.
    """
    network: Capacities = cut.edges
    like: dict[str, str] = {}
    for parts, key in regions:
        keys: dict[str, Key] = {}
        for n in graph.nodes:
            if whose := key(n):
                keys |= {f"{n.name}{end}": (whose[0], (whose[1], end)) for end in ENDS}
        network, new = _long(network, keys, parts)
        like |= new
    names = (f"{n.name}_in" for n in _chained(graph, [key for _, key in regions]))
    # What gradients are computed by is not computed anew.
    chained = {v for v in names if network.get(v, {}).get(cut.sink) != inf}
    ways = (True, False) if chained else (None,)
    for forbidden in ways:
        edges = network
        if forbidden is not None:
            out = {v: c for v, c in network[cut.source].items() if like.get(v, v) not in chained}
            if forbidden:
                out |= {v: inf for v in network if like.get(v, v) in chained}
            edges = {**network, cut.source: out}
        found = minimum_cut(edges, cut.source, cut.sink)
        if found is None:
            raise NotEqual("the partitioner's network has no smallest cut")
        behind = found[1][1]
        if any((v in behind) != (like.get(v, v) in cut.behind) for v in network):
            raise NotEqual("PyTorch's partitioner may save other values in many parts than in four")


def _chained(graph: Graph, keys: Collection[Callable[[Node], Key | None]]) -> Iterator[Node]:
    """The calls at which elementwise calls of several parts may be chained, but for views, which
    nothing forbids to compute anew."""
    part = {n: [k[0] if (k := key(n)) else None for key in keys] for n in graph.nodes}
    across: set[Node] = set()
    chains, views = chained_calls()
    for n in graph.nodes:
        before = (a for a in n.all_input_nodes if part[a] != part[n] or a in across)
        if any(chains(a, n) for a in before):
            across.add(n)
            if not views(n):
                yield n


def _long(
    network: Capacities, keys: Mapping[str, Key], parts: int
) -> tuple[Capacities, dict[str, str]]:
    """A network with all parts of a region, and which node of the second each new one is like."""
    at = {key: v for v, key in keys.items() if v in network}
    own = {v: k for k, v in at.items() if (EARLY, k[1]) in at and (LATE, k[1]) in at}
    edges: dict[int, dict[tuple[object, object], float]] = {EARLY: {}, LATE: {}}
    long: dict[str, dict[str, float]] = {}

    def end(v: str, part: int) -> object:
        """A node as a part sees it: an own or a neighbour's node, or one that all share."""
        near = v in own and abs(own[v][0] - part) <= 1
        return (own[v][0] - part, own[v][1]) if near else v

    for u, others in network.items():
        beside = u not in own or own[u][0] not in edges
        if beside:
            long[u] = {}
        for v, c in others.items():
            touched = {own[x][0] for x in (u, v) if x in own and own[x][0] in edges}
            for part in touched:
                edges[part][end(u, part), end(v, part)] = c
            if not touched:
                long[u][v] = c
    if edges[EARLY] != edges[LATE]:
        raise NotEqual("one part is weighed otherwise than the next")
    kept = {0: FIRST, 1: EARLY, parts - 2: LATE, parts - 1: LAST}
    like: dict[str, str] = {}

    def vertex(e: object, part: int) -> str:
        if isinstance(e, str):
            return e
        offset, what = cast(tuple[int, object], e)
        if (four := kept.get(part + offset)) is not None:
            return at[four, what]
        early = at[EARLY, what]
        new = f"{early}@{part + offset}"
        like[new] = early
        return new

    for part in range(1, parts - 1):
        for (a, b), c in edges[EARLY].items():
            u, v = vertex(a, part), vertex(b, part)
            long.setdefault(u, {})[v] = c
            long.setdefault(v, {})
    return long, like
