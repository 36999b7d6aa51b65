"""What random programs have found: each is the small program that showed a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.fuzz import custom
from tests.judge import check

X = torch.arange(24.0).reshape(4, 6)
I64 = torch.arange(6)


def test_no_workspace_for_what_takes_no_bytes() -> None:
    x = torch.zeros(3, 3, 0, 1, requires_grad=True)
    check(lambda x: x.norm(dim=0).repeat(1, 2, 2), x, grad=True)


def test_the_larger_of_bools() -> None:
    a, b = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    check(lambda a, b: (torch.fmax(a, b), torch.fmin(a, b), torch.maximum(a, b)), a, b)


WHOLE: list[Callable[..., Any]] = [
    lambda x: torch.index_put(x, (torch.arange(4),), x * 2),
    lambda x: torch.index_put(x, (torch.arange(4).flip(0),), x * 2),
    lambda x: torch.index_put(x, (torch.arange(4).roll(1),), x * 2),
    lambda x: torch.index_put(x, (torch.arange(4) // 2,), x[:1]),
    lambda x: x.index_fill(1, torch.arange(6), 2),
    lambda x: x.index_copy(0, torch.arange(4), x + 1),
    lambda x: x.scatter(1, torch.arange(6).expand(4, 6), x + 1),
    lambda x: x.index_fill_(1, torch.arange(x.shape[1]), 2),
]


@pytest.mark.parametrize("fn", WHOLE)
def test_writes_to_all_positions(fn: Callable[..., Any]) -> None:
    check(fn, X)


def test_windows_of_computed_memory() -> None:
    check(lambda x: (x * 2).t().as_strided((3, 2), (6, 3), 1), X)
    check(lambda x: (x.t() * 2).as_strided((3, 2), (6, 3), 1), X)


def test_functional_updates_keep_gaps() -> None:
    """Eager clones what they update with its strides, gaps included."""
    x = torch.arange(40.0).as_strided((3, 4), (10, 2), 1)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.select_scatter(x, x[0] * 2, 0, 1)
        return y, torch.slice_scatter(x[:, 0], x[1:, 1], 0, 1), y.sum(0)

    compiled = torch.compile(f, backend="litz", fullgraph=True, options={"check_ir": True})
    for a, e in zip(compiled(x), f(x), strict=True):
        assert torch.equal(a, e) and a.stride() == e.stride()


EMPTY: list[Callable[..., Any]] = [
    lambda x: torch.eye(x.shape[0])[:3].mean(),
    lambda x: torch.eye(x.shape[0]).sum((0, 1)),
    lambda x: (torch.ones(3, x.shape[0], 2).sum((1, 2)), torch.ones(x.shape[0], 0).prod()),
    lambda x: torch.eye(x.shape[0], 4).sum(0, keepdim=True) + torch.eye(3, x.shape[0]).sum(),
]


@pytest.mark.parametrize("fn", EMPTY)
def test_loops_over_nothing_that_reads_no_memory(fn: Callable[..., Any]) -> None:
    check(fn, torch.zeros(0, 5))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 22, 33])
def test_a_search_looks_where_that_of_eager_does(n: int) -> None:
    """Where nan stands among the boundaries, the result depends on it."""
    g = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=g).sort()[0]
    odd = torch.randn(n, generator=g)
    x[: n // 4], x[n - n // 5 :] = float("-inf"), float("nan")
    odd[1::3] = float("nan")
    v = torch.tensor([-9.0, 0.0, 0.3, 9.0, float("inf"), float("-inf"), float("nan")])

    def f(x: torch.Tensor, odd: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.searchsorted(x, torch.cat((v, x))), torch.bucketize(v, odd)
        return *found, torch.searchsorted(odd, v, right=True)

    check(f, x, odd, v, judge=False)


def test_verify_mode_lets_go_of_constants_that_no_check_needs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[torch.tensor([2])] += 1
        return y * 2 + x

    x = torch.ones(4, 3)
    compiled = torch.compile(f, backend="litz", fullgraph=True, options={"verify": True})
    assert compiled(x, torch.ones(4, 3, requires_grad=True))[2].tolist() == [4.0] * 3


def test_several_updates_through_one_view() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x.permute(1, 0)
        v.index_fill_(0, torch.tensor([0]), 3)
        v[torch.tensor([1, 0])] = 4
        v[2:4].mul_(2)
        v[2:4].index_fill_(1, torch.tensor([1]), 7)
        w = x.view(2, 12)
        w[torch.tensor([1])] += 1
        w[0, 2:5] = 9
        return v, x + 1

    check(f, X)
    check(f, X, dynamic=True)


@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (3, 17, 9), (40, 24)])
def test_variances_on_a_diagonal(shape: tuple[int, ...]) -> None:
    """A reduction of a reduction, below a mask in loops over the same dims."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    check(lambda x: torch.diag_embed(x.var(-2)), x)
    check(lambda x: torch.diag_embed((x - x.mean(-1, keepdim=True)).sum(-1)), x)


def test_what_litz_cannot_hold_runs_as_it_was_before_the_passes() -> None:
    """A custom operator of PyTorch's own sends the graph to ATen, behind the passes."""
    custom.scale_(torch.ones(1), 1.0)

    def window(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.ops.litz_fuzz.scale_(x, 2.0)
        return y.clone().as_strided((5, 2), (1, 1), 0) * 2

    def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.ops.litz_fuzz.scale_(x, 2.0)
        y[1:].add_(y[:-1].clone())
        return y * 2

    def argument() -> torch.Tensor:
        return torch.arange(20.0).as_strided((3, 4), (4, 1), 3)

    for f in (window, rows):
        torch._dynamo.reset()
        a, e = (torch.ones(3), argument()), (torch.ones(3), argument())
        actual, expected = torch.compile(f, backend="litz")(*a), f(*e)
        for x, y in ((actual, expected), (a[0], e[0]), (a[1], e[1])):
            assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_neighbours(dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -1.0, 0.0, 3.0, float("inf")], dtype=dtype)
    check(lambda x, y: torch.nextafter(x, y), x, x.flip(0), judge=False)


def test_a_group_norm_of_nothing() -> None:
    check(lambda x: F.group_norm(x, 4), torch.zeros(0, 0))
    check(lambda x: F.group_norm(x, 2), torch.zeros(3, 0, 5))


def test_sums_of_what_does_not_change() -> None:
    """A sum over 24 of one value, beside a mean over 24 times 24: the loops stay apart."""

    def f(x: torch.Tensor, one: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.poisson_nll_loss(torch.fmax(x, one), x), one.sum(-1, keepdim=True)

    check(f, torch.rand(24, 24), torch.rand(1).expand(24))


def test_a_reduction_that_the_outer_loop_leaves_unchanged() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.expand(2, -1)
        return rows > 0, rows.amin(1, keepdim=True)

    check(f, torch.arange(-300, 478))


def test_a_computed_size_that_a_guard_makes_one() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.amax((0,)).chunk(2, 0)[1].expand(3, 5, 2)

    compiled = torch.compile(f, backend="litz", fullgraph=True, dynamic=True)
    for x in (torch.arange(4).reshape(2, 2), torch.arange(6).reshape(2, 3)):
        got, want = compiled(x), f(x)
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_a_write_into_one_of_two_windows_of_one_memory() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = x.clone().as_strided((20, 2), (1, 2), 0)
        first = both.narrow(1, 0, 1)
        first[::2] = 1
        both[3] = 7
        return first, both + 0

    check(f, X)


def test_positions_along_a_step_of_zero() -> None:
    """They are checked though no address depends on them."""
    base, first = torch.arange(32.0), torch.zeros((), dtype=torch.int64)

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.as_strided((1, 10), (0, 3), 1).index_fill_(0, i, 2)

    check(f, base, first)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, i: x.index_fill_(0, i, 2), backend="litz", options={"check_ir": True}
    )
    x = base.clone().as_strided((1, 10), (0, 3), 1)
    assert torch.equal(compiled(x, first), torch.full((1, 10), 2.0))
    with pytest.raises(IndexError):
        compiled(x, first + 1)


def test_writes_to_overlapping_windows_of_what_the_program_holds() -> None:
    """A window begins so far into the value, wherever in memory that lies."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = x.flatten().clone().as_strided((20, 2), (1, 1), 0)
        pairs[0].add_(1)
        x.sub_(0.5)
        three = (x.flatten() + 1).as_strided((10, 3), (2, 1), 1)
        three[1:5:2].mul_(2)
        return pairs, three.clone(), three[3]

    check(f, X)


def test_updates_run_as_often_in_a_fused_group() -> None:
    """Sums in memory of what a row's reduction leaves, once an element of the row."""

    def all_alike(x: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.sum((1, 2))
        wide = rows[:, None].expand(8, 17)
        return y[:, 0].index_put((at[:, None].expand(8, 17),), wide, accumulate=True), rows

    def of_two_loops(
        x: torch.Tensor, at: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rows = x.sum((1, 2))
        return y.scatter_add(0, at[:, None].expand(8, 17), x[:, 0] + rows[:, None]), rows

    x, at = torch.randint(-4, 5, (8, 5, 17)).float(), torch.randint(0, 10, (8,))
    for f in (all_alike, of_two_loops):
        check(f, x, at, torch.zeros(10, 17))
        check(f, x, at, torch.zeros(10, 17), target="triton")


def test_a_sum_of_columns_that_are_all_alike() -> None:
    """It runs outside of the loop over columns, where what is stored of them cannot join it."""

    def f(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return y.expand(300, 20) * 2, y.repeat(15)[:, None].expand(300, 20).sum(0) + y

    check(f, torch.randn(20))


def test_what_is_computed_first_owns_the_memory() -> None:
    """A copy of it comes first among the results, a view of it behind."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sinh()
        return torch.select_copy(y, -1, 0), y[0], y

    torch._dynamo.reset()
    copy, view, whole = torch.compile(f, backend="litz", fullgraph=True)(torch.ones(1))
    memory = [t.untyped_storage().data_ptr() for t in (copy, view, whole)]
    assert memory[1] == memory[2] != memory[0]


def test_sums_of_one_negative_zero() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), x.mean(1, keepdim=True), torch.atan2(x, x.mean(1, keepdim=True))

    x = torch.tensor([[-0.0], [0.0], [-1.0]])
    got, want = torch.compile(f, backend="litz", fullgraph=True)(x), f(x)
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w) and torch.equal(g.signbit(), w.signbit())


def test_moments_of_chunks_of_one_row() -> None:
    """How many terms such a chunk has is a number, known outside of it."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x + y, None, None, training=True)

    check(f, torch.randn(17, 121), torch.randn(121, 1, 17, 1))


def test_an_operator_that_reads_what_it_writes_through_an_older_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        v = x.diagonal(-1, 0, 1)
        w = v.div_(v.abs() + 1)
        torch.ops.litz_fuzz.gather_into_(v, w)
        return w

    assert custom is not None  # registers the operators
    mine, theirs = (torch.linspace(-2, 2, 60)[3:52].view(7, 7) for _ in range(2))
    torch._dynamo.reset()
    got = torch.compile(f, backend="litz", fullgraph=True, dynamic=False)(mine)
    torch.testing.assert_close(got, f(theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_an_operator_sees_the_strides_of_single_rows() -> None:
    """Where the same memory is read and written, ATen compares them too."""

    def f(x: torch.Tensor) -> torch.Tensor:
        v = x.transpose(0, -1)
        w = v.fill_(3).div_(v.abs().sum() + 1)
        return torch.ops.litz_fuzz.gather_into_(v, w)

    torch._dynamo.reset()
    mine, theirs = torch.ones(1, 2), torch.ones(1, 2)
    got = torch.compile(f, backend="litz", fullgraph=True, dynamic=False)(mine)
    torch.testing.assert_close(got, f(theirs), rtol=1e-6, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)


def test_a_view_of_one_element_in_another_width() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.unsqueeze_copy(x, 1).view(torch.int16)

    check(f, torch.arange(20).as_strided((1, 1), (4, 3), 16))


@pytest.mark.parametrize("options", [{}, {"target": "triton"}])
def test_one_place_takes_the_sum_as_often_as_it_is_written(options: dict[str, str]) -> None:
    """The positions are the same along the loop that the sum reduces."""
    if options:
        pytest.importorskip("triton")
    x = torch.full((7,), -1).as_strided((100, 1, 1), (0, 1, 1), 3)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = -x
        return at, torch.index_put(x, (at,), at.sum(), accumulate=True)

    check(f, x, judge=False, **options)


def test_an_operator_sees_the_order_of_strides_with_gaps() -> None:
    x = torch.arange(95.0).sin().as_strided((3, 15), (30, 2), 3)
    check(lambda x: x.copy_(x.roll(1, 0)).swapaxes(-1, 0).sort(dim=-2, stable=True)[1], x)


def test_views_of_an_argument_in_the_place_of_its_update() -> None:
    """The metadata of the views speaks of the update, which has other strides."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x[torch.tensor([22])] += 1
        return x @ x.mT

    check(f, torch.arange(260.0).as_strided((65, 1, 1), (4, 4, 3)))


def test_membership_is_contiguous_whatever_the_layout() -> None:
    x = torch.arange(3893).as_strided((9, 24, 9), (432, 2, 48), 3)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.isin(x, torch.arange(3) * 50)
        return found, found.clone().as_strided((972, 2), (1, 2), 0)

    check(f, x, judge=False)
    check(lambda x: torch.isin(x, 53) | torch.isin(x.mT, 53).mT, x, judge=False)
