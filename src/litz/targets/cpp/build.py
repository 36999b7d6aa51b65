"""C++ kernels on their way to functions: a few translation units, segments that call them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litz.artifact import SegmentTable
from litz.dataclass import dataclass
from litz.errors import ToolchainError
from litz.loading.segments import bind_segments
from litz.logs import events
from litz.runtime.native import Function, Library, Runtime
from litz.runtime.shipped import shipped
from litz.targets.cpp.toolchain import (
    BuildHandle,
    SourceUnit,
    executor_unit,
    runtime_unit,
    submit,
)
from litz.targets.cpp.units import joined
from litz.targets.parts import Callables, CppPart
from litz.targets.tools import Tools


@dataclass(frozen=True)
class Unit:
    """A translation unit and the kernels in it."""

    source: SourceUnit
    kernels: tuple[str, ...]


def make_units(kernels: Sequence[CppPart], jobs: int = 0) -> tuple[Unit, ...]:
    """Kernels spread over a few translation units of about equal length.

    jobs: compilers that may run at once (0: one a core).  More units only read headers again.
    """
    count = min(len(kernels), jobs or os.cpu_count() or 1)
    spread: list[list[CppPart]] = [[] for _ in range(count)]
    sizes = [0] * count
    for k in sorted(kernels, key=lambda k: (-len(k.source), k.name)):
        at = sizes.index(min(sizes))
        spread[at].append(k)
        sizes[at] += len(k.source)
    return tuple(
        Unit(
            SourceUnit(f"unit {n}", joined([(k.headers, k.source) for k in some])),
            tuple(k.name for k in some),
        )
        for n, some in enumerate(spread)
    )


class CppBuild:
    """The C++ kernels of a graph being built."""

    def __init__(self, parts: Sequence[CppPart], tools: Tools) -> None:
        self._tools = tools
        self._units = make_units(parts, tools.options.jobs)
        self._handle = self._submit()
        self._paths: tuple[Path, ...] = ()

    def _submit(self, *, fresh: bool = False) -> BuildHandle:
        options = self._tools.options
        units = tuple(u.source for u in self._units)
        if shipped() is None:
            units = (*units, runtime_unit())
            if options.host == "native":  # beside the kernels; who loads it finds it in the cache
                units = (*units, executor_unit())
        jobs, seconds = options.jobs or None, options.cxx_timeout
        toolchain, cache = self._tools.toolchain, self._tools.cache
        return submit(units, toolchain, cache, jobs, seconds=seconds, fresh=fresh)

    def cancel(self) -> None:
        """Stop the compilers."""
        self._handle.cancel()

    def wait(self) -> None:
        """Block until all units are built."""
        self._paths = tuple(self._handle.wait())

    def bind(self, segments: Sequence[SegmentTable]) -> Callables:
        try:
            return dict(self._native(segments))
        except ToolchainError as e:
            # Removed from the cache in the meantime, or put there by another kind of machine.
            events.info("the cached kernels are built again: %s", e)
            self._handle = self._submit(fresh=True)
            self.wait()
            return dict(self._native(segments))

    def _native(self, segments: Sequence[SegmentTable]) -> Mapping[str, Any]:
        count = len(self._units)
        unit_paths, runtime_path = self._paths[:count], shipped() or self._paths[count]
        functions: dict[str, Function] = {}
        for unit, path in zip(self._units, unit_paths, strict=True):
            library = Library(path)
            functions.update({k: library.function(k) for k in unit.kernels})
        return bind_segments(segments, Runtime(runtime_path), functions)
