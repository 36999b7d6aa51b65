"""Pooling and resampling against eager, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir.program import Loops, Program
from litz.lowering.context import Settings
from tests.lowering.evaluate import (
    check,
    check_training,
    extern_names,
    lower_fn,
    nests,
    run_program,
)

Fn = Callable[..., Any]
Tensor = torch.Tensor
aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
X = torch.randn(2, 3, 9, 10, generator=torch.Generator().manual_seed(0))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def stores(program: Program) -> list[int]:
    return [len(n.stores) for n in program.nodes if isinstance(n, Loops)]


# --- max pooling ----------------------------------------------------------------------------------

MAX_ARGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
]


@pytest.mark.parametrize("kw", MAX_ARGS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
def test_max_pool2d(kw: dict[str, Any], dtype: torch.dtype) -> None:
    x = (X * 6).to(dtype)
    check(lambda x: F.max_pool2d(x, **kw), x)
    check(lambda x: F.max_pool2d(x, return_indices=True, **kw), x)
    check(lambda x: F.max_pool2d(x, return_indices=True, **kw), channels_last(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "padding"), [(2, 0), (3, 1), (5, 2)])
def test_windows_two_apart_along_vectors(kernel: int, padding: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 1, 6, 77, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(lambda x: F.avg_pool2d(x, kernel, 2, padding), x)
    x[0, 0, 1, 3:60:7] = float("nan")
    x[1, 0, :, 20:50] = 0.5  # all equal: the first one counts
    x[2, 0, 2:5, 1:40] = float("-inf")
    check(lambda x: F.max_pool2d(x, kernel, 2, padding), x)
    check(lambda x: F.max_pool2d(x, kernel, 2, padding, return_indices=True), x)


def test_max_pool2d_special_values() -> None:
    x = X.clone()
    x[0, 0, 1, 1:4] = float("nan")
    x[0, 1] = float("-inf")
    x[1, 0] = 2.0  # all equal: the first one counts
    x[1, 1, ::2] = float("inf")
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


def test_max_pool_stores_value_and_position_in_one_nest() -> None:
    program = check(lambda x: F.max_pool2d(x, 2, return_indices=True), X)
    assert stores(program) == [2]
    assert stores(lower_fn(lambda x: F.max_pool2d(x, 2), X)) == [1]


def test_positions_far_behind_the_window_s_beginning() -> None:
    """Steps of 2^31 and more, though the plane has fewer elements."""
    width = 2**28 + 1
    x = torch.zeros(1).expand(1, 1, 1, width)

    def pooled(x: Tensor) -> Any:
        return F.max_pool2d(x, (16, 1), (1, width), (8, 0), return_indices=True)

    values, positions = torch.compile(pooled, backend="litz")(x)
    assert values.flatten().tolist() == positions.flatten().tolist() == [0, 0]


def test_max_pool_of_large_windows() -> None:
    check(lambda x: F.max_pool2d(x, 8, 1), X)
    program = lower_fn(lambda x: F.max_pool2d(x, 8, 1, return_indices=True), X)
    assert any("max_pool2d" in name for name in extern_names(program))


def test_other_ranks_of_max_pool() -> None:
    check(lambda x: F.max_pool1d(x, 3, 2, 1), X[0])
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), X[0])
    check(lambda x: F.max_pool3d(x, 2, return_indices=True), X)
    check(lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 1), (1, 1, 0)), X[None])


def test_max_pool_reads_a_costly_input_from_memory() -> None:
    program = check(lambda x: F.max_pool2d(x.exp().tanh(), 3, 1), X)
    assert nests(program) == 2
    program = check(lambda x: F.max_pool2d(F.relu(x), 2), X)
    assert nests(program) == 1


@pytest.mark.parametrize("kw", MAX_ARGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pool_backward(kw: dict[str, Any], dtype: torch.dtype) -> None:
    # Distinct values, so that float64 finds the same maxima.
    x = torch.randperm(X.numel())[: X.numel()].reshape(X.shape).to(dtype)
    x = (
        x
        if dtype == torch.float32
        else (torch.randperm(200)[:180] - 90).reshape(2, 1, 9, 10).to(dtype)
    )
    check_training(lambda x: F.max_pool2d(x, **kw), x.clone().requires_grad_(), ulps=4)
    check_training(
        lambda x: F.max_pool2d(x, **kw), channels_last(x).clone().requires_grad_(), ulps=4
    )


def max_pool_backward(g: Tensor, x: Tensor, i: Tensor) -> Tensor:
    out: Tensor = aten.max_pool2d_with_indices_backward(
        g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i
    )
    return out


def test_max_pool_backward_lets_threads_divide_planes() -> None:
    x = torch.randn(2, 3, 8, 10)
    g, i = F.max_pool2d(x, 2, return_indices=True)
    program = check(max_pool_backward, g, x, i)
    (written,) = (s for n in program.nodes if isinstance(n, Loops) for s in n.stores if s.indirect)
    (symbol, _), *rest = written.indirect
    assert not rest and (symbol.lo, symbol.hi) == (0, 79)


def test_max_pool_backward_checks_positions() -> None:
    plain = torch.full((1, 2, 4, 4), 0.5)
    for x in (plain, channels_last(plain)):
        g, i = F.max_pool2d(x, 2, return_indices=True)
        with pytest.raises(IndexError):
            run_program(lower_fn(max_pool_backward, g, x, i), [g, x, i + 6])


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (4, 1, 0)])
def test_max_pool_backward_asks_windows(kernel: int, stride: int, padding: int) -> None:
    """With channels last where few share an element; to the bit, also of gradients of -0.0."""
    x = channels_last(torch.randn(2, 5, 9, 10))
    y, i = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    where = [[n, n] for n in (kernel, stride, padding, 1)]

    def fn(g: Tensor, x: Tensor, i: Tensor) -> Tensor:
        out: Tensor = aten.max_pool2d_with_indices_backward(g, x, *where, False, i)
        return out

    args = (channels_last(torch.randn_like(y).relu_() * -1), x, i)
    program = lower_fn(fn, *args)
    modes = {s.mode for n in program.nodes if isinstance(n, Loops) for s in n.stores}
    assert modes == ({"set"} if kernel == 3 else {"set", "add"})
    (found,) = run_program(program, list(args))
    assert torch.equal(found.view(torch.int32), fn(*args).view(torch.int32))


def test_max_pool3d_backward() -> None:
    x = torch.randperm(540).reshape(2, 3, 9, 10).float().requires_grad_()
    check_training(lambda x: F.max_pool3d(x, 2, 1), x, ulps=4)


# --- average pooling ------------------------------------------------------------------------------

AVG_ARGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"kernel_size": (3, 2), "stride": (2, 3), "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "padding": 1, "divisor_override": 5},
]


@pytest.mark.parametrize("kw", AVG_ARGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_avg_pool2d(kw: dict[str, Any], dtype: torch.dtype) -> None:
    check(lambda x: F.avg_pool2d(x, **kw), X.to(dtype))
    check(lambda x: F.avg_pool2d(x, **kw), channels_last(X.to(dtype)))


@pytest.mark.parametrize("kw", AVG_ARGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_avg_pool2d_backward(kw: dict[str, Any], dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check_training(lambda x: F.avg_pool2d(x, **kw), x.clone().requires_grad_(), ulps=4)


def test_other_ranks_of_avg_pool() -> None:
    check(lambda x: F.avg_pool1d(x, 3, 2, 1), X[0])
    check(lambda x: F.avg_pool3d(x, 2, 1, 1), X)
    check_training(lambda x: F.avg_pool3d(x, 2, 1, 1), X.clone().requires_grad_(), ulps=4)
    check_training(lambda x: F.avg_pool1d(x, 3, 2), X[0].clone().requires_grad_(), ulps=4)


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.avg_pool3d])
def test_a_divisor_of_0_is_refused(pool: Fn) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return pool(x, 2, divisor_override=0)

    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(RuntimeError, match="divisor must be not zero"):
            call(X)


def test_avg_pool_of_large_windows() -> None:
    program = check(lambda x: F.avg_pool2d(x, 7, 1, 3), X)
    assert any(isinstance(n, Loops) and n.reduce_axes for n in program.nodes)


# --- adaptive pooling -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(3, 5), (4, 3), (1, 10), (9, 10), (2, 1), (11, 13), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_avg_pool2d(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check(lambda x: F.adaptive_avg_pool2d(x, size), x)
    if size != (1, 1):  # that is a mean, and restrided in place for channels last
        check(lambda x: F.adaptive_avg_pool2d(x, size), channels_last(x))
    train_pool(lambda x: F.adaptive_avg_pool2d(x, size), x)


def test_adaptive_avg_pool3d() -> None:
    train_pool(lambda x: F.adaptive_avg_pool3d(x, (2, 4, 5)), X)


def train_pool(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """GPUs gather gradients; on CPUs ATen adds those of windows that overlap."""
    left = ["_adaptive_avg_pool"]
    check_training(fn, x.clone().requires_grad_(), ulps=4, externs=left)
    gpu = Settings(blocks=("cpu", "cuda"))
    check_training(fn, x.clone().requires_grad_(), ulps=4, settings=gpu)


def test_adaptive_max_pool() -> None:
    check(lambda x: F.adaptive_max_pool2d(x, 4), X)


# --- nearest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("kw", [
    {"scale_factor": 2}, {"scale_factor": 3}, {"size": (18, 30)}, {"size": (13, 7)},
    {"size": (9, 10)}, {"scale_factor": 1.7}, {"scale_factor": (0.5, 2.3)}, {"size": (1, 41)},
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_nearest(mode: str, kw: dict[str, Any], dtype: torch.dtype) -> None:
    x = (X.abs() * 50).to(dtype)
    check(lambda x: F.interpolate(x, mode=mode, **kw), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_of_other_ranks(mode: str) -> None:
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), X[0])
    check(lambda x: F.interpolate(channels_last(x), scale_factor=2, mode=mode), X)
    if mode == "nearest":
        check(lambda x: F.interpolate(x, size=(4, 18, 7), mode=mode), X[None])


def test_nearest_fuses() -> None:
    program = check(
        lambda x, y: F.interpolate(x * 2, scale_factor=2) + y, X, torch.randn(2, 3, 18, 20)
    )
    assert nests(program) == 1


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nearest_backward(mode: str, dtype: torch.dtype) -> None:
    x = X.to(dtype).requires_grad_()
    check_training(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x, ulps=4)
    check_training(lambda x: F.interpolate(x, scale_factor=(3, 2), mode=mode), x, ulps=4)


# --- linear ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("kw", [
    {"scale_factor": 2}, {"size": (13, 7)}, {"size": (9, 23)}, {"scale_factor": 1.7},
    {"size": (1, 4)},
])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_bilinear(align: bool, kw: dict[str, Any], dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check(lambda x: F.interpolate(x, mode="bilinear", align_corners=align, **kw), x, ulps=8)


@pytest.mark.parametrize("align", [False, True])
def test_linear_of_other_ranks(align: bool) -> None:
    check(
        lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=align), X[0], ulps=8
    )
    check(
        lambda x: F.interpolate(x, size=(4, 12, 7), mode="trilinear", align_corners=align),
        X[None],
        ulps=8,
    )
    check(
        lambda x: F.interpolate(
            channels_last(x), scale_factor=2, mode="bilinear", align_corners=align
        ),
        X,
        ulps=8,
    )


# --- dynamic sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
])  # fmt: skip
def test_dynamic(fn: Fn) -> None:
    check(fn, torch.randn(2, 3, 9, 10), dynamic=True, ulps=8)


@pytest.mark.parametrize(
    "pool", [lambda x: F.max_pool2d(x, 2), lambda x: F.adaptive_max_pool2d(x, 2)]
)
def test_the_first_of_two_zeros_is_the_maximum(pool: Any) -> None:
    torch._dynamo.reset()
    x = torch.tensor([-0.0, 0.0, 0.0, -0.0, 0.0, -0.0, -0.0, 0.0] * 4).reshape(1, 2, 2, 8)
    out = torch.compile(pool, backend="litz", fullgraph=True)(x)
    assert torch.equal(out.signbit(), pool(x).signbit())
