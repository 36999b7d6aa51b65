"""Sorts, first elements, medians: what programs say of them, and which are left to ATen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import litz
from litz.ir.program import Extern
from tests.lowering.evaluate import check, nests
from tests.quick import some
from tests.sort_cases import OPS, TYPES, rows, signed

CASES = [(name, dtype) for dtype in TYPES for name in OPS]


@pytest.mark.parametrize("case", some(CASES, 20), ids=str)
def test_values(case: tuple[str, torch.dtype]) -> None:
    """What the program says, evaluated."""
    name, dtype = case
    x = rows(9, 6, 11, dtype=dtype)
    for dim in (0, 1, -1):
        assert nests(check(lambda x, d=dim: OPS[name](x, d), x)) == 1


def test_64_bits() -> None:
    x = rows(4, 30).double()
    assert nests(check(lambda x: torch.sort(x, dim=1).values, x)) == 1
    assert (
        nests(check(lambda x: torch.sort(x, dim=1, descending=True).values, x.nan_to_num().long()))
        == 1
    )
    assert nests(check(lambda x: torch.sort(x, dim=0).values, x > 0)) == 1


def test_stable_zeros_keep_their_signs() -> None:
    x = rows(5, 60)
    for down in (False, True):
        fn = lambda x, d=down: signed(torch.sort(x, stable=True, descending=d).values)  # noqa: E731
        check(fn, x)


def test_where_equal_elements_come_from() -> None:
    x = rows(5, 90).round()
    check(lambda x: torch.sort(x, stable=True, descending=True).indices, x)
    for pick in (torch.median, torch.nanmedian):
        values, places = torch.compile(lambda x, p=pick: tuple(p(x, 1)), backend="litz")(x)
        found = x.gather(1, places[:, None])[:, 0]
        assert torch.equal(found.nan_to_num(77.5), values.nan_to_num(77.5))


@pytest.mark.parametrize("name", OPS)
def test_one_element_or_none(name: str) -> None:
    if name in ("topk", "smallest", "kthvalue"):
        for fn in (torch.kthvalue, torch.topk):
            check(lambda x, f=fn: tuple(f(x, 1, 1)), rows(4, 1))
        check(lambda x: tuple(torch.topk(x, 0, 1)), rows(4, 6))
        return
    for shape in ((), (1,), (4, 1), (0, 3)):
        check(partial(OPS[name], d=len(shape) - 1), rows(*shape))
    if "median" not in name:
        check(lambda x: OPS[name](x, 1), rows(3, 0))


def graphs(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Any:
    return litz.explain(fn, *args, options=options).graphs


def reasons(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> list[str]:
    nodes = [n for g in graphs(fn, *args, **options) for n in g.stages.program.nodes]
    return [n.reason for n in nodes if isinstance(n, Extern)]


def test_what_is_left_to_aten() -> None:
    long = torch.randn(2, 40000)
    for fn, reason in (
        (lambda x: torch.sort(x), "a sort of long rows: ATen computes it"),
        (lambda x: torch.topk(x, 2000), "a sort of long rows: ATen computes it"),
        (lambda x: torch.median(x, 1), "one of a long row: ATen partitions it"),
        (lambda x: torch.median(x), "one of a long row: ATen partitions it"),
    ):
        assert reasons(fn, long) == [reason]
    assert reasons(lambda x: torch.sort(x).values, long[:, :20000]) == []
    assert reasons(lambda x: torch.topk(x, 3), long) == []
    longest = "the first of long rows: ATen selects them"
    assert reasons(lambda x: torch.topk(x, 3), torch.randn((1 << 20) + 1)) == [longest]
    words = "a sort of 64-bit values and their places: ATen computes it"
    assert reasons(lambda x: torch.sort(x), long[:, :9].double()) == [words]
    blocks = {"target": "triton"}
    for fn, values, most in (
        (lambda x: torch.sort(x), long, 512),
        (lambda x: torch.sort(x).values, long, 1024),
        (lambda x: torch.sort(x), long.bfloat16(), 1024),
    ):
        assert len(reasons(fn, values[:, : most + 1], **blocks)) == 1
        assert reasons(fn, values[:, :most], **blocks) == []


def sampled(x: torch.Tensor) -> torch.Tensor:
    """Sampling from the fewest tokens that have most of the probability."""
    values, _ = torch.sort(x, descending=True)
    p = torch.softmax(values, -1)
    return torch.where(p.cumsum(-1) - p > 0.9, 0, p)


def test_one_kernel_with_what_is_around() -> None:
    x = torch.randn(50, 70)
    for fn in (
        sampled,
        lambda x: torch.sort(x.exp(), -1).values * 2 + x,
        lambda x: torch.sort(torch.softmax(x, -1), -1).values.cumsum(-1),
        lambda x: torch.sort(torch.sort(x, -1).values.sin(), -1, descending=True).values,
        lambda x: torch.topk(torch.softmax(x, -1), 4),
    ):
        (graph,) = graphs(fn, x)
        assert len(graph.stages.kernels) == 1
        check(fn, x)


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median"])
def test_gradients(name: str) -> None:
    x = torch.randn(6, 40, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = OPS[name](x, 1)
        return ((out[0] if isinstance(out, tuple) else out) ** 2).sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(torch.compile(loss, backend="litz")(x), x)
    assert torch.allclose(found, expected)
