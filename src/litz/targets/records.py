"""Kernels as an artifact has them, and as building takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from litz import artifact
from litz.targets.parts import CppPart, Part, TritonPart

if TYPE_CHECKING:
    from litz.targets.kernels import Kernel


def part_of(kernel: Kernel) -> Part:
    """A kernel that has just been printed."""
    if kernel.triton is None:
        return CppPart(kernel.name, kernel.source, kernel.headers)
    return TritonPart(kernel.name, kernel.device, kernel.triton)


def part_from(kernel: artifact.Kernel) -> Part:
    """A kernel of an artifact."""
    if kernel.language == "c++":
        return CppPart(kernel.name, kernel.sources[0], kernel.headers)
    from litz.targets.triton.record import kernel_of  # the CPU does without it

    return TritonPart(kernel.name, kernel.device, kernel_of(kernel.launches, kernel.sources))


def record(kernel: Kernel, origins: Mapping[str, tuple[str, ...]]) -> artifact.Kernel:
    """A kernel as an artifact has it.  origins: graph nodes of each group of the schedule."""
    groups = tuple((g, origins.get(g, ())) for g in kernel.groups)
    sources: tuple[str, ...] = (kernel.source,)
    launches: dict[str, object] = {}
    if kernel.triton is not None:
        from litz.targets.triton.record import launches_of

        sources, launches = kernel.triton.sources(), launches_of(kernel.triton)
    language, headers = kernel.target.language, kernel.headers
    return artifact.Kernel(kernel.name, language, kernel.device, sources, headers, launches, groups)
