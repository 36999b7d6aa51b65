"""Launches of several calls: results under the interpreter, builds for a GPU, their tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton.language")

from judge import check  # noqa: E402
from test_ahead_of_time import H200  # noqa: E402
from test_ahead_of_time import check as check_builds  # noqa: E402

import litz  # noqa: E402
from litz.backend import compile_with  # noqa: E402
from litz.options import make_options  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton import driver  # noqa: E402
from litz.runtime.triton.build import submit  # noqa: E402
from litz.runtime.triton.worker import array_of  # noqa: E402
from litz.stages import Stages  # noqa: E402
from litz.targets.triton.cuda import default_configs, likely_jobs, table_text  # noqa: E402
from tests.horizontal_cases import CASES, rand  # noqa: E402
from tests.quick import some  # noqa: E402
from tests.scan_cases import scan_of  # noqa: E402

TRITON = {"target": "triton"}
Tensor = torch.Tensor


def compiled(fn: Any, *args: Any, dynamic: bool = False, **options: Any) -> Stages:
    """The stages of a program's one graph, which runs as it is: `check` interprets kernels."""
    found: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def observe(_kind: str, _graph: Any, stages: Stages) -> None:
            found.append(stages)

        compile_with(gm, inputs, make_options({**TRITON, **options}), observe)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend, dynamic=dynamic)(*(a.clone() for a in args))
    torch._dynamo.reset()
    (stages,) = found
    return stages


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    fn, args, launches = CASES[name]
    check(fn, *args, runs=1, **TRITON)
    stages = compiled(fn, *args)
    assert stages.host is not None
    assert len(list(stages.host.kernel_calls())) == launches


@pytest.mark.parametrize("name", some(CASES, 4))
def test_open_sizes(name: str) -> None:
    fn, args, _ = CASES[name]
    check(fn, *args, runs=1, dynamic=True, **TRITON)


def test_scans_by_functions_of_their_own() -> None:
    """The functions stand beside the kernels of one launch; each has its own."""
    programs = [scan_of(name, 0) for name in ("logarithms", "sum")]

    def fn(*xs: Tensor) -> list[Tensor]:
        return [part for own, x in zip(programs, xs, strict=True) for part in own(x)]

    args = rand(50), rand(30)
    (kernel,) = compiled(fn, *args).kernels
    assert len(kernel.bodies) == 2
    torch._dynamo.reset()
    found = torch.compile(fn, backend="litz", options=TRITON)(*args)
    wanted = torch.logcumsumexp(args[0] - 1, 0), args[1].cumsum(0)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_share_a_body(dynamic: bool) -> None:
    fn, *_ = CASES["sizes"]
    args = [rand(n) for n in (300, 20, 77, 1000, 64, 9)]
    stages = compiled(fn, *args, dynamic=dynamic)
    (kernel,) = stages.kernels
    assert len(kernel.bodies) == 1 and len(kernel.members) == len(args)
    assert stages.schedule is not None
    (group,) = stages.schedule.horizontal
    assert group.reason.startswith("6 calls of one body")


@pytest.mark.parametrize(
    ("version", "launches"),
    [(12000, 2), *(pytest.param(v, 1, marks=pytest.mark.slow) for v in (12010, 0))],
)
def test_a_launch_has_room_for_so_many_calls(
    version: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of as many calls are one; no launch has more arguments than its memory holds."""
    monkeypatch.setattr(driver, "driver_version", lambda: version)
    fn, *_ = CASES["sizes"]
    stages = compiled(fn, *(rand(3 + k) for k in range(150)))
    made = [k.triton.launches[0] for k in stages.kernels if k.triton is not None]
    assert len(made) == launches and len({x.source.partition("\n")[2] for x in made}) == 1
    for x in made:
        assert x.table is not None and 8 * len(x.table.types) <= driver.parameter_bytes()
    assert sum(len(k.members) for k in stages.kernels) == 150


def test_the_dispatch_alone_tells_blocks_that_lie_inside_apart() -> None:
    """One kernel whatever sizes add up to; its body stands there with masks and without, once."""
    fn, *_ = CASES["sizes"]
    sources = []
    for more in (0, 1):
        args = [torch.ones(1 << 12 | n) for n in (4, 8, 12, 16 + more)]
        (kernel,) = compiled(fn, *args).kernels
        sources.append(kernel.source.partition("\n")[2])
    assert sources[0] == sources[1]
    assert sources[0].count("tl.store(") == 2


def test_a_part_that_would_be_divided_by_itself() -> None:
    """Few long rows are divided between programs; many of them, as a launch has, are not."""
    fn = CASES["columns"][0]
    check(lambda *xs: [x.sum(1) for x in xs], *(rand(3 + k, 5000) for k in range(6)),
          runs=1, **TRITON)  # fmt: skip
    assert fn is not None


@pytest.mark.parametrize("name", some(CASES, 5))
@pytest.mark.parametrize("dynamic", [False, True])
def test_builds(name: str, dynamic: bool, tmp_path: Any) -> None:
    fn, args, _ = CASES[name]
    stages = compiled(fn, *args, dynamic=dynamic)
    made = [k.triton for k in stages.kernels if k.triton is not None]
    jobs = [job for k in made for job in likely_jobs(k, default_configs(k), H200)]
    check_builds(submit(jobs, Cache(tmp_path), 2), jobs)
    for job, binary in zip(jobs, submit(jobs, Cache(tmp_path), 2).wait(), strict=True):
        if array := array_of(job):  # which Triton knows nothing of
            assert binary.params == (8 * array,)


def test_what_blocks_do_not_run_along_may_lie_anywhere() -> None:
    calls: list[str] = []
    scope: dict[str, Any] = {v: lambda *_, v=v: calls.append(v) for v in ("aligned", "general")}
    exec(table_text(("i64", "*", "*", "u64", "fp32")), scope)
    for pointers in ((16, 32, 4), (16, 8, 16), (0, 48, 3)):
        scope["call"](1, 1, 1, 0, *pointers, 1.5)
    assert calls == ["aligned", "general", "aligned"]


def test_a_partition_of_the_user() -> None:
    """Groups of different numbers share no launch; those of one do, whatever they compute."""

    class Halves:
        def __call__(self, schedule: Any) -> dict[str, int]:
            names = [s.name for s in schedule.steps]
            return {name: k % 2 for k, name in enumerate(names)}

        def uuid(self) -> str:
            return "in turns"

    fn, *_ = CASES["sizes"]
    stages = compiled(fn, *(rand(3 + k) for k in range(6)), partition=Halves(), graph_cache=False)
    assert stages.schedule is not None
    groups = [x.groups for x in stages.schedule.horizontal]
    assert groups == [("group0", "group2", "group4"), ("group1", "group3", "group5")]


def test_reports_count_launches() -> None:
    fn, args, _ = CASES["sizes"]
    report = str(litz.explain(fn, *args, options=TRITON))
    assert "1 kernel call of 1 distinct kernel" in report


def taps(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A sum and a product, of so many elements beside each other each."""
    parts = [(x[:, i : i + 40], y[:, i : i + 30]) for i in range(count)]
    a, b = parts[0]
    for p, q in parts[1:]:
        a, b = a + p, b * q
    return a, b


@pytest.mark.parametrize("count, launches", [(20, 1), (30, 2), (60, 2)])
def test_sources_of_many_accesses_are_apart(count: int, launches: int) -> None:
    stages = compiled(lambda x, y: taps(x, y, count), rand(3, 200), rand(5, 200))
    assert stages.host is not None
    assert len(list(stages.host.kernel_calls())) == launches


def test_one_kernel_has_few_accesses() -> None:
    def kernels(count: int, **options: Any) -> int:
        stages = compiled(lambda x: taps(x, x, count)[0], rand(3, 400), **options)
        assert stages.host is not None
        return len(list(stages.host.kernel_calls()))

    assert [kernels(150), kernels(200)] == [1, 2]
    assert kernels(200, target="") == 1  # whose compiler's time grows with their number
