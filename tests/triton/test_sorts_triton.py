"""Sorts on GPUs: interpreted, and built ahead for one that is not there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from traces import data, trace  # noqa: E402

import litz  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from tests.lowering.test_sorts import sampled  # noqa: E402
from tests.quick import some  # noqa: E402
from tests.sort_cases import OPS, TYPES, agree, rows  # noqa: E402

TRITON = {"target": "triton"}
CASES = [(name, dtype) for dtype in TYPES for name in OPS]
SECONDS = 2.0  # that a kernel takes to build at most, on a machine of its own


@pytest.mark.parametrize("case", some(CASES, 6), ids=str)
def test_rows_and_columns(case: tuple[str, torch.dtype]) -> None:
    name, dtype = case
    for shape, dim in (((7, 37), 1), ((37, 7), 0)):
        agree(lambda x, d=dim: OPS[name](x, d), rows(*shape, dtype=dtype), **TRITON)


@pytest.mark.parametrize("width", [2, 3, 8, 16, 17, 32, 64, 100, 256, 1000])
def test_the_network(width: int) -> None:
    agree(lambda x: torch.sort(x, stable=True), rows(2, width, seed=width), **TRITON)


@pytest.mark.parametrize("count", some([7, 60, 1], 2))
def test_the_first_of_long_rows_are_found_in_parts(count: int) -> None:
    x = torch.randn(2, 3001)
    x[1, 7] = torch.nan
    for down, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        fn = lambda x, d=down: torch.topk(x * 2, count, largest=d).values  # noqa: E731
        agree(fn, x.to(dtype), **TRITON)
    agree(lambda x: torch.topk(x, count), x, **TRITON)
    agree(lambda x: torch.topk(x, count, 0), x.t().contiguous(), **TRITON)


def test_one_row_and_none() -> None:
    agree(lambda x: torch.sort(x, stable=True), rows(50), **TRITON)
    agree(lambda x: torch.sort(x, dim=1, stable=True), rows(0, 50), **TRITON)


def test_rows_of_open_length_that_are_known_to_be_short() -> None:
    x = rows(3, 50)
    torch._dynamo.mark_dynamic(x, 1, min=2, max=100)
    agree(lambda x: torch.sort(x, stable=True), x, **TRITON)
    graphs = litz.explain(lambda x: torch.sort(x, stable=True), x, options=TRITON).graphs
    (kernel,) = graphs[0].stages.kernels
    assert kernel.triton is not None and "litz.sort(" in kernel.source


def test_one_kernel_with_what_is_around() -> None:
    x = torch.randn(5, 40)
    (graph,) = litz.explain(sampled, x, options=TRITON).graphs
    assert len(graph.stages.kernels) == 1
    found = torch.compile(sampled, backend="litz", options=TRITON)(x)
    assert torch.allclose(found, sampled(x), atol=1e-6)


FORMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows": (lambda x: torch.sort(x, stable=True), (131072, 128)),
    "short": (lambda x: torch.sort(x), (1 << 20, 16)),
    "long": (lambda x: torch.sort(x), (8192, 500)),
    "values": (lambda x: torch.sort(x)[0], (4096, 1024)),
    "columns": (lambda x: torch.sort(x, dim=0), (500, 3000)),
    "first": (lambda x: torch.topk(x, 8), (131072, 128)),
    "median": (lambda x: torch.median(x, 1), (8192, 500)),
    "sampled": (sampled, (512, 500)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", some(FORMS, 4))
def test_built_ahead(form: str, dtype: torch.dtype, tmp_path: Any) -> None:
    """Without spills, and quickly: code for every step of a long row took Triton 15 seconds."""
    fn, shape = FORMS[form]
    (made,) = trace(fn, data(*shape, dtype=dtype), training=False)
    assert len(made.jobs) == 1
    made.build(Cache(tmp_path / "first"))  # which starts the workers
    begun = time.perf_counter()
    (binary,) = made.build(Cache(tmp_path / "second"))
    assert time.perf_counter() - begun < 4 * SECONDS  # on a machine that others use too
    registers, local = resources(binary.code)
    assert 32 * binary.num_warps * registers <= 65536
    assert local == 0
