"""Which results share memory with arguments and with each other: as eager has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.quick import some

Fn = Callable[..., Any]


def shared(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs that lie in the same memory."""
    at = [t.untyped_storage().data_ptr() for t in tensors]
    return [(i, j) for i in range(len(at)) for j in range(i) if at[i] == at[j]]


def both(fn: Fn, *args: torch.Tensor, dynamic: bool = False) -> tuple[list[Any], list[Any]]:
    """(arguments and results) of eager and of Litz, on equal arguments; values must agree."""
    torch._dynamo.reset()
    compiled = torch.compile(
        fn, backend="litz", fullgraph=True, dynamic=dynamic, options={"check_ir": True}
    )
    sides = []
    for call in (fn, compiled):
        own = [copy(a) for a in args]
        out = call(*own)
        sides.append([*own, *(out if isinstance(out, tuple | list) else [out])])
    eager, litz = sides
    for e, c in zip(eager, litz, strict=True):
        torch.testing.assert_close(c, e, rtol=0, atol=0, equal_nan=True)
        assert c.stride() == e.stride()
    return eager, litz


def copy(x: torch.Tensor) -> torch.Tensor:
    """Equal memory with an equal view of it."""
    base = x.untyped_storage().clone()
    return torch.empty(0, dtype=x.dtype).set_(base, x.storage_offset(), x.shape, x.stride())


def check_sharing(fn: Fn, *args: torch.Tensor, dynamic: bool = False) -> None:
    """The same pairs share memory, and where they do at the same distance."""
    eager, litz = both(fn, *args, dynamic=dynamic)
    assert shared(litz) == shared(eager)
    for i, j in shared(eager):
        e = eager[i].data_ptr() - eager[j].data_ptr()
        assert litz[i].data_ptr() - litz[j].data_ptr() == e


X = torch.arange(24.0).reshape(4, 6)

OF_ARGUMENTS: list[Fn] = [
    lambda x: x,
    lambda x: (x, x),
    lambda x: x.view(6, 4),
    lambda x: (x.t(), x + 1),
    lambda x: (x[1:, ::2], x[0]),
    lambda x: x.expand(3, 4, 6),
    lambda x: x.diagonal(),
    lambda x: x.unfold(1, 3, 2),
    lambda x: x.view(torch.int32),
    lambda x: x.as_strided((3, 2), (6, 3), 2),
    lambda x: x.reshape(-1),
    lambda x: x.t().reshape(-1),
    lambda x: x.contiguous(),
    lambda x: x.t().contiguous(),
    lambda x: x.to(torch.float32),
    lambda x: x.squeeze(),
    lambda x: x.split(2),
    lambda x: x.unbind(1)[2],
    lambda x: x.add_(1),
    lambda x: x.t().mul_(2)[1:],
    lambda x: (x.detach(), x.clone()),
    lambda x: x.flip(0),
    lambda x: F.dropout(x, 0.0),
    lambda x: F.dropout(x, 0.5, training=False).add_(1)[1:],
]


@pytest.mark.parametrize("fn", OF_ARGUMENTS)
def test_views_of_arguments_in_dynamic_sizes(fn: Fn) -> None:
    check_sharing(fn, X, dynamic=True)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.unflatten(0, (3, -1)).tensor_split(2, 3),
        lambda x: x.unflatten(0, (3, -1))[1:, 1:, :, 3:],
        lambda x: x.unflatten(-1, (-1, 5)).select(2, 1),
        lambda x: (y := x * 2, y.unflatten(0, (3, -1))[:, :, :, 2:]),
    ],
)
def test_views_whose_strides_are_hard_to_prove(fn: Fn) -> None:
    check_sharing(fn, torch.arange(225.0).reshape(15, 1, 15), dynamic=True)


@pytest.mark.parametrize("fn", OF_ARGUMENTS)
def test_results_that_are_views_of_arguments(fn: Fn) -> None:
    check_sharing(fn, X)


OF_RESULTS: list[Fn] = [
    lambda x: (y := x * 2, y.t()),
    lambda x: (y := x * 2, y),
    lambda x: (y := x * 2, y[1:], y[:, ::2]),
    lambda x: (x * 2).split(3, 1),
    lambda x: (x * 2).chunk(2, 0),
    lambda x: (x * 2).unbind(0),
    lambda x: (x * 2)[:, 1],
    lambda x: (x * 2)[1:3, 1:4],
    lambda x: (x * 2).t()[1:],
    lambda x: (x * 2).expand(3, 4, 6),
    lambda x: (x * 2).sum(0).expand(5, 6),
    lambda x: (y := x.sum(0), y.unsqueeze(0), y.expand(2, 6)),
    lambda x: (x * 2).unfold(1, 3, 1),
    lambda x: (x * 2).diagonal(),
    lambda x: (y := x.floor(), y.view(torch.int32)),
    lambda x: x.sum(1).view(torch.int32).split(3),
    lambda x: (x * 2).view(torch.int32).unbind(1)[1:3],
    lambda x: (y := (x * 2).t(), y.reshape(-1), y.reshape(6, 2, 2)),
    lambda x: (x + 1).flip(0).narrow(1, 0, 3),
    lambda x: ((x + 1)[:, :3], (x + 1)[:, 3:]),
    lambda x: (torch.zeros_like(x)[1:], torch.zeros_like(x)),
    lambda x: (z := torch.zeros(4, 4), z.diagonal(), z[1]),
    lambda x: (y := x @ x.t(), y[1:], y.t()),
    lambda x: (z := torch.zeros(4, 4), z[:]),
    lambda x: (y := torch.cat((x, x)), y[:, 0:], y.zero_())[:2],
    lambda x: (y := x * 2, y.t(), y.fill_(1))[:2],
    lambda x: (y := x.long(), z := y.trunc(), z[:]),
    lambda x: (y := torch.slice_copy(x, 1, 2), y.t()),
    lambda x: (y := torch.split_copy(x, 2)[1], y.t(), torch.unbind_copy(x)[1].view(2, 3)),
    lambda x: (y := torch.select_copy(x, 1, 2), y[1:], torch.t_copy(x).unsqueeze(0)),
    lambda x: (y := torch.cat((x, x)), y[:4]),
    lambda x: (y := x.long(), y.trunc().expand(2, 4, 6)),
    lambda x: (y := x.long(), y.floor()[:, ::2], y.round().t()[1:]),
]


@pytest.mark.parametrize("fn", OF_RESULTS)
def test_results_that_are_views_of_each_other(fn: Fn) -> None:
    check_sharing(fn, X)


@pytest.mark.parametrize("fn", some(OF_RESULTS, 8))
def test_views_of_each_other_in_dynamic_sizes(fn: Fn) -> None:
    check_sharing(fn, X, dynamic=True)


def test_a_write_to_one_result_shows_in_the_other() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[1:, 1:], y + 0

    _, litz = both(f, X)
    _, y, part, other = litz
    part.zero_()
    assert not y[1:, 1:].any() and y[0].any()
    assert other[1:, 1:].all()


def test_equal_results_are_not_one_tensor() -> None:
    check_sharing(lambda x: (x + 1, x + 1, x.clone(), x.clone()), X)
    check_sharing(lambda x: (torch.zeros(3), torch.zeros(3), torch.ones(3)), X)
    check_sharing(lambda x: ((x * 1).view(-1), (x * 1).view(-1)), X)


def test_a_result_is_not_memory_that_is_used_again() -> None:
    compiled = torch.compile(lambda x: (x * 2, (x * 2).sum(0)), backend="litz")
    first, total = compiled(X)
    kept = first.clone(), total.clone()
    compiled(X + 5)
    assert torch.equal(first, kept[0]) and torch.equal(total, kept[1])


# --- arguments that share memory -----------------------------------------------------------------


def test_arguments_that_overlap() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.mul_(2)
        c = b + 1
        b.add_(10)
        return a + c, b * 2

    def arguments() -> tuple[torch.Tensor, ...]:
        base = torch.arange(12.0)
        return base[:8], base[4:], base

    ea, eb, e_base = arguments()
    expected = f(ea, eb)
    ca, cb, c_base = arguments()
    actual = torch.compile(f, backend="litz", fullgraph=True)(ca, cb)
    for e, c in zip(expected, actual, strict=True):
        assert torch.equal(e, c)
    assert torch.equal(e_base, c_base)


def test_the_same_argument_twice() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    e, c = X.clone(), X.clone()
    expected = f(e, e)
    actual = torch.compile(f, backend="litz", fullgraph=True)(c, c)
    assert torch.equal(actual, expected) and torch.equal(e, c)


def _rows(x: torch.Tensor) -> torch.Tensor:
    part = x.chunk(3, 0)[1]
    part.copy_(part.flip(0))
    return part.unsqueeze(1).unsqueeze(-2)


def _rolled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.copy_(x.roll(1, 0))
    x[1:] += 1
    return x, x.chunk(2, 0)[1]


def _column(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.t()[1:].mul_(2)
    return x[:, 1], x.t()[2:]


def _placed(x: torch.Tensor) -> torch.Tensor:
    part = x.tensor_split(2, 0)[1]
    part[torch.tensor([1])] += 1
    return part


def _pieces(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = x.split(5, 0)
    second.mul_(2)
    first[torch.tensor([1])] = 3
    return second, first, second.t(), second.split(2)[1]


@pytest.mark.parametrize("fn", some([_rows, _rolled, _column, _placed, _pieces], 3))
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_written_arguments_that_begin_late(fn: Fn, dynamic: bool) -> None:
    """PyTorch makes these views anew by the results' offsets, which count from the storage's."""
    base = torch.arange(400.0)
    for size, stride in (((9, 6), (6, 1)), ((9, 6), (1, 9)), ((9, 6), (14, 2))):
        check_sharing(fn, base.as_strided(size, stride, 16), dynamic=dynamic)


# --- training ------------------------------------------------------------------------------------

SAVED: list[Fn] = [
    lambda x: (x * 2)[:, 1].exp() * x.sum(),
    lambda x: (x.tanh()[:, ::2]).sin() * (x.tanh()[:, 1::2]).cos(),
    lambda x: x.sigmoid().sum(0).expand(4, 6) * x,
    lambda x: x.tanh().unfold(1, 3, 1).pow(2).exp(),
    lambda x: torch.cat((x.tanh(), x.sin()), 1).chunk(2, 1)[1].exp(),
    lambda x: (y := x.tanh(), y.t(), y[1:] * 2),
    lambda x: (x.exp().t()[1:4].contiguous().sin(), x.exp()[:, 2]),
]


@pytest.mark.parametrize("case", some(product(SAVED, (False, True)), 9))
def test_values_kept_for_the_backward(case: tuple[Fn, bool]) -> None:
    """The backward reads what the forward kept by the strides that eager has there."""
    fn, dynamic = case
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", fullgraph=True, dynamic=dynamic)
    found = []
    for call in (fn, compiled):
        x = (X / 24).requires_grad_()
        out = call(x)
        outs = out if isinstance(out, tuple) else (out,)
        total = sum((o * torch.arange(o.numel()).view(o.shape)).sum() for o in outs)
        assert isinstance(total, torch.Tensor)
        total.backward()
        found.append((*outs, x.grad))
    for e, c in zip(*found, strict=True):
        torch.testing.assert_close(c, e)
        assert c is not None and e is not None and c.stride() == e.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_views_keep_their_gradients_beside_a_detached_result(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        z = y.detach()
        return y[0], y.t(), z if dtype.is_complex else z.t().t()

    x = torch.ones(3, 4, dtype=dtype, requires_grad=True)
    results = torch.compile(fn, backend="litz", fullgraph=True)(x)
    assert [y.requires_grad for y in results] == [True, True, False]
    assert results[2].data_ptr() == results[1].data_ptr()
    sums = [y[0].abs().sum() + y[1].abs().sum() for y in (results, fn(x))]
    grad, expected = (torch.autograd.grad(y, x, retain_graph=True)[0] for y in sums)
    torch.testing.assert_close(grad, expected)
    results[2].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(sums[0], x)


SHOWN: list[Fn] = [
    lambda x: (y := x * 1, (y.sin().sum(), y.detach().view(-1)))[1],
    lambda x: (y := x * 1, (y.sin().sum(), y.detach()[1:].t()))[1],
    lambda x: (y := x.sigmoid(), (y.sum(), y.detach()[:, 2], y.detach().t()))[1],
    lambda x: (y := x.sort(1), (y.values.pow(2).sum(), y.indices[:, 0]))[1],
    lambda x: (y := x.max(1), (y.values.sum(), y.indices))[1],
    lambda x: (y := x > 0, (torch.where(y, x.sin(), x).sum(), y.view(-1)))[1],
    lambda x: (x.mul(2).sum(), x.exp().flatten()),
    lambda x: (x.mul(2).sum(), *x.exp().chunk(2)),
    lambda x: (x.sin().sum(), x.chunk(2)[1]),
    lambda x: (y := torch.cat((x, x))[1:5], (F.silu(y).sum(), y))[1],
    lambda x: (x.mul(2).sum(), torch.complex(x, x).exp()[1:]),
    lambda x: (y := x.exp(), (y.sum(), torch.view_as_real(torch.complex(y, y)).sum(), y.data.T))[1],
]


@pytest.mark.parametrize("fn", some(SHOWN, 5))
@pytest.mark.parametrize("host", ["python", "auto"])
def test_writes_to_views_of_what_is_saved_are_seen(fn: Fn, host: str) -> None:
    """Autograd counts them, as in eager mode, and refuses to go on with other numbers."""

    def total(results: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([v.sum().abs() for v in results if v.requires_grad]).sum()

    x = (X / 24 - 0.5).requires_grad_()
    run = torch.compile(fn, backend="litz", fullgraph=True, options={"host": host})
    mine, expected = (torch.autograd.grad(total(f(x)), x) for f in (run, fn))
    torch.testing.assert_close(mine, expected)
    results = run(x)
    assert not any(v._is_view() for v in results)
    loss = total(results)
    results[-1].detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
