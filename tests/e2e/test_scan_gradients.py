"""Gradients of ``associative_scan``: those of the steps, whatever parts depend on each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judge import error
from scan_cases import FUNCTIONS, one_by_one, recurrence, scan_of

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages
from tests.quick import some


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def loss(found: tuple[torch.Tensor, ...], last: bool) -> torch.Tensor:
    floats = [x for x in found if x.is_floating_point()]
    return sum((i * x).sin().sum() for i, x in enumerate(floats[-1:] if last else floats, 1))


@pytest.mark.parametrize("name", some(FUNCTIONS, 4))
def test_gradients(name: str) -> None:
    for length in (1, 2, 11):
        torch._dynamo.reset()
        x = draw(length, 5).requires_grad_()
        found = torch.compile(scan_of(name, 0), backend="litz", options={"check_ir": True})(x)
        for last in (False, True):
            grads = [
                torch.autograd.grad(loss(y, last), x, retain_graph=True)[0]
                for y in (found, one_by_one(name, x, 0))
            ]
            torch.testing.assert_close(*grads)


def test_reversed_rows() -> None:
    torch._dynamo.reset()
    x = draw(4, 30).requires_grad_()
    own = torch.compile(scan_of("recurrence", 1, True), backend="litz")(x)
    exact = one_by_one("recurrence", x, 1, True)
    grads = [torch.autograd.grad(loss(y, True), x)[0] for y in (own, exact)]
    torch.testing.assert_close(*grads)


def selective(steps: torch.Tensor, a: Any, b: Any, c: Any, x: Any, by_scan: bool) -> torch.Tensor:
    """A selective state space: ``h = exp(step * a) * h + step * b * x``, read by ``c``."""
    decay = torch.exp(steps[..., None] * a).movedim(1, 0)
    given = ((steps * x)[..., None] * b[:, :, None]).movedim(1, 0)
    if by_scan:
        _, states = torch.ops.higher_order.associative_scan(recurrence, (decay, given), ())
    else:
        rows = [given[0]]
        for k in range(1, len(given)):
            rows.append(decay[k] * rows[-1] + given[k])
        states = torch.stack(rows)
    return (states.movedim(0, 1) * c[:, :, None]).sum(-1)


@pytest.mark.parametrize("target", ["", pytest.param("triton", marks=pytest.mark.slow)])
def test_selective_scans(target: str) -> None:
    """(batch, length, channels, state): a scan forward, one backward; against float64 in steps."""
    if target == "triton":
        pytest.importorskip("triton.language")
    batch, length, channels, state = 2, 35, 6, 4
    steps, a = draw(batch, length, channels).sigmoid(), -draw(channels, state).exp()
    b, c = draw(batch, length, state), draw(batch, length, state).flip(1)
    args = [x.float().requires_grad_() for x in (steps, a, b, c, draw(batch, length, channels))]
    exact = [x.detach().double().requires_grad_() for x in args]
    made: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        options = make_options({"check_ir": True, "target": target})
        return compile_with(gm, inputs, options, lambda kind, graph, stages: made.append(stages))

    torch._dynamo.reset()
    found = torch.compile(lambda *xs: selective(*xs, True), backend=backend)(*args)
    wanted = selective(*exact, False)
    assert error(found, wanted) < 1e-6
    weight = draw(*found.shape)
    grads = torch.autograd.grad((found * weight).sum(), args)
    for g, e in zip(grads, torch.autograd.grad((wanted * weight).sum(), exact), strict=True):
        assert error(g, e) < 2e-6
    assert not any(s.fallback or s.bodies or s.externs() for s in made)
    forward, backward = (len(s.kernels) for s in made)
    assert forward == 2 and backward <= 4
