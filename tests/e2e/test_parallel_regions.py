"""Independent kernels in one parallel region of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import litz
from litz.targets.cpp.target import Cpp
from litz.targets.horizontal import make_all
from litz.targets.kernels import bind_plans
from tests.horizontal_cases import CASES, many, rand
from tests.judge import check
from tests.quick import some


@pytest.mark.parametrize("name", some(CASES, 5))
def test_results(name: str) -> None:
    fn, args, _ = CASES[name]
    check(fn, *args, runs=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_threads_divide_the_work_of_all_calls(threads: int, dynamic: bool) -> None:
    """A share may end within a call: no element is left out or done twice."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    args = [rand(n) for n in (100003, 5, 177777, 2, 300001, 64)]

    def fn(*xs: torch.Tensor) -> Any:
        return [x.add_(torch.sigmoid(x) * 2) for x in xs]  # twice would show

    try:
        check(fn, *args, runs=1, dynamic=dynamic)
    finally:
        torch.set_num_threads(before)


def test_one_region() -> None:
    report = litz.explain(many(torch.exp), *(rand(n) for n in (1000, 300, 7, 64)))
    (graph,) = report.graphs
    assert graph.stages.host is not None
    assert len(list(graph.stages.host.kernel_calls())) == 1


def gradients(x: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of rows and of columns of the same matrices, which do not stay in a cache."""
    return d - x * (x * d).sum(1, keepdim=True), (x.abs() * d).sum(0), d.sum(0)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_and_sums_of_columns_in_step(threads: int) -> None:
    """The last block has fewer rows; small matrices are not divided into blocks."""
    args = [rand(1050, 512), rand(1050, 512) + 1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(gradients, *args, runs=1)
    finally:
        torch.set_num_threads(before)
    found = []
    for some_args in (args, [rand(105, 512), rand(105, 512) + 1]):
        (graph,) = litz.explain(gradients, *some_args).graphs
        found.append(["run_steps" in k.source for k in graph.stages.kernels])
    assert found == [[True], [False]]


def test_only_launches_of_two_run_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of more calls has them all, even where two of them could."""

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.view(-1, n).sum(1) for n in (16, 32, 64)]

    (graph,) = litz.explain(fn, rand(64, 64)).graphs
    schedule = graph.stages.schedule
    assert schedule is not None
    bound = bind_plans(schedule)
    monkeypatch.setattr(Cpp, "in_step", lambda *_: 16)
    calls, _ = make_all(schedule, bound, lambda _: Cpp(lambda: 8))
    (launch,) = schedule.horizontal
    assert len(launch.groups) == 3
    assert len(calls[launch.groups[0]].buffers) == sum(len(b.buffers) for b in bound.values())
