"""Derivatives of digamma against mpmath; poles and the far ends as eager has them."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp, mpf

ORDERS = range(6)


def every(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.polygamma(n, x) for n in ORDERS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_error(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(0.03, 30, 60), torch.linspace(-9.4, -0.2, 40)]).to(dtype)
    x = x[(x - x.round()).abs() > 0.02]
    found = torch.compile(every, backend="litz")(x)
    for n, (actual, eager) in enumerate(zip(found, every(x), strict=True)):
        with mp.workprec(120):
            true = [float(mp.polygamma(n, mpf(v))) for v in x.tolist()]
        exact = torch.tensor(true, dtype=torch.float64)
        mine, theirs = ((v.double() - exact).norm() / exact.norm() for v in (actual, eager))
        assert mine <= 2 * theirs + 2 * torch.finfo(dtype).eps, n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_special_values(dtype: torch.dtype) -> None:
    values = [0.0, -0.0, -1.0, -2.0, -30.0, math.inf, -math.inf, math.nan, 1e10, 1e-5, -1e-5, -7.5]
    x = torch.tensor(values, dtype=dtype)
    for actual, expected in zip(torch.compile(every, backend="litz")(x), every(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-38, equal_nan=True)


def test_ldexp() -> None:
    x = torch.tensor([1.5, -3.0, 0.0, math.inf, math.nan, 1e-30])
    power = torch.tensor([3, -4, 100, -2, 5, 200])
    cases = [(x, power), (x.bfloat16(), power), (x, power.float() / 3), (x.double(), power.half())]
    cases += [(power, power), (x.half(), torch.tensor(3)), (torch.tensor(2), power.half())]

    def fn(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        return [torch.ldexp(a, b) for a, b in pairs]

    for actual, expected in zip(torch.compile(fn, backend="litz")(cases), fn(cases), strict=True):
        assert actual.dtype is expected.dtype
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_ldexp_rounds_once(dtype: torch.dtype) -> None:
    x = torch.tensor([0.7, -1.3, 3e38, 1e-45, 1.1e-38, 1, 1, math.inf, -0.0, math.nan, 0.7, 1e-40])
    n = torch.tensor([-140, -141, -270, 250, -3, 2**31 - 1, -(2**31), -300, 400, 3, -126, 149])
    found = torch.compile(torch.ldexp, backend="litz")(x, n.to(dtype))
    exact = torch.ldexp(x.double() * 2.0**300, n.clamp(-600, 600)) * 2.0**-300
    assert torch.equal(found.nan_to_num(7), exact.float().nan_to_num(7))
    assert torch.equal(found.signbit() | found.isnan(), x.signbit() | x.isnan())
