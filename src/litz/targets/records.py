"""Kernels as building takes them: out of a compilation, or out of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litz import artifact
from litz.targets.kernels import Kernel

if TYPE_CHECKING:
    from litz.targets.triton.source import Interface, TritonKernel


@dataclass(frozen=True)
class Part:
    """A kernel to build.

    source, headers: of C++.  triton: its launches, unless it is C++, and what these take.
    """

    name: str
    device: str
    source: str
    headers: tuple[str, ...] = ()
    triton: TritonKernel | None = None
    takes: Interface | None = None


def part_of(kernel: Kernel) -> Part:
    """A kernel that has just been printed."""
    return Part(
        kernel.name, kernel.device, kernel.source, kernel.headers, kernel.triton, kernel.plan
    )


def part_from(kernel: artifact.Kernel) -> Part:
    """A kernel of an artifact."""
    if kernel.language == "c++":
        return Part(kernel.name, kernel.device, kernel.sources[0], kernel.headers)
    from litz.targets.triton.record import kernel_of  # the CPU does without it

    made, takes = kernel_of(kernel.launches, kernel.sources)
    return Part(kernel.name, kernel.device, "", (), made, takes)


def record(kernel: Kernel, origins: Mapping[str, tuple[str, ...]]) -> artifact.Kernel:
    """A kernel as an artifact has it.  origins: graph nodes of each group of the schedule."""
    groups = tuple((g, origins.get(g, ())) for g in kernel.groups)
    name, device = kernel.name, kernel.device
    if kernel.triton is None:
        return artifact.Kernel(name, "c++", device, (kernel.source,), kernel.headers, {}, groups)
    from litz.targets.triton.record import launches_of

    launches = launches_of(kernel.triton, kernel.plan)
    return artifact.Kernel(name, "triton", device, kernel.triton.sources(), (), launches, groups)
