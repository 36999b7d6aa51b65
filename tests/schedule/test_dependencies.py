"""The order of program nodes while they are merged, and which parts of a buffer lie apart."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.ir.program import Program
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.schedule.dependencies import Dependencies, _Parts, dependencies


def behind(edges: set[tuple[int, int]], a: int) -> set[int]:
    """Everything that runs after ``a``."""
    todo, found = [a], set[int]()
    while todo:
        k = todo.pop()
        new = {q for p, q in edges if p == k} - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("seed", range(20))
def test_merging_keeps_the_order(seed: int) -> None:
    """Like a graph whose nodes are joined, its closure computed anew after each merge."""
    draw = random.Random(seed)
    count = 24
    edges = {(p, k) for k in range(count) for p in range(k) if draw.random() < 0.12}
    deps = Dependencies(count)
    for p, k in sorted(edges, key=lambda e: e[::-1]):
        deps.add(p, k)
    for _ in range(14):
        live = list(deps.alive)
        after = {k: behind(edges, k) for k in live}
        for a in live:
            for b in live:
                assert deps.before(a, b) == (b in after[a])
                between = any(b in after[k] and (k, b) in edges for k in after[a] - {b})
                assert deps.path_between(a, b) == between
        a, b = sorted(draw.sample(live, 2))
        if a in after[b]:
            a, b = b, a
        if deps.path_between(a, b):
            continue
        deps.merge(a, b)
        edges = {(a if p == b else p, a if q == b else q) for p, q in edges} - {(a, a)}
    order = deps.topological({k: -k for k in deps.alive})
    assert sorted(order) == sorted(deps.alive)
    assert all(order.index(p) < order.index(q) for p, q in edges)


def order_of(fn: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Program, Dependencies]:
    """The program of a graph, and which of its nodes run before which."""
    graph = make_fx(lambda x: (fn(x),), tracing_mode="fake")(x)
    found = lower_graph(graph, Settings())
    return found, dependencies(found, {name: found.root(name) for name in found.buffers})


JOINS: list[Callable[[Tensor], Tensor]] = [
    *(lambda x, dim=dim: torch.cat([x.sin(), x.cos(), x.exp()], dim) for dim in range(2)),  # type: ignore[misc]
    lambda x: torch.cat([x[:, :1].sin(), x[:, 1:].cos(), x.exp()], 1),
    lambda x: torch.stack([x.sin(), x.cos(), x.exp()], -1),
    lambda x: torch.cat([torch.cat([x.sin(), x.cos()], 1), torch.cat([x.exp(), x.tan()], 1)], 0),
]


@pytest.mark.parametrize("join", JOINS)
def test_parts_are_told_apart_at_one_look(
    join: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As looking at each pair does; and parts of one concatenation need no order."""
    program, order = order_of(join, torch.randn(6, 3))
    result = program.root(program.output_refs()[0].buffer)
    writers = [
        k
        for k, n in enumerate(program.nodes)
        if any(program.root(b) == result for b in n.write_buffers())
    ]
    assert len(writers) >= 2
    assert not any(order.before(a, b) for a in writers for b in writers)
    monkeypatch.setattr(_Parts, "take", lambda *_: False)
    assert order_of(join, torch.randn(6, 3))[1].direct == order.direct
