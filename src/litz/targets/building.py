"""Building kernels: C++ by the machine's compiler, Triton by its workers, both beside the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from litz.artifact import SegmentTable
from litz.errors import OutOfRangeError, ToolchainError
from litz.host.segment import bind_segments
from litz.logs import events
from litz.options import Options
from litz.runtime.cache import Cache
from litz.runtime.native import Fault, Function, Library, Runtime
from litz.targets.cpp.render import joined
from litz.targets.cpp.toolchain import (
    BuildHandle,
    SourceUnit,
    Toolchain,
    find_toolchain,
    runtime_unit,
    submit,
)
from litz.targets.records import Part

# By the numbers that kernels report: a bad index is 1, a divisor of zero 2, both together 3.
INDEX_FAULT: Fault = (OutOfRangeError, "index out of range in a compiled kernel")
ZERO_FAULT: Fault = (RuntimeError, "ZeroDivisionError in a compiled kernel")
FAULTS = (INDEX_FAULT, ZERO_FAULT, INDEX_FAULT)

Callables = dict[str, Callable[..., None]]


@lru_cache(maxsize=8)
def cache_of(folder: str, mebibytes: int) -> Cache:
    """The disk cache that the options name."""
    return Cache(folder or None, mebibytes << 20)


@lru_cache(maxsize=8)
def toolchain_of(cxx: str, isa: str, cache: Cache) -> Toolchain:
    """The C++ compiler that the options name.  Raises ToolchainError where there is none."""
    return find_toolchain(cxx or None, isa or None, cache)


@dataclass(frozen=True)
class Tools:
    """Where kernels are built and kept; the C++ compiler is looked for when it is needed."""

    options: Options

    @property
    def cache(self) -> Cache:
        return cache_of(self.options.cache_dir, self.options.cache_size)

    @property
    def toolchain(self) -> Toolchain:
        return toolchain_of(self.options.cxx, self.options.isa, self.cache)

    def lanes(self) -> int:
        return self.toolchain.lanes_f32


@dataclass(frozen=True)
class Pile:
    """A translation unit and the kernels in it."""

    unit: SourceUnit
    kernels: tuple[str, ...]


def make_piles(kernels: Sequence[Part]) -> tuple[Pile, ...]:
    """Kernels spread over a few translation units of about equal length."""
    count = min(len(kernels), max(1, os.cpu_count() or 1))
    piles: list[list[Part]] = [[] for _ in range(count)]
    sizes = [0] * count
    for k in sorted(kernels, key=lambda k: (-len(k.source), k.name)):
        at = sizes.index(min(sizes))
        piles[at].append(k)
        sizes[at] += len(k.source)
    return tuple(
        Pile(
            SourceUnit(f"unit {n}", joined([(k.headers, k.source) for k in pile])),
            tuple(k.name for k in pile),
        )
        for n, pile in enumerate(piles)
    )


class Build:
    """All kernels of a graph being built; as a context it gives up on an error."""

    def __init__(self, kernels: Sequence[Part], tools: Tools) -> None:
        self._tools = tools
        self._piles = make_piles([k for k in kernels if k.triton is None])
        self._cpp = self._submit() if self._piles else None
        self._triton = _start_triton([k for k in kernels if k.triton is not None], tools)
        self.paths: tuple[Path, ...] = ()

    def _submit(self, *, fresh: bool = False) -> BuildHandle:
        options = self._tools.options
        units = (*(p.unit for p in self._piles), runtime_unit())
        jobs, seconds = options.jobs or None, options.cxx_timeout
        toolchain, cache = self._tools.toolchain, self._tools.cache
        return submit(units, toolchain, cache, jobs, seconds=seconds, fresh=fresh)

    def __enter__(self) -> Build:
        if self._cpp is not None:
            self._cpp.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._cpp is not None:
            self._cpp.__exit__(kind, error, trace)

    def wait(self) -> tuple[Path, ...]:
        """Block until the C++ units are built: their paths."""
        if self._cpp is not None:
            self.paths = tuple(self._cpp.wait())
        return self.paths

    def bind(self, segments: Sequence[SegmentTable]) -> Callables:
        """What the host program calls, by name."""
        out: Callables = {}
        if self._cpp is not None:
            try:
                out.update(self._native(segments))
            except ToolchainError as e:
                # Removed from the cache in the meantime, or put there by another kind of machine.
                events.info("the cached kernels are built again: %s", e)
                self._cpp = self._submit(fresh=True)
                self.wait()
                out.update(self._native(segments))
        out.update(self._triton())
        return out

    def _native(self, segments: Sequence[SegmentTable]) -> Mapping[str, Any]:
        *unit_paths, runtime_path = self.paths
        functions: dict[str, Function] = {}
        for pile, path in zip(self._piles, unit_paths, strict=True):
            library = Library(path)
            functions.update({k: library.function(k) for k in pile.kernels})
        faults: Mapping[str, tuple[Fault, ...]] = dict.fromkeys(functions, FAULTS)
        return bind_segments(segments, Runtime(runtime_path), functions, faults)


def _start_triton(kernels: Sequence[Part], tools: Tools) -> Callable[[], Callables]:
    """Start to build Triton kernels; the result waits for them and gives their launchers."""
    if not kernels:
        return dict
    made = [
        (k.name, k.triton, k.takes, k.device)
        for k in kernels
        if k.triton is not None and k.takes is not None
    ]
    if all(k.device.startswith("cpu") for k in kernels):
        from litz.targets.triton.interpreted import bind_interpreted

        return lambda: {name: bind_interpreted(x, takes) for name, x, takes, _ in made}
    from litz.targets.triton.cuda import start

    options = tools.options
    return start(made, tools.cache, options.jobs or None, options.tuning_seconds)
