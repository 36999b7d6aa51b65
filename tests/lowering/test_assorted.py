"""Lowerings of rarer operators: outer and cross products, distances, membership, numbers taken
apart, pooling over shared windows, sliding windows, writes by number.  All without ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import check, check_training, extern_names, lower_fn

Fn = Callable[..., Any]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
A, B = torch.randn(4, 5), torch.randn(4, 5)
IMAGE = torch.randn(2, 3, 7, 9)


def native(fn: Fn, *args: Any, **options: Any) -> None:
    """As eager, and without a call of ATen."""
    program = check(fn, *args, **options)
    assert extern_names(program) == []


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
@pytest.mark.parametrize("beta, alpha", [(1, 1), (2, 3), (0, 2)])
def test_addr(dtype: torch.dtype, beta: int, alpha: int) -> None:
    x, a, b = ((torch.randn(s) * 3).to(dtype) for s in ((4, 5), (4,), (5,)))
    native(lambda x, a, b: torch.addr(x, a, b, beta=beta, alpha=alpha), x, a, b)


def test_addr_with_beta_zero_drops_a_nan() -> None:
    x = torch.full((4, 5), float("nan"))
    native(lambda x, a, b: torch.addr(x, a, b, beta=0), x, A[:, 0], B[0])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cross(dtype: torch.dtype, dim: int) -> None:
    x, y = ((torch.randn(3, 3, 3) * 4).to(dtype) for _ in range(2))
    native(lambda x, y: torch.linalg.cross(x, y, dim=dim), x, y)
    native(lambda x, y: torch.linalg.cross(x, y[:1], dim=-1), x, y)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, float("inf")])
def test_distances(p: float) -> None:
    native(lambda x, y: torch.dist(x, y, p), A, B[0])
    native(lambda x, y: torch.cdist(x, y, p), A, B[:3])
    native(lambda x, y: torch.cdist(x, y, p), torch.randn(2, 1, 4, 3), torch.randn(5, 2, 3))


def test_distances_of_many_rows_are_a_matrix_product() -> None:
    program = lower_fn(lambda x, y: torch.cdist(x, y), torch.randn(30, 3), torch.randn(4, 3))
    assert extern_names(program) != []
    native(lambda x: torch.cdist(x[:0], x), A)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("invert", [False, True])
def test_membership(dtype: torch.dtype, invert: bool) -> None:
    x = torch.arange(12).view(3, 4).to(dtype)
    members = torch.tensor([[1, 5], [11, 40]]).to(dtype)
    native(lambda x, m: torch.isin(x, m, invert=invert), x, members)
    native(lambda x, m: torch.isin(x, 5, invert=invert), x, members)
    native(lambda x, m: torch.isin(5, m, invert=invert), x, members)


def test_trace() -> None:
    native(torch.trace, A)
    native(torch.trace, torch.arange(20).view(5, 4).int())
    check_training(lambda x: torch.trace(x) * 2, A)


SPECIAL = [0.0, -0.0, 1e-45, -3e-39, 1.5, -6.25, 1024.0, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_frexp(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    x = torch.tensor([*SPECIAL, info.max, info.smallest_normal / 2, info.eps], dtype=dtype)
    native(lambda x: tuple(torch.frexp(x)), x)

    def shared(x: torch.Tensor) -> torch.Tensor:
        y = x.exp() * x + x.sin()
        mantissa, exponent = torch.frexp(y)
        return mantissa * exponent + y

    native(shared, torch.linspace(-2, 2, 9, dtype=dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_angle(dtype: torch.dtype) -> None:
    x = torch.tensor([-3, 0, 5]) if dtype is torch.int64 else torch.tensor(SPECIAL)
    native(torch.angle, x.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("decimals", [0, 1, 3, -2])
def test_round_to_decimals(dtype: torch.dtype, decimals: int) -> None:
    x = (torch.randn(64) * 1000).to(dtype)
    native(lambda x: torch.round(x, decimals=decimals), x)


def test_gammas() -> None:
    x = torch.rand(5, 3) * 4 + 3
    native(lambda x: torch.mvlgamma(x, 3), x)
    native(lambda x: torch.mvlgamma(x, 2), torch.arange(2, 8))
    native(lambda x: torch.polygamma(0, x), x)


@pytest.mark.parametrize("k", range(-1, 4))
def test_rot90(k: int) -> None:
    native(lambda x: torch.rot90(x, k, (1, -1)), IMAGE)
    check_training(lambda x: torch.rot90(x, k, (2, 3)) * 2, IMAGE)


def test_rows_of_one_element() -> None:
    x = torch.tensor(2.5)
    native(lambda x: (x.softmax(0), x.log_softmax(-1)), x)
    native(lambda x: (x.unfold(0, 1, 1), x.unfold(0, 0, 1)), x)
    native(lambda x: x.index_select(0, torch.tensor([0])), x)
    check_training(lambda x: x.softmax(0) + x.log_softmax(0), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_block_diag(dtype: torch.dtype) -> None:
    parts = [torch.ones(2, 3), torch.tensor(5), torch.arange(4), torch.ones(0, 2), A]
    native(lambda *t: torch.block_diag(*t), *(t.to(dtype) for t in parts))


def test_copies_that_are_not_views() -> None:
    native(lambda x: (torch.narrow_copy(x, 1, 2, 2), torch.ops.aten.zero(x)), A)


def test_sums_and_products_as_bools() -> None:
    x = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])
    native(lambda x: (x.prod(1, dtype=torch.bool), x.sum(1, dtype=torch.bool)), x)
    native(lambda x: (x.prod(dtype=torch.bool), x.nansum(0, dtype=torch.bool)), x)


def test_writes_into_a_copy_keep_the_gaps_of_their_argument() -> None:
    def fn(x: torch.Tensor) -> Any:
        part = x[:, ::2]
        row, line = torch.ones(4), torch.ones(3)
        return (
            torch.select_scatter(part, line, 0, 1),
            torch.slice_scatter(part, part[1:3] * 2, 0, 1, 3),
            torch.diagonal_scatter(part, line),
            torch.select_scatter(part, row, 1, 0) + 1,
        )

    x = torch.randn(4, 6)
    torch._dynamo.reset()
    for a, e in zip(torch.compile(fn, backend="litz")(x), fn(x), strict=True):
        assert torch.equal(a, e) and a.stride() == e.stride()


def test_moments_of_nothing() -> None:
    x = torch.ones(3, 0)
    native(lambda x: (x.var(1), x.std(), *torch.var_mean(x, 1, keepdim=True)), x)


@pytest.mark.parametrize("size", [(3, 4), (7, 9), (5, 2), (1, 1), (10, 12)])
def test_adaptive_max_pool(size: tuple[int, int]) -> None:
    x = IMAGE.clone()
    x[0, 0, 3, 3] = float("nan")
    # A window of 63 elements is left to ATen.
    externs = ["adaptive_max_pool2d"] if size == (1, 1) else []
    check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x, externs=externs)
    check_training(lambda x: F.adaptive_max_pool2d(x, size), IMAGE, externs=externs)


def test_adaptive_max_pool_3d() -> None:
    x = torch.randn(2, 2, 5, 4, 6)
    native(lambda x: F.adaptive_max_pool3d(x, (2, 2, 3), return_indices=True), x)
    check_training(lambda x: F.adaptive_max_pool3d(x, (2, 2, 3)), x)


def test_max_unpool() -> None:
    y, at = F.max_pool2d(IMAGE, 2, return_indices=True)
    native(lambda y, at: F.max_unpool2d(y, at, 2, output_size=(7, 9)), y, at)
    check_training(lambda y, at: F.max_unpool2d(y, at, 2, output_size=(7, 9)), y, at)
    y, at = F.max_pool3d(IMAGE[None], (1, 2, 2), return_indices=True)
    native(lambda y, at: F.max_unpool3d(y, at, (1, 2, 2), output_size=(3, 7, 9)), y, at)


UNFOLDS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "padding": 1, "stride": 2},
    {"kernel_size": 2, "dilation": (2, 3), "padding": (2, 1), "stride": (1, 2)},
    {"kernel_size": (7, 9)},
    {"kernel_size": (6, 9), "padding": 2, "stride": (4, 5)},  # many elements, few windows over each
]


@pytest.mark.parametrize("how", UNFOLDS, ids=str)
def test_sliding_windows(how: dict[str, Any]) -> None:
    native(lambda x: F.unfold(x, **how), IMAGE)
    native(lambda x: F.unfold(x, **how), IMAGE[0].bfloat16())
    columns = F.unfold(IMAGE, **how)
    externs = ["col2im"] if how["kernel_size"] == (7, 9) else []
    check(lambda c: F.fold(c, (7, 9), **how), columns, externs=externs)
    check_training(lambda x: F.unfold(x * 2, **how), IMAGE, externs=externs)
    check_training(lambda c: F.fold(c * 2, (7, 9), **how), columns, externs=externs)


def test_overlapping_windows_of_what_is_computed() -> None:
    native(lambda x: (x.exp() * x.sin()).unfold(-1, 5, 2) + 1, IMAGE)
    check_training(lambda x: (x.exp() * x.sin()).unfold(-1, 5, 2).square(), IMAGE)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_index_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, source = ((torch.randn(4, 6) * 5).to(dtype) for _ in range(2))
    at = torch.tensor([3, 0, 3, 3])
    native(
        lambda x, s, i: x.index_reduce(0, i, s, reduce, include_self=include_self), x, source, at
    )


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate: bool) -> None:
    at = torch.tensor([[0, -1], [7, 3]])
    native(lambda x, i, s: x.put(i, s, accumulate=accumulate), A, at, torch.randn(2, 2))
    again = torch.tensor([2, 2, 2])
    native(lambda x, i, s: x.put(i, s, accumulate=True), A, again, torch.randn(3))


def test_put_checks_its_indices() -> None:
    at = torch.tensor([20])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i, s: x.put(i, s), backend="litz")
    with pytest.raises(IndexError):
        compiled(A, at, torch.ones(1))


def test_copysign_of_numbers() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, -0.0, float("nan")])
    for sign in (1.5, -0.0, 0.0, -3):
        check(lambda x, s=sign: (torch.copysign(x, s), torch.copysign(x.bfloat16(), s)), x)
    check(lambda x: torch.copysign(x, -1), torch.arange(4))


@pytest.mark.parametrize(
    ("x", "members"),
    [
        (torch.tensor([-1, 0, 44], dtype=torch.int32), torch.tensor(2**62 - 1)),
        (torch.tensor([44, 0], dtype=torch.uint8), torch.tensor(300)),
        (torch.tensor([1.1, 3.0]).half(), torch.tensor(1.1, dtype=torch.float64)),
        (torch.tensor([1.1, 3.0]).half(), torch.tensor([1.1], dtype=torch.float64)),
        (torch.tensor(44, dtype=torch.int8), torch.tensor([300, 44, -1])),
        (300, torch.tensor([44, 7], dtype=torch.int8)),
    ],
)
def test_membership_is_decided_in_the_common_type(x: Any, members: torch.Tensor) -> None:
    if isinstance(x, torch.Tensor):
        check(lambda x, m: (torch.isin(x, m), torch.isin(x, m, invert=True)), x, members)
    else:
        check(lambda m: torch.isin(x, m), members)


@pytest.mark.parametrize(
    "fn", [lambda a: a - 1.5, lambda a: 1 - a, lambda a: a.float() - a, lambda a: 2 - a.t()]
)
def test_a_difference_with_bools_is_refused(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
            call(torch.tensor([True, False]))


BEYOND: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.masked_fill(x > 0, -1e9),
    lambda x: torch.full((2,), 1e9, dtype=x.dtype),
    lambda x: x.clamp(max=1e9),
    lambda x: torch.add(x, x, alpha=1e9),
    lambda x: F.pad(x, (1, 1), value=1e9),
    lambda x: F.hardtanh(x, -1.0, 1e9),
    lambda x: x.index_fill(0, torch.tensor([1]), 1e9),
]


@pytest.mark.parametrize("fn", BEYOND)
def test_numbers_that_the_type_does_not_hold_are_refused(
    fn: Callable[[torch.Tensor], Any],
) -> None:
    x = torch.ones(3, dtype=torch.float16)
    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(RuntimeError, match="overflow"):
            call(x)


def test_numbers_beyond_a_type_that_eager_takes() -> None:
    x = torch.tensor([1.0, -2.0, float("inf")], dtype=torch.float16)
    check(lambda x: (x + 1e9, x * 1e9, x > 1e9, x == -1e9, x.clamp(max=float("inf"))), x)
    check(lambda x: (x.masked_fill(x > 0, float("-inf")), x[:9223372036854775807] + 65504.0), x)
    check(lambda x: (x * 300, x.masked_fill(x > 0, 127), x % 300), x[:2].to(torch.int8))


def test_a_float_argument_that_grows_beyond_the_type() -> None:
    def fn(x: torch.Tensor, v: float) -> torch.Tensor:
        return x.masked_fill(x > 0, v) + 1

    x = torch.ones(3, dtype=torch.float16)
    compiled = torch.compile(fn, backend="litz", dynamic=True)
    assert torch.equal(compiled(x, 1.5), fn(x, 1.5))
    with pytest.raises(RuntimeError, match="overflow"):
        compiled(x, 1e9)


@pytest.mark.parametrize("fn", [lambda x: x**-1, lambda x: F.leaky_relu(x, -1)])
def test_what_integers_cannot_do_is_refused(fn: Callable[[torch.Tensor], Any]) -> None:
    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(RuntimeError):
            call(torch.tensor([1, 2], dtype=torch.uint8))


@pytest.mark.parametrize(("rows", "stored"), [(64, True), (4096, False)])
def test_what_is_far_away_is_computed_again(rows: int, stored: bool) -> None:
    """A value of two readers, cheaper than memory far from a core but not than a cache."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 2 + 1) * (x * 3 + 1)
        return y.sum(0), y.sum(1)

    program = lower_fn(fn, torch.ones(rows, 128))
    sizes = [b.shape for b in program.buffers.values() if b.kind == "temp" and len(b.shape) == 2]
    assert bool(sizes) is stored
