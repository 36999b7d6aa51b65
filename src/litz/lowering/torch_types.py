"""The border to torch: its element types against the IR's."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch

from litz.ir import dtype as d

FROM_TORCH: Final[dict[torch.dtype, d.DType]] = {
    torch.bool: d.BOOL,
    torch.uint8: d.U8,
    torch.uint16: d.U16,
    torch.uint32: d.U32,
    torch.uint64: d.U64,
    torch.int8: d.I8,
    torch.int16: d.I16,
    torch.int32: d.I32,
    torch.int64: d.I64,
    torch.float16: d.F16,
    torch.bfloat16: d.BF16,
    torch.float32: d.F32,
    torch.float64: d.F64,
    torch.float8_e4m3fn: d.F8E4,
    torch.float8_e5m2: d.F8E5,
}
TO_TORCH: Final[dict[d.DType, torch.dtype]] = {v: k for k, v in FROM_TORCH.items()}


def from_torch(dtype: torch.dtype) -> d.DType | None:
    """The IR's type, or None for types that only ATen handles (complex, quantised, fp4)."""
    return FROM_TORCH.get(dtype)


def to_torch(dtype: d.DType) -> torch.dtype:
    return TO_TORCH[dtype]


@lru_cache(maxsize=1024)
def promote(a: d.DType, b: d.DType) -> d.DType:
    return FROM_TORCH[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]
