"""Random numbers of four neighbours from one call of Philox: the same ones as any other way."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

pytest.importorskip("triton.language")

import litz  # noqa: E402
from tests.quick import some  # noqa: E402

Tensor = torch.Tensor
WIDE = 2**61


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3)


def rows(x: Tensor) -> Tensor:
    """Of odd ones blocks hold what lies in front, if they have room for it."""
    return F.dropout(x - x.amax(-1, keepdim=True), 0.3)


def total(x: Tensor) -> Tensor:
    """Parts of rows, in which what is behind a row's end is guarded."""
    return (torch.rand_like(x) < 0.5).sum(-1)


def turned(x: Tensor) -> Tensor:
    return dropped(x).t().contiguous()


def permuted(x: Tensor) -> Tensor:
    """Numbers run as the result lies in memory."""
    return dropped(x.t())


def down(x: Tensor) -> Tensor:
    """Fours lie along the other axis of a block than what is reduced."""
    return (torch.rand_like(x) < 0.5).sum(0)


def cut(x: Tensor) -> Tensor:
    """Fours do not begin where rows do."""
    return torch.rand_like(x)[:, 3:] + x[:, 3:]


def mirrored(x: Tensor) -> Tensor:
    return torch.rand_like(x).flip(-1) + x


def several(x: Tensor) -> tuple[Tensor, ...]:
    n = len(x)
    whole = torch.randint(0, 1000, (n,)), torch.randint(-WIDE, WIDE, (n,))
    return *whole, torch.randn(n), torch.rand(n, dtype=torch.float64)


def spread(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape[1])


CASES: tuple[tuple[Callable[..., object], tuple[int, ...], bool], ...] = (
    (dropped, (4100,), True),
    (dropped, (90, 103), True),
    (rows, (7, 1000), True),
    (rows, (7, 1001), True),
    (rows, (7, 1023), False),
    (total, (1, 20000), True),
    (turned, (40, 64), True),
    (permuted, (10, 103), True),
    (down, (70, 64), True),
    (down, (70, 65), False),
    (cut, (9, 64), False),
    (mirrored, (9, 64), False),
    (several, (301,), True),
    (spread, (5, 64), True),
    (spread, (5, 3), False),
)


@pytest.mark.parametrize("case", some(CASES, 6))
def test_numbers_are_those_of_the_cpu(
    case: tuple[Callable[..., object], tuple[int, ...], bool],
) -> None:
    fn, shape, shared = case
    x = torch.randn(shape)
    outs = []
    for target in ("", "triton"):
        torch._dynamo.reset()
        torch.manual_seed(5)
        compiled = torch.compile(fn, backend="litz", options={"target": target})
        outs.append(pytree.tree_leaves(compiled(x)))
    for a, b in zip(*outs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    report = litz.explain(fn, x, options={"target": "triton"})
    sources = [k.source for g in report.graphs for k in g.stages.kernels]
    assert any(re.search(r"litz\.rand.*BLOCK", text) for text in sources) == shared
