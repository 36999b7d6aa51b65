"""Loops over rows that whole accesses do not divide: the first elements of a row come last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.kernel.blocks import sizes as blocks  # noqa: E402
from litz.targets.triton.source import Launch  # noqa: E402

TRITON = {"target": "triton"}
SIZES = (1025, 2047, 2051, 3001, 3080)


@pytest.fixture(autouse=True)
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few thousand elements take loops, of several turns."""
    monkeypatch.setattr(blocks, "PERSISTENT", 64)
    monkeypatch.setattr(blocks, "ROW", 1024)


def launches(fn, *args: torch.Tensor, **options: object) -> list[Launch]:
    graphs = litz.explain(fn, *args, options={**TRITON, **options}).graphs
    made = (k.triton for g in graphs for k in g.stages.kernels)
    return [x for kernel in made if kernel is not None for x in kernel.launches]


def rows(size: int, count: int = 5) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("size", SIZES)
def test_the_first_of_equal_elements(size: int) -> None:
    x = (rows(size) * 2).round()
    x[3, 7] = x[3, 9] = float("nan")
    check(lambda x: (x.argmax(1), x.argmin(1), x.amax(1)), x, runs=1, judge=False, **TRITON)


@pytest.mark.parametrize("size", SIZES)
def test_reductions_and_stores_along(size: int) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low = x - x.mean(1, keepdim=True)
        return (*torch.var_mean(x, 1), F.softmax(x, 1), low * x.amax(1, True), low.prod(1))

    check(fn, rows(size), runs=1, **TRITON)


def test_a_program_has_one_row_in_every_configuration() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, 1)

    (made,) = launches(fn, rows(3001, 6), mode="max-autotune")
    assert "xrow" in made.source and len(made.configs) > 5
    assert {c.block("x") for c in made.configs} == {1}
    (made,) = launches(fn, rows(3072, 6), mode="max-autotune")
    assert "xrow" not in made.source and {c.block("x") for c in made.configs} > {1}


def test_whole_blocks_of_rows_that_begin_anywhere() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x[:, :2048], 1)

    x = rows(2049)
    (made,) = launches(fn, x)
    assert "for rstart" in made.source and "rmask" not in made.source
    check(fn, x, runs=1, **TRITON)
