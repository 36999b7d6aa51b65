"""Bessel functions and their like: errors against mpmath, special values as eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf

from tests.lowering.evaluate import check
from tests.quick import some

special = torch.special
Real = Any


def compiled(name: str, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()  # wrapped builtins share one code object, and its limit of recompiles
    fn = getattr(special, name)
    return torch.compile(fn, backend="litz", fullgraph=True)(x)


def _ndtri(y: Real) -> Real:
    with mp.workprec(600):
        return mp.sqrt(2) * mp.erfinv(2 * y - 1)


# By name: the true function, and where to draw arguments.
EXACT: dict[str, tuple[Callable[[Real], Real], float, float]] = {
    "i0": (lambda x: mp.besseli(0, x), -30, 30),
    "i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), -60, 60),
    "i1": (lambda x: mp.besseli(1, x), -30, 30),
    "i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), -60, 60),
    "modified_bessel_i0": (lambda x: mp.besseli(0, x), -12, 12),
    "modified_bessel_i1": (lambda x: mp.besseli(1, x), -12, 12),
    "modified_bessel_k0": (lambda x: mp.besselk(0, x), 0.01, 20),
    "modified_bessel_k1": (lambda x: mp.besselk(1, x), 0.1, 20),
    "scaled_modified_bessel_k0": (lambda x: mp.besselk(0, x) * mp.exp(x), 0.01, 60),
    "scaled_modified_bessel_k1": (lambda x: mp.besselk(1, x) * mp.exp(x), 0.1, 60),
    "bessel_j0": (lambda x: mp.besselj(0, x), -60, 60),
    "bessel_j1": (lambda x: mp.besselj(1, x), -60, 60),
    "bessel_y0": (lambda x: mp.bessely(0, x), 0.1, 60),
    "bessel_y1": (lambda x: mp.bessely(1, x), 0.1, 60),
    "spherical_bessel_j0": (lambda x: mp.sin(x) / x, -30, 30),
    "erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), -5, 40),
    "log_ndtr": (lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2), -40, 6),
    "ndtri": (_ndtri, 1e-30, 0.999),
}


@pytest.mark.parametrize("name", some(EXACT, 9))
def test_error(name: str) -> None:
    f, low, high = EXACT[name]
    # mpmath takes milliseconds for each value of K.
    count = 40 if "bessel_k" in name else 120
    double = torch.linspace(low, high, count, dtype=torch.float64)
    inputs = double, double.float()
    torch._dynamo.reset()
    fn = getattr(special, name)
    both = torch.compile(lambda *xs: [fn(x) for x in xs], backend="litz", fullgraph=True)(*inputs)
    for x, actual in zip(inputs, both, strict=True):
        assert actual.dtype is x.dtype
        with mp.workprec(80):
            exact = [f(mpf(v)) for v in x.tolist()]
            off = [mpf(v) - e for v, e in zip(actual.tolist(), exact, strict=True)]
            error = mp.norm(off) / mp.norm(exact) / torch.finfo(x.dtype).eps
        assert error < 1.5, x.dtype


VALUES = (
    math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 2.0, -2.0, 5.0, 8.0, -9.0,
    20.0, 95.0, -95.0, 3e38,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_special_values(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x = torch.tensor(VALUES, dtype=dtype)

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(special, name)(x) for name in EXACT]

    found = torch.compile(every, backend="litz")(x)
    for actual, expected in zip(found, every(x), strict=True):
        # Eager's J and Y of large arguments are good to six digits only, in float64 too.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
        zero = expected == 0
        assert torch.equal(actual[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "erfcx", "ndtri", "log_ndtr"])
def test_integers_and_gradients(name: str) -> None:
    fn = getattr(special, name)
    check(fn, torch.tensor([0, 1]))
    x = torch.linspace(0.05, 0.95, 19, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(fn(x).sum(), x)
    (actual,) = torch.autograd.grad(compiled(name, x).sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_halves(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 50).to(dtype)
    check(lambda x: (torch.special.i0(x), torch.special.i0e(x), torch.special.i1e(x)), x)
