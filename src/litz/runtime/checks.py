"""Comparing what an operator is handed with what PyTorch's metadata says of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.errors import VerificationError
from litz.runtime.arguments import fault_of, stride_fault

Stated = tuple[str, torch.Tensor, torch.dtype, torch.device, tuple[int | None, ...], int]


def check_call(operator: str, nodes: Sequence[str], stack: str, *handed: Stated) -> None:
    """Raise VerificationError with the first tensor that is not as the metadata has it.

    nodes, stack: the graph nodes of the call and the user's lines.  handed: for each tensor the
    graph node's name, itself, and its dtype, device, strides (None: any) and alignment in bytes
    (1: any) by the metadata.
    """
    for name, value, dtype, device, strides, alignment in handed:
        fault = fault_of(value, dtype, device) or stride_fault(value, strides)
        if not fault and value.numel() and value.data_ptr() % alignment:
            fault = f"does not begin at a multiple of {alignment} bytes"
        if fault:
            raise VerificationError(
                f"{operator} is handed another tensor than PyTorch traced",
                kernel=operator,
                nodes=tuple(nodes),
                detail=f"its argument {name} {fault}",
                user_stack=stack,
            )
