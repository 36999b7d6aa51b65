"""Independent kernels in one parallel region of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import litz
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
