"""Attention with functions of scores as one kernel: interpreted, against eager and float64."""

from __future__ import annotations

import math
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
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import litz
from litz.index import const
from litz.ir.attention import factored, unmasked, where_seen
from litz.ir.body import cast, load, masked, op
from litz.ir.body import const as node
from litz.ir.dtype import BF16, BOOL, F16, F32
from litz.ir.parse import parse
from litz.ir.program import Template
from litz.ir.text import program_text
from litz.kernel.parse import parse_recipe
from tests.quick import some

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

DOCUMENT = torch.arange(80) // 27
ROWS = torch.randn(4, 5, generator=torch.Generator().manual_seed(6))


def row(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + ROWS[h, i]


def near(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Masks by itself, in blocks too in which the mask masks nothing."""
    return torch.where(i - j < 20, s, -math.inf)


CASES: dict[str, Case] = {
    "plain": (None, None, (2, 2, 40, 50, 16, 16), 0),
    "distance": (distance, None, (2, 2, 33, 64, 16, 32), 0),
    "one_query": (row, None, (4, 4, 1, 40, 16, 16), 0),
    "one_head": (capped, None, (1, 1, 16, 17, 8, 24), 0),
    "causal": (None, earlier, (2, 2, 70, 70, 16, 16), 16),
    "grouped": (distance, earlier, (4, 2, 64, 64, 16, 16), 32),
    "one_key_head": (None, earlier, (4, 1, 40, 48, 16, 16), 16),
    "document": (capped, same_document(27), (1, 1, 80, 80, 16, 16), 16),
    "nothing_seen": (None, never_first, (2, 2, 64, 64, 16, 16), 16),
    "large_blocks": (None, earlier, (2, 2, 40, 40, 16, 16), 128),
    "own_mask": (near, earlier, (1, 1, 64, 64, 16, 16), 16),
}


# Heads of queries and of keys, queries, the mask.
FEW: dict[str, tuple[int, int, int, Any]] = {
    "one": (2, 2, 1, None),
    "grouped": (8, 2, 3, None),
    "masked": (8, 2, 1, lambda b, h, i, j: (j < 700) & (j % 3 != 0)),
    "nothing_seen": (2, 2, 5, lambda b, h, i, j: (j < 40) & (i > 1)),
}


def given(name: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Of one batch, where the function asks for no other: each is interpreted by itself."""
    return attention(CASES[name], 2 if CASES[name][0] is capped else 1)


@pytest.mark.parametrize("name", some(CASES, 6))
def test_attention_is_one_kernel(name: str) -> None:
    fn, args = given(name)
    report = litz.explain(fn, *args, options={"target": "triton"})
    judge(report.result, fn, args)
    (graph,) = report.graphs
    program = graph.stages.program
    assert program is not None
    assert not {e.target_name for e in graph.stages.externs()} & {
        "flex_attention",
        "aten.sort.stable",
    }
    (node,) = (n for n in program.nodes if isinstance(n, Template))
    assert len(node.skeleton.slots) == (4 if CASES[name][3] not in (0, 128) else 0)
    assert program_text(parse(program_text(program))) == program_text(program)
    for k in graph.stages.kernels:
        assert parse_recipe(k.recipe.text) == k.recipe


def test_low_precision() -> None:
    fn, args = given("causal")
    low = [a.bfloat16() for a in args]
    found = torch.compile(fn, backend="litz", options={"target": "triton"})(*low)[0]
    exact = fn(*(a.double() for a in low))[0]
    assert error(found, exact) <= 2 * error(fn(*low)[0], exact)


def test_nan_and_infinite_scores() -> None:
    fn, (q, k, v) = given("causal")
    q[0, 0, 5, 3] = torch.nan
    v[0, 1, 7, 2] = torch.inf
    found = torch.compile(fn, backend="litz", options={"target": "triton"})(q, k, v)
    for a, b in zip(found, fn(q, k, v), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("keys", [40, 700])
def test_scores_beyond_all_numbers(keys: int) -> None:
    """Their weights are nan, and the logarithm of their sum is not; in shares of keys too."""

    def fn(q: Tensor, k: Tensor) -> Any:
        return flex_attention(
            q,
            k,
            k,
            score_mod=lambda s, b, h, i, j: torch.where((j == 33) & (i == 1), torch.inf, s),
            return_lse=True,
        )

    q, k = torch.randn(2, 2, 3, 16), torch.randn(2, 2, keys, 16)
    found = torch.compile(fn, backend="litz", options={"target": "triton"})(q, k)
    for a, b in zip(found, fn(q, k), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e12])
def test_shares_of_keys_masked_with_low_numbers(low: float) -> None:
    """Keys of a row that is masked wholly count alike; beside others none counts."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = torch.where((j < 370) | ((h == 1) & (i == 0)), low, s)
        return torch.where((h == 0) & (i == 1), -torch.inf, s)

    def fn(q: Tensor, k: Tensor) -> Any:
        return flex_attention(q, k, k, score_mod=score, return_lse=True)

    q, k = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 900, 16)
    q[0, 1, 2, 3] = torch.nan
    report = litz.explain(fn, q, k, options={"target": "triton"})
    kernels = [k.recipe.kernels for k in report.graphs[0].stages.kernels]
    assert any(first.share is not None for first, *_ in kernels)
    for a, b in zip(report.result, fn(q, k), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", some(FEW, 2))
def test_few_queries_go_over_shares_of_keys(name: str) -> None:
    heads, groups, queries, mask = FEW[name]
    made = mask and create_block_mask(mask, None, None, queries, 900, "cpu")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=made, enable_gqa=heads != groups, return_lse=True)

    gen = torch.Generator().manual_seed(3)
    batch = 2 if name == "grouped" else 1
    shapes = (batch, heads, queries, 16), (batch, groups, 900, 16), (batch, groups, 900, 24)
    args = tuple(torch.randn(s, generator=gen) for s in shapes)
    report = litz.explain(fn, *args, options={"target": "triton"})
    judge(report.result, fn, args)
    (recipe,) = (
        r for k in report.graphs[0].stages.kernels if (r := k.recipe).plan.skeleton is not None
    )
    first, *others = recipe.kernels
    assert first.share is not None and others and recipe.temporaries
    assert len(first.axes.parallel[-1].dims) == (1 if heads == groups else 2)
    assert parse_recipe(recipe.text) == recipe


def test_open_sizes_are_one_kernel() -> None:
    def fn(q: Tensor, k: Tensor) -> Tensor:
        return flex_attention(q, k, k, score_mod=distance)  # type: ignore[return-value]

    compiled = torch.compile(fn, backend="litz", dynamic=True, options={"target": "triton"})
    for m, n in ((32, 40), (50, 33)):
        q, k = torch.randn(2, 4, m, 16), torch.randn(2, 4, n, 16)
        torch.testing.assert_close(compiled(q, k), fn(q, k), atol=1e-5, rtol=1e-5)


def test_blocks_of_masks_of_open_sizes() -> None:
    def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j % 48 != 5)

    def over(mask: BlockMask) -> Callable[..., Any]:
        return lambda q, k: flex_attention(q, k, k, block_mask=mask)

    # One code, compiled again: the sizes of the mask's tables are open then, as are q's and k's.
    for m, n in ((64, 96), (80, 144), (112, 176)):
        q, k = torch.randn(1, 2, m, 16), torch.randn(1, 2, n, 16)
        fn = over(create_block_mask(causal, None, None, m, n, "cpu", BLOCK_SIZE=16))
        compiled = torch.compile(fn, backend="litz", options={"target": "triton"})
        torch.testing.assert_close(compiled(q, k), fn(q, k), atol=1e-5, rtol=1e-5)


def test_last_blocks_of_a_mask_go_beyond_the_end() -> None:
    """What kernels take at once divides the number of keys, the mask's blocks do not."""

    def third(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j % 3 != 0

    fn, args = attention((None, third, (1, 1, 16, 96, 16, 16), 64))
    report = litz.explain(fn, *args, options={"target": "triton"})
    judge(report.result, fn, args)
    (recipe,) = (k.recipe for k in report.graphs[0].stages.kernels if k.plan.skeleton is not None)
    for plan in recipe.kernels[:1]:
        assert 96 % plan.configs[0].block("r") == 0 and "r" not in plan.even


@pytest.mark.parametrize("name", some(["grouped", "document", "nothing_seen", "one_query"], 2))
def test_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eager mode refuses gradients on the CPU, where it computes them all the same.
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    fn, args = given(name)
    out, _ = fn(*args)
    comes = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))

    def loss(*inputs: Tensor) -> Tensor:
        out, lse = fn(*inputs)
        return (out * comes.to(out.dtype)).sum() + torch.where(lse.isfinite(), lse, 0).sum()

    def gradients(f: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
        own = [a.clone().requires_grad_() for a in given]
        return list(torch.autograd.grad(f(*own), own))

    hook = Seen()
    options = {"target": "triton", "after_program_passes": hook, "graph_cache": False}
    compiled = torch.compile(loss, backend="litz", options=options)
    found = gradients(compiled, list(args))
    exact = gradients(loss, [a.double() for a in args])
    for mine, own, ref in zip(found, gradients(loss, list(args)), exact, strict=True):
        assert error(mine, ref) <= 2 * error(own, ref) + 1e-7
    assert sum(text.count("skeleton attention_gradient") for text in hook.texts) == 2
    for text in hook.texts:
        assert program_text(parse(text)) == text


# Functions of scores, what they capture, heads of queries and keys, the mask.
Capturing = tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[int, int], Any]


def capturing(name: str) -> Capturing:
    gen = torch.Generator().manual_seed(4)
    table, slope, whole, rows, columns = (
        torch.randn(s, generator=gen) for s in ((4, 100), (4,), (1, 4, 40, 50), (2, 40), (50, 4))
    )
    if name == "table":  # by distance, and a sum of each head
        return (
            lambda t, g: lambda s, b, h, i, j: s * g[h] + t[h, i - j + 49], (table, slope), (4, 2),
            earlier,
        )  # fmt: skip
    if name == "whole":  # of each score, row and column; one twice, another behind what is linear
        return (
            lambda t, r, c: lambda s, b, h, i, j: (
                s + t[0, h, i, j] + torch.sigmoid(r * 2)[b, i] - r[b, -1 - i] * c[j, h]
            ),
            (whole, rows, columns), (4, 4), None,
        )  # fmt: skip
    # Of low precision, and found in a table of numbers.
    return (
        lambda t, r: lambda s, b, h, i, j: torch.where(i > j, s + t[h, DOCUMENT[i]], s * r[b, i]),
        (table.bfloat16(), rows.half()), (4, 1), never_first,
    )  # fmt: skip


@pytest.mark.parametrize("name", some(["table", "whole", "low"], 1))
def test_gradients_of_what_functions_capture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    torch._dynamo.reset()
    score, given, (h, g), mask = capturing(name)
    gen = torch.Generator().manual_seed(3)
    shapes = (2, h, 40, 16), (2, g, 50, 16), (2, g, 50, 24), (2, h, 40, 24)
    *args, comes = (torch.randn(s, generator=gen) for s in shapes)
    made = mask and create_block_mask(mask, None, None, 40, 50, "cpu", BLOCK_SIZE=16)

    def loss(*inputs: Tensor) -> Tensor:
        q, k, v, *more = inputs
        out = flex_attention(
            q, k, v, score_mod=score(*more), block_mask=made, enable_gqa=h != g
        )  # fmt: skip
        return (out * comes.to(out.dtype)).sum()  # type: ignore[operator, union-attr]

    def gradients(f: Callable[..., Tensor], kind: torch.dtype | None = None) -> list[Tensor]:
        own = [a.detach().to(kind or a.dtype).requires_grad_() for a in (*args, *given)]
        return list(torch.autograd.grad(f(*own), own))

    hook = Seen()
    options = {"target": "triton", "after_program_passes": hook, "graph_cache": False}
    found = gradients(torch.compile(loss, backend="litz", options=options))
    exact, eager = gradients(loss, torch.float64), gradients(loss)
    for mine, own, ref in zip(found, eager, exact, strict=True):
        assert mine.dtype is own.dtype and mine.shape == own.shape
        assert error(mine, ref) <= 2 * error(own, ref) + 1e-7
    assert sum(text.count("skeleton attention_gradient") for text in hook.texts) == 2
    for text in hook.texts:
        assert program_text(parse(text)) == text
        # Nothing has as many elements as there are scores, but a bias that has.
        big = [x for x in text.splitlines() if "[2, 4, 40, 50]" in x and "temp" in x]
        assert not big


def test_sums_in_a_fixed_order_are_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    q, slopes = torch.randn(1, 4, 17, 16), torch.randn(4)

    def loss(q: Tensor, slopes: Tensor) -> Tensor:
        return flex_attention(
            q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * slopes[h]
        ).sum()  # type: ignore[union-attr]

    hook = Seen()
    options = {"target": "triton", "after_program_passes": hook, "graph_cache": False}
    own = q.requires_grad_(), slopes.requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        compiled = torch.compile(loss, backend="litz", options=options)
        found, eager = (torch.autograd.grad(f(*own), own) for f in (compiled, loss))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any("attention_gradient" in text for text in hook.texts)
    for a, b in zip(found, eager, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_scores_that_are_no_expression_run_step_by_step() -> None:
    table = torch.randn(4, 33)

    def looked_up(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + torch.cumsum(table, 1)[h, i]

    q = torch.randn(1, 4, 33, 16)
    fn = lambda q: flex_attention(q, q, q, score_mod=looked_up)  # noqa: E731
    found = torch.compile(fn, backend="litz", options={"target": "triton"})(q)
    torch.testing.assert_close(found, fn(q), atol=1e-5, rtol=1e-5)


def test_numbers_that_scores_are_multiplied_with() -> None:
    x, cond = load(F32, "x", const(0)), op("lt", load(F32, "x", const(0)), node(F32, 1))
    score = op("tanh", x) * 4.0
    assert factored(0.5 * score) == (2.0, score.args[0])
    assert factored(score * -1.0) == (1.0, score * -1.0)
    kept = masked(cond, score, node(F32, -1e9))
    assert factored(kept) == (1.0, kept)
    number, rest = factored(masked(cond, score, node(F32, -math.inf)))
    assert (number, rest) == (4.0, masked(cond, score.args[0], node(F32, -math.inf)))
    own = where_seen(node(BOOL, True), kept, -math.inf)  # no mask of blocks, which some pass by
    assert unmasked(own) is own and unmasked(where_seen(cond, score)) is score
    assert factored(cast(score, BF16)) == (4.0, cast(score.args[0], BF16))
    assert factored(cast(score, F16)) == (1.0, cast(score, F16))
    halves = x * op("div", node(F32, 1.0), node(F32, 2.0))  # how a division by 2 is lowered
    low = node(F32, -math.inf)
    assert factored(op("where", cond, low, halves)) == (0.5, op("where", cond, low, x))
