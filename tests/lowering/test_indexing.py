"""Reads and writes at positions that are data, against eager: values, duplicates, range checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import body
from litz.ir.program import Extern, Loops, Program
from litz.lowering.context import Settings
from litz.lowering.graph import lower
from tests.lowering.evaluate import (
    check,
    check_training,
    extern_names,
    lower_fn,
    nests,
    run_program,
    trace,
)

Fn = Callable[..., Any]
Tensor = torch.Tensor
aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
W = torch.randn(10, 6)
IDS = torch.tensor([[1, 9, 0], [3, 3, 7]])
X = torch.randn(4, 5, 6)


def nodes(program: Program) -> list[body.Node]:
    roots = [r for n in program.nodes if isinstance(n, Loops) for s in n.stores for r in s.roots()]
    return list(body.walk(roots))


# --- embedding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_embedding(dtype: torch.dtype, index: torch.dtype) -> None:
    check(lambda w, i: F.embedding(i, w), W.to(dtype), IDS.to(index))


def test_embedding_fuses_with_what_follows() -> None:
    program = check(lambda w, i, p: F.embedding(i, w) + p * 2, W, IDS, torch.randn(3, 6))
    assert nests(program) == 1


@pytest.mark.parametrize("bad", [10, -1])
def test_embedding_checks_its_indices(bad: int) -> None:
    program = lower_fn(lambda w, i: F.embedding(i, w), W, IDS)
    ids = IDS.clone()
    ids[0, 0] = bad
    with pytest.raises(IndexError):
        run_program(program, [W, ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 3])
def test_embedding_backward(dtype: torch.dtype, padding: int | None) -> None:
    w = W.to(dtype).requires_grad_()
    check_training(lambda w, i: F.embedding(i, w, padding_idx=padding) * 2, w, IDS, ulps=4)


def test_embedding_backward_adds_into_zeros() -> None:
    def fn(g: Tensor, i: Tensor) -> Tensor:
        return aten.embedding_dense_backward(g, i, 10, -1, False)

    program = check(fn, torch.randn(2, 3, 6), IDS)
    modes = [s.mode for n in program.nodes if isinstance(n, Loops) for s in n.stores]
    assert modes == ["set", "add"]


def test_embedding_of_a_converted_table_converts_what_it_reads() -> None:
    program = check(lambda w, i: F.embedding(i, w.bfloat16()), W, IDS)
    assert nests(program) == 1


def test_gather_from_a_costly_value_stores_it() -> None:
    program = check(lambda w, i: F.embedding(i, w.exp().tanh().erf()), W, IDS)
    assert nests(program) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x.expand(10, 6)[i],
        lambda x, i: (x * 2).expand(10, 6)[i],
        lambda x, i: torch.ones(10, 3)[i] + x[0, 0],
        lambda x, i: (x * 2).expand(10, 6)[i, i.clamp(max=5)],
    ],
)
def test_indices_into_an_expanded_tensor_are_checked(fn: Fn) -> None:
    assert nests(check(fn, W[:1].clone(), IDS)) == 1  # without writing the ten rows out
    with pytest.raises(IndexError):
        run_program(lower_fn(fn, W[:1].clone(), IDS), [W[:1].clone(), IDS + 5])


def test_gather_from_index_arithmetic() -> None:
    check(lambda i: (torch.arange(10, dtype=torch.float32) * 3)[i], IDS)


def test_index_of_index_keeps_symbols_apart() -> None:
    table = torch.tensor([3, 1, 2, 0, 9, 8, 7, 6, 5, 4])
    check(lambda w, t, i: w[t[t[i]]][:, t[2:4] - 1], W, table, IDS)


# --- gather, index_select, take -------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_gather(dim: int, dtype: torch.dtype) -> None:
    x = X > 0 if dtype == torch.bool else (X * 5).to(dtype)
    index = torch.randint(0, 4, (3, 2, 6))
    check(lambda x, i: x.gather(dim, i), x, index)


def test_gather_edges() -> None:
    check(lambda x, i: x.gather(0, i), torch.randn(()), torch.tensor(0))
    check(lambda x, i: x.gather(0, i), torch.randn(3), torch.tensor([2, 2, 0, 1]))
    check(
        lambda x, i: x.gather(1, i[:, :0]), torch.randn(3, 4), torch.zeros(2, 2, dtype=torch.int64)
    )
    check(lambda x, i: torch.take_along_dim(x, i, 1), X[0], torch.zeros(5, 1, dtype=torch.int64))


def test_gather_refuses_negative_indices() -> None:
    program = lower_fn(lambda x, i: x.gather(1, i), W, IDS[:, :1].contiguous())
    with pytest.raises(IndexError):
        run_program(program, [W, torch.tensor([[-1], [0]])])


def test_gather_backward() -> None:
    index = torch.randint(0, 5, (4, 7, 6))
    check_training(lambda x, i: x.gather(1, i) * 2, X.clone().requires_grad_(), index, ulps=4)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_select(dim: int) -> None:
    index = torch.tensor([3, 0, 0, 2])
    check(lambda x, i: x.index_select(dim, i), X, index)
    check_training(
        lambda x, i: x.index_select(dim, i) * 2, X.clone().requires_grad_(), index, ulps=4
    )
    check(lambda x, i: x.index_select(dim, i), X, torch.tensor(1, dtype=torch.int32))


def test_take() -> None:
    check(lambda x, i: x.take(i), X, torch.tensor([[0, -1], [119, -120]]))
    check(lambda x, i: x.t().take(i), W, torch.tensor([0, 5, 59]))


# --- index.Tensor ---------------------------------------------------------------------------------

K = torch.tensor([0, 3, -1])
J = torch.tensor([[1], [-2]])


@pytest.mark.parametrize("fn", [
    lambda x, i, j: x[i],
    lambda x, i, j: x[:, i],
    lambda x, i, j: x[i, j],
    lambda x, i, j: x[:, i, j],
    lambda x, i, j: x[i, :, j],
    lambda x, i, j: x[j, :, i],
    lambda x, i, j: x[..., j],
    lambda x, i, j: x[i, i, i],
    lambda x, i, j: x[i[:, None], j[:, 0]],
    lambda x, i, j: x[i, 2],
    lambda x, i, j: x[None, i],
    lambda x, i, j: x[i[:0]],
    lambda x, i, j: x[torch.tensor(2)],
    lambda x, i, j: (x * 2)[i] + 1,
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_index(fn: Fn, dtype: torch.dtype) -> None:
    check(fn, (X * 7).to(dtype), K, J)


def test_index_32_bit() -> None:
    check(lambda x, i: x[:, i], X, K.int())


@pytest.mark.parametrize("bad", [4, -5])
def test_index_checks_its_range(bad: int) -> None:
    program = lower_fn(lambda x, i: x[i], X, K)
    with pytest.raises(IndexError):
        run_program(program, [X, torch.tensor([0, bad, 1])])


def test_index_backward() -> None:
    x = X.clone().requires_grad_()
    check_training(lambda x, i, j: x[i, :, j] * 2, x, K, J, ulps=4)


def test_arange_as_an_index_needs_no_indirection() -> None:
    program = check(lambda x: x[torch.arange(4), 1], X)
    assert not any(isinstance(n, body.Load) and n.indirect for n in nodes(program))


def test_masked_index() -> None:
    index = torch.tensor([[-3, 2, 99], [0, 4, 1]])

    def fn(x: Tensor, i: Tensor) -> Tensor:
        return aten._unsafe_masked_index(x, ((i >= 0) & (i < 5))[..., None], [None, i], 7.0)

    check(fn, X, index)

    def put(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return aten._unsafe_masked_index_put_accumulate(
            x, ((i >= 0) & (i < 5))[..., None], [None, i], v
        )

    check(put, X, index, torch.randn(4, 2, 3, 6), ulps=4)


# --- index_put ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda x, i, v: x.index_put((i,), v),
    lambda x, i, v: x.index_put((i,), v[0, 0]),
    lambda x, i, v: x.index_put((None, i), v[:, :1].transpose(0, 1)) if x.ndim == 9 else x * 2,
    lambda x, i, v: x.index_put((i,), v, accumulate=True),
    lambda x, i, v: x.index_put((i, i), v[:, 0], accumulate=True),
    lambda x, i, v: x.index_put((i, i), v[:1, 0, :], accumulate=True),
    lambda x, i, v: aten.index_put(x, [None, i, i], v[0, 0, 0]),
    lambda x, i, v: aten._unsafe_index_put(x, [i, None, i], v[:, :, 0]),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_index_put(fn: Fn, dtype: torch.dtype) -> None:
    x, v = (X * 7).to(dtype), (torch.randn(3, 5, 6) * 7).to(dtype)
    check(fn, x, torch.tensor([1, -1, 1]), v, ulps=4)


def test_index_put_the_last_of_equal_indices_wins() -> None:
    index = torch.tensor([2, 2, 0, 2])
    check(lambda x, i, v: x.index_put((i,), v), torch.zeros(4), index, torch.arange(4.0))


@pytest.mark.parametrize("fn", [
    lambda x, m: x.masked_fill(m, 1.0) if x.ndim == 9 else x.index_put((m,), torch.tensor(2.5)),
    lambda x, m: x.index_put((m[:, 0, 0],), x[0] * 2),
    lambda x, m: x.index_put((m[..., 0],), torch.arange(6.0).to(x.dtype)),
    lambda x, m: x.index_put((m,), x[0, 0, :1], accumulate=True),
])  # fmt: skip
def test_index_put_by_mask(fn: Fn) -> None:
    program = check(fn, X, X > 0.3)
    assert nests(program) == 1


def test_masks_stay_with_aten_where_sizes_depend_on_data() -> None:
    program = lower_fn(
        lambda x, v: x.index_put((x > 0,), v), torch.tensor([1.0, -1.0]), torch.ones(1)
    )
    assert not extern_names(program)  # one value: a select
    program = lower_fn(
        lambda x, v: x.index_put((x > 0,), v), torch.tensor([1.0, -1.0, 2.0]), torch.ones(2)
    )
    assert any("index_put" in name for name in extern_names(program))


def test_index_put_checks_its_range() -> None:
    program = lower_fn(lambda x, i, v: x.index_put((i,), v), X, K, X[0, 0, 0])
    with pytest.raises(IndexError):
        run_program(program, [X, torch.tensor([0, 4, 1]), X[0, 0, 0]])


# --- scatter --------------------------------------------------------------------------------------

S = torch.tensor([[0, 2, 1, 0, 4, 4], [3, 3, 3, 3, 3, 3]])


@pytest.mark.parametrize("fn", [
    lambda x, i, s: x.scatter(0, i, s),
    lambda x, i, s: x.scatter(1, i, s),
    lambda x, i, s: x.scatter(0, i, 2.0),
    lambda x, i, s: x.scatter(0, i[:, :3], s * 2),
    lambda x, i, s: x.scatter_add(0, i, s),
    lambda x, i, s: x.scatter_add(-1, i, s),
    lambda x, i, s: x.scatter(0, i, s, reduce="add"),
    lambda x, i, s: x.scatter(0, i, s, reduce="multiply"),
    lambda x, i, s: x.scatter(0, i, 3.0, reduce="multiply"),
    lambda x, i, s: x.scatter(0, i, 3.0, reduce="add"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_scatter(fn: Fn, dtype: torch.dtype) -> None:
    x, s = (torch.randn(5, 6) * 4).to(dtype), (torch.randn(2, 6) * 4).to(dtype)
    check(fn, x, S, s, ulps=4)


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_scatter_reduce(reduce: str, include: bool, dtype: torch.dtype) -> None:
    x, s = (torch.randn(5, 6) * 4).to(dtype), (torch.randn(2, 6) * 4).to(dtype)
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include), x, S, s, ulps=4)


@pytest.mark.parametrize("places", [2, 64])
def test_products_of_many_numbers_at_a_place(places: int) -> None:
    """On GPUs those are ATen's."""
    x, i, s = torch.ones(places), torch.arange(64) % 2, torch.rand(64)
    gm = trace(lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), x, i, s)
    found = lower(gm, Settings(blocks=("cpu",)), lambda name, gm: Program((), {}, (), ()))
    assert [type(n) is Extern for n in found.program.nodes][:1] == [places == 2]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_scatter_into_more_than_is_near(dim: int, index: torch.dtype) -> None:
    """Places are fetched ahead, but not those of numbers behind the last."""
    x = torch.randn(301, 303)
    i = torch.randint(0, 301, x.shape).to(index)
    check(lambda x, i: torch.zeros_like(x).scatter_add(dim, i.long(), x), x, i)
    check(lambda x, i: x.flatten().clone().index_put((i,), x[0], accumulate=True), x, i[0])


def test_scatter_edges() -> None:
    check(lambda x, i, s: x.scatter(0, i, s), torch.randn(()), torch.tensor(0), torch.randn(()))
    check(lambda x, i, s: x.scatter_add(0, i[:0], s), torch.randn(5, 6), S, torch.randn(2, 6))
    check(
        lambda x, i: F.one_hot(x.long().clamp(0, 5), 6) + i, torch.arange(3.0), torch.tensor(1),
        externs=["aten._assert_async"],
    )  # fmt: skip


def test_scatter_refuses_negative_indices() -> None:
    program = lower_fn(lambda x, i, s: x.scatter(0, i, s), X[0], S, torch.randn(2, 6))
    with pytest.raises(IndexError):
        run_program(program, [X[0], S - 1, torch.randn(2, 6)])


def test_scatter_backward() -> None:
    x, s = torch.randn(5, 6).requires_grad_(), torch.randn(2, 6).requires_grad_()
    check_training(lambda x, i, s: x.scatter_add(0, i, s).sin(), x, S, s, ulps=4)


def test_input_of_a_scatter_is_left_as_it_is() -> None:
    check(lambda x, i, s: (x.scatter(0, i, s), x * 1), torch.randn(5, 6), S, torch.randn(2, 6))


# --- index_add, index_copy, index_fill ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_along_a_dimension(dtype: torch.dtype, dim: int) -> None:
    x = (X * 5).to(dtype)
    index = torch.tensor([1, 0, 3, 1])
    source = (torch.randn(4, 4, 4) * 3).to(dtype)
    shape = list(x.shape)
    shape[dim] = 4
    source = (torch.randn(shape) * 3).to(dtype)
    check(lambda x, i, s: x.index_add(dim, i, s), x, index, source, ulps=4)
    check(lambda x, i, s: x.index_add(dim, i, s, alpha=3), x, index, source, ulps=4)
    check(lambda x, i, s: x.index_copy(dim, i, s), x, torch.tensor([1, 0, 3, 2]), source)
    check(lambda x, i: x.index_fill(dim, i, 2), x, torch.tensor([1, -1, 3, 1]))
    check(lambda x, i, v: x.index_fill(dim, i, v), x, index, torch.tensor(4).to(dtype))


def test_along_a_dimension_of_nothing() -> None:
    check(lambda x, i, s: x.index_add(0, i, s), torch.randn(()), torch.tensor([0]), torch.randn(()))
    check(lambda x, i, s: x.index_copy(0, i, s), torch.randn(3), torch.tensor(1), torch.randn(()))


# --- searches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_bucketize(right: bool, count: int, dtype: torch.dtype) -> None:
    boundaries = (torch.arange(count) // 2 * 2 - 3).to(dtype)
    x = torch.arange(-6, 10).to(dtype)
    if dtype.is_floating_point:
        x = torch.cat([x, torch.tensor([float("nan"), float("inf"), float("-inf"), 0.5]).to(dtype)])
    fn = lambda x, b: torch.bucketize(x, b, right=right, out_int32=right)  # noqa: E731
    check(fn, x, boundaries)


def test_searchsorted() -> None:
    sequence = torch.randn(4, 9).sort(-1).values
    check(lambda s, x: torch.searchsorted(s, x), sequence, torch.randn(4, 3))
    check(lambda s, x: torch.searchsorted(s, x, side="right"), sequence[0], torch.randn(2, 3))
    loose = torch.randn(4, 9)
    args = loose, torch.randn(4, 3), loose.argsort(-1)
    fn = lambda s, x, order: torch.searchsorted(s, x, sorter=order)  # noqa: E731
    check(fn, *args)
    with pytest.raises(RuntimeError, match="long"):
        torch.compile(fn, backend="litz")(*args[:2], args[2].int())


# --- dynamic sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda w, i: F.embedding(i, w),
    lambda w, i: w[i],
    lambda w, i: w.index_select(0, i[0]),
    lambda w, i: w.gather(0, i),
    lambda w, i: w.index_put((i,), w[0]),
    lambda w, i: w.scatter_add(0, i, w[: i.shape[0], : i.shape[1]]),
    lambda w, i: w.index_add(0, i[0], w[: i.shape[1]] * 2),
])  # fmt: skip
def test_dynamic(fn: Fn) -> None:
    check(fn, W, IDS, dynamic=True, ulps=4)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x, i: x[i] + 1, IndexError),
        (lambda x, i: x.gather(0, i) + 1, RuntimeError),
        (lambda x, i: x.scatter_add(0, i, x[:1]) + 1, RuntimeError),
    ],
)
@pytest.mark.parametrize("size", [0, 5])
def test_positions_outside_raise_what_eager_raises(
    fn: Callable[..., Tensor], kind: type[Exception], size: int
) -> None:
    x, i = torch.randn(size), torch.tensor([7])
    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(kind):
            call(x, i)
