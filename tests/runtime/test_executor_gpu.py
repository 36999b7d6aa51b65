"""The native executor on a real GPU gives what the printed Python gives, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import litz

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def compiled(fn: Any, host: str = "native", **how: Any) -> Callable[..., Any]:
    """A function of its own, of which Dynamo counts how often it was compiled."""
    own = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, None, fn.__closure__)
    return torch.compile(own, backend="litz", options={"host": host, "check_calls": False}, **how)


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_(grad)


def bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().flatten().view(torch.uint8)


def chain(x: Tensor, w: Tensor) -> Tensor:
    for i in range(6):
        x = x / (x.abs().sum(i % 2, keepdim=True) + w[0])
    return x


def layers(x: Tensor, w: Tensor) -> Any:
    h = torch.addmm(w[0], x, w).softmax(-1)
    parts = [torch.tanh(h[:, 1:9] * k) for k in (1.0, 2.0, 3.0)]
    return torch.mm(h, w.t()).relu().sum(0), h.view(-1)[3:], *parts, x.view(torch.int32)[0]


def attention(x: Tensor, w: Tensor) -> Any:
    q = (x @ w).view(1, 2, -1, 32)
    return F.scaled_dot_product_attention(q, q, q), x.sort(-1)[1], torch.cumsum(x, 0)


@pytest.mark.parametrize("fn", [chain, layers, attention])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_programs(fn: Callable[..., Any], dynamic: bool, grad: bool) -> None:
    sides = [compiled(fn, host, dynamic=dynamic) for host in ("python", "native")]
    for size in (64, 64, 96) if dynamic else (64, 64):
        x, w = randn(size, 64), randn(64, 64)
        found = []
        for side in sides:
            leaves = [t.clone().requires_grad_(grad) for t in (x, w)]
            out = side(*leaves)
            outs = [out] if isinstance(out, Tensor) else list(out)
            if grad:
                sum(t.float().square().sum() for t in outs if t.requires_grad).backward()
                outs += [t.grad for t in leaves]
            found.append(outs)
        for a, b in zip(*found, strict=True):
            assert a.stride() == b.stride() and torch.equal(bits(a), bits(b))


def test_graphs_have_plans() -> None:
    for host in ("auto", "native"):
        report = litz.explain(layers, randn(64, 64), randn(64, 64), options={"host": host})
        assert "Python runs the host program: it works on" not in str(report)


def test_a_number_of_the_host() -> None:
    call = compiled(lambda x, s: x * s + 1)
    x = randn(1000)
    for value in (2.5, -0.0, float("inf")):
        scale = torch.tensor(value)
        assert torch.equal(bits(call(x, scale)), bits(x * scale + 1))


def test_side_streams_and_threads() -> None:
    call, w = compiled(chain), randn(256, 256)
    inputs = [randn(256, 256) for _ in range(4)]
    with torch.no_grad():
        wanted = [call(x, w) for x in inputs]
        torch.cuda.synchronize()
        right: list[bool] = []

        def run(n: int) -> None:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                results = [call(inputs[n], w) for _ in range(50)]
                torch.cuda.current_stream().synchronize()
                right.append(all(torch.equal(r, wanted[n]) for r in results))

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert right == [True] * 4


def test_memory_is_as_with_python() -> None:
    peaks = []
    x, w = randn(1024, 1024), randn(1024, 1024)
    for host in ("python", "native"):
        call = compiled(layers, host)
        with torch.no_grad():
            for _ in range(3):
                call(x, w)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            for _ in range(100):
                call(x, w)
            assert torch.cuda.memory_allocated() == before
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]


def test_the_profiler_names_kernels_and_graphs_are_recorded() -> None:
    x, w = randn(64, 64), randn(64, 64)
    # Other tests have called ``chain`` with other sizes, which Dynamo would leave open.
    call = compiled(chain, dynamic=False)
    with torch.no_grad():
        call(x, w)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
            call(x, w)
            torch.cuda.synchronize()
        names = [e.name for e in p.events() if str(e.device_type).endswith("CUDA")]
        assert len([n for n in names if n.startswith("k")]) >= 6, names
        options = {"host": "native", "mode": "reduce-overhead"}
        graphed = torch.compile(
            lambda x, w: chain(x, w), backend="litz", dynamic=False, options=options
        )
        for _ in range(5):
            out = graphed(x, w)
        assert torch.equal(bits(out), bits(call(x, w)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device() -> None:
    call = compiled(chain)
    x, w = randn(64, 64), randn(64, 64)
    there = x.to("cuda:1"), w.to("cuda:1")
    with torch.no_grad():
        assert torch.equal(bits(call(*there).cpu()), bits(compiled(chain, "python")(*there).cpu()))
    assert torch.cuda.current_device() == 0
