"""Norms of equal values: their mean is the value, so that nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

CPU: dict[str, Any] = {}
TRITON: dict[str, Any] = {"target": "triton"}


def channels_last(*shape: int) -> torch.Tensor:
    return torch.empty(shape).to(memory_format=torch.channels_last)


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


# (what should be zeros, an example of its input)
NORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), torch.empty(9, 31)),
    "layer norm, long rows": (lambda x: F.layer_norm(x, x.shape[-1:]), torch.empty(2, 70_001)),
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
@pytest.mark.parametrize("name", NORMS)
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
