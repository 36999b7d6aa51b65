"""What ``litz doctor`` runs on a GPU: against a stand-in for the driver, and on a real one."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda

pytest.importorskip("triton")

from litz.errors import ToolchainError  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.driver import Driver  # noqa: E402
from litz.targets.triton.cuda import Site  # noqa: E402
from litz.tools.doctor import look_here  # noqa: E402
from litz.tools.machine import _build  # noqa: E402


def stored(fake: FakeCuda, cache: Cache) -> float:
    device = Driver(fake).device(0)
    fake.stack[:] = [device.context]
    site = Site(device, lambda: 7, lambda n: torch.empty(n), cache)
    return _build(cache, site, "cpu")


def test_a_kernel_that_stores_nothing(tmp_path: Path) -> None:
    fake = FakeCuda((ctypes.c_uint64,) * 3)
    with pytest.raises(ToolchainError, match="stored 0"):
        stored(fake, Cache(tmp_path))
    (launched,) = fake.launches
    assert launched.grid == (1, 1, 1) and launched.stream == 7


def test_a_kernel_that_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.full((1,), 42, dtype=torch.int32)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: there)
    fake = FakeCuda((ctypes.c_uint64,) * 3)
    assert stored(fake, Cache(tmp_path)) > 0
    assert fake.launches[0].arguments[0] == there.data_ptr()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_machine_with_a_gpu() -> None:
    found = {c.name: c for c in look_here()}
    for name in ("GPUs", "Triton kernel", "torch.compile, cuda"):
        assert found[name].state == "ok", found[name]
    assert "built and ran" in found["Triton kernel"].found
    assert "CUDA" in found["GPUs"].found
