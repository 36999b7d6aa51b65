"""Functions and conversions that GPUs have no instruction for: how exact, and special values."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton.language")

TRITON = {"target": "triton"}
INF, NAN = float("inf"), float("nan")
RANGES = {
    "around zero": lambda r: 4 * r - 2,
    "to twenty": lambda r: 20 * r,
    "below zero": lambda r: -20 * r,
    "large": lambda r: 1e4 * r,
    "tiny": lambda r: torch.exp(-80 * r),
    "tiny and negative": lambda r: -torch.exp(-80 * r),
}


def digamma(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(torch.digamma, backend="litz", options=TRITON)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", RANGES)
def test_digamma(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = RANGES[name](torch.rand(1 << 12, dtype=dtype))
    exact = torch.digamma(x.double())
    off = (digamma(x).double() - exact).abs() / exact.abs().clamp(min=1)
    assert off.max() < {torch.float32: 2e-6, torch.float64: 2e-13}[dtype]
    assert off.mean() < {torch.float32: 2e-7, torch.float64: 1e-15}[dtype]


def test_digamma_of_special_values() -> None:
    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, -1, -2, -1e20, 1e20, 1e-39, -1e-39, 3.4e38])
    torch.testing.assert_close(digamma(x), torch.digamma(x), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_bytes_of_negative_numbers(dtype: torch.dtype) -> None:
    x = torch.tensor([-1.5, -1, -0.5, 0, 0.5, 255, 256, -255, -300, 1e5, -1e5], dtype=dtype)
    got = torch.compile(lambda x: x.byte(), backend="litz", options=TRITON)(x)
    assert torch.equal(got, x.to(torch.int64).to(torch.uint8))
