"""Collectives run beside what does not need them, in an order that computes the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from collective_cases import (
    compiled,
    gathered,
    group,  # noqa: F401 - a fixture
    reduced,
    starts,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.simulated import Gather
from litz.ir.program import Extern
from litz.reporting import Listener
from litz.runtime.collectives import is_collective, is_wait
from litz.schedule import overlap
from litz.schedule.groups import Schedule
from litz.schedule.text import schedule_text
from litz.stages import Stages


def checked(fn: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Stages, Any]:
    return compiled(fn, *args, check_ir=True, **options)


def schedule_of(stages: Stages) -> Schedule:
    assert stages.schedule is not None
    return stages.schedule


def short(s: Schedule) -> list[str]:
    """What runs, in order."""
    names = {"all_reduce": "start", "all_reduce_": "start", "wait_tensor": "wait", "mm": "mm"}
    return [
        names.get(step.target_name.split(".")[1], "?") if isinstance(step, Extern) else "kernel"
        for step in s.steps
    ]


def before(x: Tensor, w: Tensor) -> Tensor:
    """What could hide the transfer stands before its start."""
    h = (w @ w) @ w
    return reduced(x.sin()).sum() + h.sum()


def behind(x: Tensor, w: Tensor) -> Tensor:
    """What could hide the transfer stands behind its wait."""
    a = reduced(x)
    return a.sum() + ((w @ w) @ w).sum()


def test_a_start_moves_before_what_it_does_not_need() -> None:
    args = torch.randn(200, 200), torch.randn(200, 200)
    stages, out = checked(before, *args)
    assert short(schedule_of(stages)) == ["kernel", "start", "mm", "mm", "wait", "kernel", "kernel"]
    assert torch.allclose(out, before(*args), rtol=1e-4)


def test_a_wait_moves_behind_what_does_not_need_it() -> None:
    args = torch.randn(200, 200), torch.randn(200, 200)
    stages, out = checked(behind, *args)
    found = schedule_of(stages)
    assert short(found) == ["start", "mm", "mm", "wait", "kernel", "kernel"]
    assert torch.allclose(out, behind(*args), rtol=1e-4)
    (transfer,) = found.transfers
    assert transfer.bytes == 2 * 200 * 200 * 4
    assert 0 < transfer.left < transfer.idle <= transfer.seconds
    assert f"transfer {transfer.name}: 320000 bytes" in schedule_text(found)


def test_no_more_moves_than_hides_the_transfer() -> None:
    """At a thousand times the bandwidth one product is enough."""
    args = torch.randn(400, 400), torch.randn(400, 400)
    stages, _ = checked(behind, *args, bandwidth=1_000_000)
    assert short(schedule_of(stages))[:4] == ["start", "mm", "wait", "kernel"]


def test_memory_bounds_what_moves() -> None:
    """Gathering all layers' weights at once would hide everything, and hold everything."""

    def layers(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = torch.tanh(x @ gathered(w))
        return x

    args = [torch.randn(8, 600), *(torch.randn(600, 600) / 50 for _ in range(8))]
    stages, out = checked(layers, *args)
    found = schedule_of(stages)
    assert torch.allclose(out, layers(*args), rtol=1e-3, atol=1e-4)
    live = most = 0
    for step in found.steps:
        if isinstance(step, Extern) and is_collective(step.target):
            live += -1 if is_wait(step.target) else 1
            most = max(most, live)
    assert 2 <= most <= 3
    assert sum(t.left for t in found.transfers) < sum(t.idle for t in found.transfers)


def test_what_was_waited_for_is_reduced_again() -> None:
    def fn(x: Tensor) -> Tensor:
        return reduced(reduced(x * 2))

    x = torch.randn(20)
    assert torch.equal(checked(fn, x)[1], x * 2)


def test_control_flow_that_communicates_stays_among_collectives() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        inside = torch.cond(x.sum() > 0, lambda v: reduced(v * 2), lambda v: reduced(v * 3), (x,))
        return inside, reduced(w.sin())

    stages, _ = checked(fn, torch.randn(200, 200), torch.randn(200, 200))
    found = [s.target_name for s in schedule_of(stages).steps if isinstance(s, Extern)]
    assert found[0] == "higher_order.cond" and "all_reduce" in found[1]


def test_gradients_of_convolutions_count() -> None:
    """Of the weight alone too, whose place among the results is the second."""

    def fn(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        given = [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
        found = torch.ops.aten.convolution_backward(g, x, w, *given)
        return reduced(found[1] * 2)

    args = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 6, 6)
    stages, out = checked(fn, *args)
    assert torch.allclose(out, fn(*args), rtol=1e-4, atol=1e-4)
    found = schedule_of(stages)
    (call,) = (s for s in found.steps if "convolution" in getattr(s, "target_name", ""))
    assert overlap._operations(call, found.program) == 2 * 2 * 36 * 4 * 3 * 9


STEPS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda a, b, x: a @ b / 8,
    lambda a, b, x: (a - b).sin(),
    lambda a, b, x: reduced(a),
    lambda a, b, x: reduced(a + b),
    lambda a, b, x: gathered(a)[: b.shape[0]],
    lambda a, b, x: x.copy_(a) + b,
    lambda a, b, x: reduced(x) * 2,
    lambda a, b, x: a.add_(b),
]


def program(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    """A function of two matrices: random products, sums, collectives and writes into the first."""
    draw = random.Random(seed)
    lines = [
        (draw.choice(STEPS), draw.randrange(2 + k), draw.randrange(2 + k))
        for k in range(draw.randint(4, 14))
    ]

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x * 1, y + 1]
        for step, a, b in lines:
            values.append(step(values[a], values[b], x))
        return tuple(values[-3:])

    return fn


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_compute_the_same(seed: int) -> None:
    fn, x, y = program(seed), torch.randn(40, 40), torch.randn(40, 40)
    eager = x.clone()
    wanted = fn(eager, y)
    stages, out = checked(fn, x, y, bandwidth=1)
    for mine, theirs in zip((*out, x), (*wanted, eager), strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()
    assert stages.program is not None
    order = [n.name for n in starts(stages.program.nodes)]
    assert [s.name for s in starts(schedule_of(stages).steps)] == order


def test_the_order_depends_on_nothing_else() -> None:
    stages, _ = checked(behind, torch.randn(200, 200), torch.randn(200, 200))
    found = schedule_of(stages)
    again = overlap.overlap(replace(found, transfers=()), overlap.HOST)
    assert again.steps == found.steps


def test_layers_are_gathered_one_ahead_forward_and_backward() -> None:
    """Weights in parts that each layer gathers, and gathers again: all but the first and the last
    transfer are hidden, and no more than two weights are whole."""
    size, layers = 600, 4

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ Gather.apply(w))

    def step(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = checkpoint(layer, x, w, use_reentrant=False)
        return x

    def run(fn: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(400, size)
        weights = [(torch.randn(size, size) / 25).requires_grad_() for _ in range(layers)]
        out = fn(x, *weights)
        out.sum().backward()
        return [out, *(w.grad for w in weights if w.grad is not None)]

    found: dict[str, Schedule] = {}
    torch._dynamo.reset()
    with Listener(lambda c: found.update({c.kind: schedule_of(c.stages)}), stages=True):
        fn = torch.compile(step, backend="litz", fullgraph=True, options={"bandwidth": 2000})
        for mine, eager in zip(run(fn), run(step), strict=True):
            assert (mine - eager).norm() <= 1e-5 * eager.norm()
    assert found.keys() == {"forward", "backward"}
    for kind, count in ("forward", layers), ("backward", 2 * layers - 1):  # x has no gradient
        transfers = found[kind].transfers
        assert len(transfers) == count
        assert all(t.left == 0 < t.idle for t in transfers[1:-1]), transfers
        root, steps = found[kind].program.root, found[kind].steps
        received = {  # what waits hand on, by what they wait for
            root(b): root(str(s.outputs[0]))
            for s in steps
            if isinstance(s, Extern) and is_wait(s.target)
            for b in s.read_buffers()
        }
        last = {root(b): k for k, s in enumerate(steps) for b in s.read_buffers()}
        gathers = [s for s in starts(steps) if "gather" in s.target_name]
        spans = [(steps.index(s), last[received[root(str(s.outputs[0]))]]) for s in gathers]
        assert max(sum(a <= k <= b for a, b in spans) for k in range(len(steps))) <= 2
