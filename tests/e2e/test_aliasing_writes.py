"""Writes: through views, by index, by custom ops, into ``out=``; and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import litz
from litz.tools.explain import Explanation
from tests.quick import some

Fn = Callable[..., Any]


def check(fn: Fn, *args: Tensor, dynamic: bool | None = None) -> None:
    """Results and arguments after the call are eager's, twice."""
    torch._dynamo.reset()
    compiled = torch.compile(
        fn, backend="litz", fullgraph=True, dynamic=dynamic, options={"check_ir": True}
    )
    for _ in range(2):
        sides = []
        for call in (fn, compiled):
            own = [a.clone() for a in args]
            out = call(*own)
            sides.append([*own, *(out if isinstance(out, tuple | list) else [out])])
        for e, c in zip(*sides, strict=True):
            assert isinstance(e, Tensor) == isinstance(c, Tensor)
            if isinstance(e, Tensor):
                torch.testing.assert_close(c, e, rtol=0, atol=0)


X = torch.arange(24.0).reshape(4, 6)
I4 = torch.tensor([2, 0, 3])
I1 = torch.tensor([1, 1, 0])

# --- through views -------------------------------------------------------------------------------


def _chain(x: Tensor) -> Tensor:
    x.t()[1:4].view(3, 2, 2)[:, 1].add_(5)
    return x * 2


def _shift(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x + 0


def _rows_from_rows(x: Tensor) -> Tensor:
    x[:, 1:].copy_(x[:, :-1] * 2)
    return x.sum(1)


def _diagonal(x: Tensor) -> Tensor:
    x.diagonal().fill_(-1)
    x.unfold(1, 2, 2)[:, :, 0].neg_()
    return x.clone()


def _old_values(x: Tensor) -> tuple[Tensor, ...]:
    before, flipped, total = x * 1, x.flip(0), x.sum()
    x[::2].zero_()
    return before, flipped, total, x.flip(0), x.sum()


def _many(x: Tensor) -> Tensor:
    for k in range(4):
        x[k].add_(x[(k + 1) % 4])
    return x.t() + 1


def _intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.t()
    z[0].zero_()
    y[:, 1].add_(z[2])
    return y, z + 1


def _transposed_sum(x: Tensor) -> Tensor:
    y = x[:, :4]
    y.add_(y.t().clone())
    return y.exp()


def _bits(x: Tensor) -> Tensor:
    y = x + 0
    y.view(torch.int32).bitwise_and_(-8)
    return y


def _late_view(x: Tensor) -> tuple[Tensor, Tensor]:
    x.copy_(x.roll(1, 0))
    x[1:] += 1
    return x, x.chunk(2, 0)[1]


def _late_rows(x: Tensor) -> Tensor:
    x.mul_(x.flip(1))
    return x[2:]


def _swap(x: Tensor) -> None:
    x[0], x[1] = x[1].clone(), x[0].clone()


THROUGH_VIEWS: list[Fn] = [
    _chain, _shift, _rows_from_rows, _diagonal, _old_values, _many, _intermediate,
    _transposed_sum, _bits, _swap, _late_view, _late_rows,
]  # fmt: skip


@pytest.mark.parametrize("case", some(product(THROUGH_VIEWS, (False, True)), 16))
def test_through_views(case: tuple[Fn, bool]) -> None:
    fn, dynamic = case
    check(fn, X, dynamic=dynamic)


# --- by index ------------------------------------------------------------------------------------


def _put_then_flip(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    x.index_put_((i,), torch.ones(6))
    return x.flip(0), x[1:] - x[:-1], x.t() @ x


def _put_twice(x: Tensor, i: Tensor) -> Tensor:
    x.index_put_((i,), x[0] + 1, accumulate=True)
    x[:, i] = 7
    return x.flip(1) * 2


def _scatter_then_windows(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.scatter_(0, i[:, None].expand(3, 6), X[:3])
    return y.unfold(1, 3, 1).sum(-1), y


def _old_and_new(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.scatter_add(0, i[:, None].expand(3, 6), X[:3])
    return y, z


def _into_view(x: Tensor, i: Tensor) -> Tensor:
    x.t()[i] = 3.0
    x[1:].index_add_(0, i.clamp(max=2), X[:3])
    return x + 1


def _reads_itself(x: Tensor, i: Tensor) -> Tensor:
    x[i] = x[i.flip(0)]
    x.index_copy_(0, i, x[:3] * 2)
    return x.sum(0)


BY_INDEX: list[Fn] = [
    _put_then_flip, _put_twice, _scatter_then_windows, _old_and_new, _into_view, _reads_itself,
]  # fmt: skip


@pytest.mark.parametrize("fn", BY_INDEX)
@pytest.mark.parametrize("dynamic", [False, True])
def test_by_index(fn: Fn, dynamic: bool) -> None:
    check(fn, X, I4, dynamic=dynamic)


def test_repeated_positions_accumulate() -> None:
    check(lambda x, i: x.index_put_((i,), torch.ones(3, 6), accumulate=True).flip(0), X, I1)
    check(lambda x, i: x.index_add_(0, i, X[:3], alpha=2)[::2], X, I1)


# --- custom ops and out= -------------------------------------------------------------------------


@torch.library.custom_op("litz_aliasing::scale_", mutates_args={"x"})
def scale_(x: Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("litz_aliasing::swap_", mutates_args={"x", "y"})
def swap_(x: Tensor, y: Tensor) -> Tensor:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return t.sum()


@swap_.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(())


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    before = x + y
    scale_(x, 3.0)
    return before * x


def _scaled_view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    scale_(z[1:3], 3.0)
    scale_(y.t(), -1.0)
    return z.flip(0), y + 1


def _swapped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x + 1, y * 2
    total = swap_(a, b)
    return a - b, total


@pytest.mark.parametrize("fn", [_scaled, _scaled_view, _swapped])
def test_custom_ops_that_write(fn: Fn) -> None:
    check(fn, X, X.flip(0).clone())


def _out_add(x: Tensor, y: Tensor) -> Tensor:
    torch.add(x, y, out=x)
    return x * 2


def _out_mm(x: Tensor, y: Tensor) -> Tensor:
    z = torch.empty(4, 4)
    torch.mm(x, y.t(), out=z)
    return z + 1


def _out_sum(x: Tensor, y: Tensor) -> Tensor:
    torch.sum(y, 0, out=x[0].clone())
    z = x.new_zeros(6)
    torch.sum(y, 0, out=z)
    return z * x


@pytest.mark.parametrize("fn", [_out_add, _out_mm, _out_sum])
def test_out_arguments(fn: Fn) -> None:
    check(fn, X, X.flip(0).clone())


# --- what it costs -------------------------------------------------------------------------------


def explained(fn: Fn, *args: Tensor) -> Explanation:
    return litz.explain(fn, *args)


def launches(e: Explanation) -> int:
    return sum(len(k.groups) for g in e.graphs for k in g.stages.kernels)


def temporaries(e: Explanation) -> int:
    """Buffers that the compiled graphs allocate or take from memory of their own."""
    count = 0
    for g in e.graphs:
        schedule = g.stages.schedule
        assert schedule is not None
        written: dict[str, None] = {}
        for step in schedule.steps:
            written.update(dict.fromkeys(step.write_buffers()))
        buffers = schedule.program.buffers
        count += sum(buffers[b].kind == "temp" for b in written)
    return count


def test_an_elementwise_update_needs_no_copy() -> None:
    def f(x: Tensor) -> None:
        x.mul_(2).add_(1).relu_()

    e = explained(f, X.clone())
    assert (launches(e), temporaries(e)) == (1, 0)


def test_a_row_is_updated_without_a_copy() -> None:
    def f(x: Tensor) -> None:
        x[1].add_(1)

    e = explained(f, X.clone())
    assert (launches(e), temporaries(e)) == (1, 0)


def test_a_flip_in_place_is_copied_once() -> None:
    def f(x: Tensor) -> None:
        x.copy_(x.flip(0))

    e = explained(f, X.clone())
    assert temporaries(e) == 1
    check(f, X)


def test_an_index_put_goes_into_the_argument() -> None:
    def f(x: Tensor, i: Tensor) -> None:
        x.index_put_((i,), torch.ones(6))

    e = explained(f, X.clone(), I4)
    assert temporaries(e) == 0


def test_nested_parts_and_chains_go_into_the_argument() -> None:
    def f(x: Tensor, i: Tensor) -> None:
        x[1:3, ::2].mul_(2)
        x[0] = 5.0
        x.diagonal().neg_()
        x.index_add_(0, i, torch.ones(3, 6))
        x.t()[1:, 2].sub_(1)

    e = explained(f, X.clone(), I4)
    assert temporaries(e) == 0
    check(f, X, I4)


def test_what_still_reads_the_old_value_is_copied() -> None:
    def f(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        doubled, rows, column = x * 2, x[i], x[:, 1]
        before = column + 0
        x[1:].add_(x[:-1].clone())
        x[i] = rows.flip(0)
        return doubled, rows, before, column * 3, x.flip(1)

    check(f, X, I4)
    check(f, X, I4, dynamic=True)


def test_a_functional_update_stays_functional() -> None:
    def f(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.index_put(x, (i,), torch.ones(6))
        z = y[1:]
        x.copy_(y)
        return z, y.sum(0)

    check(f, X, I4)
    own = X.clone()
    z, _ = torch.compile(f, backend="litz", fullgraph=True)(own, I4)
    own.zero_()
    assert z.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool])
def test_updates_of_other_types(dtype: torch.dtype) -> None:
    def f(x: Tensor, i: Tensor) -> None:
        x[i] = torch.ones(6, dtype=x.dtype)
        x[:, 2:4] = x[:, :2].clone()

    def add(x: Tensor, i: Tensor) -> None:
        x.index_put_((i,), torch.ones(6, dtype=x.dtype), accumulate=True)
        x.index_add_(0, i, torch.ones(3, 6, dtype=x.dtype))

    check(f, (X % 5).to(dtype), I4)
    if dtype is not torch.bool:
        check(add, (X % 5).to(dtype), I1)


def test_an_index_put_beside_the_old_value_copies_it() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        return y + torch.index_put(y, (i,), torch.ones(6))

    e = explained(f, X.clone(), I4)
    assert 1 <= temporaries(e) <= 3
    check(f, X, I4)


# --- updates at positions, of arguments and of computed values ------------------------------------


def _positions(x: Tensor, i: Tensor) -> None:
    x.t().index_put_((i,), torch.ones(4))
    x.view(2, 2, 6)[:, 1].index_fill_(1, i, 2.0)
    x[1:, ::2].scatter_(1, i.clamp(max=2)[None].expand(2, 3), 1.0)
    x.put_(i, torch.ones(3))
    x.index_reduce_(0, i, torch.ones(3, 6), "amax")


def _nested_rows(x: Tensor, i: Tensor) -> None:
    x[1].index_fill_(0, i, 3.0)
    x[:, 2][i] = 7.0
    x[1:][:, 1:][i.clamp(max=2)] = 4.0


def _overwritten(x: Tensor, i: Tensor) -> None:
    x.mul_(2).clamp_(max=30)
    x.index_copy_(0, i, torch.ones(3, 6))


@pytest.mark.parametrize("fn", [_positions, _nested_rows, _overwritten])
def test_updates_at_positions_go_into_the_argument(fn: Fn) -> None:
    assert temporaries(explained(fn, X.clone(), I4)) == 0
    check(fn, X, I4)
    check(fn, X.t().contiguous().t(), I4, dynamic=True)


def _updated(x: Tensor, i: Tensor) -> Tensor:
    y = x.cumsum(0)
    y.index_put_((i,), torch.ones(6))
    y.scatter_(0, i[:, None].expand(3, 6), 2.0)
    y.index_add_(0, i, torch.ones(3, 6))
    return y


def _cache(x: Tensor, i: Tensor) -> Tensor:
    kept = torch.zeros(100, 6)
    for k in range(4):
        kept = torch.index_copy(kept, 0, i + k, x[:3] * k)
    return kept


@pytest.mark.parametrize("fn,kernels", [(_updated, 4), (_cache, 5)])
def test_updates_of_what_nobody_reads_again_need_no_copy(fn: Fn, kernels: int) -> None:
    e = explained(fn, X.clone(), I4)
    assert (launches(e), temporaries(e)) == (kernels, 1)
    check(fn, X, I4)


def _read_between(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x.cumsum(0)
    total, lazy, part = y.sum(0), y * 2, y[1:]
    z = torch.index_fill(y, 0, i, 3.0)
    w = torch.index_fill(z, 1, i, 5.0)
    return total, lazy, part + 1, w, w.sum()


def _by_itself(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x.cumsum(0)
    z = torch.index_put(y, (i,), y[:3].flip(0))
    w = torch.index_add(z, 0, i, z[i] * 2)
    v = torch.index_put(w, (i,), w[0])
    return (torch.scatter(v, 0, v.long().clamp(0, 3), v),)


def _kept(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x.cumsum(0)
    z = torch.index_fill(y, 0, i, 3.0)
    w = torch.index_fill(z, 1, i, 5.0)
    return y, w, torch.index_fill(w, 1, i + 1, 6.0)


def _halves(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    a, b = x.cumsum(0).split(2)
    c = torch.index_fill(a, 1, i, 1.0)
    return c, torch.index_fill(b, 1, i, 2.0), torch.index_fill(x.cumsum(1).t(), 0, i, 3.0)


def _whole(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = x.cumsum(0)
    z = torch.index_fill(y, 0, i, 3.0)
    return torch.index_put(z, (torch.arange(4),), x), torch.index_put(z, (torch.arange(4),), y)


@pytest.mark.parametrize("fn", [_read_between, _by_itself, _kept, _halves, _whole])
@pytest.mark.parametrize("dynamic", [False, True])
def test_updates_of_what_is_read_again(fn: Fn, dynamic: bool) -> None:
    check(fn, X, I4, dynamic=dynamic)


def test_an_update_of_random_numbers_is_verified() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        y = torch.rand_like(x)
        y[i] = 2.0
        return y.index_add_(0, i, x[:3]) + torch.rand(6).index_fill_(0, i, 1.0)

    compiled = torch.compile(f, backend="litz", fullgraph=True, options={"verify": True})
    assert compiled(X, I4)[1].max() < 2


# --- masked reductions of what is overwritten -----------------------------------------------------


def _padded_norm(x: Tensor) -> None:
    x.copy_(F.pad(F.layer_norm(x, (50,))[:, 3:], (3, 0)))


def _padded_softmax(x: Tensor) -> None:
    x.copy_(F.pad(F.softmax(x, 1)[1:, 2:48], (2, 2, 1, 0)))


def _padded_columns(x: Tensor) -> None:
    x.copy_(F.pad(F.softmax(x, 0)[1:, 2:48], (2, 2, 1, 0)))


def _padded_maximum(x: Tensor) -> None:
    x.copy_(F.pad((x.amax(1, keepdim=True) + 1).expand(40, 40), (0, 10)))


def _row_in_part(x: Tensor) -> None:
    z = x.new_zeros(40, 50)
    z[:, 5:] = x.sum(1, keepdim=True) + 1
    x.copy_(z)


@pytest.mark.parametrize(
    "fn", [_padded_norm, _padded_softmax, _padded_columns, _padded_maximum, _row_in_part]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_masked_reductions_of_what_is_overwritten(fn: Fn, dynamic: bool) -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    e, c = x.clone(), x.clone()
    fn(e)
    torch._dynamo.reset()
    torch.compile(fn, backend="litz", fullgraph=True, dynamic=dynamic)(c)
    torch.testing.assert_close(c, e, rtol=1e-5, atol=1e-6)


# --- writes that run over some of the dims that are reduced --------------------------------------


def _ints(*shape: int) -> Tensor:
    n = torch.Size(shape).numel()
    return (torch.arange(n) % 7 - 2).double().reshape(shape)


def _rows_take_a_sum(b: Tensor, c: Tensor) -> Tensor:
    u = (c + b[:, None]).sum((0, 1))
    b.add_(u)
    return u


def _rows_beside_all(b: Tensor, c: Tensor) -> Tensor:
    u = c.sum((0, 1))
    e = c * b[:, None] + u
    b.add_(u)
    return e


def _few_long_rows(b: Tensor, c: Tensor) -> Tensor:
    u = (c + b[:, None]).sum((1, 2))
    b.add_(u[:, None])
    return u


def _running_mean(b: Tensor, c: Tensor) -> Tensor:
    m = (c - b[0]).amax((0, 1))
    b.mul_(m.expand_as(b))
    return m


def _groups(b: Tensor, c: Tensor) -> Tensor:
    u = c.sum((0, 2))
    e = c * b + u[:, None]
    b.add_(u[:, None])
    return e


def _both_in_place(b: Tensor, c: Tensor) -> Tensor:
    u = c.sum((1, 2))
    x, y = c * b[:, :, None] + u[:, None, None], b + u[:, None]
    c.copy_(x)
    b.copy_(y)
    return u


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (_rows_take_a_sum, [(30, 64), (30, 40, 64)]),
        (_rows_beside_all, [(30, 64), (30, 40, 64)]),
        (_few_long_rows, [(10, 200), (10, 300, 200)]),
        (_running_mean, [(40, 64), (30, 40, 64)]),
        (_groups, [(4, 8), (50, 4, 8)]),
        (_groups, [(4, 16), (500, 4, 16)]),
        (_both_in_place, [(20, 30), (20, 30, 17)]),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_over_some_of_the_reduced_dims(fn: Fn, shapes: Any, dynamic: bool) -> None:
    check(fn, *(_ints(*s) for s in shapes), dynamic=dynamic)
