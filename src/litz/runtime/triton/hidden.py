"""The helpers, with reductions that Triton's passes do not look beyond.

Its passes (3.6) break some kernels where they move layouts across one: such kernels are compiled
again with this module in the helpers' place.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from litz.runtime.triton import helpers
from litz.runtime.triton.helpers import *  # noqa: F403


@triton.jit
def sum(x, axis: tl.constexpr):
    return helpers.opaque(helpers.sum(x, axis))


@triton.jit
def prod(x, axis: tl.constexpr):
    return helpers.opaque(helpers.prod(x, axis))


@triton.jit
def max(x, axis: tl.constexpr):
    return helpers.opaque(helpers.max(x, axis))


@triton.jit
def min(x, axis: tl.constexpr):
    return helpers.opaque(helpers.min(x, axis))
