"""Sorts on CPUs: along rows, along what lies beside them, of every length."""

from __future__ import annotations

import pytest
import torch

import litz
from tests.quick import some
from tests.sort_cases import OPS, TYPES, agree, parts, rows, same

CASES = [(name, dtype) for dtype in TYPES for name in OPS]


def source(fn: object, *args: torch.Tensor) -> str:
    return "".join(k.source for g in litz.explain(fn, *args).graphs for k in g.stages.kernels)


@pytest.mark.parametrize("case", some(CASES, 8), ids=str)
def test_rows_and_columns(case: tuple[str, torch.dtype]) -> None:
    name, dtype = case
    fn = OPS[name]
    dims = {(7, 37): 1, (37, 21): 0, (3, 16, 5): 1, (33, 4, 9): 0}

    def each(apart: torch.Tensor, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [fn(x, d) for x, d in zip(xs, dims.values(), strict=True)]
        return tuple(t for f in (*found, fn(apart[:, ::3], 1)) for t in parts(f))

    agree(each, rows(9, 80, dtype=dtype), *(rows(*shape, dtype=dtype) for shape in dims))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("down", [False, True])
def test_every_length(down: bool, dtype: torch.dtype) -> None:
    """One kernel for rows of any length, whose vectors may be fewer, or full to the last."""
    torch._dynamo.reset()

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.sort(x, descending=down, stable=True)
        return values, places, torch.sort(x.t(), dim=0).values

    compiled = torch.compile(fn, backend="litz", dynamic=True)
    for n in (*range(2, 36), 63, 64, 65, 100, 127, 128, 129, 1000):
        x = rows(3, n, dtype=dtype, seed=n)
        same(compiled(x), fn(x))


def test_long_rows() -> None:
    for n in (4096, 9001, 16384):
        agree(lambda x: torch.sort(x, stable=True), rows(3, n))
    agree(lambda x: torch.sort(x, dim=0).values, rows(9001, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_first_elements_alone(dtype: torch.dtype) -> None:
    """As many elements are put in order as stores make use of."""
    x = rows(5, 300, dtype=dtype)
    for k in (3, 16, 17, 200):
        agree(lambda x, k=k: torch.topk(x, k).values, x)
    assert ", 300, 7)" in source(lambda x: torch.topk(x, 7), x)
    assert ", 300, 300)" in source(lambda x: torch.sort(x)[0].cumsum(1)[:, :7], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_first_of_long_rows(dtype: torch.dtype) -> None:
    """Whether none of the later elements are among the first, few or all."""
    x = rows(3, 40001, dtype=dtype)
    x[1], x[2] = (x[0].sort(descending=down).values for down in (False, True))
    for k in (1, 5, 40, 300):
        agree(lambda x, k=k: torch.topk(x, k).values, x)
    assert "r0 < 5;" in source(lambda x: torch.topk(x, 5), x)


def test_places_are_of_the_elements() -> None:
    x = rows(40, 200)
    values, places = torch.compile(lambda x: torch.topk(x, 9), backend="litz")(x)
    same(x.gather(1, places), values)
    assert all(len(set(row.tolist())) == 9 for row in places)
