"""The arguments of a launch of several calls: a table in the memory of parameters.

Imports Triton alone.  Under the interpreter, which has no such memory, ``table`` is the address of
what it would hold.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors
# ruff: noqa: I001

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import INTERPRETED


@triton.jit
def cell(table: tl.constexpr, at):
    """Number ``at`` of a kernel's arguments, of eight bytes each, of which ``table`` is the first.

    They lie behind each other in the memory of parameters, which a register may address.
    """
    return tl.inline_asm_elementwise(
        "{ .reg .b64 a; mov.u64 a, " + table + "; add.u64 a, a, $1; ld.param.u64 $0, [a]; }",
        "=l,l",
        [tl.cast(at, tl.int64) * 8],
        dtype=tl.int64,
        is_pure=True,
        pack=1,
    )


@triton.jit
def cell_in_memory(table, at):
    return tl.load(table + at)


@triton.jit
def later_row(table: tl.constexpr, first, room: tl.constexpr, half: tl.constexpr, row, program):
    """A step of the search for the last row that begins at a program or before it."""
    at = row + half
    start = cell(table, first + tl.minimum(at, room - 1))
    return tl.where((at < room) & (start <= program), at, row)


@triton.jit
def pointer(table: tl.constexpr, at, dtype: tl.constexpr, aligned: tl.constexpr):
    address = cell(table, at).to(tl.pointer_type(dtype))
    return tl.multiple_of(address, 16) if aligned else address


@triton.jit
def scalar(table: tl.constexpr, at, dtype: tl.constexpr):
    """An argument by value, in the low bytes of its cell."""
    bits = cell(table, at)
    if dtype == tl.float32:
        return bits.to(tl.int32).to(tl.float32, bitcast=True)
    elif dtype == tl.float64:
        return bits.to(tl.float64, bitcast=True)
    else:
        return bits.to(dtype)


if INTERPRETED:
    cell = cell_in_memory
