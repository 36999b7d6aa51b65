"""Kernels to build, out of a compilation or out of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from litz.artifact import SegmentTable
from litz.dataclass import dataclass

if TYPE_CHECKING:
    from litz.targets.triton.source import TritonKernel

Callables = dict[str, Callable[..., None]]


@dataclass(frozen=True)
class CppPart:
    """A C++ kernel to build.  headers: what its source includes."""

    name: str
    source: str
    headers: tuple[str, ...]


@dataclass(frozen=True)
class TritonPart:
    """A Triton kernel to build."""

    name: str
    device: str
    kernel: TritonKernel


Part = CppPart | TritonPart


class Builds(Protocol):
    """Kernels of one target being built."""

    def cancel(self) -> None:
        """Give up what is still under way."""
        ...

    def wait(self) -> None:
        """Block until what has to be built before it is bound is there."""
        ...

    def bind(self, segments: Sequence[SegmentTable]) -> Callables:
        """What the host program calls, by name."""
        ...
