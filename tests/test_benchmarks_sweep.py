"""The sweep: a dozen of its cases are right, go on where they ended, and fill its table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.sweep import __main__ as sweep
from benchmarks.sweep import operators, page, timing
from benchmarks.sweep.cases import asked, build, compositions, groups, programs
from benchmarks.sweep.compositions import COMPOSITIONS
from benchmarks.sweep.programs import PROGRAMS
from benchmarks.sweep.tensors import LAYOUTS, Job, Place


def test_a_dozen_cases_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table = tmp_path / "rows.jsonl", tmp_path / "table"
    first = ["--out", str(out), "--quick", "--each", "0.01"]
    assert sweep.main([*first, "--seconds", "0"]) == 0 and not out.exists()
    assert sweep.main([*first, "--table", str(table)]) == 0, out.read_text()
    rows = sweep.rows_of(out)
    assert len(rows) == len(sweep.QUICK) and {r["right"] for r in rows} == {"ok"}
    assert all(r["eager"] > 0 and r["litz"] > 0 and r["noise"] >= 0 for r in rows)
    assert {r["kernels"] for r in rows if "linalg" not in r["case"]} <= {1, 2, 3}
    (extern,) = (r["externs"] for r in rows if "linalg" in r["case"])
    assert "linear algebra" in " ".join(extern.values())

    before = out.read_text()
    assert sweep.main(first) == 0 and out.read_text() == before
    assert "cpu 1   all           12" in capsys.readouterr().out
    with table.with_suffix(".csv").open() as file:
        assert [r["case"] for r in csv.DictReader(file)] == sorted(r["case"] for r in rows)
    text = table.with_suffix(".html").read_text()
    assert text.count("<circle") == 12 and text.count("<polyline") == 2 and "http" not in text


def test_cases_that_fail_are_rows(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    job = ["--out", str(out), "--only", "/softmax/float32/plain/1/", "--within", "0.01"]
    assert sweep.main(job) == 1
    (row,) = sweep.rows_of(out)
    assert "no answer" in row["failed"]
    with out.open("a") as file:
        file.write('{"case": "cut o')
    assert len(sweep.rows_of(out)) == 1 and "FAIL" in page.summary(sweep.rows_of(out))


def test_cases_are_many_and_differ() -> None:
    found = [c for g in groups("cpu") for c in g.cases()]
    assert len(found) == len(set(found)) > 1500
    assert {c.split("/")[3] for c in found} == set(LAYOUTS)
    assert asked("matrix/add/float32/plain/1", ["/plain/1/"])
    assert not asked("matrix/add/float32/plain/1000", ["/plain/1/"])


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_of_every_layout(name: str) -> None:
    """Small ones run in eager mode, and are the same each time."""
    for group in (g for g in compositions("cpu") if g.op == name):
        job, again = (build(group, min(group.sizes[0], 1 << 12), "cpu") for _ in range(2))
        results = timing.Side(job.fn, job).outcome()
        others = timing.Side(again.fn, again).outcome()
        assert results and all(map(torch.equal, results, others))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Small ones run in eager mode; in float64 they do the same but for rounding."""
    (group,) = (g for g in programs() if g.op == name)
    job = build(group, group.sizes[0], "cpu")
    results = timing.Side(job.fn, job).outcome()
    exact = timing.Side(job.fn, timing.widened(job)).outcome()
    assert results
    for found, truth in zip(results, exact, strict=True):
        assert found.isfinite().all() and torch.allclose(found.double(), truth, 1e-3, 1e-4)


def test_programs_decide_on_the_host() -> None:
    """Their parts are graphs of their own, whatever calls them."""
    for name, least in (("solver", 1), ("solver_by_sides", 40), ("adaptive_solver", 5)):
        calls: list[int] = []

        def counting(gm: torch.fx.GraphModule, _: Any, calls: list[int] = calls) -> Any:
            def run(*args: Any) -> Any:
                calls.append(1)
                return gm.forward(*args)

            return run

        (group,) = (g for g in programs() if g.op == name)
        job = build(group, group.sizes[0], "cpu")
        torch.compile(job.fn, backend=counting, dynamic=False)(*job.args)
        assert len(calls) == 1 if least == 1 else len(calls) >= least, name


def test_layouts() -> None:
    strides = {
        layout: Place(1 << 12, torch.float32, layout, "cpu").matrix().stride() for layout in LAYOUTS
    }
    assert strides["plain"] == (64, 1) and strides["odd"] == (65, 1)
    assert strides["transposed"] == (1, 64) and strides["sliced"] == (73, 1)
    assert strides["broadcast"] == (0, 1) and strides["batch1"] == (4096, 1)
    image = Place(1 << 12, torch.float32, "channels_last", "cpu").image()
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_operators_of_each_kind() -> None:
    kinds = {name: operators.kind(name) for name in ("exp", "add", "amax", "linalg.det")}
    assert list(kinds.values()) == ["unary", "binary", "reduction", "sample"]
    for name in kinds:
        job = operators.build(name, Place(100, torch.float32, "plain", "cpu"))
        timing.Side(job.fn, job).outcome()


def of(fn: Any, *args: torch.Tensor) -> Job:
    return Job(fn, args)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda t: t, "ok"),
        (lambda t: t * 1.00001, "loose"),
        (lambda t: t * 1.1, "WRONG"),
        (lambda t: t.double(), "WRONG"),
        (lambda t: t.masked_fill(t > 1, torch.nan), "WRONG"),
    ],
)
def test_verdicts(change: Any, right: str) -> None:
    x = torch.linspace(-1, 2, 1000)
    x[5] = torch.inf
    job = of(torch.exp, x)
    eager = timing.Side(job.fn, job).outcome()
    assert timing.verdict([change(eager[0])], eager, eager, job)["right"] == right


def test_indices_of_equal_elements_are_of_any_order() -> None:
    """They pick the same values, each once."""
    job = of(lambda x: x.sort(-1), torch.tensor([[3.0, 1, 1, 0], [2, 2, 2, torch.nan]]))
    values, _ = eager = timing.Side(job.fn, job).outcome()

    def right(*indices: list[int]) -> str:
        got = [values, torch.tensor(indices)]
        return str(timing.verdict(got, eager, eager, job)["right"])

    assert right([3, 2, 1, 0], [2, 0, 1, 3]) == "ok"
    assert right([3, 1, 1, 0], [0, 1, 2, 3]) == "WRONG"  # one twice
    assert right([3, 0, 1, 2], [0, 1, 2, 3]) == "WRONG"  # other values
    assert right([3, 2, 1, 4], [0, 1, 2, 3]) == "WRONG"  # none


def test_random_values_are_no_fault() -> None:
    job = of(torch.rand_like, torch.ones(100))
    runs = [timing.Side(job.fn, job).outcome() for _ in range(3)]
    assert timing.verdict(*runs, job)["right"] == "random"


def test_slower_is_beyond_noise() -> None:
    ratio, noise = timing.beside([2.0] * 9, [1.0] * 9)
    assert (ratio, noise) == (0.5, 0)
    row = {"ratio": 0.9, "noise": 0.05}
    assert page.slower(row) and not page.slower(row | {"noise": 0.2})
    assert not page.slower({"ratio": 0.96, "noise": 0.0})
    assert not page.slower(row | {"dynamo_ratio": 1.0, "dynamo_noise": 0.0})
