"""Floats of 8 bits: what moves and converts them is part of kernels, and has eager's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

Tensor = torch.Tensor
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
TARGETS = ["cpp", pytest.param("triton", marks=pytest.mark.skipif("not HAS_TRITON"))]
try:
    import triton  # noqa: F401

    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False


def explained(fn: Callable[..., Any], *args: Tensor, target: str = "cpp") -> tuple[Any, list[str]]:
    options = {"check_ir": True, "target": target} if target == "triton" else {"check_ir": True}
    report = litz.explain(fn, *args, options=options)
    return report.result, [e.target_name for g in report.graphs for e in g.stages.externs()]


def every(kind: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(kind)


def numbers(kind: torch.dtype) -> Tensor:
    """All there are, what lies between them and beside that, and what is too large or too small."""
    own = every(kind).float()
    finite = own[own.isfinite()].sort().values
    between = (finite[1:] + finite[:-1]) / 2
    beside = [torch.nextafter(between, torch.full_like(between, x)) for x in (-1e9, 1e9)]
    bits = torch.arange(0, 2**32, 2**20 + 1, dtype=torch.int64).to(torch.int32)
    large = torch.tensor([448.0, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 65536.0, 1e9])
    return torch.cat([own, between, *beside, bits.view(torch.float32), large, -large])


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, up to those of nan where there are several."""
    if a.dtype in (E4, E5):
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return a.dtype is b.dtype and torch.equal(a.nan_to_num(7, 9, 11), b.nan_to_num(7, 9, 11))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [E4, E5], ids=str)
def test_conversions_have_eager_s_bits(kind: torch.dtype, target: str) -> None:
    def narrowed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 1).to(kind), y.to(kind)

    def widened(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.float() + 0, x.to(torch.bfloat16) * 1

    x = numbers(kind)
    for fn, args in ((narrowed, (x, x.bfloat16())), (widened, (every(kind),))):
        found, externs = explained(fn, *args, target=target)
        assert not externs and all(map(same, found, fn(*args)))


@pytest.mark.parametrize("target", TARGETS)
def test_they_move_in_kernels(target: str) -> None:
    def fn(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        cache[:, 2:5].copy_((x * 0.5).to(E4))
        return cache.t().float() * 2, cache.view(torch.uint8) + 1

    x, cache = torch.randn(6, 3), torch.randn(6, 8).to(E4)
    own, found = cache.clone(), cache.clone()
    result, externs = explained(fn, x, found, target=target)
    assert all(map(same, result, fn(x, own))) and same(found, own)
    assert not externs


def test_arithmetic_is_eager_s() -> None:
    def fn(x: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, x]), one.float() + 1

    x, one = torch.randn(5).to(E5), torch.tensor(3.0).to(E5)
    found, externs = explained(fn, x, one)
    assert all(map(same, found, fn(x, one)))
    assert "aten.cat.default" in externs


def test_kernels_check_themselves() -> None:
    compiled = torch.compile(lambda x: (x * 3).to(E4), backend="litz", options={"verify": True})
    x = torch.randn(1000)
    assert same(compiled(x), (x * 3).to(E4))
