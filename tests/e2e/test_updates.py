"""Updates at places that data picks, with what is there first and what follows: one kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import litz
from litz.passes.updates import LARGE

ROWS, COLUMNS = 300, 1031  # no whole vectors
assert 4 * ROWS * COLUMNS > LARGE


def near(got: Tensor, fn: Callable[..., Tensor], *args: Tensor) -> None:
    """As near float64 as eager mode, and what is not finite at the same places."""
    want = fn(*args).double()
    truth = fn(*(a.double() if a.is_floating_point() else a for a in args)).double()
    odd = ~want.isfinite()
    assert torch.equal(got.double()[odd].nan_to_num(7), want[odd].nan_to_num(7))
    mine, own = ((x.double() - truth)[~odd].norm() for x in (got, want))
    assert mine <= 2 * own + 1e-12 * truth[~odd].norm()


def added(i: Tensor, x: Tensor) -> Tensor:
    return x.new_zeros(ROWS, COLUMNS).index_add(0, i, x)


def values(count: int, dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, (count, COLUMNS), dtype=dtype)
    x = torch.randn(count, COLUMNS).to(dtype)
    x[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("count", [1, 1000])
def test_rows_that_data_picks(dtype: torch.dtype, count: int) -> None:
    """Many to one row, and to some none."""
    i = torch.randint(ROWS, (count,))
    i[: count // 3] = 7
    x = values(count, dtype)
    torch._dynamo.reset()
    near(torch.compile(added, backend="litz")(i, x), added, i, x)


def test_any_number_of_threads_gives_the_same(request: pytest.FixtureRequest) -> None:
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch._dynamo.reset()
    i, x = torch.randint(ROWS, (2000,)), torch.randn(2000, COLUMNS)

    def both(i: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return added(i, x), x.new_zeros(ROWS, COLUMNS).index_add(
            1, i, x[:ROWS, :1].expand(-1, 2000)
        )

    call = torch.compile(both, backend="litz")
    found = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append(call(i, x))
    assert all(torch.equal(a, b) for f in found for a, b in zip(f, found[0], strict=True))


@pytest.mark.parametrize("bad", [ROWS, -ROWS - 1, 1 << 40])
def test_rows_that_are_not_there(bad: int) -> None:
    i = torch.zeros(100, dtype=torch.int64)
    i[17] = bad
    with pytest.raises(Exception, match="index"):
        torch.compile(added, backend="litz")(i, torch.randn(100, COLUMNS))
    with pytest.raises(Exception, match="index"):
        torch.compile(lambda x, i: x.index_add(0, i, x[:100]), backend="litz")(torch.randn(ROWS), i)


@pytest.mark.parametrize("columns", [160, COLUMNS])
@pytest.mark.parametrize("padding", [None, 5])
def test_gradient_of_an_embedding(columns: int, padding: int | None) -> None:
    """Threads divide short rows, or each of long ones; what is padding is left out."""
    torch._dynamo.reset()
    rows = LARGE // (4 * columns) + 1
    i = torch.randint(rows, (7, 33))
    i[0] = 5

    def loss(i: Tensor, w: Tensor) -> Tensor:
        return F.embedding(i, w, padding_idx=padding).square().mean()

    def gradient(call: Callable[..., Tensor], w: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        return torch.autograd.grad(call(i, w), w)[0]

    w = torch.randn(rows, columns)
    near(gradient(torch.compile(loss, backend="litz"), w), lambda w: gradient(loss, w), w)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]
)
@pytest.mark.parametrize("isa", ["", "generic"])
def test_places_within_rows(dtype: torch.dtype, isa: str) -> None:
    """Some of them often, of rows that do not begin at lines, and onto what is there."""

    def scattered(k: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.zeros_like(x).scatter_add(1, k, x),
            (2 * y).scatter_add(1, k[:, 1:], x).relu(),
            torch.ones_like(x).index_put((torch.arange(ROWS)[:, None], k - COLUMNS + 1), x, True),
        )

    torch._dynamo.reset()
    x, k = values(ROWS, dtype), torch.randint(COLUMNS - 1, (ROWS, COLUMNS - 1))
    k[3] = k[4, ::7] = 11
    args = k, x[:, :-1], values(ROWS, dtype)[:, :-1].contiguous()
    for i, got in enumerate(torch.compile(scattered, backend="litz", options={"isa": isa})(*args)):
        near(got, lambda *args, i=i: scattered(*args)[i], *args)


def test_largest_of_what_is_filled() -> None:
    def largest(i: Tensor, x: Tensor) -> Tensor:
        return x.new_full((ROWS, COLUMNS), -1.0).index_reduce(0, i, x, "amax")

    torch._dynamo.reset()
    i, x = torch.randint(ROWS, (500,)), values(500, torch.float32)
    near(torch.compile(largest, backend="litz")(i, x), largest, i, x)


@pytest.mark.parametrize("mode", ["prod", "amax", "amin", "mean"])
def test_other_updates_within_rows(mode: str) -> None:
    def reduced(k: Tensor, x: Tensor) -> Tensor:
        return (x + 1).scatter_reduce(1, k, x, mode)

    torch._dynamo.reset()
    x, k = values(40, torch.float32), torch.randint(COLUMNS, (40, 77))
    near(torch.compile(reduced, backend="litz")(k, x), reduced, k, x)


def test_what_is_read_is_not_changed_before() -> None:
    """What is there first is computed later: no nest between has written what it reads."""

    def read(i: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = y * 2
        y.add_(1)
        return first.scatter_add(1, i, x), first[:, :3] + y[:, :3]

    torch._dynamo.reset()
    x, y, i = torch.randn(9, 200), torch.randn(9, 200), torch.randint(200, (9, 200))
    own = y.clone()
    got, want = torch.compile(read, backend="litz")(i, x, own), read(i, x, y)
    torch.testing.assert_close((*got, own), (*want, y))


def test_places_of_open_numbers_of_rows() -> None:
    def scattered(k: Tensor, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter_add(1, k, x)

    torch._dynamo.reset()
    call = torch.compile(scattered, backend="litz", dynamic=True)
    for rows, columns in ((3, 200), (50, 201), (1, 200)):
        x, k = torch.randn(rows, columns), torch.randint(columns, (rows, columns))
        near(call(k, x), scattered, k, x)


@pytest.mark.parametrize("by_rows", [False, True])
def test_one_kernel_computes_what_is_there_first_and_what_follows(by_rows: bool) -> None:
    """But for sums of rows, and what runs across them."""
    x, b = torch.randn(ROWS, COLUMNS).bfloat16(), torch.randn(COLUMNS)
    k = torch.randint(ROWS, (70,)) if by_rows else torch.randint(COLUMNS, (ROWS, 70))

    def updated(k: Tensor, x: Tensor, b: Tensor) -> Tensor:
        if by_rows:
            return (x + 1).index_add(0, k, x[:70]) + b
        return (x + 1).scatter_add(1, k, x[:, :70]) + b

    def summed(k: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (y := updated(k, x, b)).sum(1), y.t().contiguous()

    assert len(litz.explain(updated, k, x, b).kernels) == 1
    assert len(litz.explain(summed, k, x, b).kernels) > 1
    for i, got in enumerate(torch.compile(summed, backend="litz")(k, x, b)):
        near(got, lambda *args, i=i: summed(*args)[i], k, x, b)


def test_gradient_of_picked_rows_of_two_dims() -> None:
    """Several loops count the updates; what is padding has a number that no row has."""
    torch._dynamo.reset()
    i, w = torch.randint(ROWS, (9, 11)), torch.randn(ROWS, COLUMNS, requires_grad=True)
    i[:, 3] = 2

    def loss(i: Tensor, w: Tensor) -> Tensor:
        return (F.embedding(i, w, padding_idx=2) * torch.arange(11.0)[:, None]).sum() + w.sum()

    (want,) = torch.autograd.grad(loss(i, w), w)
    (got,) = torch.autograd.grad(torch.compile(loss, backend="litz")(i, w), w)
    torch.testing.assert_close(got, want)
