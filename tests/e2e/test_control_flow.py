"""``torch.cond``, ``while_loop``, ``scan``, ``map``: compiled, and so is the graph around."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from judge import check
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import litz
from tests.quick import some

Tensor = torch.Tensor


def chosen(p: Tensor, x: Tensor) -> Tensor:
    y = torch.cond(p, lambda a: a.sin() * 2, lambda a: a.cos() - 1, (x * 3,))
    return y.exp() + 1


def by_value(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.cond(
        (x.sum() > 0) & p,
        lambda a, b: (a @ b, a + b),
        lambda a, b: ((a - b).tanh(), a * b),
        (x, x.t() + 1),
    )
    return a.relu(), (a * b).sum(0)


def repeated(p: Tensor, x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, (y * x).sin() + y

    count = torch.where(p, 5, 0)
    _, y = while_loop(lambda i, y: i < count, body, (torch.zeros_like(count), x * 2))
    return y.exp()


def nested(p: Tensor, x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cond(y.mean() > 0, lambda y: y.cos() - 1, lambda y: y.exp() * 0.5, (y,))
        return i + 1, z + x

    _, y = while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x * 2))
    return torch.where(p, y, -y)


def mapped(p: Tensor, x: Tensor) -> Tensor:
    y = hop_map(lambda row, p: torch.where(p, row.sin() * row, row.cos()), x * 2, p)
    return y.exp()


def scanned(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        total = (total + row).tanh()
        return total, total * row + 1

    last, every = scan(step, x[0] * 0, torch.where(p, x, x.t()))
    return last * 2, every.sum(1)


def summed(p: Tensor, x: Tensor) -> Tensor:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return (total + row).tanh(), total * row + 1  # nothing of both: PyTorch wants no aliases

    last, every = scan(step, x[0] * 0, torch.where(p, x, x.t()))
    return last + every.sum(1)


FLAGS = (torch.tensor(True), torch.tensor(False))
PROGRAMS = [chosen, by_value, repeated, nested, mapped, scanned]


@pytest.mark.parametrize("case", some(product(PROGRAMS, ("", "triton")), 9))
def test_results(case: tuple[Callable[..., Any], str]) -> None:
    fn, target = case
    if target:
        pytest.importorskip("triton.language")
    x = torch.randn(7, 7, generator=torch.Generator().manual_seed(1))
    check(fn, FLAGS[0], x, others=[(FLAGS[1], x)], target=target)


@pytest.mark.parametrize("fn", [chosen, by_value, mapped, summed])
def test_gradients(fn: Callable[..., Any]) -> None:
    x = torch.randn(7, 7, generator=torch.Generator().manual_seed(2)).requires_grad_()
    check(fn, FLAGS[0], x, others=[(FLAGS[1], x)])


@pytest.mark.parametrize("fn", PROGRAMS)
def test_nothing_of_it_is_left_to_aten(fn: Callable[..., Any]) -> None:
    report = litz.explain(fn, FLAGS[0], torch.randn(6, 6))
    assert not any(g.stages.fallback for g in report.graphs)
    assert all(stages.kernels for g in report.graphs for stages in g.stages.bodies)
    assert any(g.stages.bodies for g in report.graphs)
    assert "in a body" in str(report)


def test_open_sizes() -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(chosen, backend="litz", dynamic=True)
    for n in (5, 8, 3):
        x = torch.randn(n, 2 * n)
        for p in FLAGS:
            torch.testing.assert_close(compiled(p, x), chosen(p, x), rtol=1e-5, atol=1e-5)


def test_what_is_handed_through_is_apart() -> None:
    """A loop that does not turn gives what it was given, in memory of its own."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(repeated, backend="litz")
    x = torch.randn(300, 300)
    for p in (*FLAGS, FLAGS[1]):
        torch.testing.assert_close(compiled(p, x), repeated(p, x), rtol=1e-4, atol=1e-4)


@torch.compiler.nested_compile_region
def block(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x @ w) + x


def test_regions_are_compiled_once() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = block(x, w)
        return x * 2

    x, w = torch.randn(6, 6), torch.randn(6, 6)
    check(fn, x, w, runs=2)
    check(fn, x.requires_grad_(), w.requires_grad_(), runs=2)
    with torch.no_grad():
        (graph,) = litz.explain(fn, x, w).graphs
    assert not graph.stages.fallback and len(graph.stages.bodies) == 1


def by_pairs(a: Any, b: Any) -> Any:
    return {"u": a["u"] * b["u"], "v": b["u"] * a["v"] + b["v"]}


@pytest.mark.parametrize("length", some([1, 2, 3, 8, 13, 100], 4))
def test_associative_scans_are_one_kernel(length: int) -> None:
    """Also in the generic mode, which PyTorch takes apart."""

    def fn(x: Tensor) -> Tensor:
        pairs = {"u": x.sigmoid(), "v": x * 2}
        found = associative_scan(by_pairs, pairs, 1, reverse=True, combine_mode="generic")
        return found["v"] * 3 + found["u"]

    x = torch.randn(5, length, 6)
    report = litz.explain(fn, x)
    torch.testing.assert_close(report.result, fn(x))
    assert len(report.kernels) <= 2 and not report.externs
    (graph,) = report.graphs
    assert not graph.stages.fallback and not graph.stages.bodies


def test_associative_scans_that_stay_apart() -> None:
    """Functions that are not pointwise, or capture tensors."""
    products = lambda x: associative_scan(torch.matmul, x, 0, combine_mode="generic")  # noqa: E731
    x, w = torch.randn(5, 3, 3), torch.rand(3)
    check(products, x, runs=1)
    check(
        lambda x, w: associative_scan(lambda a, b: a + b + w, x, 0, combine_mode="generic"),
        x,
        w,
        runs=1,
    )


def by_distance(q: Tensor, k: Tensor, slope: Tensor) -> Tensor:
    return flex_attention(
        q * 2, k, k + 1, score_mod=lambda s, b, h, i, j: s + (i - j) * slope[h]
    ).exp()


def causal(q: Tensor, k: Tensor, slope: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, device="cpu")
    return flex_attention(q.sin(), k, k, block_mask=mask) * slope[0]


@pytest.mark.parametrize("fn", [by_distance, causal])
def test_functions_of_scores_are_part_of_attention(fn: Callable[..., Any]) -> None:
    """In double precision, of which there is no kernel, step by step."""
    torch._dynamo.reset()  # PyTorch 2.13 fails where it compiled eager mode's other function before
    args = [torch.randn(s, dtype=torch.float64) for s in ((1, 2, 32, 16), (1, 2, 32, 16), (2,))]
    report = litz.explain(fn, *args)
    torch.testing.assert_close(report.result, fn(*args))
    assert report.result.stride() == fn(*args).stride()
    (graph,) = report.graphs
    (body,) = graph.stages.bodies
    assert not graph.stages.fallback and body.kernels
    assert {e.target_name for e in body.externs()} == {"aten.bmm.out"}
