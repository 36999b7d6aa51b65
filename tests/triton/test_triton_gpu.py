"""The Triton runtime on a real GPU; skips itself without one."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from test_ptx import JOB as SPLIT_JOB
from triton_samples import ADD_JOB

from litz.runtime.cache import Cache
from litz.runtime.torch_private import current_raw_stream, public_current_raw_stream
from litz.runtime.triton.build import build
from litz.runtime.triton.driver import CudaError, cuda_driver
from litz.runtime.triton.job import KernelJob
from litz.runtime.triton.launch import Launch, bind
from litz.runtime.tune import CudaClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
N = 1 << 20


def bound(cache: Cache, job: KernelJob = ADD_JOB, index: int = 0) -> Launch:
    device = cuda_driver().device(index)
    (binary,) = build([replace(job, target=device.properties.target)], cache)
    function = device.load(binary)
    return bind(function, job, partial(current_raw_stream, index))


def run(launch: Launch, n: int, shift: int = 0) -> None:
    a, b, out = (torch.rand(n + shift, device="cuda")[shift:] for _ in range(3))
    launch(-(-n // 512), 1, 1, a.data_ptr(), b.data_ptr(), out.data_ptr(), n)
    assert torch.equal(out, a + b)


def test_properties_are_pytorchs() -> None:
    mine = cuda_driver().device(0).properties
    theirs = torch.cuda.get_device_properties(0)
    assert mine.name == theirs.name
    assert mine.capability == (theirs.major, theirs.minor)


def test_launches(tmp_path: Path) -> None:
    launch = bound(Cache(tmp_path))
    for n in (1, 511, 512, N, N + 3):
        run(launch, n)
    run(bound(Cache(tmp_path), replace(ADD_JOB, divisible=())), 1000, shift=1)


def test_indices_that_are_counted_in_16_bits(tmp_path: Path) -> None:
    """See ``test_ptx``."""
    x, y = torch.rand(8192, device="cuda"), torch.zeros(4900, device="cuda")
    bound(Cache(tmp_path), SPLIT_JOB)(1, 1, 1, x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x[:4900].reshape(7, 100, 7).transpose(0, 1).flatten())


def test_streams(tmp_path: Path) -> None:
    launch = bound(Cache(tmp_path))
    side = torch.cuda.Stream()
    assert current_raw_stream(0) == public_current_raw_stream(0)
    with torch.cuda.stream(side):
        assert current_raw_stream(0) == side.cuda_stream
        run(launch, N)
    side.synchronize()


def test_a_new_thread(tmp_path: Path) -> None:
    launch = bound(Cache(tmp_path))
    a, b = torch.rand(N, device="cuda"), torch.rand(N, device="cuda")
    out = torch.zeros(N, device="cuda")
    pointers = [t.data_ptr() for t in (a, b, out)]
    # Nothing has made a context current in that thread.
    thread = threading.Thread(target=launch, args=(N // 512, 1, 1, *pointers, N))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(out, a + b)


def test_a_grid_that_is_too_large(tmp_path: Path) -> None:
    launch = bound(Cache(tmp_path))
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(1, 70000, 1, 0, 0, 0, 0)
    run(launch, N)


def test_the_clock_and_the_cost_of_a_launch(tmp_path: Path) -> None:
    launch = bound(Cache(tmp_path))
    a, b, out = (torch.rand(N, device="cuda") for _ in range(3))
    args = (N // 512, 1, 1, a.data_ptr(), b.data_ptr(), out.data_ptr(), N)
    times = CudaClock(0).measure(lambda: launch(*args), 5)
    assert len(times) == 5 and all(1e-6 < t < 1e-2 for t in times)
    small = (1, *args[1:])
    best = 1.0
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            launch(*small)
        best = min(best, (time.perf_counter() - start) / 200)
    print(f"a launch costs the host {1e6 * best:.2f} us")
    assert best < 20e-6
