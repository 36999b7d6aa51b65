"""What the benchmark of several processes makes of what they measured."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import acceptance
from benchmarks.acceptance import PARTS, accept, judged
from benchmarks.distributed import merged, table, uncovered
from benchmarks.simulated import Network, predicted


@pytest.mark.parametrize(
    ("spans", "total"),
    [
        ([(True, 0, 10)], 10),
        ([(True, 0, 10), (False, 2, 5)], 7),
        ([(True, 0, 10), (True, 5, 20), (False, 0, 4), (False, 3, 6)], 14),
        ([(False, 0, 10), (True, 10, 12), (False, 12, 20)], 2),
        ([], 0),
    ],
)
def test_what_no_kernel_hides(spans: list[Any], total: float) -> None:
    assert uncovered(spans) == total


def test_the_slowest_rank_counts_and_failures_are_notes() -> None:
    def row(backend: str, ms: float, loss: float, **more: Any) -> dict[str, Any]:
        found = {"case": "c", "backend": backend, "rounds": [ms / 1e3] * 3, "losses": [1.0, loss]}
        return found | {"peak": 1.0, "first": 2.0} | more

    several = [
        (row("eager", 8, 0.5, exposed=0.001, host=5e-3), row("eager", 6, 0.5, exposed=0.003)),
        (row("litz", 4, 0.505), row("litz", 4, 0.505)),
        ({"case": "c", "backend": "inductor", "rounds": [], "failed": "no"},) * 2,
        (row("eager again", 8, 0.5),) * 2,
        (row("eager float32", 8, 0.4),) * 2,
    ]
    text = table([merged(rows) for rows in several]).splitlines()
    assert text[1].split() == [
        "c",
        "eager",
        "2.0",
        "8.00",
        "1.00",
        "-",
        "2.00",
        "5.00",
        "1.00",
        "0.0e+00",
        "0.0e+00",
        "2.5e-01",
    ]
    assert text[2].split() == [
        "c",
        "litz",
        "2.0",
        "4.00",
        "2.00",
        "-",
        "-",
        "-",
        "1.00",
        "1.0e-02",
        "0.0e+00",
        "2.6e-01",
    ]
    assert text[3:] == ["FAIL c on inductor: rank 0: no"]


def test_a_prediction_for_eight_ranks_hides_most() -> None:
    row = predicted(8, Network(), layers=1, width=256, tokens=(2, 64))
    ranks, calls, megabytes, *times = map(float, row)
    assert ranks == 8 and calls == 2  # one gathers, one reduces
    # Gathered in two bytes an element, reduced in four.
    assert megabytes == pytest.approx(12 * 256 * 256 * 6 / 1e6, abs=1)
    compute, transfers, exposed, written = times
    assert 0 < compute and 0 < exposed <= written <= transfers + 1e-6


def test_rings_are_as_slow_as_what_they_leave_the_host_by() -> None:
    network = Network(latency=1.0, inside=8.0, across=2.0, host=4)
    assert network.between(2) == (1.0, 16.0)
    assert network.between(4) == (2.0, 8.0 * 4 / 3)
    assert network.between(8) == (3.0, 2.0 * 8 / 7)


def measured(backend: str, ms: float, exposed: float, peak: float, loss: float) -> dict[str, Any]:
    row = {"case": "fsdp2", "backend": backend, "rounds": [ms / 1e3], "exposed": exposed}
    return row | {"peak": peak, "first": 1.0, "losses": [1.0, loss]}


@pytest.mark.parametrize(
    ("mine", "verdicts"),
    [
        (measured("litz", 8, 0.002, 4.1, 0.501), ["ok", "ok", "ok", "ok", ""]),
        (measured("litz", 9.5, 0.003, 4.3, 0.53), ["NO", "NO", "NO", "NO", ""]),
    ],
)
def test_what_is_asked_of_a_part(mine: dict[str, Any], verdicts: list[str]) -> None:
    eager, again = (
        measured(b, 12, 0.005, 4, x) for b, x in (("eager", 0.5), ("eager again", 0.51))
    )
    rows = [eager, mine, measured("inductor", 10, 0.004, 4, 0.502), again]
    assert [line[-1] for line in judged("fsdp2", rows)] == verdicts
    rows.append(measured("eager float32", 30, 0.006, 8, 0.495))
    last = "ok" if verdicts[0] == "ok" else "NO"
    assert [line[-1] for line in judged("fsdp2", rows)] == [*verdicts, last]
    failed = {"case": "fsdp2", "backend": "litz", "failed": "no answer"}
    assert [line[-1] for line in judged("fsdp2", [eager, failed])] == ["NO"]


def test_parts_that_are_done_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run_case(case: str, args: Namespace) -> list[dict[str, Any]]:
        ran.append((case, args.size, args.steps))
        return [{"case": case, "backend": "litz", "failed": "no"}]

    monkeypatch.setattr(acceptance, "run_case", run_case)
    out = tmp_path / "parts"
    done = [name for name, part in PARTS.items() if not part.large]
    out.write_text("".join(json.dumps({"part": name, "rows": []}) + "\n" for name in done))
    given = {"device": "cuda", "steps": 50, "backends": acceptance.BACKENDS, "only": (), "out": out}
    args = Namespace(**given, within=1e3, ranks=2)
    assert "left" not in accept(args)
    assert ran == [(name, "full", 50) for name in PARTS if name not in done]
    accept(args)
    assert len(ran) == len(PARTS) - len(done)
    accept(Namespace(**(vars(args) | {"only": ("fsdp2",), "within": 1.0})))
    assert ran[-1] == ("fsdp2", "full", 50) and len(ran) == len(PARTS) - len(done) + 1
