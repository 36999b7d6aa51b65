"""Constants, ranges and triangles: as eager makes them, and without memory until somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir.dtype import U8
from litz.lowering.context import Unsupported
from litz.lowering.creation import literal
from tests.lowering.evaluate import check, extern_names, lower_fn, nests

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
X = torch.randn(3, 4)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_constants(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        like = torch.full_like(x, 3, dtype=dtype)
        return (
            torch.zeros(2, 3, dtype=dtype),
            torch.ones(2, 3, dtype=dtype),
            torch.full((2, 2), 1, dtype=dtype),
            like,
            torch.zeros_like(x, dtype=dtype),
            torch.ones_like(x, dtype=dtype),
            x.new_zeros((2,), dtype=dtype),
            x.new_ones((2,), dtype=dtype),
            x.new_full((2, 1), 7, dtype=dtype),
            torch.scalar_tensor(1, dtype=dtype),
            torch.eye(3, dtype=dtype),
            torch.eye(3, 5, dtype=dtype),
        )

    check(fn, X, judge=fn)


def test_constants_round_like_eager() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        third = torch.full((3,), 1 / 3, dtype=torch.bfloat16)
        return third, third.float() * 3, torch.full((2,), float("nan")), torch.full((1,), -0.0)

    program = check(fn, X, judge=fn)
    assert not extern_names(program)


def test_numbers_that_do_not_fit_are_left_to_eager() -> None:
    for value in (300, -1, float("nan")):
        with pytest.raises(Unsupported):
            literal(value, U8)
    assert str(literal(255, U8)) == str(literal(255.0, U8))


def test_empty_is_a_value() -> None:
    program = lower_fn(lambda x: torch.empty_like(x).fill_(2.0) + x, X)
    assert not extern_names(program) and nests(program) == 1


def test_empty_strided_keeps_its_layout() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided((3, 4), (1, 3)).fill_(1.0) + x

    check(fn, X)


@pytest.mark.parametrize(
    "args",
    [(7,), (2, 9), (9, 2, -2), (1, 8, 3), (0.0, 1.0, 0.1), (5.5,), (1e6, 1e6 + 30, 1)],
)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_arange(args: tuple[Any, ...], dtype: torch.dtype | None) -> None:
    fractional = any(isinstance(a, float) for a in args)
    if dtype == torch.int64 and fractional:
        pytest.skip("eager truncates the limits first: left to it")
    if dtype == torch.bfloat16 and args[0] == 1e6:
        pytest.skip("beyond what the type counts")

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(*args, dtype=dtype)

    double = (
        torch.float64 if fractional or (dtype is not None and dtype.is_floating_point) else None
    )
    check(fn, X, judge=lambda x: torch.arange(*args, dtype=double or dtype))


def test_iota() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.prims.iota.default(
            5, start=2, step=3, dtype=torch.int32, device=torch.device("cpu"), requires_grad=False
        )

    check(fn, X)


def test_arange_is_exact_for_many_elements() -> None:
    check(
        lambda x: torch.arange(0, 20000, dtype=torch.float32) * 0.5,
        X,
        judge=lambda x: torch.arange(0, 20000, dtype=torch.float64) * 0.5,
    )


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_linspace(steps: int) -> None:
    check(
        lambda x: torch.linspace(-1.3, 2.7, steps),
        X,
        judge=lambda x: torch.linspace(-1.3, 2.7, steps, dtype=torch.float64),
    )


@pytest.mark.parametrize("diagonal", [-2, 0, 1, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_triangles(diagonal: int, dtype: torch.dtype) -> None:
    x = (torch.randn(2, 4, 5) * 4).abs().to(dtype)
    if dtype.is_floating_point:
        x[0, 0, 4] = float("nan")
        x[0, 3, 0] = float("inf")
    check(lambda x: (x.tril(diagonal), x.triu(diagonal)), x)


@pytest.mark.parametrize("args", [(), (1,), (-2,), (0, 0, 2)])
def test_diag_embed(args: tuple[int, ...]) -> None:
    check(lambda x: torch.diag_embed(x, *args), X)


def test_fill() -> None:
    def fn(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fill(x, 3), torch.fill(x, v), torch.fill(x.bool(), 2)

    check(fn, X, torch.tensor(2.5))
    check(fn, X.bfloat16(), torch.tensor(1 / 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.zeros(x.shape[0], x.shape[1] + 1) + 1,
        lambda x: torch.arange(x.shape[0]) + 1,
        lambda x: torch.arange(x.shape[1], dtype=torch.float32) * 2,
        lambda x: torch.full((x.shape[0],), x.shape[1]),
        lambda x: x.tril(1),
        lambda x: torch.eye(x.shape[0]),
    ],
)
def test_dynamic(fn: Callable[..., Any]) -> None:
    check(fn, X, dynamic=True, judge=fn)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_linspace_between_tensors(steps: int) -> None:
    ends = torch.tensor(-3), torch.tensor(2.7)

    def fn(a: Any, b: Any, dtype: Any = torch.float32) -> tuple[torch.Tensor, ...]:
        both = torch.linspace(a, b, steps, dtype=dtype)
        rest = torch.linspace(a, 8, steps, dtype=dtype), torch.linspace(1.5, b, steps, dtype=dtype)
        return both, rest[0], rest[1] * both

    check(fn, *ends, judge=lambda a, b: fn(a, b, torch.float64))
    assert not extern_names(lower_fn(fn, *ends))


def test_logspace() -> None:
    def fn(a: Any, b: Any, dtype: Any = torch.float32) -> tuple[torch.Tensor, ...]:
        rest = torch.logspace(-2, 3, 9, dtype=dtype), torch.logspace(4.3, b, 1, dtype=dtype)
        return torch.logspace(a, b, 6, 2.5, dtype=dtype), *rest

    ends = torch.tensor(-3), torch.tensor(2.7)
    check(fn, *ends, judge=lambda a, b: fn(a, b, torch.float64))
    assert not extern_names(lower_fn(fn, *ends))


def test_memory_without_a_value_under_deterministic_algorithms() -> None:
    """It holds what PyTorch fills it with, so that who reads it sees that nothing was written."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kinds = (torch.int8, torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16)
        made = [torch.empty(4, dtype=t) for t in kinds]
        return (*made, x.new_empty(2) + 1, torch.empty_like(x) * 2, torch.empty(3).copy_(x) + 1)

    torch.use_deterministic_algorithms(True)
    try:
        check(fn, torch.randn(3), judge=fn)
    finally:
        torch.use_deterministic_algorithms(False)
