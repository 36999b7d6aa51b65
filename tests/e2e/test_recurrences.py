"""Loops over time steps that programs spell out: one scan and one batched call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from judge import error
from torch import Tensor
from torch.fx import GraphModule

from litz.backend import compile_with
from litz.graph.recurrences import roll_up
from litz.graph.scan_gradients import SCAN
from litz.options import make_options
from litz.stages import Stages

TARGETS = ["", "triton"]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def selective(x: Tensor, steps: Tensor, logs: Tensor, b: Tensor, c: Tensor) -> Any:
    """Selective state spaces as reference code has them: (batch, channels, length)."""
    a, steps = -torch.exp(logs), F.softplus(steps)
    b, c = b.transpose(1, 2), c.transpose(1, 2)
    factors = torch.exp(a[None, :, None, :] * steps[:, :, :, None])
    terms = steps[:, :, :, None] * b[:, None, :, :] * x[:, :, :, None]
    h = torch.zeros(x.shape[0], x.shape[1], logs.shape[1], dtype=x.dtype)
    out = []
    for t in range(x.shape[2]):
        h = factors[:, :, t] * h + terms[:, :, t]
        out.append(torch.matmul(h.to(x.dtype), c[:, t, :].unsqueeze(-1))[:, :, 0])
    return torch.stack(out, dim=-1), h


def gated(z: Tensor, x: Tensor) -> Tensor:
    """Minimal gated units: (batch, length, channels)."""
    z = torch.sigmoid(z)
    new, h, out = z * x, x[:, 0], []
    keep = 1 - z
    for t in range(z.shape[1]):
        h = new[:, t] + h * keep[:, t]
        out.append(h.tanh() * x.select(1, t))
    return torch.stack(out, 1)


def targets(fn: Callable[..., Any], *args: Tensor) -> list[Any]:
    """What Dynamo's graph calls once it is rolled up; the result has to stay."""
    made: list[Any] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        roll_up(gm)
        gm.graph.lint()
        made.extend(n.target for n in gm.graph.nodes)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(*args)
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_selective_scans(target: str) -> None:
    if target:
        pytest.importorskip("triton.language")
    shapes = ((2, 6, 12), (2, 6, 12), (6, 3), (2, 3, 12), (2, 3, 12))
    args = [draw(*s).requires_grad_() for s in shapes]
    exact = [x.detach().double().requires_grad_() for x in args]
    made: list[Stages] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        options = make_options({"check_ir": True, "target": target, "graph_cache": False})
        return compile_with(gm, inputs, options, lambda kind, graph, stages: made.append(stages))

    torch._dynamo.reset()
    found, wanted, eager = torch.compile(selective, backend=backend), selective, selective
    for a, e, own in zip(found(*args), wanted(*exact), eager(*args), strict=True):
        assert a.stride() == own.stride() and error(a, e) <= 2 * error(own, e) + 1e-7
    totals = (found(*args)[0], wanted(*exact)[0], eager(*args)[0])
    weight = draw(*totals[0].shape)
    every = [(x, exact if x.dtype is torch.float64 else args) for x in totals]
    grads = [torch.autograd.grad((x * weight).sum(), given) for x, given in every]
    for a, e, own in zip(*grads, strict=True):
        assert error(a, e) <= 2 * error(own, e) + 2e-7
    assert not any(s.fallback or s.bodies for s in made)
    views = ("aten.as_strided.default", "aten.slice.Tensor", "aten.detach.default")
    calls = ([x for x in s.externs() if x.target_name not in views] for s in made)
    forward, backward = (len(s.kernels) + len(c) for s, c in zip(made, calls, strict=True))
    assert forward <= 8 and backward <= 14


def test_gates() -> None:
    args = draw(2, 10, 5), draw(2, 10, 5)
    calls = targets(gated, *args)
    assert calls.count(SCAN) == 1 and torch.stack not in calls and calls.count("tanh") == 0
    torch._dynamo.reset()
    found, exact = torch.compile(gated, backend="litz")(*args), gated(*(x.double() for x in args))
    assert error(found, exact) <= 2 * error(gated(*args), exact) + 1e-7


def test_infinite_states_stay() -> None:
    """Also where the product of factors in between is less than any number."""
    pytest.importorskip("triton.language")

    def fn(x: Tensor) -> Tensor:
        a, h = torch.sigmoid(x - 3), x[0]
        for t in range(64):
            h = a[t] * h + x[t]
        return h

    x = draw(64, 4)
    x[2, 1], x[3, 2], x[7, 2], x[5, 3] = (float(v) for v in ("inf", "inf", "-inf", "nan"))
    assert SCAN in targets(fn, x)
    for target in TARGETS:
        torch._dynamo.reset()
        found = torch.compile(fn, backend="litz", options={"target": target})(x)
        torch.testing.assert_close(found, fn(x), equal_nan=True)


def unknown(a: Tensor, x: Tensor) -> Tensor:
    h = x[0]
    for t in range(10):
        h = a[t] * h + x[t]
    return h


def written(a: Tensor, x: Tensor) -> Tensor:
    a, x, h = torch.sigmoid(a), x * 2, x[0]
    for t in range(10):
        h = a[t] * h + x[t]
        x.mul_(1.5)
    return h


def backwards(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.sigmoid(a), x[0]
    for t in range(9, -1, -1):
        h = a[t] * h + x[t]
    return h


def broadcast(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.sigmoid(a[:, :1]), x[0]
    for t in range(10):
        h = a[t] * h + x[t]
    return h


def stacked(a: Tensor, x: Tensor) -> Tensor:
    out = []
    for t in range(10):
        out.append(a[t] * 2)
        a.add_(1)
    return torch.stack(out)


def in_place(a: Tensor, x: Tensor) -> Tensor:
    """Also what no name says."""
    a, h = torch.sigmoid(a), x[0]
    for t in range(10):
        h = a[t] * h + x[t]
        F.relu(x, inplace=True)
    return h


def grown(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.sigmoid(a), x[0]
    a.mul_(3)
    for t in range(10):
        h = a[t] * h + x[t]
    return h


def wrapped(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.exp(-a.abs().to(torch.uint8).relu()), x[0]
    for t in range(10):
        h = a[t] * h + x[t]
    return h


def split_off(a: Tensor, x: Tensor) -> Tensor:
    """Steps that pass over one: seven on each way."""
    a = torch.sigmoid(a)
    h = a[0] * x[1] + x[0]
    way = a[1] * h + x[1]
    for t in range(2, 9):
        h = a[t] * h + x[t]
    return way + h


def without_gradients(a: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = [a[t] * x[t] for t in range(10)]
    return torch.stack(out)


def cast(a: Tensor, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = [torch.matmul(x, a[t].unsqueeze(1)) for t in range(10)]
    return torch.stack(out)


def into(a: Tensor, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.stack([a[t] * x[t] for t in range(10)], out=out)
    return out


def named(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.exp(input=-a.abs()), x[0]
    for t in range(10):
        h = torch.mul(a[t], other=h) + x[t]
    return torch.stack(tensors=[h] * 10)


def signs(a: Tensor, x: Tensor) -> Tensor:
    return torch.stack([a[t] * (-0.0 if t else 0.0) for t in range(10)])


def numbers(a: Tensor, x: Tensor) -> Tensor:
    return torch.stack([a[t].bfloat16() * x[t, 0] for t in range(10)])


@torch.compiler.allow_in_graph
def add(a: Tensor, b: Tensor) -> Tensor:
    return a - b


def namesake(a: Tensor, x: Tensor) -> Tensor:
    a, h = torch.sigmoid(a), x[0]
    for t in range(10):
        h = add(a[t] * h, x[t])
    return h


STAY = [unknown, written, backwards, broadcast, stacked, in_place, grown, split_off]
STAY += [wrapped, without_gradients, cast, into, named, signs, numbers, namesake]


def test_a_recurrence_over_the_states_of_another() -> None:
    def fn(a: Tensor, x: Tensor) -> Tensor:
        a, h = torch.sigmoid(a), x[0]
        for t in range(9):
            h = a[t] * h + x[t]
        b, g = a[0], h[0]
        for t in range(9):
            g = b[t] * g + h[t]
        return g

    assert targets(fn, draw(9, 9, 4), draw(9, 9, 4)).count(SCAN) == 2


@pytest.mark.parametrize("fn", STAY)
def test_what_stays_as_it_is(fn: Callable[..., Any]) -> None:
    calls = targets(fn, draw(10, 4), draw(10, 4))
    assert SCAN not in calls and "contiguous" not in calls


def test_steps_over_memory_that_another_argument_writes_stay() -> None:
    """By a flag, which no name says."""

    def fn(a: Tensor, x: Tensor, part: Tensor) -> Tensor:
        a, h = torch.sigmoid(a), x[0]
        for t in range(10):
            h = a[t] * h + x[t]
            F.hardtanh(part, -0.1 * t, 0.1, True)
        return h

    def apart(a: Tensor, x: Tensor, mean: Tensor) -> Tensor:
        a, h = torch.sigmoid(a), x[0]
        for t in range(10):
            h = a[t] * h + x[t]
            F.batch_norm(a, mean, mean + 0.0, training=True)
        return h

    for f in (fn, apart):
        a, x = draw(10, 4), draw(10, 4)
        assert SCAN not in targets(f, a, x, x.data[5])


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_cumulative_products_are_scans(dim: int) -> None:
    """Of zeros, too; PyTorch's trace of them has calls for each element of a row."""
    x = draw(4, 9, 5)
    x[0, 2] = x[1, 3:5] = x[2, 0, 0] = x[:, :, 4] = 0
    made: list[Stages] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        options = make_options({"graph_cache": False})
        return compile_with(gm, inputs, options, lambda kind, graph, stages: made.append(stages))

    def loss(x: Tensor) -> Tensor:
        return (x.cumprod(dim) * torch.cumprod(x, dim=-1, dtype=torch.float64).sin()).sum()

    torch._dynamo.reset()
    found: list[Tensor] = []
    for given, fn in [(x, torch.compile(loss, backend=backend)), (x.double(), loss), (x, loss)]:
        leaf = given.clone().requires_grad_()
        found += torch.autograd.grad(fn(leaf), leaf)
    assert error(found[0], found[1]) <= 2 * error(found[2], found[1]) + 1e-7
    assert sum(len(s.kernels) for s in made) <= 8 and not any(s.externs() for s in made)


@pytest.mark.parametrize("fn", [
    torch.func.grad(lambda x: x.cumprod(0).sum()),
    torch.func.vmap(torch.func.grad(lambda x: x.cumprod(0).sum())),
    torch.func.jacrev(lambda x: x[0].cumprod(0)),
    lambda x: torch.autograd.grad(x[:, :0].cumprod(1).sum() + x.sum(), x)[0],
])  # fmt: skip
def test_gradients_of_cumulative_products_in_transforms_and_of_nothing(
    fn: Callable[[Tensor], Tensor],
) -> None:
    x = draw(3, 4)
    torch._dynamo.reset()
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.compile(fn, backend="litz")(leaf), fn(leaf))


@pytest.mark.parametrize("least", [0.5, 2.0])
def test_gradients_of_cumulative_products_of_as_many_as_data_says(least: float) -> None:
    """What may be none at all, and is."""

    def fn(x: Tensor) -> Tensor:
        chosen = x[x > least].expand(3, -1)
        return (chosen.cumprod(1) + chosen.cumprod(0)).sum()

    x = torch.linspace(0, 1, 21)
    torch._dynamo.reset()
    got, want = (x.clone().requires_grad_() for _ in range(2))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(fn, backend="litz", fullgraph=True)(got).backward()
    fn(want).backward()
    torch.testing.assert_close(got.grad, want.grad)
