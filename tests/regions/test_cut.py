"""Cuts of networks with many equal parts, known from those with four."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from litz import dynamo
from litz.regions.cut import _forbidden, _forward_calls, check_cut
from litz.regions.find import NotEqual
from litz.runtime.min_cut import Cut, Split, minimum_cut
from litz.runtime.torch_private import LongChains, long_chains, without_long_chains

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


def check(graph: Graph, edges: Edges, count: int, most: int | None = None) -> None:
    found = minimum_cut(edges, "source", "sink")
    assert found
    graph.output((list(graph.nodes)[-1],))
    rule = None if most is None else LongChains(lambda a, b: True, lambda n: False, most)
    check_cut(graph, Cut(edges, "source", "sink", found[1][1]), [(count, key)], 1, rule)


def test_what_holds_for_four_holds_for_many() -> None:
    check(*parts(100), 20)
    check(*parts(5), 20)


def test_many_parts_share_what_four_do_not() -> None:
    check(*parts(11), 5)
    with pytest.raises(NotEqual, match="other values in many parts"):
        check(*parts(11), 6)


def test_chains_through_all_parts() -> None:
    """What ends one must not be saved alone."""
    check(*parts(100, chained=True), 20, most=5)
    check(*parts(5, chained=True), 20, most=19)
    with pytest.raises(NotEqual, match="other values in many parts"):
        check(*parts(5, chained=True), 20, most=18)


@pytest.mark.parametrize("cat", [False, True])
def test_long_chains_as_the_partitioner_has_them(cat: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for k in range(130):
            x = x * w if k % 3 else x.sin()
            x = torch.cat([x[1:], x[:1]]) if cat and k == 5 else x
        return x

    def seen() -> tuple[Graph, Cut, int]:
        found: list[tuple[Graph, Cut, int]] = []

        def split(joint: GraphModule, forwards: int, static: Sequence[int], parted: Split) -> Any:
            cuts: list[Cut] = []
            parts = parted(joint, static, cuts)
            found.append((joint.graph, cuts[0], forwards))
            return parts

        def run(graph: GraphModule, _inputs: object) -> Callable[[list[Any]], Any]:
            return dynamo.boxed(dynamo.interpreted(graph))

        def backend(gm: GraphModule, given: Sequence[Any]) -> Any:
            return dynamo.compile_through_aot(
                gm, given, forward=run, backward=run, inference=run, split=split
            )

        torch.compiler.reset()
        torch.compile(program, backend=backend)(
            *(torch.randn(4, 4, requires_grad=True) for _ in range(2))
        )
        return found[0]

    rule, (_, cut, _) = long_chains(), seen()
    with without_long_chains():
        graph, plain, forwards = seen()
    assert rule is not None
    calls = _forward_calls(graph, forwards, (), plain.edges)
    more = cut.edges[cut.source].keys() - plain.edges[plain.source].keys()
    assert more
    assert more == _forbidden(calls, plain.edges, plain.source, rule)


def test_parts_that_weigh_differently() -> None:
    graph, edges = parts(100)
    edges["add_tensor_1_in"]["add_tensor_1_out"] = 3
    with pytest.raises(NotEqual, match="otherwise than the next"):
        check(graph, edges, 20)
