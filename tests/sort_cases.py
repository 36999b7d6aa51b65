"""Sorts that both targets' tests call, and tensors with all that is special in a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

OPS: dict[str, Callable[..., Any]] = {
    "sort": lambda x, d: torch.sort(x, stable=True, dim=d),
    "descending": lambda x, d: torch.sort(x, stable=True, dim=d, descending=True),
    "values": lambda x, d: torch.sort(x, dim=d).values,
    "argsort": lambda x, d: torch.argsort(x, dim=d, stable=True),
    "topk": lambda x, d: torch.topk(x, 5, d).values,
    "smallest": lambda x, d: torch.topk(x, 3, d, largest=False).values,
    "kthvalue": lambda x, d: torch.kthvalue(x, 4, d).values,
    "median": lambda x, d: torch.median(x, d, keepdim=True).values,
    "nanmedian": lambda x, d: torch.nanmedian(x, d).values,
}
TYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16,
    torch.int32,
)  # fmt: skip


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    """Many equal values, zeros of both signs, infinities and nans among them."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 9, shape, generator=g).to(torch.float32)
    if not dtype.is_floating_point:
        return (x * 13).to(dtype)
    draws = torch.rand(shape, generator=g)
    for i, special in enumerate((-0.0, 0.0, math.inf, -math.inf, math.nan, -math.nan)):
        x = torch.where((draws > 0.04 * i) & (draws < 0.04 * i + 0.04), special, x)
    return torch.where(draws > 0.8, x / 7, x).to(dtype)
