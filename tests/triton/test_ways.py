"""Ways to reduce: rows held by a block, in a loop, or split; which is tried, forced and kept."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_cuda import FakeCuda, Timed
from judge import check
from torch import Tensor

pytest.importorskip("triton.language")

import litz  # noqa: E402
from benchmarks.gpu import ways as benchmark  # noqa: E402
from litz.index import evaluate, symbol, var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import F32  # noqa: E402
from litz.kernel.blocks.estimate import estimate  # noqa: E402
from litz.kernel.blocks.recipe import Style  # noqa: E402
from litz.kernel.blocks.ways import WAYS, ways  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.passes.costs import LARGE  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import submit  # noqa: E402
from litz.runtime.triton.driver import Driver  # noqa: E402
from litz.runtime.tune import Choice  # noqa: E402
from litz.targets.parts import TritonPart  # noqa: E402
from litz.targets.triton import tuned  # noqa: E402
from litz.targets.triton.cuda import Site, default_configs, likely_jobs  # noqa: E402
from litz.targets.triton.interpreted import bind_interpreted  # noqa: E402
from litz.targets.triton.record import kernel_of, launches_of  # noqa: E402
from litz.targets.triton.render import render_ways  # noqa: E402
from litz.targets.triton.source import TritonKernel  # noqa: E402
from tests.quick import some  # noqa: E402

TRITON = {"target": "triton"}
H200 = ("cuda", 90, 32)
Fn = Callable[[Tensor], Any]

PROGRAMS: dict[str, Fn] = {
    "sum": lambda x: (x * 2).sum(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cross entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0])),
    "argmax": lambda x: x.argmax(-1),
    "columns": lambda x: (x.sum(0), x.amax(0)),
    "scan": lambda x: x.cumsum(-1),
}


FORCED = [(p, w) for p, w in product(PROGRAMS, WAYS) if w != "lookback" or p == "scan"]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("case", some(FORCED, 5))
def test_a_way_can_be_forced(case: tuple[str, str]) -> None:
    name, way = case
    fn, x = PROGRAMS[name], rand(3, 200) if name != "columns" else rand(200, 3)
    check(fn, x, runs=1, **TRITON, reduction=way)
    (graph,) = litz.explain(fn, x, options={**TRITON, "reduction": way}).graphs
    (first, *_) = [k for k in graph.stages.kernels if k.ways is not None and k.plan.reduced]
    assert first.ways is not None and [w.name for w in first.ways.candidates] == [way]


def test_what_cannot_be_forced_says_why() -> None:
    report = litz.explain(
        lambda x: x.sort(-1)[0], rand(3, 40), options={**TRITON, "reduction": "looped"}
    )
    assert "looped: no: a sort holds its rows" in str(report)
    with pytest.raises(litz.OptionError, match="did you mean 'looped'"):
        litz.options.make_options({"reduction": "loped"})


# --- which are candidates -----------------------------------------------------------------------


def summed(rows: Any, size: Any, wide: bool = False) -> KernelPlan:
    """Rows of f32 less their mean, or (not ``wide``) their sums."""
    x, r = var("x0", rows), var("r0", size)
    value = body.load(F32, "b0", x * size + r)
    total = body.reduce("sum", (r,), value)
    ints = tuple(n for n in (rows, size) if not isinstance(n, int))
    store = (
        Store("b1", x * size + r, body.op("sub", value, total)) if wide else Store("b1", x, total)
    )
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    return KernelPlan((Dim(x, "p"), Dim(r, "r")), params, ints, (store,), r)


def names(plan: KernelPlan, **style: Any) -> list[str]:
    return [w.name for w in ways(plan, Style(**style), LARGE).candidates]


def estimates(plan: KernelPlan) -> dict[str, float]:
    return {w.name: w.estimate.likely for w in ways(plan, Style(widely=True), LARGE).candidates}


def test_the_model_says_where_it_is_unsure() -> None:
    assert names(summed(1 << 20, 16)) == ["persistent"]
    assert names(summed(8192, 1024, wide=True)) == ["persistent"]
    assert names(summed(1, 1 << 24)) == ["split"]
    assert names(summed(1 << 14, 1 << 17)) == ["looped"]
    assert names(summed(64, 1 << 14)) == ["split", "persistent", "looped"]
    assert names(summed(4096, 1 << 14)) == ["persistent", "looped"]
    assert names(summed(1024, 1 << 13)) == ["persistent"]
    assert names(summed(1024, 1 << 13), widely=True) == ["persistent", "split"]
    assert names(summed(64, 1 << 14), reduction="looped") == ["looped"]
    # Of odd rows a loop alone makes whole accesses; what it reads again is near.
    odd, whole = (estimates(summed(128, n, wide=True)) for n in (50257, 49152))
    assert odd["split"] > 1.2 * whole["split"] and odd["looped"] < 1.1 * whole["looped"]


def test_the_model_minds_what_lies_apart() -> None:
    """Rows across those of memory: each element moves a sector."""
    x, r = var("x0", 128), var("r0", 1 << 14)
    value = body.reduce("sum", (r,), body.load(F32, "b0", x + 128 * r))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    stores = (Store("b1", x, value),)
    across = KernelPlan((Dim(x, "p"), Dim(r, "r")), params, (), stores, r)
    (held,) = ways(across, Style(reduction="persistent"), LARGE).candidates
    (along,) = ways(summed(128, 1 << 14), Style(reduction="persistent"), LARGE).candidates
    apart, beside = (estimate(w.recipe, LARGE).likely for w in (held, along))
    assert apart > 2 * beside


def test_parts_of_rows_are_held_where_they_are_read_again() -> None:
    """Mean and deviations of parts take two passes; uneven parts fill their blocks."""
    plan = summed(16, 1000003)
    value = body.load(F32, "b0", plan.parallel[0] * 1000003 + plan.reduced[0])
    moments = body.reduce("welford_m2", plan.reduced, value)
    plan = replace(plan, stores=(Store("b1", plan.parallel[0], moments),))
    first, _ = ways(plan, Style(reduction="split"), LARGE).first.kernels
    assert (first.form, first.configs[0].block("r")) == ("persistent", 8192)


def test_the_table_has_estimates_reasons_and_times() -> None:
    found = ways(summed(4096, 1 << 14), Style(), LARGE)
    assert [x.partition(":")[0] for x in found.lines()] == [
        "persistent (chosen)",
        "looped",
        "split",
    ]
    assert "4096 rows keep all programs busy" in found.lines()[2]
    held, looped, _ = found.lines(1, (2e-4, 1e-4))
    assert held.endswith("measured at 200.0 us") and "(chosen)" not in held
    assert looped.startswith("looped (chosen): estimated at ") and looped.endswith("at 100.0 us")


# --- kernels of several ways --------------------------------------------------------------------


def several(plan: KernelPlan, widely: bool = False) -> TritonKernel:
    return render_ways(ways(plan, Style(widely), LARGE), "kernel")


def test_all_candidates_do_the_same() -> None:
    rows, size = 2, 20000
    kernel = several(summed(rows, size, wide=True), widely=True)
    assert {k.way for k in kernel.ways} == set(WAYS[:-1])
    x, out = rand(rows, size), [torch.zeros(rows, size) for _ in range(3)]
    want = (x.double() - x.double().sum(-1, True)).float()
    for k, y in zip(kernel.ways, out, strict=True):
        assert [p.dtype for p in k.params] == [p.dtype for p in kernel.params]
        memory = [torch.empty(4096) for _ in k.params[2:]]
        bind_interpreted(k)(x.data_ptr(), y.data_ptr(), *(t.data_ptr() for t in memory))
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-3)


def test_an_artifact_has_all_of_them() -> None:
    kernel = several(summed(symbol("s0", 2, 4096, 64), 1 << 14, wide=True))
    assert kernel.others and kernel_of(launches_of(kernel), kernel.sources()) == kernel
    assert len(kernel.sources()) == len({x.name for x in kernel.all_launches})


@pytest.mark.parametrize("wide", some([True, False], 1))
def test_all_candidates_build(wide: bool, tmp_path: Path) -> None:
    kernel = several(summed(64, 1 << 14, wide=wide))
    jobs = [job for k in kernel.ways for job in likely_jobs(k, default_configs(k), H200)]
    assert len(jobs) >= 3
    made = submit(jobs, Cache(tmp_path), 2).wait()
    assert [b.entry for b in made] == [job.name for job in jobs]


# --- the choice ---------------------------------------------------------------------------------


@pytest.fixture
def fake() -> FakeCuda:
    return FakeCuda()


def site(fake: FakeCuda, folder: Path) -> Site:
    device = Driver(fake).device(0)
    fake.stack[:] = [device.context]
    return Site(device, lambda: 0, lambda n: torch.empty(n), Cache(folder))  # type: ignore[arg-type, return-value]


def small(fake: FakeCuda) -> tuple[TritonKernel, list[Any]]:
    """A kernel of two ways, of one launch and of two, whose binaries take what they are given."""
    kernel = several(summed(64, 1 << 14))
    first, held = kernel.ways[0], kernel.ways[1]
    fake.types = (ctypes.c_uint64,) * 4
    made = replace(first, others=(held,))
    return made, [torch.ones(64) for _ in made.params]


@pytest.mark.parametrize(("seconds", "index"), [((0, 1e-3, 2e-3), 1), ((0, 2e-3, 1e-3), 0)])
def test_the_quickest_is_taken_and_kept(
    fake: FakeCuda, tmp_path: Path, seconds: tuple[float, ...], index: int
) -> None:
    kernel, args = small(fake)
    clock, here = Timed(fake, lambda made: seconds[len(made)]), site(fake, tmp_path)
    configs = [default_configs(k) for k in kernel.ways]
    search = tuned.WaySearch(kernel.ways, configs, here, args)
    assert search.known() is None
    search.build()
    found = search.choose(clock, 1.0)  # type: ignore[arg-type]
    assert (found.index, found.measured) == (index, True)
    assert found.seconds == (seconds[2], seconds[1])
    # Another process: nothing is built, nothing measured.
    again = tuned.WaySearch(kernel.ways, configs, here, args).known()
    assert again is not None and (again.index, again.measured) == (index, False)
    fake.launches.clear()
    search.bound(again)(*(a.data_ptr() for a in args))
    assert len(fake.launches) == 2 - index
    assert args[1].eq(1).all(), "results go to copies"


def test_where_nothing_may_be_tried_the_models_first_runs(fake: FakeCuda, tmp_path: Path) -> None:
    kernel, args = small(fake)
    here, choices = site(fake, tmp_path), dict[str, Choice]()
    part, bound = TritonPart("k", "cuda", kernel), {"k": print}
    for limits in (tuned.Limits(0.0), tuned.Limits(0.0, configs=True)):
        made = tuned.tuning([part], {"cuda": here}, bound, limits, choices)
        assert made["k"] is print
    made = tuned.tuning([part], {"cuda": here}, bound, tuned.Limits(2.0), choices)
    assert made["k"] is not print and not choices


def test_while_a_graph_is_recorded_nothing_is_tried(
    fake: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = several(summed(symbol("s0", 0, 4096, 64), 1 << 14))
    called: list[Any] = []
    made = tuned.tuning(
        [TritonPart("k", "cuda", kernel)],
        {"cuda": site(fake, tmp_path)},
        {"k": lambda *a: called.append(a)},
        tuned.Limits(2.0),
        {},
    )["k"]
    tried: list[Any] = []
    monkeypatch.setattr(tuned._Tuned, "tune", lambda self, args, sizes: tried.append(sizes))
    addresses = [0] * len(kernel.params)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made(*addresses, 64)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made(*addresses, 0)  # no rows
    assert not tried
    made(*addresses, 3)
    made(*addresses, 3)
    assert len(called) == 4 and len(tried) == 1
    assert tried[0][:2] == [3 * 4 << 14, 3 * 4]


def test_sizes_of_memory_follow_open_sizes() -> None:
    rows = symbol("s0", 2, 4096, 64)
    kernel = several(summed(rows, 1 << 14, wide=True))
    assert kernel.extents is not None and len(kernel.extents) == len(kernel.params) + 1
    known = [None if e is None else evaluate(e, {rows: 5}) for e in kernel.extents]
    assert known[:2] == [5 * 4 << 14] * 2 and known[-1] is None


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows"
    for _ in range(2):  # once more from what was kept
        assert benchmark.main(["--quick", "--only", "sum", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[1] == lines[4] and lines[1].startswith("sum 2x5000")
    assert "failed" not in "".join(lines)
