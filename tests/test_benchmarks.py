"""The benchmark's own arithmetic: what is right, how speeds compare, that failures stay cells."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import compile_time, cpu, dynamic, growth, layers
from benchmarks.judge import Judge, KeepDouble, errors
from benchmarks.measure import Cell, Row
from benchmarks.report import geometric_mean, summary, table
from benchmarks.session import Session, WorkerError
from benchmarks.step import Step
from benchmarks.workloads import QUICK, WORKLOADS, build


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge("cross_entropy_training", True)


def verdict(judge: Judge, outcome: dict[str, list[Tensor]], folder: Path) -> dict[str, Any]:
    path = folder / "outcome.pt"
    torch.save(outcome, path)
    return judge.judge(str(path))


def test_eager_is_right(judge: Judge, tmp_path: Path) -> None:
    assert verdict(judge, judge.eager, tmp_path)["ok"]


@pytest.mark.parametrize("group", ["out", "grad"])
@pytest.mark.parametrize("factor", [1.001, float("nan"), 0.0])
def test_wrong_values_are_wrong(judge: Judge, group: str, factor: float, tmp_path: Path) -> None:
    outcome = {g: [t.clone() for t in ts] for g, ts in judge.eager.items()}
    outcome[group][0] *= factor
    found = verdict(judge, outcome, tmp_path)
    assert (found["ok"], found["loose"]) == (False, False)


def test_imprecise_values_are_loose(judge: Judge, tmp_path: Path) -> None:
    outcome = {g: [t * (1 + 1e-5) for t in ts] for g, ts in judge.eager.items()}
    found = verdict(judge, outcome, tmp_path)
    assert (found["ok"], found["loose"]) == (False, True)


def test_one_wrong_row_among_many_is_wrong(judge: Judge, tmp_path: Path) -> None:
    outcome = {g: [t.clone() for t in ts] for g, ts in judge.eager.items()}
    outcome["grad"][0][7] = 0
    assert not verdict(judge, outcome, tmp_path)["ok"]


def test_other_dtypes_and_missing_tensors_are_wrong(judge: Judge, tmp_path: Path) -> None:
    double = {g: [t.double() for t in ts] for g, ts in judge.eager.items()}
    assert "float64" in verdict(judge, double, tmp_path)["fault"]
    assert not verdict(judge, {**judge.eager, "grad": []}, tmp_path)["ok"]


def test_nan_in_any_tensor_shows() -> None:
    truth = [torch.ones(3).double(), torch.ones(3).double()]
    for i in range(2):
        got = [torch.ones(3), torch.ones(3)]
        got[i][1] = float("nan")
        assert all(map(math.isnan, errors(got, truth)))


def test_the_reference_stays_in_double() -> None:
    x = torch.full((4,), 1 / 3, dtype=torch.float64)
    with KeepDouble():
        casts = (x.float(), x.to(torch.float32), torch.softmax(x, -1, dtype=torch.float32))
    assert [t.dtype for t in casts] == [torch.float64] * 3


def test_workloads_are_the_same_each_time() -> None:
    first, second = build("softmax", True), build("softmax", True)
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert set(QUICK) <= set(WORKLOADS)


def test_a_step_does_not_add_up_gradients() -> None:
    workload = build("cross_entropy_training", True)
    step = Step(workload, workload.fn)
    assert torch.equal(step.outcome()["grad"][0], step.outcome()["grad"][0])


def test_speeds_are_paired_by_round() -> None:
    # The machine slows down tenfold half way; the ratio does not move.
    cells = {"litz": Cell(rounds=[1.0, 10.0, 10.0]), "inductor": Cell(rounds=[0.8, 8.0, 8.0])}
    row = Row("w", baseline=1.0, cells=cells)
    assert row.speed("litz", "inductor") == pytest.approx(0.8)
    assert "below 0.9 of the peer's speed: w 0.80" in summary([row])
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_a_busy_machine_is_named() -> None:
    cells = {"eager": Cell(rounds=[1.0])}
    assert "BUSY w: 2.0" in table([Row("w", cells=cells, others=[1, 3])])
    assert "busy" not in summary([Row("w", cells=cells, others=[0, 0, 0, 1])])


def test_a_failure_is_a_cell() -> None:
    row = Row("w", cells={"eager": Cell(first=0.1, rounds=[0.1]), "litz": Cell(failure="boom")})
    text = table([row])
    assert "FAIL w on litz: boom" in text
    assert summary([row]) == ""


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    with Session("softmax", "no_such_backend", True, tmp_path) as session:
        with pytest.raises(WorkerError, match="no_such_backend"):
            session.ask("first")
    assert session.process.poll() is not None


def test_dynamic_sizes_differ_and_are_right() -> None:
    base = build("cross_entropy_training", True)
    sizes = [dynamic.resized(base, k) for k in range(3)]
    assert len({w.inputs[0].shape for w in sizes}) == 3
    tokens = dynamic.resized(build("gpt2_training", True), 2)
    assert tokens.inputs[0] is tokens.inputs[1]
    assert dynamic.right_everywhere(sizes[:1], base.fn)
    assert not dynamic.right_everywhere(sizes[:1], lambda x, y: base.fn(x, y) * 1.01)


def test_dynamic_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dynamic.main(["--quick", "--only", "softmax", "--sizes", "3", "--rounds", "1"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[5], row[7], row[9]) == ("softmax", "3", "0", "ok")


def test_equal_layers_share_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert layers.main(["--layers", "1,3", "--rounds", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    one, many = (int(line.split(" of ")[1].split()[0]) for line in last)
    assert many < 2 * one  # the first and the last layer differ from those between


def test_growth_counts_each_stage() -> None:
    half, whole = (growth.measure(growth.pieces, n, build=False) for n in (32, 64))
    assert len(half.sources) == len(whole.sources) == 1  # which is told where pieces begin
    assert set(growth.STAGES) <= set(whole.stages)
    cells = dict(zip(growth.HEADER, growth.line("pieces", whole, half), strict=True))
    assert (cells["n"], cells["kernels"], cells["build s"]) == ("64", "1", "")
    assert float(cells["x2"]) > 0


@pytest.mark.slow
def test_compile_time_tells_stages_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a file holds is not measured again; what the time does not allow is not begun."""
    out = tmp_path / "runs.jsonl"
    plan = compile_time.Plan("cpu", ("litz",), True, 1, out)
    cell = compile_time.measure("softmax", "static", plan, print)["litz"]
    assert not cell.failure and all(len(cell.seconds[way]) == 1 for way in compile_time.WAYS)
    (stages,) = cell.stages
    assert {"import", "Dynamo", "AOTAutograd", "lowering", "waiting"} <= set(stages)
    assert 0 < sum(stages.values()) < 1.01 * cell.seconds["cold"][0]
    (line,) = compile_time.lines("softmax", "static", {"litz": cell})
    assert len(line) == len(compile_time.HEADER) and "lowering" in line[-1]

    args = ["--quick", "--only", "softmax", "--sizes", "static", "--runs", "1", "--seconds", "0"]
    capsys.readouterr()
    assert compile_time.main([*args, "--out", str(out), "--backends", "litz"]) == 0
    said = capsys.readouterr()
    assert compile_time.align([compile_time.HEADER, line]) in said.out
    assert "rehearsal" not in said.err and len(out.read_text().splitlines()) == 1
    assert compile_time.measure("bert", "static", replace(plan, until=0.0), print) == {}


@pytest.mark.parametrize("parse", [cpu.parse, dynamic.parse, compile_time.parse])
def test_workloads_that_do_not_exist(
    parse: Callable[[Sequence[str]], argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(["--only", "softmax, bert"]).only == ("softmax", "bert")
    with pytest.raises(SystemExit):
        parse(["--only", "softmax,no_such"])
    said = capsys.readouterr().err
    assert "no such workload: no_such; there are " in said and ", softmax, " in said
