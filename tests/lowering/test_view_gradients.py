"""Gradients of views and padding through AOTAutograd, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import check, check_training, nests

Fn = Callable[..., Any]
aten = torch.ops.aten
X = torch.randn(3, 4, 6)

VIEWS: list[Fn] = [
    lambda x: x[:, 1:3] * 2,
    lambda x: x[:, -3:] * 2,
    lambda x: x[..., 1::2] * 2,
    lambda x: x[..., 5:1] * 2,
    lambda x: x[:, 2] * 2,
    lambda x: x[:, -1, 0] * 2,
    lambda x: x[:, :1] * 2 + x[:, 3:],
    lambda x: x.split([1, 3], 1)[1] * 2,
    lambda x: x.chunk(3, -1)[0] * x.chunk(3, -1)[2],
    lambda x: x.unbind(1)[0] * x.unbind(1)[1],
    lambda x: x.diagonal(0, 1, 2) * 2,
    lambda x: x.diagonal(-1, 1, 2) * 2,
    lambda x: x.diagonal(3, 1, 2) * 2,
    lambda x: x.unfold(2, 3, 1) * 2,
    lambda x: x.unfold(2, 2, 3) * 2,
    lambda x: x.unfold(1, 4, 2) * 2,
    lambda x: x.roll(1, 2) * 2,
    lambda x: x.flip(0) * 2,
    lambda x: x.repeat(2, 1, 3) * 2,
    lambda x: x.expand(2, 3, 4, 6) * 2,
    lambda x: x.tril() * 2,
    lambda x: F.pad(x, (1, -1, 2, 0)) * 2,
]


@pytest.mark.parametrize("fn", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views(fn: Fn, dtype: torch.dtype) -> None:
    check_training(fn, X.to(dtype).requires_grad_(), ulps=4)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("pad", [(2, 3), (0, 1), (1, 0, 3, 2), (0, 0, 1, 1), (-1, 1)])
def test_padding(mode: str, pad: tuple[int, ...]) -> None:
    x = X.clone() if len(pad) == 2 else X[None].clone()
    check_training(lambda x: F.pad(x * 1.5, pad, mode=mode), x.requires_grad_(), ulps=4)


def test_wide_replication_stays_with_aten() -> None:
    x = X[None].clone().requires_grad_()
    check_training(
        lambda x: F.pad(x, (4, 4, 4, 4), mode="replicate"), x,
        externs=["replication_pad2d_backward"], ulps=4,
    )  # fmt: skip


def test_gradients_of_pieces_meet_in_one_nest() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left = aten.slice_backward(a, [3, 4, 6], 2, 0, 2, 1)
        return left + aten.slice_backward(b, [3, 4, 6], 2, 2, 6, 1)

    assert nests(check(fn, torch.randn(3, 4, 2), torch.randn(3, 4, 4))) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: aten.slice_backward(x[:, 1:3] * 2, x.shape, 1, 1, 3, 1),
        lambda x: aten.select_backward(x[:, 0], x.shape, 1, 2),
        lambda x: aten.select_backward(x[:, 0], x.shape, 1, -1),
    ],
)
def test_dynamic(fn: Fn) -> None:
    program = check(fn, X, dynamic=True)
    assert nests(program) == 1
