"""Quotients of a row by one number: exact, though each row's inverse is computed once."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from traces import data, trace  # noqa: E402

from litz.runtime.cache import Cache  # noqa: E402

Tensor = torch.Tensor
NAMED = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 1e-38, 1e-30, 3e38, -1e-31]


def divided(x: Tensor) -> Tensor:
    return x / x.abs().amax(-1, keepdim=True)


def nearest(x: Fraction, digits: int) -> Fraction:
    """The nearest number of so many binary digits, the even one of two."""
    size = abs(x)
    e = size.numerator.bit_length() - size.denominator.bit_length() if size else 0
    e -= Fraction(2) ** e > size
    unit = Fraction(2) ** (e - digits + 1)
    return round(x / unit) * unit


@pytest.mark.parametrize("digits", [4, 5, 6])
def test_one_correction_is_enough(digits: int) -> None:
    """Of all numbers of so many digits: what ``by_inverse`` does gives the nearest quotient."""
    numbers = [Fraction(n) for n in range(1 << (digits - 1), 1 << digits)]
    for b in numbers:
        inverse = nearest(1 / b, digits)
        for a in numbers:
            q = nearest(a * inverse, digits)
            e = nearest(q * b - a, digits)
            assert nearest(q - e * inverse, digits) == nearest(a / b, digits)


def test_kernels_build() -> None:
    """Blocks of which threads have four numbers or fewer."""
    for columns in (8, 64, 1000, 4096):
        (made,) = trace(divided, data(512, columns))
        assert "litz.div(" in made.jobs[0].source
        (binary,) = made.build(Cache())
        assert resources(binary.code)[1] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("columns", [8, 1000, 1024])
def test_exact(columns: int) -> None:
    """All exponents, divisors far from 1 and special values, bit by bit."""
    torch.manual_seed(0)
    shape = (4096, columns)
    x = torch.randint(-(2**31), 2**31, shape, device="cuda").to(torch.int32).view(torch.float32)
    x[:1024] = torch.rand(1024, columns, device="cuda") * 2.0 ** torch.randint(
        -70, 30, (1024, 1), device="cuda"
    )
    x[1024:2048] = torch.rand(1024, columns, device="cuda").log() * 10
    by = x.nan_to_num(0, 1, 1).abs().amax(-1, keepdim=True)
    by[2048:3072] = torch.rand(1024, 1, device="cuda") * 1000
    x[::2, : len(NAMED)] = torch.tensor(NAMED, device="cuda")[:columns]

    def fn(x: Tensor, by: Tensor) -> Tensor:
        total = (x * 0).nan_to_num(0).sum(-1, keepdim=True)  # so that a block has whole rows
        return x / (by + total)

    out, want = torch.compile(fn, backend="litz")(x, by), x / by
    same = (out.view(torch.int32) == want.view(torch.int32)) | (out.isnan() & want.isnan())
    assert bool(same.all()), (x[~same][:4], out[~same][:4], want[~same][:4])
