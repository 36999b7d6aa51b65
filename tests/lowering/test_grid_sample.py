"""Samples between elements against eager: every mode, far outside, and at what is no number."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import extern_names, lower_fn

PADDINGS = ("zeros", "border", "reflection")
MODES = [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")]


def image(rank: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *(5, 4, 6)[:rank], generator=g, dtype=dtype)


def places(rank: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(2)
    shape = (2, *(3, 2)[: rank - 1], count, rank)
    return torch.randn(*shape, generator=g, dtype=dtype) * 1.2


def every(x: torch.Tensor, grid: torch.Tensor, mode: str) -> list[torch.Tensor]:
    return [
        F.grid_sample(x, grid, mode=mode, padding_mode=p, align_corners=a)
        for p, a in itertools.product(PADDINGS, (False, True))
    ]


@pytest.mark.parametrize(("rank", "mode"), MODES)
def test_modes(rank: int, mode: str) -> None:
    x, grid = image(rank), places(rank, 7)
    assert not extern_names(lower_fn(lambda *a: every(*a, mode), x, grid))
    found = torch.compile(every, backend="litz")(x, grid, mode)
    for actual, expected in zip(found, every(x, grid, mode), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    single = torch.compile(every, backend="litz")(x.float(), grid.float(), mode)
    if mode == "bilinear":  # the nearest may be another one in float32
        for actual, expected in zip(single, every(x, grid, mode), strict=True):
            torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rank", "mode"), MODES)
def test_far_outside(rank: int, mode: str) -> None:
    odd = [0.0, 1.0, -1.0, 2.5, -7.0, 1e6, -3e4, math.nan, math.inf, -math.inf, 1e30]
    grid = torch.zeros(2, *(1,) * (rank - 1), len(odd), rank, dtype=torch.float64)
    grid[0, ..., 0] = torch.tensor(odd)
    grid[1, ..., -1] = torch.tensor(odd)
    x = image(rank)
    if mode == "bicubic":  # of weights that are nan eager's threads differ
        grid = grid.nan_to_num(0, 5, -5)
    found = torch.compile(every, backend="litz")(x, grid, mode)
    names = list(itertools.product(PADDINGS, (False, True)))
    for name, actual, expected in zip(names, found, every(x, grid, mode), strict=True):
        torch.testing.assert_close(
            actual, expected, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m, n=name: f"{n} {m}"
        )


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
