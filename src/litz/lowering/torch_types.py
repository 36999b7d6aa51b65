"""The border to torch: its element types against the IR's, and what has no public name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

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
}
TO_TORCH: Final[dict[d.DType, torch.dtype]] = {v: k for k, v in FROM_TORCH.items()}


def from_torch(dtype: torch.dtype) -> d.DType | None:
    """The IR's type, or None for types that only ATen handles (complex, quantised, fp8)."""
    return FROM_TORCH.get(dtype)


def to_torch(dtype: d.DType) -> torch.dtype:
    return TO_TORCH[dtype]


def promote(a: d.DType, b: d.DType) -> d.DType:
    return FROM_TORCH[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]


def takes_anything(type_: Any) -> bool:
    """Whether an argument of a schema's type may be anything: a graph, say."""
    return isinstance(type_, torch._C.AnyType)


@functools.cache
def slices_count_from_storage() -> bool:
    """Whether ``auto_functionalized_v2`` counts a slice's start from where the storage begins.

    It should from where the base does; PyTorch up to 2.13 confuses the two.
    """
    from torch._higher_order_ops.auto_functionalize import try_use_slice

    base = torch.empty(4, device="meta")[1:]
    slice_of: Any = try_use_slice
    found = slice_of(base, base[:2])
    return found is not None and found[1] == 1


def user_kernel(number: int, constants: int) -> tuple[Any, Mapping[str, object]]:
    """A user's Triton kernel and its constant arguments, by their numbers in Dynamo's table."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(number), kernel_side_table.get_constant_args(constants)
