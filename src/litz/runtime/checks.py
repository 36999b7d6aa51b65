"""Comparing what an operator is handed with what PyTorch's metadata says of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.errors import VerificationError

Stated = tuple[str, torch.Tensor, torch.dtype, torch.device, tuple[int | None, ...], int]


def check_call(operator: str, nodes: Sequence[str], stack: str, *handed: Stated) -> None:
    """Raise VerificationError with the first tensor that is not as the metadata has it.

    nodes, stack: the graph nodes of the call and the user's lines.  handed: for each tensor the
    graph node's name, itself, and its dtype, device, strides (None: any) and alignment in bytes
    (1: any) by the metadata.
    """
    for name, value, dtype, device, strides, alignment in handed:
        fault = _fault(value, dtype, device, strides, alignment)
        if fault:
            raise VerificationError(
                f"{operator} is handed another tensor than PyTorch traced",
                kernel=operator,
                nodes=tuple(nodes),
                detail=f"its argument {name} {fault}",
                user_stack=stack,
            )


def _fault(
    value: torch.Tensor,
    dtype: torch.dtype,
    device: torch.device,
    strides: tuple[int | None, ...],
    alignment: int,
) -> str:
    if value.dtype is not dtype:
        return f"has the type {value.dtype}, not {dtype}"
    if value.device != device:
        return f"is on {value.device}, not on {device}"
    if value.numel() == 0:
        return ""
    pairs = zip(value.stride(), strides, strict=True)
    if any(want is not None and st != want for st, want in pairs):
        wanted = ", ".join("?" if s is None else str(s) for s in strides)
        return f"has the strides {list(value.stride())}, not [{wanted}]"
    if value.data_ptr() % alignment:
        return f"does not begin at a multiple of {alignment} bytes"
    return ""
