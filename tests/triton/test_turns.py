"""Rows that look up the same places, which a program goes through in turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from judge import check

pytest.importorskip("triton.language")

from traces import data, trace  # noqa: E402

Tensor = torch.Tensor
TRITON = {"target": "triton"}


def sampled(x: Tensor, grid: Tensor, mode: str = "bilinear", padding: str = "zeros") -> Tensor:
    return F.grid_sample(x, grid, mode, padding, align_corners=False)


@pytest.mark.parametrize("channels", [1, 3, 8, 11, 12, 32])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_channels(channels: int, mode: str) -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, channels, 9, 7), torch.rand(2, 5, 13, 2) * 2.6 - 1.3
    check(lambda x, grid: sampled(x, grid, mode), x, grid, runs=1, **TRITON)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_beside_others(padding: str) -> None:
    """What a row has for itself, before and behind the look-up, and another result of it."""

    def fn(x: Tensor, grid: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        out = sampled(x, grid, "bilinear", padding) * scale + bias[:, None, None]
        return out.relu(), (out * 2).to(torch.float16)

    torch.manual_seed(0)
    x, grid = torch.randn(2, 6, 8, 8), torch.rand(2, 16, 8, 2) * 2.6 - 1.3
    check(fn, x, grid, torch.randn(6), torch.randn(2, 1, 16, 8), runs=1, **TRITON)


def test_other_look_ups() -> None:
    """Between two places along rows, by weights that are data; of one that rows have themselves."""

    def between(x: Tensor, at: Tensor) -> Tensor:
        low = at.floor().clamp(0, x.shape[-1] - 2)
        part = (at - low).sigmoid().tanh()
        k = low.long()[:, None].expand(-1, x.shape[1], -1)
        return x.gather(-1, k) * (1 - part[:, None]) + x.gather(-1, k + 1) * part[:, None]

    torch.manual_seed(0)
    check(between, torch.randn(3, 16, 40), torch.rand(3, 50) * 39, runs=1, **TRITON)
    own = torch.randint(40, (3, 16, 50))
    check(lambda x, i: x.gather(-1, i).tanh(), torch.randn(3, 16, 40), own, runs=1, **TRITON)


def source(channels: int, mode: str = "bilinear", **how: Any) -> str:
    specs = data(4, channels, 64, 64), data(4, 64, 64, 2)
    (made,) = trace(lambda x, grid: sampled(x, grid, mode), *specs, **how)
    return made.jobs[0].source


@pytest.mark.parametrize(
    ("channels", "mode", "turns", "at_once"),
    [(32, "bilinear", 8, 4), (3, "bilinear", 3, 4), (10, "bilinear", 5, 4), (32, "bicubic", 4, 1)],
)
def test_turns(channels: int, mode: str, turns: int, at_once: int) -> None:
    """As many as divide the rows, and no more loads than a kernel should spell."""
    text = source(channels, mode)
    before, loop = text.split(f"for tindex in tl.range(0, {turns}, loop_unroll_factor={at_once}):")
    assert "litz.cast" in before and "litz.cast" not in loop


@pytest.mark.parametrize(("channels", "mode"), [(1, "bilinear"), (11, "bilinear"), (8, "nearest")])
def test_none(channels: int, mode: str) -> None:
    """One row has nothing to share, a number of them that nothing divides is done one by one, and
    of the nearest elements there is little to share."""
    assert "tindex" not in source(channels, mode)
