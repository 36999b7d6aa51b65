"""Constants that no decimal number says, and the bits that do."""

from __future__ import annotations

import math
import struct

from litz.ir.dtype import DType


def is_undecimal(value: float) -> bool:
    """Whether no decimal number says a constant for every target: the negative zero, each nan."""
    return math.isnan(value) or value == 0 and math.copysign(1.0, value) < 0


def signed_bits(value: float, dtype: DType) -> int:
    """The bits of a constant that ``dtype`` holds, as a signed integer.

    A nan of 16 bits is the one that eager's casts make.
    """
    bits = dtype.bits
    if dtype.name == "f16" and not math.isnan(value):
        code = ">e"
    else:
        code = ">d" if bits == 64 else ">f"
    whole = int.from_bytes(struct.pack(code, value), "big")
    if dtype.name == "bf16":
        whole = 0x7FC0 if math.isnan(value) else whole >> 16
    elif dtype.name == "f16" and math.isnan(value):
        whole = whole >> 16 & 0x8000 | 0x7E00
    return whole - (1 << bits) if whole >> (bits - 1) else whole
