"""Where kernels are built and kept, by the options."""

from __future__ import annotations

from functools import lru_cache

from litz.dataclass import dataclass
from litz.errors import ToolchainError
from litz.options import Options
from litz.runtime.cache import Cache
from litz.runtime.executor import Executor, check_torch, run_address
from litz.runtime.native import Runtime
from litz.targets.cpp.toolchain import (
    Toolchain,
    executor_unit,
    find_toolchain,
    runtime_unit,
    submit,
)


@lru_cache(maxsize=8)
def cache_of(folder: str, mebibytes: int) -> Cache:
    """The disk cache that the options name."""
    return Cache(folder or None, mebibytes << 20)


@lru_cache(maxsize=8)
def toolchain_of(cxx: str, isa: str, cache: Cache) -> Toolchain:
    """The C++ compiler that the options name.  Raises ToolchainError where there is none."""
    return find_toolchain(cxx or None, isa or None, cache)


@lru_cache(maxsize=8)
def executor_of(toolchain: Toolchain, cache: Cache) -> tuple[Executor, int]:
    """The native executor, built where the cache has none, and the address of what runs segments.

    Raises ToolchainError where it cannot be built, or does not fit this PyTorch.
    """
    check_torch()
    units = (executor_unit(), runtime_unit())
    for fresh in (False, True):  # what the cache has may be another machine's
        path, runtime_path = submit(units, toolchain, cache, fresh=fresh).wait()
        try:
            return Executor(path), run_address(Runtime(runtime_path))
        except ToolchainError:
            if fresh:
                raise
    raise AssertionError


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

    @property
    def executor(self) -> tuple[Executor, int]:
        return executor_of(self.toolchain, self.cache)

    def lanes(self) -> int:
        return self.toolchain.lanes_f32
