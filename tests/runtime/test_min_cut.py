"""The smallest cut of a network: networkx's own, node for node."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litz.runtime.min_cut import minimum_cut, quick_cuts

INF = float("inf")
NODES = ("s", "t", *map(str, range(7)))
edges = st.dictionaries(
    st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)).filter(lambda e: e[0] != e[1]),
    st.sampled_from((0, 1, 2, 3, 5, 7.0, INF, INF)),
    max_size=24,
)


def network(found: dict[tuple[str, str], float]) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    graph.add_nodes_from(NODES)
    for (u, v), c in found.items():
        graph.add_edge(u, v, **({} if c == INF else {"capacity": c}))
    return graph


def adjacency(graph: networkx.DiGraph) -> dict[str, dict[str, float]]:
    return {u: {v: d.get("capacity", INF) for v, d in o.items()} for u, o in graph.adjacency()}


@given(edges)
def test_the_same_cut(found: dict[tuple[str, str], float]) -> None:
    graph = network(found)
    try:
        expected = networkx.minimum_cut(graph, "s", "t")
    except networkx.NetworkXUnbounded:
        expected = None
    assert minimum_cut(adjacency(graph), "s", "t") == expected
    with quick_cuts([]):
        if expected is not None:
            assert networkx.minimum_cut(graph, "s", "t") == expected
            return
        with pytest.raises(networkx.NetworkXUnbounded):
            networkx.minimum_cut(graph, "s", "t")


def test_many_paths_over_few_edges() -> None:
    """More than one path runs over an edge that the first of them does not fill."""
    graph = network({("s", "0"): 2, ("s", "1"): 3, ("0", "2"): 2, ("1", "2"): 3, ("2", "t"): 4})
    assert minimum_cut(adjacency(graph), "s", "t") == (4, ({"s", *"0123456"}, {"t"}))


def test_what_is_not_whole_is_left_to_networkx() -> None:
    graph = network({("s", "0"): 0.1, ("0", "t"): 0.3})
    assert minimum_cut(adjacency(graph), "s", "t") is None
    own = networkx.minimum_cut
    with quick_cuts([]):
        assert networkx.minimum_cut is not own
        assert networkx.minimum_cut(graph, "s", "t")[0] == 0.1
        undirected = networkx.Graph()
        undirected.add_edge("t", "s", capacity=4)
        assert networkx.minimum_cut(undirected, "s", "t")[0] == 4
    assert networkx.minimum_cut is own
