"""Where the values of a graph lie in memory: lowering knows, a checker at run time wants it."""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.program import TensorRef


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
