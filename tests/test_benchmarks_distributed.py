"""What the benchmark of several processes makes of what they measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.distributed import merged, table, uncovered


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
        (row("eager", 8, 0.5, exposed=0.001), row("eager", 6, 0.5, exposed=0.003)),
        (row("litz", 4, 0.505), row("litz", 4, 0.505)),
        ({"case": "c", "backend": "inductor", "rounds": [], "failed": "no"},) * 2,
        (row("eager again", 8, 0.5),) * 2,
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
        "1.00",
        "0.0e+00",
        "0.0e+00",
    ]
    assert text[2].split() == [
        "c",
        "litz",
        "2.0",
        "4.00",
        "2.00",
        "-",
        "-",
        "1.00",
        "1.0e-02",
        "0.0e+00",
    ]
    assert text[3:] == ["FAIL c on inductor: rank 0: no"]
