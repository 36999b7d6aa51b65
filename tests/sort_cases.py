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


def parts(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def agree(
    fn: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False, **options: Any
) -> None:
    """Compiled results are eager's, bit by bit but for what nans hold and signs of equal zeros."""
    torch._dynamo.reset()
    compiled = torch.compile(
        fn, backend="litz", dynamic=dynamic, options={"check_ir": True, **options}
    )
    same(compiled(*args), fn(*args))


def same(found: Any, expected: Any) -> None:
    for a, b in zip(parts(found), parts(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.numel() == 0 or a.stride() == b.stride()
        assert torch.equal(torch.nan_to_num(a, 77.5), torch.nan_to_num(b, 77.5))


def signed(x: torch.Tensor) -> torch.Tensor:
    """What tells zeros apart by their signs."""
    return torch.where(x == 0, torch.copysign(torch.ones_like(x), x) / 64, x)
