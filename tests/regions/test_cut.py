"""Cuts of networks with many equal parts, known from those with four."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch.fx import Graph, Node

from litz.regions.cut import check_cut
from litz.regions.find import NotEqual
from litz.runtime.min_cut import Cut, minimum_cut

Edges = dict[str, dict[str, float]]


def key(n: Node) -> tuple[int, object] | None:
    return n.meta.get("key")


def parts(root: float, *, chained: bool = False) -> tuple[Graph, Edges]:
    """Four parts that each save a value, of 2, or all of them what they make it of."""
    graph = Graph()
    x = graph.placeholder("x")
    edges: Edges = {"source": {"x_in": inf}, "sink": {}}
    edges |= {"x_in": {"x_out": root}, "x_out": {}}
    before = x
    for part in range(4):
        args = (before, x) if chained else (x, x)
        n = graph.call_function(torch.ops.aten.add.Tensor, args)
        n.meta["key"] = (part, "n")
        edges[f"{n.name}_in"] = {f"{n.name}_out": 2}
        edges[f"{n.name}_out"] = {"sink": inf}
        for a in n.all_input_nodes:
            edges[f"{a.name}_out"][f"{n.name}_in"] = inf
        before = n
    return graph, edges


def check(graph: Graph, edges: Edges, count: int) -> None:
    found = minimum_cut(edges, "source", "sink")
    assert found
    check_cut(graph, Cut(edges, "source", "sink", found[1][1]), [(count, key)])


def test_what_holds_for_four_holds_for_many() -> None:
    check(*parts(100), 20)
    check(*parts(5), 20)


def test_many_parts_share_what_four_do_not() -> None:
    check(*parts(11), 5)
    with pytest.raises(NotEqual, match="other values in many parts"):
        check(*parts(11), 6)


def test_chains_through_all_parts() -> None:
    """Whether any of their calls is forbidden must not matter."""
    check(*parts(100, chained=True), 20)
    with pytest.raises(NotEqual, match="other values in many parts"):
        check(*parts(5, chained=True), 20)


def test_parts_that_weigh_differently() -> None:
    graph, edges = parts(100)
    edges["add_tensor_1_in"]["add_tensor_1_out"] = 3
    with pytest.raises(NotEqual, match="otherwise than the next"):
        check(graph, edges, 20)
