"""Every kernel of the corpus builds for a GPU that is not there."""

from __future__ import annotations

from functools import cache as cached

import pytest

pytest.importorskip("triton.language")

from test_interpreted import CORPUS, TRITON  # noqa: E402

import litz  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import Build, submit  # noqa: E402
from litz.runtime.triton.job import KernelJob  # noqa: E402
from litz.targets.triton.cuda import default_configs, job_of, likely_jobs  # noqa: E402
from litz.targets.triton.source import TritonKernel  # noqa: E402

H200 = ("cuda", 90, 32)
SHARED = 227 << 10  # bytes that a block of an H200 can have


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Empty at first: nothing that an earlier run built is taken for granted."""
    return Cache(tmp_path_factory.mktemp("binaries"))


@cached
def kernels(name: str) -> tuple[TritonKernel, ...]:
    fn, args = CORPUS[name]
    graphs = litz.explain(fn, *args, options=TRITON).graphs
    return tuple(k.triton for g in graphs for k in g.stages.kernels if k.triton is not None)


def check(made: Build, jobs: list[KernelJob]) -> None:
    for job, binary in zip(jobs, made.wait(), strict=True):
        assert binary.entry == job.name
        # A block fits on the machine, and what a thread holds fits in its registers.
        assert binary.shared <= SHARED, job.name
        assert 32 * binary.num_warps * binary.registers <= 65536, job.name
        assert binary.local == 0, f"{job.name} spills {binary.local} bytes a thread"
        assert len(binary.params) - len(job.arguments) in (0, 2), job.name


@pytest.mark.parametrize("name", CORPUS)
def test_default_configurations(name: str, cache: Cache) -> None:
    found = kernels(name)
    assert found or name == "empty"
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    check(submit(jobs, cache, 2), jobs)


@pytest.mark.parametrize("name", ["gelu_bf16", "softmax_wide", "permuted", "columns", "embedding"])
def test_every_configuration_without_alignment(name: str, cache: Cache) -> None:
    jobs = [
        job_of(launch, config, H200, "general")
        for k in kernels(name)
        for launch in k.launches
        for config in launch.configs
    ]
    assert len(jobs) > 1
    check(submit(jobs, cache, 2), jobs)


def test_kernels_that_check_indices_can_stop(cache: Cache) -> None:
    for name, checks in (("embedding", True), ("gelu_bias", False)):
        (kernel,) = kernels(name)
        jobs = likely_jobs(kernel, default_configs(kernel), H200)
        (binary,) = submit(jobs, cache, 2).wait()
        assert kernel.launches[0].checks == checks
        # The assertion's message is in the code only where the assertion is.
        assert (b"index out of range" in binary.code) == checks
