"""What bounds kernels: the smaller of two cases, the same places, and the table."""

from __future__ import annotations

import pytest
import torch

from benchmarks import by_hand, limits
from benchmarks.sweep.compositions import COMPOSITIONS
from benchmarks.sweep.tensors import Place


@pytest.mark.parametrize("name", limits.CASES)
def test_small_cases_have_as_many_elements_as_their_rows(name: str) -> None:
    """Of both sizes, so that their slope is that of an element; the forms are the same."""
    jobs = [
        COMPOSITIONS[name](limits.Rows(0, torch.float32, "plain", "cpu", rows))
        for rows in (limits.SMALL, limits.LARGE)
    ]
    counts = [limits.elements(job) for job in jobs]
    assert counts == [limits.SMALL * limits.COLUMNS, limits.LARGE * limits.COLUMNS]
    jobs[0].fn(*jobs[0].args)


def test_a_kernel_is_bound_by_the_larger() -> None:
    line = limits.Line("sum", 1, call=3.0, bytes=6 << 30, copy=1.0, compute=2.0, eager=1.0)
    assert line.bound == 1.5 and line.times_copy == 3.0 and line.times_compute == 1.5
    assert limits.Line("sum", 1, 3.0, 1, copy=2.0, compute=0.0, eager=1.0).bound == 1.5
    assert limits.Line("sum", 1, 3.0, 1, copy=2.0, compute=1.0, eager=1.0, hand=2.5).bound == 1.2


@pytest.mark.parametrize("name", sorted(by_hand.FILES))
def test_loops_by_hand_give_what_eager_gives(name: str) -> None:
    """Also of sizes that no vector divides, unless its rows are whole blocks."""
    for size, layout in ((1 << 14, "plain"), (1 << 14, "odd")):
        job = COMPOSITIONS[name](Place(size, torch.float32, layout, "cpu"))
        call = by_hand.loop(name, job)
        if call is not None:
            call()
        else:
            assert layout == "odd" and by_hand.FILES[name] in by_hand.WHOLE


def test_loops_by_hand_that_do_other_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_hand, "WITHIN", -1.0)
    job = COMPOSITIONS["sum_rows"](Place(1 << 12, torch.float32, "plain", "cpu"))
    with pytest.raises(ValueError, match="off eager mode's result"):
        by_hand.loop("sum_rows", job)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    asked = ["--only", "sum_rows,embedding_training", "--size", "65536", "--rounds", "2"]
    assert limits.main([*asked, "--threads", "1"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["sum_rows", "embedding_training"]
    assert len(head.split()) == 9 and all(float(x) >= 0 for row in rows for x in row.split()[1:])
    assert torch.get_num_threads() == threads and torch.is_grad_enabled()
