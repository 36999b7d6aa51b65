"""Seeds for generated kernels.

Random kernels are counter-based: a value is a function of (seed, position), so that it does not
depend on threads or on order.  The seed of each call comes out of PyTorch's generator:
`torch.manual_seed` makes a run reproducible, successive calls differ, and eager random ops that
stand between compiled ones see a generator that has moved on.
"""

from __future__ import annotations

import torch

from litz.runtime.torch_private import empty_strided_cpu

__all__ = ["draw_seed"]


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A fresh seed in [0, 2**63), drawn from PyTorch's default CPU generator or the one given."""
    # In-place random_() without bounds is the cheapest draw of 63 bits that is public.
    return int(empty_strided_cpu((), (), torch.int64).random_(generator=generator).item())
