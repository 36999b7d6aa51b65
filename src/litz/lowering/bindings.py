"""What lowering knows and checkers of a run want: where values lie, what operators are handed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.index import Expr
from litz.ir.program import TensorRef

ALIGNED = 16
"""Bytes of which PyTorch's allocators hand out multiples, and that vector loads want."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The value of a graph node (result ``position`` of several) lies at ``ref``.

    It does once the program nodes before number ``ready`` have run, and until a later one writes
    the same memory.  whole: the buffer is opaque, so its tensor is the value.
    """

    node: str
    position: int | None
    ref: TensorRef
    ready: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Stated:
    """One tensor that an operator is handed, and how the metadata of graph node ``node`` has it.

    strides: in elements; None where any will do.
    aligned: whether it begins at a multiple of 16 bytes.
    """

    node: str
    ref: TensorRef
    dtype: torch.dtype
    device: str
    strides: tuple[Expr | None, ...]
    aligned: bool


@dataclass(frozen=True, slots=True)
class Handed:
    """What one operator is handed.  stack: the user's lines that call it."""

    tensors: tuple[Stated, ...]
    stack: str = ""
