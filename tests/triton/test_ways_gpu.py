"""Ways to reduce on a GPU: measured once, kept, and right whichever is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import litz
from litz.runtime.tune import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def found(x: torch.Tensor, **options: object) -> list[Choice]:
    report = litz.explain(softmax, x, options=options)
    torch.testing.assert_close(report.result, softmax(x.double()).float())
    return [c for g in report.graphs for c in g.stages.choices.values()]


def test_the_first_run_measures_and_the_next_process_does_not(tmp_path: Path) -> None:
    x = torch.randn(64, 1 << 14, device="cuda")
    before = torch.cuda.memory_allocated()
    (first,) = found(x, cache_dir=str(tmp_path))
    assert first.measured and len(first.seconds) > 1
    assert all(t is not None and t > 0 for t in first.seconds)
    (again,) = found(x, cache_dir=str(tmp_path))
    assert not again.measured and again.index == first.index
    assert torch.cuda.memory_allocated() <= before + x.nbytes  # the caller's result at most
    assert found(x, cache_dir=str(tmp_path / "other"), autotune=0) == []


@pytest.mark.parametrize("way", ["persistent", "looped", "split"])
def test_every_way_is_right(way: str) -> None:
    assert found(torch.randn(64, 1 << 14, device="cuda"), reduction=way) == []


@pytest.mark.parametrize("shape", [(1, 50257), (4, 1 << 17)])
def test_launches_of_few_long_rows_overlap_and_give_the_same_bits(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape, device="cuda"), torch.randn(1 << 24, device="cuda")
    call = torch.compile(softmax, backend="litz", dynamic=False)
    first = call(x).clone()
    torch.testing.assert_close(first, softmax(x.double()).float())
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        recorded = call(x * 1)
    for _ in range(50):
        with torch.cuda.stream(other):
            y.sin_()
        graph.replay()
        assert torch.equal(call(x), first) and torch.equal(recorded, first)


def test_open_sizes_are_measured_on_what_the_first_call_has(tmp_path: Path) -> None:
    call = torch.compile(
        softmax, backend="litz", dynamic=True, options={"cache_dir": str(tmp_path)}
    )
    for rows in (64, 50, 300):
        x = torch.randn(rows, 1 << 14, device="cuda")
        torch.testing.assert_close(call(x), softmax(x.double()).float())
