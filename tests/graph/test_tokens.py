"""Operators with effects run where they stand, and the graph around them is Litz's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judge import check

import litz

Tensor = torch.Tensor


def spd(n: int = 6) -> Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(3))
    return a @ a.T + torch.eye(n)


def solved(a: Tensor) -> Tensor:
    return torch.linalg.solve(a, a.sin()) * 2 + 1


def factored(a: Tensor) -> Tensor:
    return (torch.linalg.cholesky(a) * 2).exp() + torch.linalg.inv(a)


@pytest.mark.parametrize("fn", [solved, factored])
def test_the_graph_is_compiled(fn: Callable[[Tensor], Tensor]) -> None:
    report = litz.explain(fn, spd())
    assert report.kernels and not any("runs through ATen" in str(g) for g in report.graphs)
    check(fn, spd(), runs=2)
    check(fn, spd().requires_grad_(), runs=2)


@pytest.mark.parametrize("fn", [solved, factored])
def test_errors_are_raised(fn: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(fn, backend="litz")
    torch.testing.assert_close(compiled(spd()), fn(spd()), rtol=1e-4, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros(6, 6))
