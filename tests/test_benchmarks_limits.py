"""What bounds kernels: the smaller of two cases, the same places, and the table."""

from __future__ import annotations

import pytest
import torch

from benchmarks import limits
from benchmarks.sweep.compositions import COMPOSITIONS


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


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    asked = ["--only", "sum_rows,embedding_training", "--size", "65536", "--rounds", "2"]
    assert limits.main([*asked, "--threads", "1"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["sum_rows", "embedding_training"]
    assert len(head.split()) == 7 and all(float(x) >= 0 for row in rows for x in row.split()[1:])
    assert torch.get_num_threads() == threads and torch.is_grad_enabled()
