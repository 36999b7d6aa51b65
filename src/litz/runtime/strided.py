"""The memory of strided tensors: all from the first element to the last, gaps and overlaps too."""

from __future__ import annotations

import torch

ALIGNED = 16  # bytes that kernels of libraries read at once


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


def aligned(x: torch.Tensor) -> torch.Tensor:
    """A tensor, or a copy with the same strides if it begins at no multiple of 16 bytes."""
    return copy_as_it_is(x) if x.data_ptr() % ALIGNED else x


def why_not_told(x: torch.Tensor) -> str:
    """Why a tensor is more than elements in memory; "" if it is not."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return f"a constant of it is a {type(x).__name__}"
    if x.layout is not torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
        return "a constant of it is no plain tensor"
    if x.device.type not in ("cpu", "cuda"):
        return f"a constant of it is on {x.device}"
    return ""
