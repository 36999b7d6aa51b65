"""Attention with functions of scores and masks: what both targets' tests call, and its judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz.ir.program import Program
from litz.ir.text import program_text

SLOPE = torch.tensor([0.1, -0.2, 0.3, 0.05])
# Function of scores, mask; heads of queries and keys, lengths of both, widths of keys and values;
# block of the mask.
Case = tuple[Any, Any, tuple[int, ...], int]


class Seen:
    """A hook that keeps programs."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __call__(self, program: Program) -> Program:
        self.programs.append(program)
        return program

    def uuid(self) -> str:
        return "seen"

    @property
    def texts(self) -> list[str]:
        return [program_text(p) for p in self.programs]


def distance(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + (i - j) * SLOPE[h]


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(s / 2) * 2 + b


def earlier(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def never_first(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i > 20) & (j < 50)  # some rows see nothing


def same_document(length: int) -> Callable[..., Tensor]:
    document = torch.arange(5 * length) // length

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (document[i] == document[j]) & (i >= j)

    return seen


def attention(case: Case, batch: int = 2) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """A program that gives the result and the logarithms of sums, and its arguments."""
    torch._dynamo.reset()  # every case is another one of the same code
    score, mask, (h, g, m, n, e, c), block = case
    made = mask and create_block_mask(mask, None, None, m, n, "cpu", BLOCK_SIZE=block)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(
            q, k, v, score_mod=score, block_mask=made, enable_gqa=h != g, return_lse=True
        )

    gen = torch.Generator().manual_seed(3)
    shapes = (batch, h, m, e), (batch, g, n, e), (batch, g, n, c)
    return fn, tuple(torch.randn(s, generator=gen) for s in shapes)


def error(found: Tensor, exact: Tensor) -> float:
    seen = exact.isfinite()
    assert torch.equal(found[~seen].double(), exact[~seen])
    return float((found.double() - exact)[seen].norm() / exact[seen].norm().clamp_min(1e-30))


def judge(found: Any, fn: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    exact, eager = fn(*(a.double() for a in args)), fn(*args)
    for out, own, ref in zip(found, eager, exact, strict=True):
        assert out.stride() == own.stride() and out.dtype is own.dtype
        assert error(out, ref) <= 2 * error(own, ref) + 1e-7
