"""Kernels for a GPU: their jobs, and which variant a launch takes, against a stand-in driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda, Launched, Timed

pytest.importorskip("triton.language")

from litz.index import const, floordiv, symbol, var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import BF16, F32, I64  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.blocks.recipe import Config  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import KernelBuild, build, submit  # noqa: E402
from litz.runtime.triton.driver import Driver  # noqa: E402
from litz.runtime.triton.job import KernelJob  # noqa: E402
from litz.targets.triton import tuned  # noqa: E402
from litz.targets.triton.cuda import (  # noqa: E402
    VARIANTS,
    Site,
    bind_cuda,
    default_configs,
    job_of,
    likely_jobs,
    likely_variant,
)
from litz.targets.triton.extents import extents  # noqa: E402
from litz.targets.triton.render import render  # noqa: E402
from litz.targets.triton.signature import int_type, pointer_type  # noqa: E402
from litz.targets.triton.source import Launch, TritonKernel  # noqa: E402
from litz.targets.triton.tuned import fastest_configs  # noqa: E402

H200 = ("cuda", 90, 32)
LARGE = 1 << 22  # elements: enough for blocks in which each thread has several
u64, i32 = ctypes.c_uint64, ctypes.c_int32


def scaled(n: Any) -> KernelPlan:
    """``b1 = b0 * 2`` over ``n`` elements."""
    x = var("x0", n)
    value = body.op("mul", body.load(F32, "b0", x), body.const(F32, 2.0))
    ints = () if isinstance(n, int) else (n,)
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    return KernelPlan((Dim(x, "p"),), params, ints, (Store("b1", x, value),), x)


def sized(hint: int, most: int | None = 1 << 20) -> Any:
    return symbol("s0", 2, most, hint)


class Room:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def data_ptr(self) -> int:
        return 0x5000


@pytest.fixture
def fake() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def site(fake: FakeCuda, tmp_path: Path) -> Site:
    device = Driver(fake).device(0)
    fake.stack[:] = [device.context]
    return Site(device, lambda: 0, Room, Cache(tmp_path))


def test_types_of_arguments() -> None:
    assert [pointer_type(t) for t in (F32, BF16, I64)] == ["*fp32", "*bf16", "*i64"]
    assert int_type(sized(7)) == "i32"
    assert int_type(sized(7, 1 << 31)) == "i64"
    assert int_type(sized(7, None)) == "i64"
    assert int_type(symbol("s1", 0, (1 << 31) - 1)) == "i32"
    assert int_type(symbol("s2", -(1 << 31) - 1, 5)) == "i64"


def test_integers_that_indices_are_computed_from_have_one_width() -> None:
    """One of open size in 64 bits beside a bounded one in 32: half of a sum would wrap around."""
    bounded, size, value = (
        symbol("s0", 2, 65535, 2),
        symbol("s1", 1, None, 7),
        symbol("s2", 0, None),
    )
    shifted = floordiv(size - bounded + 65533, 3) - 21842
    x = var("x0", bounded * shifted * shifted)
    read = body.op("add", body.load(I64, "b0", x), body.index(value))
    params = (Param("b0", I64, "in"), Param("b1", I64, "out"))
    plan = KernelPlan((Dim(x, "p"),), params, (bounded, size, value), (Store("b1", x, read),), x)
    (launch,) = render(choose(plan), "k").launches
    assert launch.int_types == ("i64", "i64", "i64")
    assert launch.narrow is not None and size in launch.reaches and bounded not in launch.reaches
    assert launch.narrow.int_types == ("i32", "i32", "i64")


def test_what_is_divided_in_a_loops_end_fits_or_64_bits_count() -> None:
    far, size = symbol("s0", 1, (1 << 31) - 1), symbol("s1", 1, None)
    divided = size - far + 1
    x = var("x0", floordiv(divided + 3, 3) + 1)
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    store = Store("b1", x, body.load(F32, "b0", x))
    plan = KernelPlan((Dim(x, "p"),), params, (far, size), (store,), x)
    (launch,) = render(choose(plan), "k").launches
    assert launch.narrow is not None and "2147483647" not in launch.narrow.source
    assert {divided, -divided} <= set(launch.reaches)


def test_jobs_of_variants() -> None:
    kernel = render(choose(scaled(sized(4096))), "k")
    (launch,) = kernel.launches
    jobs = {v: job_of(launch, launch.configs[0], H200, v) for v in VARIANTS}
    assert jobs["even"].divisible == ("b0", "b1", "s0")
    assert jobs["aligned"].divisible == ("b0", "b1")
    assert jobs["general"].divisible == ()
    job = jobs["even"]
    assert job.arguments == (("b0", "*fp32"), ("b1", "*fp32"), ("s0", "i32"))
    block = launch.configs[0].block("x")
    assert job.constants == (("XBLOCK", block),) and job.target == H200
    options = dict(job.options)
    # Eager's roundings and subnormal numbers, and integers that wrap around.
    assert not options["enable_fp_fusion"] and not options["enable_reflect_ftz"]
    assert not options["debug"] and not options["sanitize_overflow"]


def test_the_likely_variant_follows_the_hint() -> None:
    for n, want in ((4096, "aligned"), (sized(4096), "even"), (sized(100), "aligned")):
        kernel = render(choose(scaled(n)), "k")
        assert likely_variant(kernel.launches[0]) == want
        (job,) = likely_jobs(kernel, default_configs(kernel), H200)
        assert job == job_of(kernel.launches[0], kernel.launches[0].configs[0], H200, want)  # type: ignore[arg-type]


def test_equal_code_is_built_once() -> None:
    """Comments say what a kernel is for."""
    (launch,) = render(choose(scaled(4096)), "k").launches
    other = replace(launch, source=f"# mul add\n# of another line\n{launch.source}")
    assert launch.code == launch.source == other.code
    jobs = {job_of(x, x.configs[0], H200, "aligned") for x in (launch, other)}
    assert len(jobs) == 1


def loaded(fake: FakeCuda) -> int:
    return len(fake.loaded)


def test_static_kernels_have_two_variants(fake: FakeCuda, site: Site) -> None:
    plan = scaled(LARGE)
    kernel = render(choose(plan), "k")
    fake.types = (u64, u64, u64, u64)
    jobs = likely_jobs(kernel, default_configs(kernel), H200)
    binaries = build(jobs, site.cache)
    call = bind_cuda(kernel, site, built=dict(zip(jobs, binaries, strict=True)))
    assert loaded(fake) == 1
    call(0x1000, 0x2000)
    call(0x1010, 0x2000)
    assert loaded(fake) == 1
    block = kernel.launches[0].configs[0].block("x")
    assert fake.launches[0].grid == (LARGE // block, 1, 1)
    assert fake.launches[0].arguments == (0x1000, 0x2000, 0, 0)
    # An address that is no multiple of 16 bytes, in either place, takes the other kernel.
    call(0x1004, 0x2000)
    call(0x1000, 0x2008)
    assert loaded(fake) == 2
    functions = [x.function for x in fake.launches]
    assert functions[0] == functions[1] != functions[2] == functions[3]


def test_sizes_choose_among_three(fake: FakeCuda, site: Site) -> None:
    plan = scaled(sized(LARGE, 1 << 24))
    kernel = render(choose(plan), "k")
    fake.types = (u64, u64, i32, u64, u64)
    call = bind_cuda(kernel, site)
    used: Callable[[], int] = lambda: fake.launches[-1].function & 0xFFFF  # noqa: E731
    call(0x1000, 0x2000, 4096)
    even = used()
    call(0x1000, 0x2000, 100)
    aligned = used()
    call(0x1000, 0x2001, 4096)
    general = used()
    assert len({even, aligned, general}) == 3 == loaded(fake)
    made = build(
        [job_of(kernel.launches[0], default_configs(kernel)[0], H200, v) for v in VARIANTS],
        site.cache,
    )
    assert len({b.code for b in made}) == 3
    for n in range(5, 50):
        call(0x1000, 0x2000, n)
        assert used() == (even if n % 16 == 0 else aligned)
        assert fake.launches[-1].arguments[2] == n
        call(0x1008, 0x2000, n)
        assert used() == general
    assert loaded(fake) == 3  # fifty sizes compiled nothing more
    again = submit(
        [job_of(kernel.launches[0], kernel.launches[0].configs[0], H200, v) for v in VARIANTS],
        site.cache,
    )
    assert again.compiled == 0


def test_variants_that_compile_to_the_same_are_one(fake: FakeCuda, site: Site) -> None:
    plan = scaled(1000)  # a thread has one element: alignment gains nothing
    fake.types = (u64, u64, u64, u64)
    call = bind_cuda(render(choose(plan), "k"), site)
    call(0x1000, 0x2000)
    call(0x1004, 0x2000)
    assert loaded(fake) == 1 and len(fake.launches) == 2


def test_no_element_launches_nothing(fake: FakeCuda, site: Site) -> None:
    plan = scaled(symbol("s0", 0, 1 << 20, 16))
    call = bind_cuda(render(choose(plan), "k"), site)
    call(0x1000, 0x2000, 0)
    assert not fake.launches and not fake.loaded


def test_a_kernel_of_several_launches_gets_its_temporaries(fake: FakeCuda, site: Site) -> None:
    r = var("r0", 1 << 16)
    total = body.reduce("sum", (r,), body.load(F32, "b0", r))
    plan = KernelPlan(
        (Dim(r, "r"),),
        (Param("b0", F32, "in"), Param("b1", F32, "out")),
        (),
        (Store("b1", const(0), total),),
        r,
    )
    kernel: TritonKernel = render(choose(plan), "k")
    assert len(kernel.launches) == 2
    assert [p.name for p in kernel.params] == ["b0", "b1", "part0"]
    assert kernel.params[2].mode == "out"
    fake.types = (u64, u64, u64, u64)
    bind_cuda(kernel, site)(0x1000, 0x2000, 0x5000)
    first, second = fake.launches
    assert first.function != second.function
    assert 0x5000 in first.arguments and 0x5000 in second.arguments
    assert 0x1000 in first.arguments and 0x2000 in second.arguments
    # The second may begin before the first has ended, and waits for what that leaves.
    assert (first.early, second.early) == (False, True)
    for launch, text in zip(
        kernel.launches, ("litz.lead(LEADS)", "litz.follow(FOLLOWS)"), strict=True
    ):
        assert 0 < launch.source.find(text) < launch.source.index("tl.load(")


def by_threads(seconds: dict[int, float]) -> Callable[[list[Launched]], float]:
    """What launches take, by their threads."""
    return lambda made: sum(seconds[x.block[0]] for x in made)


@pytest.mark.parametrize(
    ("seconds", "warps"), [({128: 2e-3, 256: 1e-3}, 8), ({128: 1e-3, 256: 1e-3}, 4)]
)
def test_tuning_takes_the_fastest_configuration(
    fake: FakeCuda, site: Site, seconds: dict[int, float], warps: int
) -> None:
    plan = scaled(sized(LARGE, 1 << 24))
    kernel = render(choose(plan), "k")
    (launch,) = kernel.launches
    pair = tuple(Config((("x", 1024),), w) for w in (4, 8))
    kernel = replace(kernel, launches=(replace(launch, configs=pair),))
    fake.types = (u64, u64, i32, u64, u64)
    x, y = torch.ones(64), torch.ones(64)
    args = [x, y, 48]
    clock = Timed(fake, by_threads(seconds))
    (config,) = fastest_configs(kernel, site, args, clock, 1.0, 1.0)
    assert config.warps == warps
    # The input is the caller's, the output a copy.
    assert {r.arguments[0] for r in fake.launches} == {x.data_ptr()}
    assert y.data_ptr() not in {r.arguments[1] for r in fake.launches}
    assert {r.arguments[2] for r in fake.launches} == {48}
    # Found once, for sizes below the same power of two.
    before = len(fake.launches)
    for n in (48, 33):
        assert fastest_configs(kernel, site, [x, y, n], clock, 1.0, 1.0) == [config]
    assert len(fake.launches) == before
    fastest_configs(kernel, site, [x, y, 16], clock, 1.0, 1.0)
    assert len(fake.launches) > before


@dataclass
class Process:
    """A process of its own, as far as tuning can tell: a driver without modules, counted builds."""

    monkeypatch: pytest.MonkeyPatch
    cache: Cache
    asked: list[KernelJob] = field(default_factory=list)
    fake: FakeCuda = field(default_factory=FakeCuda)

    def tune(
        self,
        kernel: TritonKernel,
        plan: KernelPlan,
        seconds: dict[int, float],
        budget: float = 50.0,
    ) -> list[Config]:
        def counted(
            jobs: Sequence[KernelJob], cache: Cache, workers: int | None = None
        ) -> KernelBuild:
            self.asked += jobs
            return submit(jobs, cache, workers)

        self.fake.types = (u64,) * 4
        device = Driver(self.fake).device(0)
        self.fake.stack[:] = [device.context]
        site = Site(device, lambda: 0, Room, self.cache)
        # What is only read may be an address, which no other process has.
        args = [id(self) // 16 * 16, torch.ones(64)]
        with self.monkeypatch.context() as m:
            m.setattr(tuned, "submit", counted)
            m.setattr(tuned, "default_workers", lambda: 1)
            return fastest_configs(
                kernel, site, args, Timed(self.fake, by_threads(seconds)), budget, budget
            )


def with_configs(kernel: TritonKernel, *configs: tuple[int, int]) -> TritonKernel:
    """The kernel with a choice of (elements of a block, warps) for its one launch."""
    (launch,) = kernel.launches
    made = tuple(Config((("x", n),), warps) for n, warps in configs)
    return replace(kernel, launches=(replace(launch, configs=made),))


def test_another_process_builds_nothing_to_find_what_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = scaled(LARGE)
    kernel = with_configs(render(choose(plan), "k"), (1024, 4), (1024, 8), (512, 2))
    first, second = (Process(monkeypatch, Cache(tmp_path)) for _ in range(2))
    found = first.tune(kernel, plan, {64: 3e-3, 128: 2e-3, 256: 1e-3})
    assert [c.warps for c in found] == [8] and len(first.asked) == 3 == len(first.fake.loaded)
    assert second.tune(kernel, plan, {}) == found
    assert not second.asked and not second.fake.loaded and not second.fake.launches


def test_what_triton_refuses_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = scaled(LARGE)
    # No range has 1000 elements.
    kernel = with_configs(render(choose(plan), "k"), (1024, 4), (1000, 4), (1024, 8))
    first, second = (Process(monkeypatch, Cache(tmp_path)) for _ in range(2))
    found = first.tune(kernel, plan, {128: 2e-3, 256: 1e-3})
    assert [c.warps for c in found] == [8] and len(first.asked) == 3 and len(first.fake.loaded) == 2
    assert second.tune(kernel, plan, {}) == found and not second.asked


def test_tuning_leaves_out_what_the_compiler_dies_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = scaled(LARGE)
    kernel = with_configs(render(choose(plan), "k"), (1024, 4), (1024, 8), (512, 2))
    process = Process(monkeypatch, Cache(tmp_path))
    site_job = tuned._job

    def job(site: Site, launch: Launch, config: Config) -> KernelJob:
        made = site_job(site, launch, config)
        kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
        return replace(made, source=kill) if config.warps == 8 else made

    monkeypatch.setattr(tuned, "_job", job)
    found = process.tune(kernel, plan, {64: 1e-3, 128: 2e-3})
    assert [c.warps for c in found] == [2] and len(process.asked) == 3


def test_what_there_was_no_time_for_is_tried_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = scaled(LARGE)
    kernel = with_configs(render(choose(plan), "k"), (1024, 4), (1024, 8))
    first, second = (Process(monkeypatch, Cache(tmp_path)) for _ in range(2))
    seconds = {128: 2e-3, 256: 1e-3}
    assert [c.warps for c in first.tune(kernel, plan, seconds, -1.0)] == [4]
    assert len(first.asked) == 1
    assert [c.warps for c in second.tune(kernel, plan, seconds)] == [8] and len(second.asked) == 2


def test_tuning_leaves_out_what_does_not_load(fake: FakeCuda, site: Site) -> None:
    plan = scaled(LARGE)
    kernel = render(choose(plan), "k")
    fake.types = (u64, u64, u64, u64)
    fake.function[0] = 128  # most threads of a block: too few for eight warps
    args = [torch.ones(64), torch.ones(64)]
    (config,) = fastest_configs(
        kernel, site, args, Timed(fake, by_threads({128: 1.0, 256: 0.1})), 50.0, 50.0
    )
    assert config.warps <= 4


def test_memory_that_tuning_may_copy() -> None:
    """Where an index under a condition reaches is no size of memory."""
    x = var("x0", 100)
    plan = scaled(100)
    assert extents(plan, ()) == (const(400), const(400))
    assert extents(scaled(0), ()) is None
    inside = body.op("lt", body.index(x), body.const(I64, 60))
    (store,) = plan.stores
    value = body.masked(inside, store.value, body.const(F32, 0.0))
    assert extents(replace(plan, stores=(replace(store, value=value),)), ()) == (None, const(400))
    assert extents(replace(plan, stores=(replace(store, mask=inside),)), ()) is None
