"""Views by offset of arguments that begin inside their memory and are written: PyTorch's graphs
without mutation count some of them from the wrong place, and refuse others.  Litz runs neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import litz

Tensor = torch.Tensor


def read_behind_a_write(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.as_strided((2, 2), (3, 1), 7) * 1


def read_of_a_piece(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.split(2)[1].as_strided((2, 2), (3, 1), 7) * 1


def older_view(x: Tensor) -> Tensor:
    v = x[1:]
    x.mul_(2)
    return v.as_strided((2, 2), (3, 1)) * 1


def write_through_the_second(x: Tensor) -> Tensor:
    v = x[1:3]
    x[0] *= 3
    v.as_strided((2, 2), (3, 1)).add_(1)
    return x * 1


def write_behind_a_write(x: Tensor) -> Tensor:
    x.mul_(2)
    y = x.as_strided((2, 2), (3, 1), 7)
    y.add_(1)
    return x[:2]


def write(x: Tensor) -> Tensor:
    x.as_strided((2, 2), (3, 1), 7).add_(1)
    return x * 1


def of_rows(x: Tensor) -> Tensor:
    return x.t().as_strided((2, 2), (3, 1)) * 1


def of_later_rows(x: Tensor) -> Tensor:
    return x[1:].as_strided((2, 2), (3, 1)) * 1


def around(x: Tensor) -> Tensor:
    return x[1:].as_strided((2, 2), (3, 1), 2) * 1


def its_own_layout(x: Tensor) -> Tensor:
    return x.as_strided((5, 3), (3, 1), 0) + x.as_strided((5, 3), (3, 1))


def returned(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.as_strided((2, 2), (3, 1), 7)


def of_a_value(x: Tensor) -> Tensor:
    y = x + 1
    return y.as_strided((2, 2), (3, 1), 1) * 1


def flat_and_whole(x: Tensor) -> Tensor:
    v = x.as_strided((4,), (1,), 6)
    x.mul_(2)
    v.add_(1)
    return x[:2] * v.sum()


PROGRAMS = [
    read_behind_a_write, read_of_a_piece, older_view, write_through_the_second,
    write_behind_a_write, write, of_rows, of_later_rows, around, its_own_layout, returned,
    of_a_value, flat_and_whole,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("offset", [0, 6])
def test_as_eager(fn: Callable[[Tensor], Tensor], dynamic: bool, offset: int) -> None:
    mine, theirs = torch.arange(60.0), torch.arange(60.0)
    x, y = (m.as_strided((5, 3), (3, 1), offset) for m in (mine, theirs))
    got = torch.compile(fn, backend="litz", fullgraph=True, dynamic=dynamic)(x)
    want = fn(y)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_one_compilation_for_all_offsets(fn: Callable[[Tensor], Tensor]) -> None:
    """Dynamo does not guard where an argument begins."""
    compiled = torch.compile(fn, backend="litz", fullgraph=True, dynamic=False)
    for offset in (0, 6, 3, 9):
        mine, theirs = torch.arange(60.0), torch.arange(60.0)
        x, y = (m.as_strided((5, 3), (3, 1), offset) for m in (mine, theirs))
        torch.testing.assert_close(compiled(x), fn(y), rtol=0, atol=0)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_only_what_leaves_doubt_is_left_to_eager() -> None:
    x = torch.arange(60.0)[6:21].view(5, 3)
    for fn in PROGRAMS:
        doubt = fn not in (of_rows, of_later_rows, around, its_own_layout, of_a_value)
        (graph,) = litz.explain(fn, x).graphs
        assert bool(graph.stages.fallback) == doubt
