"""Gathers of what is then cast move the bytes of the cast."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collective_cases import (
    compiled,
    gathered,
    group,  # noqa: F401 - a fixture
    ops,
    reduced,
    starts,
)
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.communicate import share_calls


def both(x: Tensor) -> Tensor:
    whole = gathered(x)
    return whole.bfloat16() + whole.sum()


@pytest.mark.parametrize(
    ("fn", "x", "sent"),
    [
        (lambda x: gathered(x).bfloat16() * 2, torch.randn(8, 4), "bf16"),
        (lambda x: gathered(x.double()).half(), torch.randn(8, 4), "f16"),
        (lambda x: gathered(x).float() * 2, torch.randn(8, 4).bfloat16(), "bf16"),
        (lambda x: gathered(x).int(), torch.randn(8, 4), "f32"),
        (lambda x: reduced(x).bfloat16(), torch.randn(8, 4), "f32"),
        (both, torch.randn(8, 4), "f32"),
    ],
)
def test_casts_move_before_gathers(fn: Callable[[Tensor], Tensor], x: Tensor, sent: str) -> None:
    x.view(-1)[:3] = torch.tensor([torch.inf, -0.0, 1e-40])
    stages, out = compiled(fn, x, check_ir=True)
    assert stages.program is not None
    (start,) = starts(stages.program.nodes)
    (ref,) = start.refs()
    assert stages.program.buffers[ref.buffer].dtype.name == sent
    assert torch.equal(out, fn(x)) and torch.equal(out.signbit(), fn(x).signbit())


def scattered(x: Tensor) -> Tensor:
    name = dist.group.WORLD.group_name
    return ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", 1, name))


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = torch.tanh(x @ gathered(w * 2))
    return x


def gradients(x: Tensor, *weights: Tensor) -> list[Tensor]:
    found = []
    for w in weights:
        x = torch.tanh(x @ w)
        found.append(scattered(x) * 3)
    return found


def chained(x: Tensor, *weights: Tensor) -> Tensor:
    """What is sent next is made of what was received."""
    for w in weights:
        x = gathered(x @ w)
        x = scattered(x)
    return scattered(scattered(x))


def writing(x: Tensor, *weights: Tensor) -> Tensor:
    """What is sent is written in between."""
    first = gathered(x)
    x.add_(1)
    return first + gathered(x) + gathered(weights[0])


@pytest.mark.parametrize(
    ("fn", "limit", "calls"),
    [
        (layers, 1 << 20, [4]),
        (layers, 2 * 36 * 4, [2, 2]),
        (layers, 36, [1, 1, 1, 1]),
        (gradients, 1 << 20, [4]),
        (gradients, 3 * 36 * 4, [3, 1]),
        (chained, 1 << 20, [1] * 10),
        (writing, 1 << 20, [1, 2]),
    ],
)
def test_small_transfers_share_calls(fn: Any, limit: int, calls: list[int]) -> None:
    args = [torch.randn(6, 6) for _ in range(5)]
    gm = make_fx(fn)(*(a.clone() for a in args))
    assert not share_calls(gm, {"another group": 1 << 20})
    share_calls(gm, {dist.group.WORLD.group_name: limit})
    gm.graph.lint()
    gm.recompile()
    assert [len(n.all_input_nodes) for n in starts(gm.graph.nodes)] == calls
    mine, eager = gm(*(a.clone() for a in args)), fn(*(a.clone() for a in args))
    for a, b in zip(*(x if isinstance(x, list) else [x] for x in (mine, eager)), strict=True):
        assert torch.equal(a, b)


def test_casts_of_other_things_stay() -> None:
    """Of numbers in bodies, and of views by open sizes, where something communicates."""

    def fn(x: Tensor, n: Tensor) -> Tensor:
        rows = gathered(x).view(x.shape[0] * 2, -1)
        return rows.bfloat16() + reduced(n)

    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    _, out = compiled(fn, x, torch.ones(1), check_ir=True)
    assert torch.equal(out, fn(x, torch.ones(1)))


def test_many_transfers_are_looked_at_once() -> None:
    """Time grows with the graph, not with its square."""
    name = dist.group.WORLD.group_name

    def seconds(count: int) -> float:
        graph = torch.fx.Graph()
        part = graph.placeholder("part")
        part.meta["val"] = x = torch.empty(2, 2, device="meta")
        for _ in range(count):
            start = graph.call_function(ops.all_gather_into_tensor.default, (part, 1, name))
            whole = graph.call_function(ops.wait_tensor.default, (start,))
            start.meta["val"] = whole.meta["val"] = x
            graph.call_function(torch.ops.aten.sin.default, (whole,))
        gm = torch.fx.GraphModule({}, graph)
        begun = time.process_time()
        assert share_calls(gm, {name: 1 << 30}) and len(starts(gm.graph.nodes)) == 1
        return time.process_time() - begun

    seconds(20)
    assert seconds(1600) < 20 * seconds(200)  # of 64 times, for a square
