"""Ways to compute a product and what is around it, measured while a graph is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton.language")

from litz.contest import Contest
from litz.ir.program import Contraction, Extern, Program, Template
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.options import make_options
from litz.passes.costs import LARGE
from litz.passes.pipeline import pipeline


class Paper:
    """A clock on which each next candidate takes as long as it says."""

    device_name = "paper"

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.runs = dict[int, float](), list(seconds)
        self.measured = 0

    def now(self) -> float:
        return time.perf_counter()

    def measure(self, run: Callable[[], None], times: int) -> list[float]:
        self.measured += 1
        run()
        key = id(run)
        if key not in self.seconds:
            self.seconds[key] = self.runs.pop(0)
        return [self.seconds[key]] * times


def contest(folder: Path, seconds: float, clock: Paper) -> Contest:
    options = make_options({"target": "triton", "cache_dir": str(folder)})
    recorded = lambda call, args: lambda: call([*args])  # noqa: E731
    return Contest(options, seconds, 0.0, lambda _: clock, ("cpu",), recorded)


def product() -> Program:
    with FakeTensorMode():
        x, w = torch.empty(64, 128, dtype=torch.bfloat16), torch.empty(128, 64, dtype=torch.int8)
        graph = make_fx(lambda x, w: (torch.relu(x @ w.to(torch.bfloat16)),))(x, w)
    return lower_graph(graph, Settings(inference=True, blocks=("cpu",)))


def eights() -> Program:
    """A product of bytes, and arithmetic behind it."""
    with FakeTensorMode():
        x, w = (torch.empty(s, dtype=torch.int8) for s in ((32, 64), (64, 64)))
        graph = make_fx(lambda x, w: (torch._int_mm(x, w).float() * 0.5,))(x, w)
    return lower_graph(graph, Settings(inference=True, blocks=("cpu",)))


def chosen(contest: Contest, program: Program) -> Extern | Template:
    costs = replace(LARGE, launch=1e-7)  # what is small is near, too
    made = pipeline(("cpu",), {"cpu": costs}, rivals=contest)
    for p in made:
        program = p(program)
    (found,) = (n for n in program.nodes if isinstance(n, Extern | Template))
    assert not any(isinstance(n, Contraction) for n in program.nodes)
    return found


@pytest.mark.parametrize("own", [True, False])
def test_a_template_and_a_library_are_measured_once(own: bool, tmp_path: Path) -> None:
    clock = Paper(*((1e-5, 2e-5) if own else (2e-5, 1e-5)))
    found = chosen(contest(tmp_path, 60.0, clock), product())
    assert isinstance(found, Template if own else Extern)
    assert "measured: a kernel of " in found.reason and clock.measured
    assert chosen(contest(tmp_path, 0.0, Paper()), product()) == found  # which can measure nothing


def test_a_call_is_measured_as_it_is(tmp_path: Path) -> None:
    clock = Paper(1e-5, 2e-5)
    made = chosen(contest(tmp_path, 60.0, clock), eights())
    assert isinstance(made, Template) and made.reason.startswith("measured: ")


def test_without_time_or_device_the_estimate_decides(tmp_path: Path) -> None:
    options = make_options({"target": "triton", "cache_dir": str(tmp_path)})
    for by in (Contest(options, 60.0), contest(tmp_path, 0.0, Paper())):
        found = chosen(by, product())
        assert isinstance(found, Template) and found.reason.startswith("a kernel of ")
