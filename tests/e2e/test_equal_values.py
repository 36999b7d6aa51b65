"""Norms of equal values: their mean is the value, so that nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import isfinite
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.quick import some

CPU: dict[str, Any] = {}
TRITON: dict[str, Any] = {"target": "triton"}


def channels_last(*shape: int) -> torch.Tensor:
    return torch.empty(shape).to(memory_format=torch.channels_last)


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


# (what should be zeros, an example of its input)
NORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), torch.empty(9, 31)),
    "layer norm, long rows": (lambda x: F.layer_norm(x, x.shape[-1:]), torch.empty(1, 70_001)),
    "layer norm, two dims": (lambda x: F.layer_norm(x, x.shape[-2:]), torch.empty(3, 19, 37)),
    "group norm": (lambda x: F.group_norm(x, 3), torch.empty(2, 9, 13, 17)),
    "group norm, channels last": (lambda x: F.group_norm(x, 3), channels_last(2, 9, 13, 17)),
    "few channels, channels last": (lambda x: F.group_norm(x, 16), channels_last(2, 48, 13, 17)),
    "batch norm": (batch_norm, torch.empty(5, 7, 13, 11)),
    "batch norm, channels last": (batch_norm, channels_last(5, 7, 13, 11)),
    "batch norm of rows": (batch_norm, torch.empty(3001, 7)),
    "variance": (lambda x: x.var(-1), torch.empty(9, 3001)),
    "variance of columns": (lambda x: x.var(0), torch.empty(3001, 9)),
    "variance of all": (lambda x: x.var(), torch.empty(301, 91)),
}


@pytest.mark.parametrize("options", [CPU, TRITON], ids=["cpu", "triton"])
@pytest.mark.parametrize("name", some(NORMS, 5))
def test_equal_values(name: str, options: dict[str, Any]) -> None:
    fn, x = NORMS[name]
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", options=options)
    for value in (0.1, -1.23e4, 3.3e-5):
        x.fill_(value)
        # One unit of the value in the last place may be left of it, before it is scaled.
        unit = 2**-23 * abs(value)
        most = unit**2 if "variance" in name else unit / (unit**2 + 1e-5) ** 0.5
        assert compiled(x).abs().max() <= (0 if value == 0.1 else most), value


# Computed from 16 bits, with all the digits of 32.
WIDENED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a power": lambda x: F.layer_norm(x.float().exp(), x.shape[-1:]),
    "a product": lambda x: F.group_norm(x.float() * 1000.1, 3),
    "a quotient": lambda x: (x.float() / 255).var(-1),
    "a sum of two": lambda x: F.layer_norm(x.float() + x.flip(0).float() / 3, x.shape[-1:]),
}


@pytest.mark.parametrize("options", [CPU, TRITON], ids=["cpu", "triton"])
@pytest.mark.parametrize("name", WIDENED)
def test_equal_values_computed_from_narrower_ones(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(WIDENED[name], backend="litz", options=options)
    for value in (9.0, 0.1):
        x = torch.full((3, 3003), value, dtype=torch.bfloat16)
        assert compiled(x).abs().max() == 0


NARROW = (
    (torch.int16, 32767, 1001),
    (torch.int16, 1237, 16001),
    (torch.uint8, 255, 70001),
    (torch.bfloat16, 1004, 17001),
    (torch.float16, 1004, 16385),
)


# Seven of twenty: each of the values, both targets and both kinds of sizes, with several of each.
@pytest.mark.parametrize("case", some(product(NARROW, (False, True), (CPU, TRITON)), 7))
def test_so_many_narrow_values_that_their_sum_is_not(case: Any) -> None:
    (dtype, value, size), dynamic, options = case
    torch._dynamo.reset()

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), x.shape[-1:])

    compiled = torch.compile(norm, backend="litz", dynamic=dynamic, options=options)
    assert compiled(torch.full((2, size), value).to(dtype)).abs().max() == 0


@pytest.mark.parametrize("options", [CPU, TRITON], ids=["cpu", "triton"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 3e38])
def test_means_beyond_all_numbers(value: float, options: dict[str, Any]) -> None:
    """They stay infinite, also where their sum alone is beyond float32's range."""

    def means(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        running = torch.zeros(2)
        F.batch_norm(x, running, torch.ones(2), training=True)
        return running, torch.ops.aten.native_layer_norm(x[0, 1], [8], None, None, 1e-5)[1]

    torch.manual_seed(0)
    x = torch.randn(4, 2, 8, 8)
    x[1:3, 0, 2] = value
    x[0, 1, 3, -1] = value
    compiled = torch.compile(means, backend="litz", options=options)
    for layout in (torch.contiguous_format, torch.channels_last):
        torch._dynamo.reset()
        mine, eager = compiled(x.to(memory_format=layout)), means(x)
        if isfinite(value):
            assert torch.isfinite(mine[1]).all()
            mine, eager = (mine[0][1:], *mine[1:]), (eager[0][1:], *eager[1:])
        for a, e in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
