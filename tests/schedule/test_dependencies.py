"""The order of program nodes while they are merged, and which parts of a buffer lie apart."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.index import const, var
from litz.ir import body
from litz.ir.body import Store
from litz.ir.dtype import F32
from litz.ir.program import Buffer, Loops, Program
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.schedule.dependencies import Dependencies, dependencies


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
def test_parts_of_a_concatenation_need_no_order(join: Callable[[Tensor], Tensor]) -> None:
    program, order = order_of(join, torch.randn(6, 3))
    result = program.root(program.output_refs()[0].buffer)
    writers = [
        k
        for k, n in enumerate(program.nodes)
        if any(program.root(b) == result for b in n.write_buffers())
    ]
    assert len(writers) >= 2
    assert not any(order.before(a, b) for a in writers for b in writers)


@pytest.mark.parametrize("starts", [(0, 6, 12), (0, 3, 6), (6, 0, 12), (0, 6, 6)])
@pytest.mark.parametrize("rows", [1, 4])
def test_only_stores_that_overlap_keep_their_order(starts: tuple[int, ...], rows: int) -> None:
    """Slices of 6 columns, one after the other: what lies behind all others is not ordered."""
    i, j = var("i", const(rows)), var("j", const(6))
    nodes = [
        Loops(f"n{k}", (i, j), (), (Store("out", 18 * i + j + s, body.const(F32, 1.0)),), "cpu", ())
        for k, s in enumerate(starts)
    ]
    shape = (const(rows), const(18))
    out = Buffer("out", F32, shape, (const(18), const(1)), "cpu")
    found = dependencies(Program((), {"out": out}, tuple(nodes), ()), {"out": "out"})
    for b in range(3):
        for a in range(b):
            if abs(starts[a] - starts[b]) < 6:
                assert found.before(a, b)
    assert found.before(0, 1) == (starts != (0, 6, 12) and starts != (0, 6, 6))
    if starts == (0, 6, 12):
        assert not found.before(0, 2) and not found.before(1, 2)
