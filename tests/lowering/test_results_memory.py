"""Results share memory with arguments and with each other exactly where eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
SQUARE = torch.eye(4) * 3 + 1


def memory(results: Any, args: tuple[torch.Tensor, ...]) -> list[int]:
    """For each result, the first tensor (arguments, then results) in whose memory it lies."""
    outs = list(results) if isinstance(results, tuple) else [results]
    every = [t.untyped_storage().data_ptr() for t in (*args, *outs)]
    return [every.index(p) for p in every[len(args) :]]


def solve_right(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve_triangular(SQUARE.tril(), x.t(), upper=False, left=False)


FRESH: list[tuple[str, Callable[..., Any]]] = [
    ("alias_copy", lambda x: torch.alias_copy(x)),
    ("expand_copy", lambda x: torch.expand_copy(x, (1, *x.shape))),
    ("permute_copy", lambda x: torch.permute_copy(x, (1, 0))),
    ("view_copy", lambda x: torch.view_copy(x, (-1,))),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x.view(1, 1, 4, 6), 1)),
    ("floor", lambda x: torch.floor(x.to(torch.int32).abs())),
    ("copy of a view", lambda x: (x.view(-1), torch.alias_copy(x.view(-1)))),
    ("equal results", lambda x: ((x + 1).view(-1), (x + 1).view(-1))),
    ("views of one", lambda x: (lambda y: (y.view(-1), y.t()))(x + 1)),
    ("a result twice", lambda x: (lambda y: (y, y))(x * 2)),
    ("a part with gaps", lambda x: (x + 1)[:, 1:]),
    ("rows of one", lambda x: (x + 1).unbind(0)),
    ("a broadcast result", lambda x: (x.sum(0) + 1).expand(3, 6)),
    ("a slice", lambda x: x[1:]),
    ("a copied slice", lambda x: (torch.slice_copy(x, 0, 1), x[1:])),
    ("a triangular solve", lambda x: torch.linalg.solve_triangular(SQUARE.triu(), x, upper=True)),
    ("one from the right", lambda x: solve_right(x)),
    ("a Cholesky solve", lambda x: torch.cholesky_solve(x, SQUARE)),
]


@pytest.mark.parametrize("name, fn", FRESH, ids=[n for n, _ in FRESH])
def test_memory(name: str, fn: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    compiled = torch.compile(fn, backend="litz", options={"check_ir": True})
    eager, actual = fn(x), compiled(x)
    assert memory(actual, (x,)) == memory(eager, (x,))
    for a, e in zip(
        actual if isinstance(actual, tuple) else (actual,),
        eager if isinstance(eager, tuple) else (eager,),
        strict=True,
    ):
        assert torch.equal(a, e)
        assert a.stride() == e.stride()


def test_writing_into_one_of_two_equal_results() -> None:
    torch._dynamo.reset()

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + 1).view(-1), (x + 1).view(-1)

    a, b = torch.compile(fn, backend="litz")(torch.zeros(3, 2))
    a.zero_()
    assert torch.equal(b, torch.ones(6))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_identity_on_integers_is_a_copy(dtype: torch.dtype) -> None:
    torch._dynamo.reset()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.abs(x) if dtype is torch.uint8 else torch.sgn(x)

    x = torch.ones(5, dtype=dtype)
    y = torch.compile(fn, backend="litz")(x)
    y.zero_()
    assert bool(x.all())


def test_views_of_what_a_pass_lays_out_otherwise() -> None:
    """The convolution runs in channels-last; its diagonal has gaps that are not those."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, None, stride=3).diagonal(-1, 2, 3)

    x, w = torch.randn(200).as_strided((1, 2, 8, 8), (128, 64, 1, 8)), torch.randn(2, 2, 3, 3)
    ours, eager = torch.compile(fn, backend="litz")(x, w), fn(x, w)
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)
