"""The memory of strided tensors: all from the first element to the last, gaps and overlaps too."""

from __future__ import annotations

import torch


def span(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory."""
    if x.numel() == 0:
        return 0
    return 1 + sum((n - 1) * st for n, st in zip(x.shape, x.stride(), strict=True))


def addresses(x: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte and of the one behind its last."""
    start = x.data_ptr()
    return start, start + span(x) * x.element_size()


def memory_of(x: torch.Tensor) -> torch.Tensor:
    """All that lies between a tensor's first element and its last, flat."""
    return x.detach().as_strided((span(x),), (1,))


def copy_as_it_is(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps."""
    return memory_of(x).clone().as_strided(x.shape, x.stride(), 0)
