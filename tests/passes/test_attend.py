"""Attention written by hand becomes its template, where nobody can tell; else it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import litz
from litz.ir.parse import parse
from litz.ir.program import Extern, Program, Template
from litz.ir.text import program_text
from litz.ir.verify import verify
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.passes import attend, flash
from litz.passes.costs import LARGE

Tensor = torch.Tensor
B, H, T, N, D = 2, 3, 130, 110, 24


def plain(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 5.0, -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = (q @ k.mT * 0.25).masked_fill(m < -1, -torch.inf)
    return torch.softmax(scores, -1) @ v


def earlier(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.25
    seen = torch.arange(T)[:, None] >= torch.arange(N)[None]
    scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)


def capped(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(q @ k.mT / 20) * 4 + m, -1) @ v


def by_rows(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2).reshape(B, -1, H * D) for x in (q, k, v))
    q, k, v = (x.view(B, -1, H, D).transpose(1, 2) for x in (q, k, v))
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.2 + m, dim=-1)
    return torch.matmul(weights, v).transpose(1, 2).reshape(B, T, H * D)


def matrices(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = (x[0].reshape(-1, D) for x in (q, k, v))
    return torch.softmax(q @ k.T, 1) @ v


def changed(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    m = m * 1.5
    scores = q @ k.mT + m
    m.mul_(2)
    return torch.softmax(scores, -1) @ v + m.sum()


def with_positions(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """As Bloom writes it: what is added to scores, and their factor, are part of the product."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    m = m[:, 0].repeat_interleave(H, 0)[:, :1]
    scores = torch.baddbmm(m, q, k.mT, beta=0.5, alpha=0.2)
    return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


FOUND = (plain, masked, earlier, capped, by_rows, matrices, changed, with_positions)


def weights_too(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def scores_too(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores


def largest_too(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores.sum(-1)


def other_sum(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.mT
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights / (2 * weights).sum(-1, keepdim=True)) @ v


def other_row(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.mT
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).flip(2))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def across(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def turned(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax((q @ q.mT).mT, -1) @ q


KEPT = (weights_too, scores_too, largest_too, other_sum, other_row, across, turned)


def arguments(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    gen = torch.Generator().manual_seed(2)
    shapes = (B, H, T, D), (B, H, N, D), (B, H, N, D), (B, 1, T, N)
    q, k, v, m = (torch.randn(s, generator=gen) for s in shapes)
    m[1, 0, 7] = -9.0  # a row of which nothing is seen
    return tuple(x.to(dtype) for x in (q, k, v, m))


def judge(fn: Callable[..., Any], args: tuple[Tensor, ...], found: Any) -> None:
    exact, own = fn(*(a.double() for a in args)), fn(*args)
    if isinstance(own, Tensor):
        exact, own, found = (exact,), (own,), (found,)
    for a, b, ref in zip(found, own, exact, strict=True):
        assert a.stride() == b.stride() and a.dtype is b.dtype
        # oneDNN's products of bfloat16 spread a row of nan to another one with AVX-512.
        assert torch.equal(a.isnan(), ref.isnan())
        seen = ref.isfinite() & b.isfinite()
        errors = [float((x.double() - ref)[seen].norm() / ref[seen].norm()) for x in (a, b)]
        assert errors[0] <= 2 * errors[1] + 1e-7


def templates(fn: Callable[..., Any], *args: Tensor, target: str = "") -> list[Template]:
    """Those of attention in a function's program, whose results are judged."""
    with torch.no_grad():
        report = litz.explain(fn, *args, options={"target": target} if target else {})
        judge(fn, args, report.result)
    (graph,) = report.graphs
    program = graph.stages.program
    assert program is not None
    assert program_text(parse(program_text(program))) == program_text(program)
    nodes = [n for n in program.nodes if isinstance(n, Template)]
    found = [n for n in nodes if n.skeleton.kind == "attention"]
    names = [e.target_name for e in graph.stages.externs()]
    assert not found or not any("mm" in name for name in names)
    return found


@pytest.mark.parametrize("fn", FOUND)
def test_attention_is_found(fn: Callable[..., Any]) -> None:
    (made,) = templates(fn, *arguments())
    assert made.skeleton.kind == "attention"


@pytest.mark.parametrize("fn", KEPT)
def test_what_is_read_otherwise_stays(fn: Callable[..., Any]) -> None:
    assert not templates(fn, *arguments())


def test_copies_are_left_out() -> None:
    (made,) = templates(by_rows, *arguments())
    assert len({n.buffer for n in made.reads()}) == 4


def in_float32(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """As Hugging Face's models write it."""
    weights = F.softmax(q @ k.mT * 0.2 + m, -1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, 0.5, training=False) @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", [masked, capped, in_float32, with_positions])
def test_low_precision(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    assert len(templates(fn, *arguments(dtype))) == 1


@pytest.mark.parametrize("step", [torch.round, lambda x: torch.where(x * 1.7 < 1, 9.0, x)])
def test_steps_are_taken_of_what_is_rounded(step: Callable[[Tensor], Tensor]) -> None:
    """A score that is rounded to 16 bits may be on another side than one that is not."""
    q, k, v, m = arguments(torch.bfloat16)
    q, k = (x.mul(4).round() / 4 for x in (q, k))  # products that both compute to the bit
    fn = lambda q, k, v, m: torch.softmax(step(q @ k.mT * 1.3) * 2, -1) @ v  # noqa: E731
    with torch.no_grad():
        report = litz.explain(fn, q, k, v, m)
        wanted = fn(q, k, v, m).double()
    assert not report.graphs[0].stages.externs()
    assert (report.result.double() - wanted).norm() <= 0.02 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [masked, by_rows, in_float32])
def test_on_gpus(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    assert len(templates(fn, *arguments(dtype), target="triton")) == 1


@pytest.mark.parametrize(
    ("heads", "rows", "keys"), [(2, 130, 300), pytest.param(16, 1, 4200, marks=pytest.mark.slow)]
)
def test_rows_of_which_nothing_is_seen_on_gpus(heads: int, rows: int, keys: int) -> None:
    """They are nan, as a softmax makes them; from shares of the keys too."""
    pytest.importorskip("triton")
    shapes = (heads, rows, 16), (heads, keys, 16), (heads, rows, 1)
    q, k, m = (torch.randn(s, dtype=torch.bfloat16) for s in shapes)
    m[1, rows // 2] = -torch.inf
    fn = lambda q, k, m: torch.softmax(q @ k.mT + m, -1) @ k  # noqa: E731
    with torch.no_grad():
        found = torch.compile(fn, backend="litz", options={"target": "triton"})(q, k, m)
        judge(fn, (q, k, m), found)
    assert found.isnan().any()


@pytest.mark.parametrize(
    ("heads", "rows", "keys"), [(2, 130, 300), pytest.param(16, 1, 4200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e12])
def test_masks_of_low_numbers_on_gpus(heads: int, rows: int, keys: int, low: float) -> None:
    """Whole blocks of keys, and one whole row, whose keys all count alike then."""
    pytest.importorskip("triton")
    shapes = (heads, rows, 16), (heads, keys, 16), (heads, rows, keys)
    q, k, m = (torch.randn(s) for s in shapes)
    m[..., :270], m[1, rows // 2] = low, low
    fn = lambda q, k, m: torch.softmax(torch.where(m < -9, m, q @ k.mT + m), -1) @ k  # noqa: E731
    with torch.no_grad():
        found = torch.compile(fn, backend="litz", options={"target": "triton"})(q, k, m)
        judge(fn, (q, k, m), found)


def in_a_row(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    for _ in range(3):
        q = q + torch.softmax(q @ k.mT * 0.2 + m, -1) @ k
    return q


def between_others(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    q = torch.softmax(q @ k.mT * 0.2 + m, -1) @ k
    weights = torch.softmax(q @ k.mT, -1)
    q = weights @ k
    return torch.softmax(q @ k.mT * 0.3 + m, -1) @ v, weights


def test_many_are_found_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed: list[Program] = []

    class Noted(attend._Finder):
        def __init__(self, program: Program, costs: Any) -> None:
            indexed.append(program)
            super().__init__(program, costs)

    monkeypatch.setattr(attend, "_Finder", Noted)
    assert len(templates(in_a_row, *arguments())) == 3
    assert len(indexed) == 1
    with torch.no_grad():
        report = litz.explain(between_others, *arguments())
        judge(between_others, arguments(), report.result)
    program = report.graphs[0].stages.program
    assert program is not None
    assert sum(isinstance(n, Template) for n in program.nodes) == 2
    assert sum("bmm" in e.target_name for e in report.graphs[0].stages.externs()) == 2


def test_few_scores_and_other_types_stay() -> None:
    assert not templates(plain, *(x[:, :, :9] for x in arguments()))
    assert not templates(plain, *arguments(torch.float64))


def test_training_keeps_what_its_backward_needs() -> None:
    own, ref = ([x.clone().requires_grad_() for x in arguments()] for _ in range(2))
    torch.compile(plain, backend="litz")(*own).sum().backward()
    plain(*ref).sum().backward()
    for a, b in zip(own[:3], ref[:3], strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_open_sizes() -> None:
    compiled = torch.compile(plain, backend="litz", dynamic=True)
    with torch.no_grad():
        for t in (130, 90):
            args = tuple(x[:, :, :t] for x in arguments())
            judge(plain, args, compiled(*args))


def test_infinite_and_nan_scores() -> None:
    q, k, v, m = arguments()
    q[0, 0, 3, 1], q[1, 2, 100, 0] = torch.nan, torch.inf
    v[1, 1, 5, 2] = torch.inf
    with torch.no_grad():
        found = torch.compile(masked, backend="litz")(q, k, v, m)
        torch.testing.assert_close(found, masked(q, k, v, m), equal_nan=True)


# --- libraries ------------------------------------------------------------------------------------


def in_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads side by side in each row, as a layer makes them."""
    q, k, v = (x.unflatten(-1, (-1, 64)).transpose(1, 2) for x in (q, k, v))
    return (torch.softmax(q @ k.mT / 8, -1) @ v).transpose(1, 2).flatten(-2)


QUICK = replace(LARGE, attention=0.84)


def by_library(fn: Callable[..., Tensor], *shapes: tuple[int, ...], **how: Any) -> bool:
    """Whether a program's attention is a library's call on a GPU."""
    with FakeTensorMode():
        made = {"device": "cuda", "dtype": torch.bfloat16, **how}
        graph = make_fx(lambda *args: (fn(*args),))(*(torch.empty(s, **made) for s in shapes))
    program = lower_graph(graph, Settings(inference=True))
    for p in attend.FindAttention({"cuda": LARGE}), flash.TakeAttention({"cuda": QUICK}):
        program = p(program)
        verify(program, p.name)
    calls = [n for n in program.nodes if isinstance(n, Extern)]
    assert all(n.target is flash.attention_call for n in calls)
    return bool(calls)


def on_scores(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v: torch.softmax(change(q @ k.mT), -1) @ v


WHOLE = ((2, 16, 1024, 128),) * 3


def test_plain_scores_are_a_librarys_where_that_pays() -> None:
    plain = on_scores(lambda x: x * 0.125)
    assert by_library(plain, *WHOLE) and by_library(plain, *((32, 1024, 128),) * 3)
    assert by_library(plain, *((8192, 128),) * 3)
    assert by_library(plain, (2, 16, 1024, 128), *((2, 16, 4096, 128),) * 2)
    assert not by_library(plain, *((2, 2, 512, 128),) * 3)  # a call takes longer than that
    assert not by_library(plain, *WHOLE, dtype=torch.float32)
    assert not by_library(plain, *((2, 16, 1024, 124),) * 3)  # libraries copy such heads
    assert not by_library(plain, *((2, 16, 1024, 128),) * 2, (2, 16, 1024, 64))
    assert not by_library(on_scores(lambda x: x * -1), *WHOLE)
    assert not by_library(on_scores(lambda x: x.tanh()), *WHOLE)
    assert not by_library(on_scores(lambda x: x + torch.arange(1024, device=x.device)), *WHOLE)


@pytest.mark.parametrize(
    ("fn", "shape"), [(on_scores(lambda x: x / 3), (2, 3, 160, 32)), (in_rows, (2, 192, 192))]
)
def test_a_librarys_call_is_the_template(
    fn: Callable[..., Tensor], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, whose library it is then."""
    pytest.importorskip("triton")
    monkeypatch.setattr(flash, "KIND", "cpu")
    monkeypatch.setattr(flash, "OWN", 1e-6)
    monkeypatch.setattr("litz.targets.triton.costs.LARGE", QUICK)
    q, k, v = (torch.randn(shape).bfloat16() for _ in range(3))
    with torch.no_grad():
        report = litz.explain(fn, q, k, v, options={"target": "triton", "graph_cache": False})
        judge(fn, (q, k, v), report.result)
    (call,) = report.graphs[0].stages.externs()
    assert call.target_name == flash.TARGET
