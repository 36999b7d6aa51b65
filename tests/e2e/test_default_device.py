"""Another default device than the CPU moves nothing of what compiled programs need on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

X = torch.randn(4, 3, 8, 8)
CLASSES = torch.arange(96) % 8

PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: (F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.interpolate(x, size=(5, 5))),
    lambda x: x.var((0, 2, 3)) + x.softmax(-1).sum(),
    lambda x: F.cross_entropy(x.reshape(96, 8), CLASSES),
    lambda x: x.cumsum(0) + x.sort(-1)[0].exp().sum((0, 1)),
    lambda x: (x - x.mean()).pow(2).mean((0, 1)).sqrt() + x.amax(),
    lambda x: F.dropout(x, 0.0) @ torch.ones(8, 5, device="cpu"),
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_memory_of_the_host_stays_there(fn: Callable[[torch.Tensor], Any]) -> None:
    torch._dynamo.reset()
    with torch.device("meta"):
        got = torch.compile(fn, backend="litz", fullgraph=True)(X)
    torch.testing.assert_close(got, fn(X))
