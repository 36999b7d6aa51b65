"""CUDA graphs on a real GPU; skips itself without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.backend import compile_with
from litz.entry import litz
from litz.options import make_options
from litz.runtime.cuda_graphs import CudaDevice, CudaGraphs, Family, Recordable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
PLAIN = Recordable("inference", (), frozenset())


def graphed(call: Any, about: Recordable = PLAIN, family: Family | None = None) -> CudaGraphs:
    return CudaGraphs(call, about, family or Family(CudaDevice(0)))


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda")


def test_replays_are_right_and_results_stay() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        x, w = args
        args.clear()
        h = x @ w
        return torch.relu(h).sum(0), h

    run, w = graphed(call), randn(64, 64)
    held, kept = [], []
    for k in range(20):
        x = randn(64, 64)
        kept.append(x)
        out = run([x, w])
        expected = torch.relu(x @ w).sum(0)
        torch.testing.assert_close(out[0], expected)
        if k % 3 == 0:
            held.append((out[0], expected))
        del out
    for mine, theirs in held:
        torch.testing.assert_close(mine, theirs)
    assert run.recorded >= 2


def test_random_numbers_are_fresh_and_follow_the_seed() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        (x,) = args
        seed = torch.randint(-(2**62), 2**62, (1,), device=x.device)
        return x + torch.rand_like(x), seed

    run, x = graphed(call), torch.zeros(1000, device="cuda")
    for _ in range(3):
        run([x])
    assert run.recorded == 1
    seen = []
    for _ in range(2):
        torch.manual_seed(3)
        seen += [tuple(t.clone() for t in run([x])) for _ in range(2)]
    (a, s), (b, t), (c, u), (d, v) = seen
    assert torch.equal(a, c) and torch.equal(b, d) and torch.equal(s, u) and torch.equal(t, v)
    assert not torch.equal(a, b) and not torch.equal(s, t)
    assert run.recorded == 1


def test_what_cannot_be_recorded_runs_plainly() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        (x,) = args
        return (x + x.sum().item(),)

    run, x = graphed(call), torch.ones(8, device="cuda")
    for _ in range(4):
        (y,) = run([x])
        assert y.tolist() == [9.0] * 8
    assert run.recorded == 0 and "recording it failed" in run.reason
    torch.cuda.synchronize()
    assert torch.rand(4, device="cuda").unique().numel() == 4  # the generator still works
    assert graphed_once_more()


def graphed_once_more() -> bool:
    run, x = graphed(lambda args: (args[0] + torch.rand_like(args[0]),)), randn(4)
    for _ in range(3):
        run([x])
    return run.recorded == 1


def test_written_arguments() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        cache, x = args
        cache.add_(x)
        return (cache.sum(),)

    run = graphed(call, Recordable("inference", (), frozenset({0})))
    cache, expected = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    for _ in range(6):
        x = randn(8)
        expected += x
        (total,) = run([cache, x])
        torch.testing.assert_close(total, expected.sum())
        torch.testing.assert_close(cache, expected)
        del total


def test_forward_and_backward_with_held_gradients() -> None:
    family = Family(CudaDevice(0))

    def forward(args: list[Any]) -> tuple[torch.Tensor, ...]:
        x, w = args
        return (x @ w).sin(), (x @ w).cos(), x, w

    def backward(args: list[Any]) -> tuple[torch.Tensor, ...]:
        cos, x, w, grad = args
        inner = grad * cos
        return inner @ w.t(), x.t() @ inner

    fw, bw = (graphed(f, PLAIN, family) for f in (forward, backward))
    w, total, expected = randn(64, 64), None, torch.zeros(64, 64, device="cuda")
    for _ in range(8):
        x, grad = randn(64, 64), randn(64, 64)
        y, *saved = fw([x, w])
        _, gw = bw([*saved, grad])
        expected += x.t() @ (grad * (x @ w).cos())
        # As autograd accumulates: the first gradient's memory is kept.
        total = gw if total is None else total.add_(gw)
        torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-3)
        del y, saved, gw
    assert fw.recorded and bw.recorded


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_training_with_dropout(mode: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    ).cuda()
    twin = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    ).cuda()
    twin.load_state_dict(model.state_dict())
    found: list[tuple[str, Any]] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        observe = lambda kind, _, stages: found.append((kind, stages.cuda_graphs))  # noqa: E731
        return compile_with(gm, inputs, make_options({}, mode), observe)

    compiled = torch.compile(model, backend=backend)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for step in range(8):
        x = randn(16, 32)
        losses = []
        for m, opt in zip((compiled, twin), optimizers, strict=True):
            loss = m(x).square().mean()
            loss.backward()
            if step % 2:
                opt.step()
                opt.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
    assert [kind for kind, _ in found] == ["forward", "backward"]
    assert all(isinstance(g, CudaGraphs) and g.recorded for _, g in found), found
    dropout: Any = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.5), backend=litz, mode=mode
    )
    masks = [dropout(torch.ones(4096, device="cuda")).clone() for _ in range(5)]
    for k, mask in enumerate(masks):
        assert 0.4 < (mask == 0).float().mean() < 0.6
        assert not any(torch.equal(mask, other) for other in masks[:k])


def test_a_function_with_graph_breaks_and_results_that_stay() -> None:
    layers = [torch.nn.Linear(32, 32).cuda() for _ in range(3)]

    def fn(x: torch.Tensor, notes: list[torch.Tensor]) -> torch.Tensor:
        for layer in layers:
            x = torch.relu(layer(x)) + x
            notes.append(x)
            torch._dynamo.graph_break()
        return x.sum(1)

    compiled: Any = torch.compile(fn, backend=litz, mode="reduce-overhead")
    mine: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    with torch.no_grad():
        for step in range(12):
            x = randn(16, 32)
            torch.testing.assert_close(compiled(x, mine), fn(x, theirs), rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
            if step % 4 == 3:
                mine.clear()
                theirs.clear()


def test_two_forwards_before_the_backwards() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model = model.cuda()
    compiled = torch.compile(model, backend=litz, mode="reduce-overhead")
    for step in range(8):
        xs = [randn(16, 32) for _ in range(2)]
        grads = []
        for m in (compiled, model):
            model.zero_grad(set_to_none=step % 2 == 0)
            outs = [m(x) for x in xs]
            for out in reversed(outs) if step % 3 else outs:
                out.square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


def test_shapes_that_change() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1).sum(0)

    compiled: Any = torch.compile(fn, backend=litz, mode="reduce-overhead", dynamic=True)
    w = randn(32, 32)
    for _ in range(3):
        for n in (4, 9, 4, 17, 9, 64, 65, 66, 67, 68, 69, 70):
            x = randn(n, 32)
            torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-3, atol=1e-3)


def test_launches_cost_less() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.tanh(x @ x) * 0.5
        return x

    times = {}
    x = randn(64, 64)
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        compiled: Any = torch.compile(fn, backend=litz, mode=mode)
        for _ in range(5):
            y = compiled(x)
            del y
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(200):
            y = compiled(x)
            del y
        end.record()
        torch.cuda.synchronize()
        times[mode] = start.elapsed_time(end) / 200
    print(f"a call: {times} ms")
    assert times["reduce-overhead"] < times["default"]
