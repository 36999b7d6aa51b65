"""Numbers that host programs compute for kernels."""

from __future__ import annotations

import struct

_PACK = struct.Struct("=d").pack
_UNPACK = struct.Struct("=q").unpack


def float_bits(value: float) -> int:
    """The bits of a double as a signed integer, in which form kernels take floats."""
    bits: int = _UNPACK(_PACK(value))[0]
    return bits
