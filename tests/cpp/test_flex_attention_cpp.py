"""Attention with functions of scores in C++, against eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex_cases import (
    Case,
    Seen,
    attention,
    capped,
    distance,
    earlier,
    error,
    judge,
    never_first,
    same_document,
)
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import litz
from litz.ir.parse import parse
from litz.ir.program import Template
from litz.ir.text import program_text
from litz.kernel.build import KernelBuilder
from litz.kernel.lanes.choose import choose
from litz.kernel.lanes.recipe import LaneRecipe
from litz.kernel.parse import parse_recipe
from litz.kernel.verify import verify
from tests.quick import some

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BIAS = torch.randn(4, 70, 90, generator=torch.Generator().manual_seed(5))


def biased(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + BIAS[h, i, j]


def low(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, s, -torch.inf)


CASES: dict[str, Case] = {
    "plain": (None, None, (2, 2, 40, 150, 16, 16), 0),
    "distance": (distance, None, (4, 4, 33, 64, 24, 32), 0),
    "biased": (biased, None, (4, 4, 70, 90, 80, 40), 0),
    "one_head": (capped, None, (1, 1, 16, 17, 8, 24), 0),
    "widest": (None, earlier, (1, 1, 70, 70, 256, 256), 128),
    "causal": (None, earlier, (2, 2, 70, 70, 16, 16), 16),
    "grouped": (distance, earlier, (4, 2, 130, 130, 32, 64), 64),
    "one_key_head": (None, earlier, (4, 1, 40, 48, 16, 16), 16),
    "document": (capped, same_document(37), (2, 2, 150, 150, 16, 16), 32),
    "nothing_seen": (low, never_first, (2, 2, 64, 64, 16, 16), 16),
    "large_blocks": (None, earlier, (2, 2, 40, 40, 16, 16), 128),
    "one_query": (distance, None, (4, 2, 1, 300, 64, 64), 0),
    "few_queries": (distance, never_first, (4, 1, 30, 150, 24, 40), 32),
    "few_grouped": (biased, earlier, (4, 2, 7, 90, 80, 80), 16),
    "one_query_masked": (None, never_first, (2, 2, 1, 300, 16, 16), 128),
}


@pytest.mark.parametrize("name", some(CASES, 5))
def test_attention_is_one_kernel(name: str) -> None:
    fn, args = attention(CASES[name])
    report = litz.explain(fn, *args)
    judge(report.result, fn, args)
    (graph,) = report.graphs
    program = graph.stages.program
    assert program is not None
    assert "flex_attention" not in {e.target_name for e in graph.stages.externs()}
    (node,) = (n for n in program.nodes if isinstance(n, Template))
    assert len(node.skeleton.slots) == (4 if 0 < CASES[name][3] < CASES[name][2][3] else 0)
    assert program_text(parse(program_text(program))) == program_text(program)
    made = [k.recipe for k in graph.stages.kernels if k.plan.skeleton is not None]
    assert len(made) == 1
    for k in made:
        assert isinstance(k, LaneRecipe) and parse_recipe(k.text) == k
        verify(k)


LOW = [(n, d) for n in ("grouped", "biased") for d in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("case", some(LOW, 3), ids=str)
def test_low_precision(case: tuple[str, torch.dtype]) -> None:
    name, dtype = case
    fn, args = attention(CASES[name])
    args = tuple(a.to(dtype) for a in args)
    judge(torch.compile(fn, backend="litz")(*args), fn, args)


def test_operands_as_they_lie() -> None:
    fn, (q, k, v) = attention(CASES["grouped"])
    turned = (q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT)
    args = (*turned, torch.cat([v, v], 3)[..., ::2])
    judge(torch.compile(fn, backend="litz")(*args), fn, args)
    one = k[:1].expand_as(k)
    judge(torch.compile(fn, backend="litz")(q, one, v), fn, (q, one, v))


def test_nan_and_infinite_scores() -> None:
    fn, (q, k, v) = attention(CASES["causal"])
    q[0, 0, 5, 3] = torch.nan
    q[1, 0, 60, 3] = torch.inf
    v[0, 1, 7, 2] = torch.inf
    found = torch.compile(fn, backend="litz")(q, k, v)
    for a, b in zip(found, fn(q, k, v), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_open_sizes_are_one_kernel() -> None:
    def fn(q: Tensor, k: Tensor) -> Tensor:
        return flex_attention(q, k, k, score_mod=distance)  # type: ignore[return-value]

    compiled = torch.compile(fn, backend="litz", dynamic=True)
    for m, n in ((32, 40), (150, 33), (7, 300)):
        q, k = torch.randn(2, 4, m, 16), torch.randn(2, 4, n, 16)
        torch.testing.assert_close(compiled(q, k), fn(q, k), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("grouped", torch.bfloat16),
        ("nothing_seen", torch.float32),
        ("one_query", torch.float32),
    ],
)
def test_gradients(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eager mode refuses gradients on the CPU, where it computes them all the same.
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    fn, args = attention(CASES[name])

    def loss(*inputs: Tensor) -> Tensor:
        out, lse = fn(*inputs)
        weights = torch.arange(out.shape[-1], dtype=out.dtype)
        return (out * weights).sin().sum() + torch.where(lse.isfinite(), lse, 0).sum()

    def gradients(f: Callable[..., Tensor], kind: torch.dtype) -> tuple[Tensor, ...]:
        own = [a.to(dtype).to(kind).requires_grad_() for a in args]
        return torch.autograd.grad(f(*own), own)

    hook = Seen()
    options = {"graph_cache": False, "after_program_passes": hook}
    found = gradients(torch.compile(loss, backend="litz", options=options), dtype)
    exact, eager = gradients(loss, torch.float64), gradients(loss, dtype)
    for mine, own, ref in zip(found, eager, exact, strict=True):
        assert mine.stride() == own.stride() and mine.dtype is own.dtype
        assert error(mine, ref) <= 2 * error(own, ref) + 1e-7
    made = [n for p in hook.programs for n in p.nodes if isinstance(n, Template)]
    kinds = [n.skeleton.kind for n in made]
    assert sorted(kinds) == ["attention", "attention_gradient", "attention_gradient"]
    for p in hook.programs:
        build = KernelBuilder(p.buffers)
        for n in p.nodes:
            if isinstance(n, Template):
                recipe = choose(build(n).plan, 8)
                assert parse_recipe(recipe.text) == recipe
                verify(recipe)


# Functions of scores, by what they capture; its shapes and type, heads of queries and keys, mask.
LEARNED: dict[str, tuple[Any, tuple[tuple[int, ...], ...], torch.dtype, tuple[int, int], Any]] = {
    "each_head": (
        lambda t, g: lambda s, b, h, i, j: s * g[h] + t[h, i - j + 69],
        ((4, 140), (4,)), torch.float32, (4, 2), earlier,
    ),
    "whole": (
        lambda t, r, c: lambda s, b, h, i, j: (
            s + t[h, i, j] + torch.sigmoid(r * 2)[b, i] - r[b, -1 - i] * c[j, h]
        ),
        ((2, 40, 70), (2, 40), (70, 2)), torch.float32, (2, 2), never_first,
    ),
    # Of numbers that the user rounds; one place is the same for all.
    "chosen": (
        lambda t: lambda s, b, h, i, j: torch.where(s.bfloat16() * 1.5 > 0.7, s * 2, s * t[h, 0]),
        ((2, 3),), torch.float32, (2, 2), None,
    ),
    "all_heads": (
        lambda t: lambda s, b, h, i, j: s + t[i - j + 69], ((140,),), torch.bfloat16, (4, 4), None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(LEARNED, 3))
def test_gradients_of_what_functions_capture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    torch._dynamo.reset()
    score, more, dtype, (h, g), mask = LEARNED[name]
    gen = torch.Generator().manual_seed(3)
    shapes = (2, h, 40, 16), (2, g, 70, 16), (2, g, 70, 24)
    args = [torch.randn(s, generator=gen) for s in shapes]
    args += [torch.randn(s, generator=gen).to(dtype) for s in more]
    made = mask and create_block_mask(mask, None, None, 40, 70, "cpu", BLOCK_SIZE=32)

    def loss(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        modify = score(*more)
        out = flex_attention(q, k, v, score_mod=modify, block_mask=made, enable_gqa=h != g)
        return (out * torch.arange(24, dtype=out.dtype)).sin().sum()  # type: ignore[operator, union-attr]

    def gradients(f: Callable[..., Tensor], kind: torch.dtype | None) -> tuple[Tensor, ...]:
        own = [a.to(kind or a.dtype).requires_grad_() for a in args]
        return torch.autograd.grad(f(*own), own)

    hook = Seen()
    options = {"graph_cache": False, "after_program_passes": hook}
    found = gradients(torch.compile(loss, backend="litz", options=options), None)
    exact, eager = gradients(loss, torch.float64), gradients(loss, None)
    for mine, own, ref in zip(found, eager, exact, strict=True):
        assert mine.dtype is own.dtype
        assert error(mine, ref) <= 2 * error(own, ref) + 1e-7
    made_of = [n.skeleton.kind for p in hook.programs for n in p.nodes if isinstance(n, Template)]
    assert made_of.count("attention_gradient") == 2


def test_gradients_of_open_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()  # eager mode traces too, and trips over what others left
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)

    def loss(q: Tensor, k: Tensor) -> Tensor:
        return flex_attention(q, k, k, score_mod=distance).square().sum()  # type: ignore[union-attr]

    compiled = torch.compile(loss, backend="litz", dynamic=True)
    for m, n in ((32, 40), (90, 133)):
        own = [torch.randn(2, 4, x, 16, requires_grad=True) for x in (m, n)]
        grads = [torch.autograd.grad(f(*own), own) for f in (compiled, loss)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


OTHERS = [
    ("grouped", "avx2"),
    ("one_query", "avx2"),
    ("one_query", "generic"),
    ("grouped", "generic"),
]


@pytest.mark.parametrize("case", some(OTHERS, 2), ids=str)
def test_other_machines(case: tuple[str, str]) -> None:
    name, isa = case
    fn, args = attention(CASES[name])
    judge(torch.compile(fn, backend="litz", options={"isa": isa})(*args), fn, args)
