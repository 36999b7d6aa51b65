from __future__ import annotations

from pathlib import Path

import pytest

from litz.runtime.cache import Cache
from litz.runtime.native import Runtime
from litz.targets.cpp.toolchain import Toolchain, build, find_toolchain, runtime_unit


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def runtime(toolchain: Toolchain, shared_cache: Cache) -> Runtime:
    return Runtime(build([runtime_unit()], toolchain, shared_cache)[0])


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
