"""Reductions that several programs share, at small sizes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from judge import check
from torch import Tensor

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.ir.body import loads  # noqa: E402
from litz.kernel.blocks import split  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.nodes import roots, row_start  # noqa: E402

TRITON = {"target": "triton"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LONG": 16, "TALL": 8, "PART": 8, "DEEP": 4, "ALIGNED": 2}.items():
        monkeypatch.setattr(split, name, value)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def values_of_values(x: Tensor) -> tuple[Tensor, ...]:
    """What one kernel leaves for the next ones depends on what else it leaves."""
    top = x.amax(0, True)
    product, low = (x * 0.1 + 1).prod(0, True), x - top
    again = top.amax(0, True)
    x.copy_((again * 0.5).expand(x.shape))
    return top, product, low, again


PROGRAMS: dict[str, tuple[Callable[..., object], Tensor]] = {
    "values_of_values": (values_of_values, rand(33).half()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    fn, x = PROGRAMS[name]
    check(fn, x, runs=1, judge=False, **TRITON)


def rows_halved(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    rows.mul_(0.5)
    low = rows - x
    return low, low.amin()


def columns_moved(x: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
    columns.add_(columns.exp())
    both = x + columns
    return both, both.amax() * columns


@pytest.mark.parametrize("fn", [rows_halved, columns_moved])
def test_updates_over_some_of_the_loops_are_done_once(fn: Callable[..., object]) -> None:
    x = rand(2, 70)
    check(fn, x, rand(2, 1) if fn is rows_halved else rand(70), runs=1, judge=False, **TRITON)


def of_rows_and_along_them(x: Tensor) -> tuple[Tensor, ...]:
    return torch.log_softmax(x, -1), x.argmax(-1), x - x.mean(-1, True), x.amax(-1)


@pytest.mark.parametrize("rows", [1, 5])
def test_what_rows_come_to_is_stored_once_beside_what_follows_along_them(rows: int) -> None:
    options = {**TRITON, "reduction": "split"}
    x = rand(rows, 70)
    (graph,) = litz.explain(of_rows_and_along_them, x, options=options).graphs
    (kernel,) = graph.stages.kernels
    assert kernel.recipe is not None and len(kernel.recipe.kernels) == 2
    check(of_rows_and_along_them, x, runs=1, **options)


SOFTMAXES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "softmax": (lambda x: torch.softmax(x, -1), 2),
    "log_softmax": (lambda x: torch.log_softmax(x * 2, -1), 2),
    "total": (lambda x: (x - x.amax(-1, True)).exp().sum(-1), 2),
    "columns": (lambda x: torch.softmax(x.t(), 0), 3),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_maximum_and_the_total_below_it_are_one_pass(name: str) -> None:
    """Parts of nothing but -inf, and rows of it; infinities and nan."""
    fn, count = SOFTMAXES[name]
    x = rand(5, 70)
    x[0], x[1, 5], x[1, :3], x[2, :40] = (float(v) for v in ("-inf", "inf", "-inf", "-inf"))
    x[3, 50] = float("nan")
    (graph,) = litz.explain(fn, x, options={**TRITON, "reduction": "split"}).graphs
    (kernel,) = graph.stages.kernels
    assert kernel.recipe is not None and len(kernel.recipe.kernels) == count
    check(fn, x, runs=1, judge=False, **TRITON, reduction="split")
    check(fn, rand(3, 90), runs=1, **TRITON, reduction="split")


def of_rows(x: Tensor, by: Tensor) -> Tensor:
    return (x[:, 1:] * by).square().sum()


def first_of_rows(x: Tensor, by: Tensor) -> Tensor:
    return (x[:, 1:] * by).argmax()


@pytest.mark.parametrize("rows", [64, 61])
@pytest.mark.parametrize("fn", [of_rows, first_of_rows])
def test_parts_are_whole_rows_where_rows_lie_apart(
    fn: Callable[[Tensor, Tensor], Tensor], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block runs along them, not over parts."""
    monkeypatch.setattr(split, "PROGRAMS", 32)
    x, by = rand(rows, 25), rand(rows, 1)
    check(fn, x, by, runs=1, judge=False, **TRITON)
    (graph,) = litz.explain(fn, x, by, options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    first, _ = choose(kernel.plan).kernels
    assert len(first.plan.reduced) == 2
    assert first.plan.lane is first.plan.reduced[-1]


@pytest.mark.parametrize("rows", [8, 9])
def test_moments_of_columns_in_one_part(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many columns beside a short reduced dim: how many elements a part has is a number alone."""
    monkeypatch.setattr(split, "DEEP", 8)
    check(lambda x: x.var((0, 2), correction=0), rand(rows, 5, 2), runs=1, **TRITON)


def of_channels(x: Tensor, by: Tensor) -> tuple[Tensor, ...]:
    y = x * by[:, None]
    return y.sum((0, 2)), torch.var_mean(y, (0, 2), correction=0)[1], x.amax(1).argmax()


@pytest.mark.parametrize("size", [70, 71])
def test_parts_lie_within_the_dims_in_front(size: int) -> None:
    """Nothing is divided along a part; what it shares is loaded whether it is whole or not."""
    x, by = rand(4, 3, size), rand(3)
    check(of_channels, x, by, runs=1, judge=False, **TRITON)
    (graph,) = litz.explain(of_channels, x, by, options=TRITON).graphs
    first = [choose(k.plan).kernels[0].plan for k in graph.stages.kernels]
    parts = [p for p in first if any(str(v) == "rpart" for v in p.reduced)]
    along = [(n, p.lane) for p in parts for n in loads(roots(p.stores)) if p.lane in n.vars]
    assert along and all(row_start(n.index, lane) is not None for n, lane in along)
    sources = [k.source for k in graph.stages.kernels]
    assert any(re.search(r"tl.load\(b\d \+ \(x0\)\)$", s, re.MULTILINE) for s in sources)
