"""Profiles: every step has its time, and what is written for others says the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import litz
from litz.report.profile import Profile, Row, Timing, Where, _joined
from litz.report.record import Report, Roofline
from litz.report.timing import Timer
from litz.runtime.cache import Cache
from litz.tools import roofline as machine
from litz.tools.profile import main


@pytest.fixture(autouse=True)
def a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roofline is measured on little."""
    monkeypatch.setattr(machine, "COPIED", 1 << 20)
    monkeypatch.setattr(machine, "SIDE", {"cpu": 64})
    monkeypatch.setattr(machine, "VERSION", "test")


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ w, -1)
    z = torch.linalg.matrix_exp(y[:, :64])
    return z.sum() + y.sum()


def test_each_step_has_its_time_beside_eager() -> None:
    args = torch.randn(64, 32), torch.randn(32, 80)
    found = litz.profile(program, *args, seconds=0.05)
    ours, eager = found.timings
    assert (ours.name, eager.name) == ("litz", "eager")
    (graph,) = found.report.graphs
    assert {r.id for r in ours.rows} == {s.id for s in graph.steps}
    assert all(s.seconds and s.seconds > 0 for s in graph.steps)
    assert 0 < ours.inside and ours.seconds > 0 and eager.seconds > 0
    product = next(r for r in ours.rows if r.name == "aten.mm.default")
    assert product.ops == 2 * 64 * 32 * 80 and 0 < found.share(product)
    assert next(r for r in eager.rows if r.name == "aten.mm.default").ops == product.ops
    assert {x.rpartition(":")[0] for r in eager.rows for x in r.lines} == {__file__}

    rows = list(csv.DictReader(found.to_csv().splitlines()))
    assert len(rows) == len(ours.rows) + len(eager.rows)
    assert {r["way"] for r in rows} == {"litz", "eager"}
    events = json.loads(found.to_trace())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    assert {e["name"] for e in spans if e["pid"] == 0} == {"g0"} | {
        s.name.replace("mm.default", "mm.out") for s in graph.steps
    }
    text = str(found)
    assert "where the difference lies" in text and "by litz's" in text and "matrix_exp" in text


def test_control_flow_is_measured_whole_in_eager_mode() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]

    ours, eager = litz.profile(fn, torch.randn(8), seconds=0.01).timings
    assert ours.rows and not eager.rows and eager.seconds > 0


def test_a_script_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "script.py", tmp_path / "steps.csv"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: x.sin().sum(0), backend='litz')\n"
        "for _ in range(4):\n"
        "    f(torch.ones(30, 40))\n"
    )
    assert main(["--csv", str(out), "--trace", str(tmp_path / "trace.json"), str(script)]) == 0
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert row["kind"] == "kernel" and row["times"] == "1" and row["lines"] == f"{script}:2"
    assert "script.py" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_medians_are_of_whole_runs_alone() -> None:
    timer = Timer(False)

    def call(args: list[int]) -> None:
        for step in args:
            timer.probe(step, False, (), ())
            timer.probe(step, True, (), ())
        if len(args) > 2:
            raise ValueError

    run = timer.wrap(call)
    with pytest.raises(ValueError):
        run([0, 1, 2])
    assert timer.medians() == ()
    run([0, 1])
    assert len(timer.medians()) == 2
    timer.clear()
    assert not timer.runs


def test_lines_that_a_kernel_computes_together_are_one_place() -> None:
    def row(i: int, seconds: float, *lines: str) -> Row:
        return Row(f"r{i}", "kernel", f"k{i}", lines, 1, seconds, seconds, 8)

    ours = row(0, 3.0, "f:1", "f:2"), row(1, 1.0, "f:9")
    eager = row(2, 1.0, "f:1"), row(3, 1.0, "f:2"), row(4, 5.0, "f:9"), row(5, 0.5)
    ways = Timing("litz", 4.0, 4.0, ours, ()), Timing("eager", 8.0, 8.0, eager, ())
    report = Report("f", {}, {}, (), (), (), (), (), (), {})
    found = Profile(report, ways, Roofline("cpu", 4.0, 1.0))
    assert found.where() == (
        Where(("f:9",), (1.0, 5.0)),
        Where(("f:1", "f:2"), (3.0, 2.0)),
        Where(("",), (0.0, 0.5)),
    )
    assert found.share(ours[1]) == 2.0
    assert _joined([("a:2", "a:10"), ("a:1",)])["a:10"] == ("a:2", "a:10")
    assert ways[1].between == 0.5


def test_the_best_that_a_machine_has_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first measurement beside other work is not the last word; a later one neither."""
    speeds = iter([(9e9, 1e12), (3e12, 5e11), (1e12, 2e12)])
    measured: list[float] = []

    def next_speed(device: str, times: int) -> float:
        if not measured:
            measured.extend(next(speeds))
        return measured.pop(0)

    monkeypatch.setattr(machine, "_copy", next_speed)
    monkeypatch.setattr(machine, "_product", next_speed)
    cache = Cache(tmp_path)
    found = [machine.roofline("cpu", cache) for _ in range(3)]
    assert [(r.bytes_per_second, r.ops_per_second) for r in found] == [
        (9e9, 1e12), (3e12, 1e12), (3e12, 2e12),
    ]  # fmt: skip
