"""That the partitioner would cut the whole joint graph as it has cut one with four parts.

The network of the whole graph is the short one's, with the second part's nodes and edges for every
part between two others.  Its smallest cut is looked for; what is on which side has to be the same.

One of the partitioner's rules counts nodes from part to part: it forbids to compute anew what ends
a long chain of elementwise calls.  So the short graph is cut without it, what it forbids in the
whole graph is looked for, and the cut has to be the same with that forbidden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import product
from math import inf
from typing import Final, cast

from torch.fx import Graph, Node

from litz.regions.find import NotEqual
from litz.runtime.min_cut import Capacities, Cut, minimum_cut
from litz.runtime.torch_private import LongChains

Key = tuple[int, object]
"""One of the four parts, and which of its nodes."""
FIRST, EARLY, LATE, LAST = range(4)  # the parts that stay, as their marks say
ENDS: Final = ("_in", "_out")  # of a graph's node in the network


def check_cut(
    graph: Graph,
    cut: Cut,
    regions: Collection[tuple[int, Callable[[Node], Key | None]]],
    results: int,
    rule: LongChains | None,
) -> None:
    """Raise NotEqual unless the parts between others are cut alike in the whole graph.

    graph: the joint graph with four parts of each region.  regions: how many parts they have, and
    which of the four a node is of.  results: how many of the graph's are the forward's.  rule:
    forbids to compute calls anew; the cut is one without it.
    """
    network: Capacities = cut.edges
    like: dict[str, str] = {}
    copied: list[tuple[Callable[[Node], Key | None], Sequence[int]]] = []
    for parts, key in regions:
        keys: dict[str, Key] = {}
        for n in graph.nodes:
            if whose := key(n):
                keys |= {f"{n.name}{end}": (whose[0], (whose[1], end)) for end in ENDS}
        network, new = _long(network, keys, parts)
        like |= new
        copied.append((key, range(2, parts - 2)))
    if rule is not None:
        calls = _forward_calls(graph, results, copied, network)
        late = dict.fromkeys(_forbidden(calls, network, cut.source, rule), inf)
        network = {**network, cut.source: {**network[cut.source], **late}}
    found = minimum_cut(network, cut.source, cut.sink)
    if found is None:
        raise NotEqual("the partitioner's network has no smallest cut")
    behind = found[1][1]
    if any((v in behind) != (like.get(v, v) in cut.behind) for v in network):
        raise NotEqual("PyTorch's partitioner may save other values in many parts than in four")


def _forward_calls(
    graph: Graph,
    results: int,
    copied: Collection[tuple[Callable[[Node], Key | None], Sequence[int]]],
    network: Capacities,
) -> dict[str, Node]:
    """The whole graph's forward calls in order, as what leads into them in its network.

    With the node of the graph with four parts that each is like.  copied: which of the four parts
    a node of each region is of, and the parts that were left out.
    """
    output = graph.output_node()
    todo = [n for n in cast(tuple[object, ...], output.args[0])[:results] if isinstance(n, Node)]
    forward: set[Node] = set()
    while todo:
        if (n := todo.pop()) not in forward:
            forward.add(n)
            todo += n.all_input_nodes
    found: dict[str, Node] = {}
    block: dict[int, list[Node]] = {}  # the second part's calls, by region
    for n in graph.nodes:
        if n not in forward or n.op == "placeholder":
            continue
        for number, (key, parts) in enumerate(copied):
            part = key(n)
            if part and part[0] == EARLY:
                block.setdefault(number, []).append(n)
            elif part and part[0] == LATE:
                for k, early in product(parts, block.pop(number, ())):
                    if f"{early.name}_in@{k}" in network:
                        found[f"{early.name}_in@{k}"] = early
        found[f"{n.name}_in"] = n
    if block:
        raise NotEqual("parts' calls are not in order")
    return found


def _forbidden(
    calls: Mapping[str, Node], network: Capacities, source: str, rule: LongChains
) -> set[str]:
    """What the rule forbids to compute anew, of forward calls in order: see ``LongChains``."""
    order = list(calls)
    position = {v: i for i, v in enumerate(order)}
    forbidden = {v for v, c in network[source].items() if c == inf}
    found: set[str] = set()
    seen: set[str] = set()
    for first in range(len(order)):
        chain = [first]
        while chain:
            at = heappop(chain)
            v = order[at]
            if v in seen:
                continue
            seen.add(v)
            n = calls[v]
            if at > first + rule.most and not chain:
                if not rule.views(n):
                    found.add(v)
                break
            for w in network.get("_out".join(v.rsplit("_in", 1)), ()):
                if (
                    w in position
                    and w not in forbidden
                    and w not in found
                    and rule.chains(n, calls[w])
                ):
                    heappush(chain, position[w])
    return found


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

    ends = dict.fromkeys(e for pair in edges[EARLY] for e in pair)
    for part in range(1, parts - 1):
        named = {e: vertex(e, part) for e in ends}
        for (a, b), c in edges[EARLY].items():
            long.setdefault(named[a], {})[named[b]] = c
            long.setdefault(named[b], {})
    return long, like
