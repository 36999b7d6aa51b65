"""Scans on CPUs: vectors along rows, along what lies beside them, rows in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judge import check
from scan_cases import FUNCTIONS, OPS, check_scan, scan_of

import litz
from litz.backend import compile_with
from litz.ir.body import Masked, loads, walk
from litz.kernel.lanes import choose
from litz.kernel.nodes import roots
from litz.options import make_options
from litz.stages import Stages
from tests.quick import some

REALS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LONG = [(5000,), (4096,), (3, 2100)]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(dtype)


@pytest.mark.parametrize("dtype", some(REALS, 2))
@pytest.mark.parametrize("name", OPS)
def test_rows_and_columns(name: str, dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(r for d in (0, 1, 2) for r in (OPS[name](x, d),) if torch.is_tensor(r))

    def pairs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(r for d in (0, 1, 2) for r in OPS[name](x, d))

    x = draw(12, 70, 37, dtype=dtype)
    check(pairs if name in ("cummax", "cummin") else fn, x, runs=1)
    check(pairs if name in ("cummax", "cummin") else fn, x.transpose(0, 2), runs=1)


@pytest.mark.parametrize("shape", some(LONG, 2), ids=str)
@pytest.mark.parametrize("name", OPS)
def test_parts(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LONG_ROW", 1000)
    monkeypatch.setattr(choose, "PART", 512)
    check(lambda x: OPS[name](x * 2, len(shape) - 1), draw(*shape), runs=1)


@pytest.mark.parametrize(
    "dtype", [torch.float32, *some([torch.float64, torch.int64, torch.int32], 1)]
)
def test_vectors_that_change_the_state_and_that_do_not(dtype: torch.dtype) -> None:
    """Best values of vectors none of which beats them; sums of terms far above and far below."""
    noise = torch.randn(6, 203, generator=torch.Generator().manual_seed(6)) * 3
    x = noise + torch.linspace(0, 1, 203) * torch.tensor([[0], [900], [-900], [40], [-40], [9]])
    if dtype.is_floating_point:
        special = ((0, 0, -torch.inf), (1, 70, torch.nan), (2, 3, torch.inf), (3, 90, -torch.inf))
        for row, at, value in special:
            x[row, at] = value
        x[5, :9] = torch.tensor([1e-30] * 9)
    x = x.to(dtype)
    for name in ("cummax", "cummin", *["logcumsumexp"] * dtype.is_floating_point):
        torch._dynamo.reset()
        found = torch.compile(lambda x, f=OPS[name]: f(x, 1), backend="litz")(x)
        if name == "logcumsumexp":
            bound = {torch.float32: 2e-7, torch.float64: 1e-15}[dtype]
            for row in range(6):
                torch.testing.assert_close(
                    found[row].double(), exact(x[row]), rtol=bound, atol=bound, equal_nan=True
                )
            continue
        for a, b in zip(found, OPS[name](x, 1), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def exact(x: torch.Tensor) -> torch.Tensor:
    """Running logarithms of sums of exponentials, each for itself."""
    return torch.stack([x[: i + 1].double().logsumexp(0) for i in range(len(x))])


def test_nothing_is_read_beyond_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what stands beside a scan either, whose memory may end there."""
    monkeypatch.setattr(choose, "LONG_ROW", 1000)
    monkeypatch.setattr(choose, "PART", 512)
    x, y = draw(5003), draw(5003)
    (kernel,) = litz.explain(lambda x, y: x.cumsum(0) * y, x, y).kernels
    plan = kernel.recipe.kernels[-1].plan
    (buffer,) = (p.name for p in plan.params if p.mode == "in" and p.name == "b1")
    guarded = {n for m in walk(roots(plan.stores)) if isinstance(m, Masked) for n in loads(m.args)}
    found = [n for n in loads(roots(plan.stores)) if n.buffer == buffer]
    assert found and guarded.issuperset(found)
    check(lambda x, y: x.cumsum(0) * y, x, y, runs=1)


def test_open_sizes() -> None:
    check(
        lambda x: (x.cumsum(1) * 2, x.cumsum(0).sum(0)),
        draw(9, 33),
        others=[(draw(20, 70),)],
        dynamic=True,
        runs=1,
    )


@pytest.mark.parametrize("name", OPS)
def test_gradients(name: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        found = OPS[name](x * 1.5, 1)
        return found if torch.is_tensor(found) else found[0]

    check(fn, draw(6, 40).requires_grad_(), grad=True, runs=1)


def test_updates_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.cumsum_(1)
        return (x * 2).cumsum(0)

    check(fn, draw(8, 50), runs=1)


def test_reductions_of_scans() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.cumsum(1)
        return (*torch.var_mean(y, 1), torch.softmax(y, 1), y.argmax(1), (y < 1).sum(1))

    check(fn, draw(8, 700), runs=1)
    check(lambda x: fn(x.t()), draw(700, 40), runs=1)
    check(fn, draw(20, 70001), runs=1)  # longer than what caches hold


# All of them go in parts below.
@pytest.mark.parametrize("name", some(FUNCTIONS, 4))
def test_functions_of_two_states(name: str) -> None:
    for dim in (0, 1, 2):
        check_scan(name, draw(5, 37, 20), dim, reverse=dim == 1)
    for dtype in (torch.float64, torch.bfloat16):
        check_scan(name, draw(70, 33, dtype=dtype), 1)


@pytest.mark.parametrize("shape", some(LONG[1:], 1), ids=str)
def test_functions_in_parts(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LONG_ROW", 1000)
    monkeypatch.setattr(choose, "PART", 512)
    for name in FUNCTIONS:
        dim = len(shape) - 1
        (kernel,) = litz.explain(scan_of(name, dim), draw(*shape)).kernels
        assert len(kernel.recipe.kernels) == 3
        check_scan(name, draw(*shape), dim)


def recording() -> tuple[Callable[..., Any], list[Stages]]:
    """A backend that checks the IR, and the stages of what it compiles."""
    made: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        options = make_options({"check_ir": True})
        return compile_with(gm, inputs, options, lambda kind, graph, stages: made.append(stages))

    torch._dynamo.reset()
    return backend, made


def test_functions_of_open_sizes() -> None:
    backend, made = recording()
    fn = scan_of("recurrence", 1)
    compiled = torch.compile(fn, backend=backend, dynamic=True)
    for shape in ((3, 9), (7, 300)):
        torch.testing.assert_close(compiled(draw(*shape)), fn(draw(*shape)))
    (stages,) = made
    assert not stages.fallback and not stages.externs() and len(stages.kernels) == 1


def test_reversed_scans_are_one_kernel() -> None:
    programs = (
        lambda x: x.flip(1).cumsum(1).flip(1) * 2 + x,
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: torch.cummax(x.exp().flip(1), 1)[1].flip(1),
        lambda x: torch.softmax(x, 1).flip(1).cumsum(1).flip(1),
    )
    for fn in programs:
        assert len(litz.explain(fn, draw(12, 71)).kernels) == 1
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            check(fn, draw(12, 71, dtype=dtype), runs=1)
    check(programs[0], draw(12, 71), others=[(draw(5, 300),)], dynamic=True, runs=1)


def test_gradients_of_sums_are_one_kernel() -> None:
    backend, made = recording()
    x = draw(9, 200, dtype=torch.float64).requires_grad_()
    grads = [
        torch.autograd.grad(fn(x).sum(), x)[0]
        for f in (lambda x: x.exp().cumsum(1).sin(),)
        for fn in (torch.compile(f, backend=backend), f)
    ]
    torch.testing.assert_close(*grads)
    assert [len(s.kernels) for s in made] == [1, 1]
