"""Calls that are left to ATen where they are all of a graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from litz.lowering.context import Settings
from tests.lowering.evaluate import check, extern_names, lower_fn

Tensor = torch.Tensor


@pytest.mark.parametrize("size", [(), (1,), (257, 3), (0, 4)])
@pytest.mark.parametrize("fn", [torch.sqrt, torch.erf, torch.lgamma, torch.mvlgamma])
def test_doubles_alone_are_atens(fn: Callable[..., Tensor], size: tuple[int, ...]) -> None:
    x = torch.rand(size, dtype=torch.float64) + 2
    args = (x, 3) if fn is torch.mvlgamma else (x,)
    check(lambda x: fn(x, *args[1:]), x, externs=[fn.__name__])


def test_what_goes_with_others_is_computed() -> None:
    x = torch.rand(100, dtype=torch.float64) * 3 - 1.5
    x[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    check(lambda x: x.erf() + 1, x)
    check(lambda x: (x.exp(), x.sin()), x)
    check(lambda x: x.float().erf(), x)
    check(torch.erf, x.float())
    check(torch.expm1, x)


def test_a_gpu_computes_doubles() -> None:
    x = torch.rand(100, dtype=torch.float64)
    assert extern_names(lower_fn(torch.sqrt, x))
    assert not extern_names(lower_fn(torch.sqrt, x, settings=Settings(blocks=("cpu",))))
