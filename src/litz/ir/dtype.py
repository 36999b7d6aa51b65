"""Element types of the IR.

A ``DType`` is a name and a few facts; it does not import torch, so that compile workers
can read programs without it.  The border to ``torch.dtype`` is ``litz.lowering.torch_types``.
"""

from __future__ import annotations

import math
import struct
from typing import Final, Literal

from litz.dataclass import dataclass

Kind = Literal["bool", "uint", "int", "float"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    name: the printed form (``f32``); bits: width in memory; kind: bool, uint, int or float.
    """

    name: str
    bits: int
    kind: Kind

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def opmath(self) -> DType:
        """The type arithmetic runs in: f32 for narrower floats, itself otherwise."""
        return F32 if self.kind == "float" and self.bits < 32 else self


BOOL: Final = DType("bool", 8, "bool")
U8: Final = DType("u8", 8, "uint")
U16: Final = DType("u16", 16, "uint")
U32: Final = DType("u32", 32, "uint")
U64: Final = DType("u64", 64, "uint")
I8: Final = DType("i8", 8, "int")
I16: Final = DType("i16", 16, "int")
I32: Final = DType("i32", 32, "int")
I64: Final = DType("i64", 64, "int")
F16: Final = DType("f16", 16, "float")
BF16: Final = DType("bf16", 16, "float")
F32: Final = DType("f32", 32, "float")
F64: Final = DType("f64", 64, "float")

ALL: Final = (BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64)
# 8-bit floats only lie in memory: bodies compute them from their bits, and back.
F8E4: Final = DType("f8e4m3", 8, "float")
F8E5: Final = DType("f8e5m2", 8, "float")
STORED: Final = (F8E4, F8E5)
BY_NAME: Final = {d.name: d for d in (*ALL, *STORED)}


def wrap(value: float, dtype: DType) -> float:
    """``value`` as an element of ``dtype``: integers wrap around (255 for -1 in u8), floats round.

    A bool, an int or a float, as the type is.
    """
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_int:
        low = int(value) & ((1 << dtype.bits) - 1)
        return low - (1 << dtype.bits) if dtype.kind == "int" and low >> (dtype.bits - 1) else low
    value = float(value)
    if dtype.bits == 64 or not math.isfinite(value):
        return value
    code = "<e" if dtype.name == "f16" else "<f"
    try:
        data = struct.pack(code, value)
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype.name == "bf16":
        bits = int.from_bytes(data, "little")
        data = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).to_bytes(4, "little")
    return float(struct.unpack(code, data)[0])
