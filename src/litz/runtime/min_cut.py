"""The smallest cut of a network: what networkx finds, in a fraction of its time.

PyTorch's partitioner asks for one cut over a whole training graph, nearly all of whose edges are
infinite: what they join lies on one side, and little is left to push flow through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from threading import RLock
from typing import Any
from unittest import mock

from torch.fx import GraphModule

from litz.dataclass import dataclass

Capacities = Mapping[str, Mapping[str, float]]
Partition = tuple[set[str], set[str]]
_ONE_AT_A_TIME = RLock()  # so that what was there before is there again behind the last


@dataclass(frozen=True)
class Cut:
    """A network between two nodes, and what of it lies behind its smallest cut."""

    edges: Capacities
    source: str
    sink: str
    behind: set[str]


Split = Callable[[GraphModule, Sequence[int], list[Cut]], Sequence[GraphModule]]
"""Parts a joint graph in forward and backward; some of its inputs stay where they are.

The list gets the cuts that were made for it."""


@contextmanager
def quick_cuts(made: list[Cut]) -> Iterator[None]:
    """Where networkx's own function answers by this one what this one can.

    Both give the same partition, so that it doesn't matter who else asks meanwhile.
    made: gets the cuts.
    """
    import networkx  # type: ignore[import-untyped]  # the partitioner does, and takes a while

    def cut(graph: Any, source: str, sink: str, *more: Any, **named: Any) -> Any:
        if not (more or named) and graph.is_directed() and not graph.is_multigraph():
            edges = {
                u: {v: d.get("capacity", inf) for v, d in others.items()}
                for u, others in graph.adjacency()
            }
            if found := minimum_cut(edges, source, sink):
                made.append(Cut(edges, source, sink, found[1][1]))
                return found
        return own(graph, source, sink, *more, **named)

    with _ONE_AT_A_TIME:
        own: Callable[..., Any] = networkx.minimum_cut
        with mock.patch.object(networkx, "minimum_cut", cut):
            yield


def minimum_cut(edges: Capacities, source: str, sink: str) -> tuple[float, Partition] | None:
    """The value of a smallest cut between two nodes, and the nodes on its two sides.

    edges: capacities of edges to other nodes; every node has an entry.  Of all smallest cuts it is
    the one with the fewest nodes on the sink's side, which is the same for every largest flow.
    None: no cut is finite, or capacities are no whole numbers, whose sums may depend on the order.
    """
    backwards: dict[str, dict[str, float]] = {u: {} for u in edges}
    for u, others in edges.items():
        for v, c in others.items():
            if c != inf and not (c >= 0 and c % 1 == 0):
                return None
            backwards[v][u] = c
    before = _closure(edges, source)
    behind = _closure(backwards, sink)
    if before & behind:
        return None
    residual = _joined(edges, before, behind, source, sink)
    value = sum(residual[source].values())
    _push(residual, source, sink)
    value -= sum(residual[source].values())
    reverse: dict[str, dict[str, float]] = {u: {} for u in residual}
    for u, others in residual.items():
        for v, c in others.items():
            if c > 0:
                reverse[v][u] = inf
    last = _closure(reverse, sink) - {sink} | behind
    return value, (set(edges) - last, last)


def _closure(edges: Capacities, start: str) -> set[str]:
    """What infinite edges lead to."""
    found, todo = {start}, [start]
    while todo:
        for v, c in edges[todo.pop()].items():
            if c == inf and v not in found:
                found.add(v)
                todo.append(v)
    return found


def _joined(
    edges: Capacities, before: set[str], behind: set[str], source: str, sink: str
) -> dict[str, dict[str, float]]:
    """The network with each side as one node, and edges back on which flow may return."""
    ends = {**dict.fromkeys(before, source), **dict.fromkeys(behind, sink)}
    joined: dict[str, dict[str, float]] = {ends.get(u, u): {} for u in edges}
    for u, others in edges.items():
        a = ends.get(u, u)
        for v, c in others.items():
            b = ends.get(v, v)
            if a != b and a != sink and b != source:
                joined[a][b] = joined[a].get(b, 0) + c
                joined[b].setdefault(a, 0)
    return joined


def _push(residual: dict[str, dict[str, float]], source: str, sink: str) -> None:
    """Leave of the capacities what a largest flow does not use (Dinic's algorithm)."""
    while sink in (levels := _levels(residual, source)):
        untried = {u: list(residual[u]) for u in levels}
        path = [source]
        while path:
            u = path[-1]
            if u == sink:
                path = _augment(residual, path)
            elif not untried[u]:  # a dead end
                path.pop()
                if path:
                    untried[path[-1]].pop()
            elif residual[u][v := untried[u][-1]] > 0 and levels.get(v) == levels[u] + 1:
                path.append(v)
            else:
                untried[u].pop()


def _augment(residual: dict[str, dict[str, float]], path: list[str]) -> list[str]:
    """Push what a path takes; returns its part up to the first edge that is full then."""
    pairs = list(zip(path, path[1:], strict=False))
    flow = min(residual[u][v] for u, v in pairs)
    for u, v in pairs:
        residual[u][v] -= flow
        residual[v][u] += flow
    full = next(i for i, (u, v) in enumerate(pairs) if residual[u][v] == 0)
    return path[: full + 1]


def _levels(residual: Capacities, source: str) -> dict[str, int]:
    """How far nodes are from the source along edges that have room."""
    levels = {source: 0}
    todo = deque([source])
    while todo:
        u = todo.popleft()
        for v, c in residual[u].items():
            if c > 0 and v not in levels:
                levels[v] = levels[u] + 1
                todo.append(v)
    return levels
