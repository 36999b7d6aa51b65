"""Functions and conversions that GPUs have no instruction for: how exact, and special values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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


def compiled(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()  # one line of a test is many functions
    return torch.compile(fn, backend="litz", options=TRITON)(*args)


special = torch.special
RARE = [special.i0, special.i1e, special.bessel_j0, special.bessel_j1, special.bessel_y0]


@pytest.mark.parametrize("fn", [*RARE, special.bessel_y1], ids=lambda f: f.__name__)
def test_values_of_few_elements(fn: Callable[..., torch.Tensor]) -> None:
    """Blocks with and without an element beyond the usual, in a loop over rows as well."""
    x = torch.linspace(0.25, 3.75, 6000).reshape(2, 3000)
    x[1, 100::500] = torch.tensor([9.0, 30, 75, INF, NAN, 8.5])
    exact = fn(x.double())
    torch.testing.assert_close(
        compiled(fn, x).double(), exact, rtol=4e-6, atol=1e-6, equal_nan=True
    )
    sums = compiled(lambda x: fn(x).nan_to_num(0, 0, 0).sum(-1), x)
    torch.testing.assert_close(
        sums.double(), exact.nan_to_num(0, 0, 0).sum(-1), rtol=1e-5, atol=1e-5
    )


def test_remainders_are_exact() -> None:
    torch.manual_seed(0)
    r = lambda: torch.rand(1 << 12)  # noqa: E731
    bits = lambda: torch.randint(-(2**31), 2**31, (1 << 12,)).int().view(torch.float32)  # noqa: E731
    by = r() + 0.5
    near = by * torch.exp2(torch.randint(0, 24, by.shape).float())
    pairs = [
        (20 * r() - 10, 4 * r() - 2),
        (bits(), bits()),
        (near * (1 + torch.randint(-2, 3, by.shape) * 2.0**-23), by),
        (torch.exp2(30 * r() - 145), torch.exp2(30 * r() - 145)),
        (torch.exp2(30 * r() + 97.9), -torch.exp2(30 * r() + 97.9)),
    ]
    for a, b in pairs:
        with np.errstate(all="ignore"):
            exact = torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
        got = compiled(torch.fmod, a, b)
        assert torch.equal(got.nan_to_num(7), exact.nan_to_num(7))
        assert torch.equal(got.signbit() | got.isnan(), exact.signbit() | exact.isnan())
    got = compiled(lambda x: (x % 2.5, torch.fmod(x, 2.5)), pairs[0][0])
    assert all(map(torch.equal, got, (pairs[0][0] % 2.5, torch.fmod(pairs[0][0], 2.5))))
