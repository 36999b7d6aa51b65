"""The order of program nodes while they are merged, and which parts of a buffer lie apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.index import Expr, const, evaluate, var
from litz.ir import body
from litz.ir.body import Store
from litz.ir.dtype import F32
from litz.ir.program import Buffer, Loops, Nest, Program
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.schedule.build import schedule
from litz.schedule.dependencies import Dependencies, dependencies, lie_apart


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


def test_loops_that_step_into_each_other_do_not_lie_apart() -> None:
    """Outer steps of 6 and of 4 elements: the places 6 + 0 and 4 + 2 are one."""
    i, j = var("i", const(2)), var("j", const(3))
    places = [6 * i + 4 * j + s for s in (0, 2)]
    nodes = [
        Loops(f"n{k}", (i, j), (), (Store("out", p, body.const(F32, 1.0)),), "cpu", ())
        for k, p in enumerate(places)
    ]
    out = Buffer("out", F32, (const(24),), (const(1),), "cpu")
    found = dependencies(Program((), {"out": out}, tuple(nodes), ()), {"out": "out"})
    assert found.before(0, 1) and not lie_apart(*places)


def points(loops: Sequence[Expr]) -> Iterator[dict[Expr, int]]:
    """What the loops' variables are at each point."""
    for at in product(*(range(evaluate(v.extent, {})) for v in loops)):  # type: ignore[attr-defined]
        yield dict(zip(loops, at, strict=True))


def test_what_lies_apart_shares_no_place() -> None:
    """Random strides, extents and offsets, half of them slices of one tensor."""
    draw = random.Random(0)
    seen = [0, 0, 0]
    for _ in range(4000):
        sides = []
        sizes = [draw.randint(1, 4) for _ in range(3)]
        for name in "ab":
            loops = [var(f"{name}{k}", const(draw.randint(1, 4))) for k in range(3)]
            place: Expr = const(draw.randint(0, 12))
            steps = [draw.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in loops]
            if draw.random() < 0.5:
                steps = [sizes[1] * sizes[2], sizes[2], 1]
            for v, step in zip(loops, steps, strict=True):
                place = place + step * v
            sides.append((place, {evaluate(place, at) for at in points(loops)}))
        (a, mine), (b, others) = sides
        apart = lie_apart(a, b)
        assert apart == lie_apart(b, a)
        assert not apart or mine.isdisjoint(others)
        seen[apart + mine.isdisjoint(others)] += 1
    assert min(seen) > 100


def value_of(n: body.Node, at: dict[Expr, int], memory: dict[str, list[float]]) -> float:
    if isinstance(n, body.Load):
        return memory[n.buffer][evaluate(n.index, at)]
    if isinstance(n, body.Const):
        return float(n.value)
    assert isinstance(n, body.Op) and n.name in ("add", "mul")
    a, b = (value_of(x, at, memory) for x in n.args)
    return a + b if n.name == "add" else a * b


def run_in_any_order(nests: Sequence[Nest], memory: dict[str, list[float]]) -> None:
    """Points of a nest in random order, those of equal places of a store only in a fixed one."""
    for n in nests:
        at = list(points(n.axes))
        random.Random(1).shuffle(at)
        for env in at:
            values = [value_of(s.value, env, memory) for s in n.stores]
            for s, value in zip(n.stores, values, strict=True):
                memory[s.buffer][evaluate(s.index, env)] = value


@pytest.mark.parametrize("seed", range(60))
def test_steps_of_a_loop_that_write_parts_compute_what_they_did(seed: int) -> None:
    """A state goes from step to step; each writes it, doubled, somewhere into one result.

    Parts of a stack, of which some are written twice, overlap or are read in between.
    """
    draw = random.Random(seed)
    i, j = var("i", const(2)), var("j", const(3))
    tame = seed % 3 == 0
    layout = draw.choice([(3, 1, 6), (15, 1, 3), (15, 5, 1)])
    spot = 3 * i + j
    names = [f"h{k}" for k in range(6)]
    nodes = []

    def nest(buffer: str, place: Expr, value: body.Node) -> None:
        nodes.append(Loops(f"n{len(nodes)}", (i, j), (), (Store(buffer, place, value),), "cpu", ()))

    for k in range(5):
        state = body.load(F32, names[k], spot)
        step = k if tame or draw.random() < 0.6 else draw.randint(0, 4)
        near = 0 if tame or draw.random() < 0.8 else draw.choice((1, 2))
        place = layout[0] * i + layout[1] * j + layout[2] * step + near
        if not tame and draw.random() < 0.2:
            state = state + body.load(F32, "out", layout[0] * i + layout[1] * j)
        nest("out", place, state * 2.0)
        nest(names[k + 1], spot, body.load(F32, names[k], spot) + 1.0)
    shape = (const(48),)
    buffers = {
        n: Buffer(n, F32, shape, (const(1),), "cpu", "input" if n in ("h0", "out") else "temp")
        for n in (*names, "out")
    }
    program = Program((), buffers, tuple(nodes), ())
    made = schedule(program).steps
    before, after = ({n: [float(k) for k in range(48)] for n in buffers} for _ in range(2))
    run_in_any_order(nodes, before)
    run_in_any_order([s for s in made if isinstance(s, Nest)], after)
    assert after["out"] == before["out"]
    if tame:
        assert len(made) == 1
