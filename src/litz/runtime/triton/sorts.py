"""Sorts of integers along a block's last axis, in registers: bitonic networks (Batcher, 1968)."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import INTERPRETED


@triton.jit
def partner(x):
    """The other one of two elements along axis 1."""
    return x ^ tl.xor_sum(x, 1, True)


@triton.jit
def exchanged(x, apart: tl.constexpr, level):
    """Elements that are ``apart`` put in order: one step.

    level: rows of 2 ** level elements are brought together, every second of them downwards.
    """
    rows: tl.constexpr = x.numel // (2 * apart)
    size: tl.constexpr = x.shape[-1]
    h = tl.reshape(x, [rows, 2, apart])
    other = partner(h)
    right = tl.reshape(tl.arange(0, 2), [1, 2, 1])
    down = (((tl.arange(0, rows) * (2 * apart)) & (size - 1)) >> level) & 1
    swap = (other < h) ^ ((right ^ tl.reshape(down, [rows, 1, 1])) != 0)
    return tl.reshape(tl.where(swap, other, h), x.shape)


@triton.constexpr_function
def levels_of(size):
    return size.bit_length() - 1


@triton.jit
def sort(x):
    """Integers in ascending order along the last axis.

    Straight code for all steps is quickest, but of a long row takes a compiler seconds: there,
    levels are turns of a loop.
    """
    levels: tl.constexpr = levels_of(x.shape[-1])
    if levels <= 7:
        for level in tl.static_range(1, levels + 1):
            for step in tl.static_range(level):
                x = exchanged(x, 1 << (level - 1 - step), level)
    else:
        for level in tl.range(1, levels + 1):
            for step in tl.static_range(levels):
                if level > levels - 1 - step:
                    x = exchanged(x, 1 << (levels - 1 - step), level)
    return x


if INTERPRETED:
    from litz.runtime.triton.interpreted import partner
