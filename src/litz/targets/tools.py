"""Where kernels are built and kept, by the options."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from litz.dataclass import dataclass
from litz.errors import ToolchainError
from litz.options import Options
from litz.runtime.cache import Cache
from litz.runtime.executor import Executor, check_torch
from litz.runtime.shipped import NOT_BUILT, shipped
from litz.targets.cpp.toolchain import (
    Toolchain,
    executor_unit,
    find_toolchain,
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


@lru_cache(maxsize=1)
def shipped_executor(path: Path) -> Executor:
    """The native executor that comes with Litz.  ToolchainError: it does not fit this PyTorch."""
    return Executor(path)


@lru_cache(maxsize=8)
def executor_of(toolchain: Toolchain, cache: Cache) -> Executor:
    """The native executor, built where the cache has none.

    Raises ToolchainError where it cannot be built, or does not fit this PyTorch.
    """
    check_torch()
    for fresh in (False, True):  # what the cache has may be another machine's
        (path,) = submit((executor_unit(),), toolchain, cache, fresh=fresh).wait()
        try:
            return Executor(path)
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
    def executor(self) -> Executor:
        """The native executor; it is built now only for who insists on it.

        Raises ToolchainError where there is none.
        """
        path = shipped()
        if path is not None:
            return shipped_executor(path)
        if self.options.host != "native":
            raise ToolchainError(f"litz: {NOT_BUILT}")
        return executor_of(self.toolchain, self.cache)

    def lanes(self) -> int:
        return self.toolchain.lanes_f32
