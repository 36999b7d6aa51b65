"""The GPU benchmark without a GPU: what is right, what is reported, that failures stay cells."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu_check, host_gpu
from benchmarks.aten import Recorder, alone
from benchmarks.gpu import __main__ as gpu_main
from benchmarks.gpu import clock as clocks
from benchmarks.gpu import matmul as products
from benchmarks.gpu import run as gpu_run
from benchmarks.gpu.__main__ import main, parse
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.corpus import Hand, Result, cases_text, run_cases
from benchmarks.gpu.judge import compare, distance, exact, judged, outcome, overwritten
from benchmarks.gpu.measure import Crew, GpuCell, GpuRow, Plan, Start, measure, measure_again
from benchmarks.gpu.report import starts_text, summary, table
from benchmarks.gpu.run import Run, gather_logs
from benchmarks.gpu.worker import GpuRunner
from benchmarks.gpu.workloads import GPU_WORKLOADS, build_on, least_bytes
from benchmarks.session import ROOT, WorkerError, WorkerLate, WorkerLost, environment
from benchmarks.step import Step

MODELS = ("bert", "gpt2_training", "llama", "resnet50")
KERNELS = tuple(name for name in GPU_WORKLOADS if name not in MODELS)


def silent(_: str) -> None:
    pass


# --- workloads and their judge --------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_eager_is_right(name: str) -> None:
    traffic = build_on("cpu", name, True)
    got = outcome(traffic, Step(traffic.workload, traffic.workload.fn))
    fresh = build_on("cpu", name, True)
    assert (overwritten(traffic.workload, fresh.workload) is not None) == traffic.mutates
    eager = outcome(fresh, Step(fresh.workload, fresh.workload.fn))
    verdict = judged(got, eager, exact(build_on("cpu", name, True)))
    assert verdict["ok"], verdict
    assert least_bytes(traffic, eager["out"]) > 0


def test_the_least_traffic() -> None:
    x = build_on("cpu", "swiglu", True).workload.inputs[0]
    traffic = build_on("cpu", "swiglu", True)
    out = traffic.workload.fn(x)
    assert least_bytes(traffic, [out]) == 2 * x.numel() + 2 * out.numel()
    adamw = build_on("cpu", "adamw", True)
    each = sum(t.numel() * 4 for t in adamw.workload.inputs) // 4
    assert least_bytes(adamw, []) == 7 * each
    assert build_on("cpu", "adamw", True).workload.inputs[0].shape == (32, 32)


def test_the_optimizer_is_pytorchs() -> None:
    inputs = build_on("cpu", "adamw", True).workload.inputs
    n = len(inputs) // 4
    params = [t.clone().requires_grad_() for t in inputs[:n]]
    theirs = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1)
    for i, p in enumerate(params):
        p.grad = inputs[n + i].clone()
        theirs.state[p] = {
            "step": torch.tensor(9.0),
            "exp_avg": inputs[2 * n + i].clone(),
            "exp_avg_sq": inputs[3 * n + i].clone(),
        }
    theirs.step()
    build_on("cpu", "adamw", True).workload.fn(*inputs)
    for p, mine in zip(params, inputs[:n], strict=True):
        torch.testing.assert_close(mine, p.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 3.0])
def test_one_wrong_element_among_many_is_wrong(wrong: float) -> None:
    # Its share of the norm is far below eager's own roundings to bfloat16.
    truth = torch.randn(1 << 20, dtype=torch.float64) + 5
    eager = truth.bfloat16()
    got = eager.clone()
    assert compare([got], [eager], [truth])["ok"]
    got[12345] += wrong
    found = compare([got], [eager], [truth])
    assert not found["ok"]
    assert not found["error"] > 2 * found["eager_error"] + 1e-3 or not math.isfinite(wrong)


def test_distances_are_those_of_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = [torch.randn(7, 30, dtype=torch.float64).t(), torch.zeros(0), torch.zeros(5).double()]
    got = [t.float() * 1.01 for t in truth]
    whole = distance(got, truth)
    monkeypatch.setattr("benchmarks.gpu.judge.PIECE", 16)
    assert distance(got, truth) == pytest.approx(whole)
    assert whole.error == pytest.approx(0.01, rel=1e-3)


def test_a_kernel_that_writes_into_an_input_is_wrong() -> None:
    runner = GpuRunner("cpu", "eager", True)
    runner.first("softmax")
    assert runner.judge()["verdict"]["ok"]
    _, step = runner.held()
    step.workload.inputs[0][3, 4] = 0
    assert runner.judge()["verdict"]["fault"] == "input 0 was overwritten"


@pytest.mark.parametrize("name", ["block32", "cross_entropy_training", "adamw"])
def test_a_wrong_backend_is_wrong(name: str) -> None:
    runner = GpuRunner("cpu", "aot_eager", True)
    runner.first(name)
    assert runner.judge()["verdict"]["ok"]
    traffic, step = runner.held()
    right = step.fn

    def wrong(*args: torch.Tensor) -> Any:
        if traffic.mutates:
            right(*args)
            args[0].mul_(1.05)
            return None
        return right(*(a * 1.05 if a.is_floating_point() else a for a in args))

    step.fn = wrong
    verdict = runner.judge()["verdict"]
    assert (verdict["ok"], verdict["loose"]) == (False, False)


# --- clocks ---------------------------------------------------------------------------------


def test_the_host_clock() -> None:
    clock = clocks.clock_of("cpu")
    times = clock.measure(lambda: time.sleep(0.002), 0.0)
    assert len(times) == 5 and all(t >= 0.002 for t in times)
    assert len(clock.measure(lambda: None, 10.0, most=50)) == 50
    assert clocks.copy_rate("cpu", clock, 1 << 20, 0.01) > 0
    assert clocks.host_seconds(lambda: time.sleep(0.001), clock, 2, 2) >= 0.001


def test_calls_of_aten_alone() -> None:
    x, out = torch.randn(4, 4, requires_grad=True), torch.empty(4, 4)
    recorder = Recorder()
    with torch.no_grad(), recorder:
        y = torch.addmm(x[0], x, x, alpha=2, out=out).t() @ torch.cat([x, x]).t()
        y.max(1)
    names = [str(op) for op, *_ in recorder.calls]
    assert names == ["aten.addmm.out", "aten.cat.default", "aten.mm.default", "aten.max.dim"]
    calls, wanted = alone(recorder.calls), out.clone()
    out.zero_()
    with torch.profiler.profile() as profile:
        calls()
    made = {e.name for e in profile.events()}
    assert made >= {"aten::addmm", "aten::cat", "aten::mm", "aten::max"}
    assert torch.equal(out, wanted)


def test_hosts_are_held_to_what_runs_of_one_agree_on(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*numbers: float) -> list[torch.Tensor]:
        return [torch.tensor(n) for n in numbers]

    host_gpu.check("x", [run(1, math.nan)], [run(1, math.nan)])
    host_gpu.check("x", [run(1, 2, 3), run(1, 2, 4)], [run(1, 2, 3.5), run(1, 2, 3.5)])
    host_gpu.check("x", [run(1, 2, 3), run(1, 2, 4)], [run(1, 7, 3), run(1, 7, 3)])
    said = [line.partition("hosts: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[0] == "equal"
    beside = "beside 1 that differ from run to run of one host, by 1 (of both hosts by "
    assert said[1:] == [f"0 of 3 differ, {beside}0.5)", f"1 of 3 differ, {beside}5)"]


def test_the_event_clock_times_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class FakeEvent:
        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, after: FakeEvent) -> float:
            return 2.0

    monkeypatch.setattr(clocks, "event", FakeEvent)
    monkeypatch.setattr(clocks, "FLUSH_BYTES", 64)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    clock = clocks.EventClock("cpu")
    monkeypatch.setattr(clock, "_flush", SimpleNamespace(sum=lambda: log.append("flush")))
    assert clock.run(lambda: log.append("call"), 2) == [2e-3, 2e-3]
    assert log == ["wait", *["flush", "event", "call", "event"] * 2, "wait"]
    assert len(clock.measure(lambda: time.sleep(1e-3), 0.05, least=3, most=200)) in range(3, 51)
    assert len(clock.measure(lambda: None, 10.0, most=7)) == 7
    assert gc.isenabled()


# --- failures are cells ---------------------------------------------------------------------


class FakeSession:
    """Answers as told: ``replies`` of a request by name, or what it raises."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies, self.asked, self.killed = replies, [], False

    def ask(self, do: str, within: float = 0, **arguments: Any) -> dict[str, Any]:
        self.asked.append(do)
        reply = self.replies.get(do, {})
        if callable(reply):
            reply = reply(**arguments)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def kill(self) -> None:
        self.killed = True


def answers(**changes: Any) -> dict[str, Any]:
    verdict = {"ok": True, "loose": False, "groups": {}}
    return {
        "facts": {"torch": "2"},
        "start": {"seconds": 1.0, "call_us": 5.0},
        "first": {"seconds": 0.5},
        "time": {"seconds": 0.002},
        "judge": {"verdict": verdict, "bytes": 1000},
        "capture": {"refused": None},
        "replay": {"seconds": 0.001},
        **changes,
    }


def crew_of(
    open_one: Callable[[str, float], Any],
    seconds: float = 100.0,
    device: str = "cuda",
    backends: tuple[str, ...] = ("eager", "inductor", "litz"),
) -> Crew:
    plan = Plan(device, backends, True, 2, 0.01, 50.0, time.monotonic() + seconds)
    crew = Crew(plan, Path("/nowhere"), open_one)
    crew.open_all()
    return crew


def test_a_row() -> None:
    made: list[str] = []
    speed = {"eager": 0.004, "inductor": 0.002, "litz": 0.001}

    def open_one(backend: str, _: float) -> Any:
        made.append(backend)
        return FakeSession(answers(time={"seconds": speed[backend]}))

    crew = crew_of(open_one)
    row = measure("w", crew, silent)
    assert sorted(made) == sorted(speed)
    assert row.speed("litz", "eager") == pytest.approx(4)
    assert row.speed("litz", "inductor") == pytest.approx(2)
    assert row.speed("litz", "inductor", replayed=True) == pytest.approx(1)
    assert row.least == 1000
    assert all(c.failure is None and len(c.replays) == 2 for c in row.cells.values())
    measure_again([row], crew, silent)
    assert [c.again for c in row.cells.values()] == [None, 0.5, 0.5]


def test_a_failure_keeps_the_worker_and_the_other_cells() -> None:
    made: list[str] = []

    def open_one(backend: str, _: float) -> Any:
        made.append(backend)
        first = WorkerError("boom") if backend == "litz" else {"seconds": 0.5}
        return FakeSession(answers(first=first))

    crew = crew_of(open_one)
    for _ in range(2):
        row = measure("w", crew, silent)
        assert row.cells["litz"].failure == "boom"
        assert row.speed("inductor", "eager") == pytest.approx(1)
    assert made.count("litz") == 1
    assert "FAIL w on litz: boom" in table([row], None)


@pytest.mark.parametrize("at", ["first", "warm", "time", "judge", "capture", "replay", "drop"])
@pytest.mark.parametrize("error", [WorkerLate("no answer"), WorkerLost("gone")])
def test_a_lost_worker_is_replaced(at: str, error: WorkerError) -> None:
    sessions: list[FakeSession] = []

    def open_one(backend: str, _: float) -> Any:
        bad = {at: error} if backend == "litz" and len(sessions) < 3 else {}
        session = FakeSession(answers(**bad))
        sessions.append(session)
        return session

    crew = crew_of(open_one)
    lost = measure("a", crew, silent)
    assert lost.cells["litz"].failure == (None if at == "drop" else str(error))
    assert lost.cells["eager"].failure is None
    assert sum(s.killed for s in sessions) == 1
    assert measure("b", crew, silent).cells["litz"].failure is None
    assert len(sessions) == 4


def test_a_process_whose_device_broke_is_replaced() -> None:
    sessions: list[FakeSession] = []

    def open_one(backend: str, _: float) -> Any:
        broken = WorkerError("illegal memory access")
        bad = {"warm": broken, "alive": broken} if backend == "litz" and len(sessions) < 3 else {}
        sessions.append(FakeSession(answers(**bad)))
        return sessions[-1]

    crew = crew_of(open_one)
    assert measure("a", crew, silent).cells["litz"].failure == "illegal memory access"
    assert measure("b", crew, silent).cells["litz"].failure is None


def test_a_backend_that_does_not_start_costs_no_more_time() -> None:
    made: list[str] = []

    def open_one(backend: str, _: float) -> Any:
        made.append(backend)
        if backend == "litz":
            raise WorkerLate("no answer within 90 s")
        return FakeSession(answers())

    crew = crew_of(open_one)
    assert crew.failed == {"litz": "no answer within 90 s"}
    rows = [measure(name, crew, silent) for name in "abc"]
    assert made.count("litz") == 2
    assert "do not start" in str(rows[2].cells["litz"].failure)
    assert all(row.cells["eager"].failure is None for row in rows)


def test_a_failed_rehearsal_leaves_the_workloads() -> None:
    crew = crew_of(lambda b, _: FakeSession(answers(start=WorkerError("no relu"))))
    assert crew.failed["litz"] == "no relu"
    assert measure("a", crew, silent).cells["litz"].failure is None


def test_late_backends_get_less_and_less() -> None:
    crew = crew_of(lambda b, _: FakeSession(answers(first=WorkerLate("late"))))
    for _ in range(6):
        measure("a", crew, silent)
    assert crew._allowed["litz"] == 10.0


def test_the_limit_of_the_run() -> None:
    def late(**_: Any) -> WorkerLate:
        time.sleep(0.3)
        return WorkerLate("late")

    crew = crew_of(lambda b, _: FakeSession(answers(time=late)), seconds=0.2)
    row = measure("a", crew, silent)
    assert {c.failure for c in row.cells.values()} == {"the run's limit was reached"}
    none = crew_of(lambda b, _: FakeSession(answers()), seconds=-1.0)
    assert set(none.failed) == {"eager", "inductor", "litz"}
    measure_again([row], none, silent)


def test_what_cannot_be_captured_is_said() -> None:
    refused = {"refused": "RuntimeError: not permitted"}
    crew = crew_of(lambda b, _: FakeSession(answers(capture=refused)))
    row = measure("a", crew, silent)
    assert all(c.failure is None and not c.replays for c in row.cells.values())
    assert "no replay of a on litz: RuntimeError: not permitted" in table([row], None)


# --- the report -----------------------------------------------------------------------------


def cell(seconds: float, ok: bool = True) -> GpuCell:
    verdict = {"ok": ok, "loose": False, "groups": {}}
    return GpuCell(first=1.0, rounds=[seconds], replays=[seconds / 2], verdict=verdict)


def row_of(name: str, eager: float, peer: float, litz: float, ok: bool = True) -> GpuRow:
    cells = {"eager": cell(eager), "inductor": cell(peer), "litz": cell(litz, ok)}
    return GpuRow(name, 10**9, cells)


def test_what_lags_is_named() -> None:
    rows = [
        row_of("block32", 4e-3, 2e-3, 1e-3),
        row_of("block32_transposed", 4e-3, 2e-3, 2.1e-3, ok=False),
        row_of("bert", 1e-3, 1e-3, 1.02e-3),
    ]
    text = summary(rows)
    assert "calls: below 0.97 of inductor's speed: block32_transposed 0.95\n" in text
    assert "calls: below 1.0 of eager's speed: bert 0.98\n" in text
    assert "block32_transposed / block32: eager 1.00, inductor 1.00, litz 2.10" in text
    assert "litz failed or was not right: block32_transposed" in text
    assert "calls: litz is 1.231x as fast as inductor (geometric mean of 3)" in text
    lines = table(rows, 4e12).splitlines()
    # A gigabyte in half a millisecond is half of a roof of 4 TB/s.
    assert lines[3].split()[:8] == "block32 litz 1.00 - 1.0000 0.5000 2000 50".split()
    assert lines[6].split()[-1] == "WRONG"
    assert starts_text({"litz": Start(1.5, 7.25)}).endswith("1.50 s, a small call 7.2 us")
    assert Run(rows=rows).right is False and Run(rows=rows[::2]).right is True
    assert Run(rows=rows[::2], missed=["x"]).right is False
    assert json.loads(json.dumps(Run(rows=rows).as_json()))["rows"][2]["name"] == "bert"


# --- cases of the tests ---------------------------------------------------------------------


@pytest.mark.slow
def test_cases_without_pytest() -> None:
    code = """if True:
        import sys
        sys.modules["pytest"] = None
        from benchmarks.gpu.cases import Cases
        cases = Cases("cpu")
        assert type(sys.modules["pytest"].mark).__name__ == "Marks"
        names = cases.names()["names"]
        assert {"corpus softmax", "gradients pool", "row add", "cast bf16"} <= set(names)
        for name in ("corpus gelu_bias", "dynamic columns", "gradients softmax", "row add"):
            assert cases.run(name)["why"] is None, name
        cases.rows.same_bits = lambda a, b: a != a
        assert "differ" in cases.run("row add")["why"]
        assert "add: " in cases.run("row add")["why"]
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_case_that_hangs_or_dies_is_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """if True:
        import os, time
        from benchmarks.worker import serve
        class Cases:
            def names(self):
                return {"names": ["a", "hang", "b", "die", "c", "break", "d"]}
            def run(self, name):
                if name == "hang": time.sleep(100)
                if name == "die": os._exit(3)
                self.broken = name == "break"
                why = "broken" if self.broken else None
                return {"why": why, "said": name, "skipped": None, "seconds": 0.0}
            def alive(self):
                assert not self.broken
                return {}
        serve(Cases)
    """
    (tmp_path / "fake_cases.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    monkeypatch.setattr("benchmarks.gpu.corpus.WORKER", "fake_cases")
    until = time.monotonic() + 200
    found = run_cases("cpu", (), tmp_path, 1, until, 1.0, silent)
    assert [r.name for r in found] == ["a", "hang", "b", "die", "c", "break", "d"]
    assert [r.ok for r in found] == [True, False, True, False, True, False, True]
    text = cases_text(found)
    assert "4 of 7 cases right, 3 wrong, 0 not run" in text
    assert "WRONG hang: no answer within 1 s" in text
    assert "WRONG die: worker ended with status 3" in text
    late = Hand("cpu", tmp_path, time.monotonic() - 1, 1.0)
    assert late.run("a") == Result("a", None, ran=False)


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "other")
    assert environment(tmp_path)["PYTHONPATH"] == "other"
    monkeypatch.setattr("benchmarks.session.find_spec", lambda name: None)
    assert environment(tmp_path)["PYTHONPATH"] == f"{ROOT / 'src'}{os.pathsep}other"
    registered = []
    monkeypatch.setattr(torch._dynamo, "list_backends", lambda **_: ["inductor"])
    monkeypatch.setattr(torch._dynamo, "register_backend", lambda fn, name: registered.append(name))
    for name in ("inductor", "eager", "litz"):
        backend_called(name)
    assert registered == ["litz"]


def test_logs_and_repros_are_kept(tmp_path: Path) -> None:
    (tmp_path / "litz" / "repros" / "one").mkdir(parents=True)
    (tmp_path / "litz" / "cuda-litz-1.log").write_text("a traceback")
    (tmp_path / "litz" / "empty.log").write_text("")
    (tmp_path / "litz" / "repros" / "one" / "repro.py").write_text("a graph")
    (tmp_path / "litz" / "kernel.py").write_text("a kernel")
    gather_logs(tmp_path, tmp_path / "out")
    text = (tmp_path / "out").read_text()
    assert text == "=== litz/cuda-litz-1.log\na traceback\n=== one/repro.py\na graph\n"


# --- the whole ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_check_and_the_benchmark_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Run] = []

    def run(*args: Any) -> Run:
        made.append(gpu_run.run(*args))
        return made[0]

    monkeypatch.setattr(gpu_check, "run", run)
    out, json_to = tmp_path / "out", tmp_path / "figures.json"
    small = ["--device", "cpu", "--quick", "--rounds", "1", "--only", "gelu_bias", "--again"]
    arguments = [*small, "--out", str(out), "--match", "row neg", "--jobs", "1"]
    assert gpu_check.main(arguments) == 0
    assert "1 of 1 cases right" in (out / "check.txt").read_text()
    found = json.loads((out / "check.json").read_text())
    assert found["cases"][0]["name"] == "row neg" and len(found["benchmark"]["rows"]) == 1

    # The benchmark by itself says and writes what that run found.
    def again(plan: Plan, only: Any, say: Any, again: bool, write: Any, log: Any) -> Run:
        assert (plan.backends, plan.rounds, only, again) == (
            ("eager", "litz"), 1, ("gelu_bias",), True,
        )  # fmt: skip
        write(made[0])
        return made[0]

    capsys.readouterr()
    monkeypatch.setattr(gpu_main, "run", again)
    assert main([*small, "--json", str(json_to)]) == 0
    text = capsys.readouterr().out
    assert "calls: litz is" in text and "a plain copy moves" in text
    (row,) = json.loads(json_to.read_text())["rows"]
    assert row["cells"]["litz"]["verdict"]["ok"] and row["cells"]["litz"]["again"] > 0


def test_arguments() -> None:
    assert parse([]).backends == ("eager", "inductor", "litz")
    assert parse(["--device", "cpu"]).backends == ("eager", "litz")
    assert parse([]).only == tuple(GPU_WORKLOADS)
    with pytest.raises(SystemExit):
        parse(["--only", "no_such"])
    with pytest.raises(SystemExit):
        parse(["--rounds", "0"])


# --- matrix products ------------------------------------------------------------------------------


@pytest.mark.parametrize("take", ["chosen", "never"])
def test_products_are_measured_and_judged(take: str) -> None:
    pytest.importorskip("triton")
    given = ["--device", "cpu", "--rounds", "1", "--take", take]
    args = products.parse([*given, *(["--library"] if take == "chosen" else [])])
    row = products.run_case(products.kinds(16, 32, 128)["int4"], clocks.clock_of("cpu"), args)
    assert row.right and row.litz > 0 and row.peer is None
    assert (row.library is None) == (take == "never")
    assert row.kernel.startswith("ATen") == (take == "never")
    wrong = products.Row(**{**row.__dict__, "error": 1.0})
    assert "WRONG" in products.table([row, wrong]) and products.table([row]).count("ok") == 1


def test_products_may_be_compiled_and_judged_before_they_are_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own: what fails there is told, and the others are timed."""
    case, wrong = (replace(products.kinds(16, 32, 64)["gelu"], name=x) for x in ("one", "other"))
    found = [products.Seen("ATen +1", 1e-3, 1e-3, 0.5), "ValueError: no"]
    monkeypatch.setattr(products, "cases", lambda: iter((case, wrong)))
    monkeypatch.setattr(products, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(n))
    monkeypatch.setattr(products, "prepared", lambda which, blocks, args: found[which])
    given = ["--device", "cpu", "--rounds", "1", "--jobs", "2", "--out", str(tmp_path / "rows")]
    assert products.main(given) == 1
    said = capsys.readouterr()
    assert "ATen +1" in said.out and "other: RuntimeError: ValueError: no" in said.err
    (row,) = (tmp_path / "rows").read_text().splitlines()
    assert json.loads(row)["first"] == 0.5


@pytest.mark.slow
def test_forms_of_products_are_forced() -> None:
    pytest.importorskip("triton")
    args = products.parse(["--device", "cpu", "--rounds", "1", "--blocks", "16x32x64w2s3p2"])
    case, (blocks,) = products.called(32, 48, 1024)["fp8w"], args.blocks
    row = products.run_case(case, clocks.clock_of("cpu"), args, blocks)
    assert row.right and row.kernel == "16x32x64 w2 s3 of 2"


def test_cases_of_products_have_names_of_their_own() -> None:
    names = [c.name for c in products.cases()]
    assert len(set(names)) == len(names) == 85


def test_forms_of_products_with_four_bits() -> None:
    """Interpreted, in a process of its own: all forms are the product."""
    pytest.importorskip("triton.language")
    code = (
        "from benchmarks.gpu import int4 as b\n"
        "given = b.kinds(16, 128, 512)['int4'].make('cpu')\n"
        "exact = b.int4(*b.double(given))\n"
        "least = b.distance(b.int4(*given), exact)\n"
        "form = {'rows': 64, 'warps': 4, 'stages': 4, 'parts': 2}\n"
        "for outside in (True, False):\n"
        "    found = b.call({**form, 'outside': outside}, *given, True)\n"
        "    assert b.distance(found, exact) <= 2 * least"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
