"""What operators are handed, for who checks a run."""

from __future__ import annotations

import torch

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir.program import TensorRef

ALIGNED = 16
"""Bytes of which PyTorch's allocators hand out multiples, and that vector loads want."""


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
