"""Tensors of a size and a layout, and what a case calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LAYOUTS = ("plain", "odd", "transposed", "sliced", "broadcast", "batch1", "channels_last")


@dataclass(frozen=True)
class Job:
    """A call.  training: it gives a scalar, and a step is that and the leaves' gradients."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    training: bool = False


@dataclass(frozen=True)
class Place:
    """What a builder is given.  size: about how many elements the largest input has."""

    size: int
    dtype: torch.dtype
    layout: str
    device: str

    def sides(self) -> tuple[int, int]:
        """Rows and columns; at most 2^15 columns, odd numbers for "odd", one row for "batch1"."""
        if self.layout == "batch1":
            return 1, self.size
        columns = min(1 << max(self.size.bit_length() // 2, 0), 1 << 15) if self.size > 1 else 1
        rows = max(self.size // columns, 1)
        return (rows - 1 | 1, columns + 1 | 1) if self.layout == "odd" else (rows, columns)

    def make(
        self, *shape: int, low: float = -3.0, high: float = 3.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Uniformly drawn elements, contiguous; low and high are whole numbers for integers."""
        kind = dtype or self.dtype
        if kind is torch.bool:
            return torch.rand(shape, device=self.device) < 0.5
        if not kind.is_floating_point and not kind.is_complex:
            return torch.randint(int(low), int(high) + 1, shape, device=self.device, dtype=kind)
        if kind.is_complex:
            return torch.randn(shape, device=self.device, dtype=kind)
        return torch.empty(shape, device=self.device).uniform_(low, high).to(kind)

    def matrix(self, low: float = -3.0, high: float = 3.0) -> Tensor:
        """Rows and columns in the place's layout."""
        return self.laid_out(self.sides(), low, high)

    def laid_out(self, shape: tuple[int, ...], low: float = -3.0, high: float = 3.0) -> Tensor:
        *outer, last = shape
        if self.layout == "transposed":
            return self.make(*outer[:-1], last, outer[-1], low=low, high=high).transpose(-1, -2)
        if self.layout == "sliced":
            return self.make(*outer, last + 9, low=low, high=high)[..., 1 : last + 1]
        if self.layout == "broadcast":
            return self.make(last, low=low, high=high).expand(shape)
        made = self.make(*shape, low=low, high=high)
        wants = self.layout == "channels_last" and len(shape) == 4
        return made.contiguous(memory_format=torch.channels_last) if wants else made

    def image(self, channels: int = 32, least: int = 4) -> Tensor:
        """N x C x H x W: about as many elements, never smaller than ``least`` a side."""
        batch = 1 if self.layout == "batch1" else 4
        side = max(math.isqrt(max(self.size // (batch * channels), 1)), least)
        side |= self.layout == "odd"
        return self.laid_out((batch, channels, side, side))

    def indices(self, end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, device=self.device)


def leaf(t: Tensor) -> Tensor:
    """The tensor, in the same layout, as something that wants a gradient."""
    return t.detach().requires_grad_()
