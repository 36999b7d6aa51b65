"""Samples between elements against eager: every mode, far outside, and at what is no number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import extern_names, lower_fn
from tests.quick import some

PADDINGS = ("zeros", "border", "reflection")
MODES = [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")]


def image(rank: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *(5, 4, 6)[:rank], generator=g, dtype=dtype)


def places(rank: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(2)
    shape = (2, *(3, 2)[: rank - 1], count, rank)
    return torch.randn(*shape, generator=g, dtype=dtype) * 1.2


ODD = (0.0, 1.0, -1.0, 2.5, -7.0, 1e6, -3e4, math.nan, math.inf, -math.inf, 1e30)


def far_outside(rank: int, mode: str, pad: str) -> torch.Tensor:
    """As many places as ``places`` gives, so that one kernel does both."""
    grid = torch.zeros(2, *(3, 2)[: rank - 1], len(ODD), rank, dtype=torch.float64)
    grid[0, ..., 0] = torch.tensor(ODD)
    grid[1, ..., -1] = torch.tensor(ODD)
    # Of weights that are nan eager's threads differ.
    return grid.nan_to_num(0, 5, -5) if mode == "bicubic" else grid


def sample(x: torch.Tensor, grid: torch.Tensor, mode: str, pad: str, align: bool) -> torch.Tensor:
    return F.grid_sample(x, grid, mode=mode, padding_mode=pad, align_corners=align)


# Each in a kernel of its own: g++ takes three times as long for all of them in one.
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("pad", some(PADDINGS, 2))
@pytest.mark.parametrize(("rank", "mode"), MODES)
def test_modes(rank: int, mode: str, pad: str, align: bool) -> None:
    torch._dynamo.reset()
    x, grid, far = image(rank), places(rank, len(ODD)), far_outside(rank, mode, pad)
    assert not extern_names(lower_fn(lambda *a: sample(*a, mode, pad, align), x, grid))
    compiled = torch.compile(sample, backend="litz", fullgraph=True)
    actual, expected = (f(x, grid, mode, pad, align) for f in (compiled, sample))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    if mode == "bilinear" and (rank == 2 or pad == "reflection"):
        # The nearest may be another one in float32.
        single = compiled(x.float(), grid.float(), mode, pad, align)
        torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)
    actual, expected = (f(x, far, mode, pad, align) for f in (compiled, sample))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_gradients_and_a_net() -> None:
    def fn(x: Any, theta: Any) -> Any:
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        return F.relu(F.grid_sample(x * 2, grid, align_corners=False))

    x = image(2, torch.float32).requires_grad_()
    theta = torch.eye(2, 3).repeat(2, 1, 1).mul(0.8).requires_grad_()
    expected = fn(x, theta)
    actual = torch.compile(fn, backend="litz")(x, theta)
    torch.testing.assert_close(actual, expected)
    grads = [torch.autograd.grad(y.square().sum(), (x, theta)) for y in (actual, expected)]
    for a, e in zip(*grads, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
