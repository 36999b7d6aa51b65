"""Every kernel of the corpus builds for a GPU that is not there."""

from __future__ import annotations

from functools import cache as cached
from typing import Any

import pytest
import torch

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from test_interpreted import CORPUS, TRITON  # noqa: E402

import litz  # noqa: E402
from litz.kernel.blocks import choose  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import KernelBuild, submit  # noqa: E402
from litz.runtime.triton.job import Binary, KernelJob  # noqa: E402
from litz.targets.triton.cuda import default_configs, job_of, likely_jobs  # noqa: E402
from litz.targets.triton.source import TritonKernel  # noqa: E402
from tests.quick import some

H200 = ("cuda", 90, 32)
SHARED = 227 << 10  # bytes that a block of an H200 can have


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Empty at first: nothing that an earlier run built is taken for granted."""
    return Cache(tmp_path_factory.mktemp("binaries"))


@cached
def kernels(name: str, **options: Any) -> tuple[TritonKernel, ...]:
    fn, args = CORPUS[name]
    graphs = litz.explain(fn, *args, options={**TRITON, **options}).graphs
    return tuple(k.triton for g in graphs for k in g.stages.kernels if k.triton is not None)


def check(made: KernelBuild, jobs: list[KernelJob]) -> None:
    for job, binary in zip(jobs, made.wait(), strict=True):
        assert binary.entry == job.name
        # A block fits on the machine, and what a thread holds fits in its registers.
        assert binary.shared <= SHARED, job.name
        registers, local = resources(binary.code)
        assert 32 * binary.num_warps * registers <= 65536, job.name
        assert local == 0, f"{job.name} spills {local} bytes a thread"
        assert len(binary.params) - len(job.arguments) in (0, 2), job.name


@pytest.mark.parametrize("name", some(CORPUS, 20))
def test_default_configurations(name: str, cache: Cache) -> None:
    found = kernels(name)
    assert found or name == "empty"
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    check(submit(jobs, cache, 2), jobs)


@pytest.mark.parametrize("name", ["gelu_bf16", "softmax_long_rows", "permuted", "layer_norm"])
def test_block_pointers(name: str, cache: Cache) -> None:
    found = kernels(name, block_pointers=True)
    assert any("tl.make_block_ptr" in x.source for k in found for x in k.launches)
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    check(submit(jobs, cache, 2), jobs)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x: (x * x).sum(1), [(0, 3)]),
        (lambda x, y: torch.maximum(x, y) + 0, [(2, 2, 0), (0,)]),
        (lambda x: x[97].fill_(1), [(130, 0, 1)]),
        (torch.ops.aten._adaptive_avg_pool2d_backward, [(0, 8, 1, 5), (0, 8, 1, 8)]),
    ],
)
def test_results_without_elements_need_no_kernel(fn: Any, shapes: Any) -> None:
    graphs = litz.explain(fn, *map(torch.ones, shapes), options=TRITON).graphs
    found = [k.triton for g in graphs for k in g.stages.kernels]
    assert found and all(k is not None and not k.launches for k in found)


def test_reductions_of_nothing(cache: Cache) -> None:
    x = torch.ones(3, 0)
    graphs = litz.explain(lambda x: ((x * x).sum(1), x.exp()), x, options=TRITON).graphs
    found = [k.triton for g in graphs for k in g.stages.kernels if k.triton is not None]
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    assert jobs
    check(submit(jobs, cache, 2), jobs)


def test_counters_of_64_bits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "is_wide", lambda plan: True)
    fn, args = CORPUS["index_put_int8"]
    graphs = litz.explain(fn, *args, options=TRITON).graphs
    found = [k.triton for g in graphs for k in g.stages.kernels if k.triton is not None]
    assert any("for x0_ in range" in x.source for k in found for x in k.launches)
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    check(submit(jobs, cache, 2), jobs)


def test_block_pointers_go_back_for_the_next_pass(cache: Cache) -> None:
    (kernel,) = kernels("softmax_long_rows", block_pointers=True)
    (launch,) = kernel.launches
    moves = [x.strip() for x in launch.source.splitlines() if "tl.advance" in x]
    assert any("RBLOCK" in x and "-(" not in x for x in moves)
    assert any("-(" in x for x in moves)


@pytest.mark.parametrize("name", ["gelu_bf16", "softmax_wide", "columns", "layer_norm"])
def test_many_configurations(name: str, cache: Cache) -> None:
    found = kernels(name, mode="max-autotune-no-cudagraphs")
    few = kernels(name)
    pairs = zip(found, few, strict=True)
    assert any(len(a.launches[0].configs) > len(b.launches[0].configs) for a, b in pairs)
    jobs = [job_of(x, c, H200, "aligned") for k in found for x in k.launches for c in x.configs]
    some = jobs[:: max(1, len(jobs) // 8)]
    made = submit(some, cache, 2).outcomes()
    assert sum(isinstance(b, Binary) for b in made) >= len(some) - 1


@pytest.mark.parametrize(
    "name", ["gelu_bf16", "softmax_wide", "permuted", "columns_long", "embedding"]
)
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


def test_a_load_stays_inside_along_every_axis_of_its_condition() -> None:
    """``r == x + 1`` holds for one point beyond the last row, if a block has it."""
    x = torch.ones(5, 5)
    graphs = litz.explain(lambda x: torch.diag_embed(x, 1).amax(2), x, options=TRITON).graphs
    sources = [k.source for g in graphs for k in g.stages.kernels]
    loads = [line for s in sources for line in s.splitlines() if "tl.load(" in line]
    assert loads and all("rmask" in line and "xmask" in line for line in loads)


def test_of_rows_of_which_there_is_at_most_one_no_index_is_left(cache: Cache) -> None:
    """The pointer to one number has the shape of its mask: Triton refuses others."""

    def picked(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.nonzero(mask)[:, 0]
        return x[rows].sin(), torch.zeros_like(x).index_copy(0, rows, x[rows].exp()), rows * 2

    x = torch.ones(1, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graphs = litz.explain(picked, x, x[:, 0] > 0, options=TRITON).graphs
    found = [k.triton for g in graphs for k in g.stages.kernels if k.triton is not None]
    jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
    assert jobs and len(submit(jobs, cache, 2).wait()) == len(jobs)


def test_hyperbolic_tangents_of_both_widths(cache: Cache) -> None:
    for x in (torch.ones(9), torch.ones(9, dtype=torch.float64), torch.ones(())):
        (graph,) = litz.explain(lambda x: x.tanh(), x, options=TRITON).graphs
        found = [k.triton for k in graph.stages.kernels if k.triton is not None]
        jobs = [job for k in found for job in likely_jobs(k, default_configs(k), H200)]
        assert jobs
        check(submit(jobs, cache, 2), jobs)
