"""Reductions against eager: dims, types, empties, nan, ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir.program import Loops
from tests.lowering.evaluate import check, check_training, nests

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)

WHOLE: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "nansum": torch.nansum,
    "amax": lambda x: torch.amax(x, ()),
    "amin": lambda x: torch.amin(x, ()),
    "max": torch.max,
    "min": torch.min,
    "aminmax": torch.aminmax,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "any": torch.any,
    "all": torch.all,
    "count_nonzero": torch.count_nonzero,
    "norm": torch.linalg.vector_norm,
    "norm0": lambda x: torch.linalg.vector_norm(x, 0),
    "norm1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3),
    "norm_half": lambda x: torch.linalg.vector_norm(x, 0.5),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf),
    "norm_ninf": lambda x: torch.linalg.vector_norm(x, -math.inf),
    "var": torch.var,
    "std": torch.std,
    "std_biased": lambda x: torch.std(x, correction=0),
    "var_mean": torch.var_mean,
    "std_mean": torch.std_mean,
}

ALONG: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "amax": torch.amax,
    "amin": torch.amin,
    "norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "var": lambda x, dim, keepdim: torch.var(x, dim, correction=1.5, keepdim=keepdim),
    "std": torch.std,
    "var_mean": torch.var_mean,
    "logsumexp": torch.logsumexp,
    "any": torch.any,
    "all": torch.all,
}

ONE_DIM: dict[str, Callable[..., Any]] = {
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "aminmax": lambda x, dim, keepdim: torch.aminmax(x, dim=dim, keepdim=keepdim),
}

DIMS = (0, -1, (0, 2), (1, 0), (0, 1, 2))


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(7)
    x = torch.randn(shape, generator=gen) * 2
    return x.round().abs().to(dtype) if not dtype.is_floating_point else x.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_over_everything(name: str, dtype: torch.dtype) -> None:
    check(WHOLE[name], sample(dtype, 3, 4, 5))


@pytest.mark.parametrize("keepdim", (False, True))
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", ALONG)
def test_along_dims(name: str, dim: Any, keepdim: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(lambda x: ALONG[name](x, dim=dim, keepdim=keepdim), sample(dtype, 3, 4, 5))


def test_expanded_dims_are_not_gone_through() -> None:
    x = torch.cat([sample(torch.float32, 4), torch.tensor([math.nan, math.inf, -0.0, 3e38])])
    moments = ("var", "std", "var_mean")  # of infinities those of several are no numbers
    fns = {k: fn for k, fn in ALONG.items() if k not in moments}
    for name, fn in {**fns, "softmax": torch.softmax}.items():
        kept = {} if name == "softmax" else {"keepdim": True}
        program = check(lambda x, f=fn, k=kept: f(x.expand(6, 8), dim=0, **k), x)
        assert not any(n.reduce_axes for n in program.nodes if isinstance(n, Loops))
    for fn in (torch.sum, torch.amax):  # one dim of two is left
        program = check(
            lambda x, f=fn: f(x[:, None].expand(4, 6, 5), (0, 1)), sample(torch.float32, 4, 5)
        )
        (nest,) = (n for n in program.nodes if isinstance(n, Loops) and n.reduce_axes)
        assert len(nest.reduce_axes) == 1
    whole = sample(torch.int8, 5) + 100
    check(
        lambda x: (x.expand(70, 5).sum(0), x.expand(70, 5).prod(0), x.expand(70, 5).argmax(0)),
        whole,
    )


@pytest.mark.parametrize("keepdim", (False, True))
@pytest.mark.parametrize("name", ONE_DIM)
def test_along_one_dim(name: str, keepdim: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for dim in (0, 1, -1):
            check(lambda x, d=dim: ONE_DIM[name](x, dim=d, keepdim=keepdim), sample(dtype, 3, 4, 5))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x = sample(dtype, 4, 6)
    check(lambda x: (x.sum(), x.sum(1), x.prod(0), torch.count_nonzero(x, 1)), x)
    check(lambda x: (x.amax(0), x.amin(1), x.any(), x.any(1), x.all(0), torch.all(x, (0, 1))), x)
    check(lambda x: (x.max(), x.sum(dtype=torch.float32), x.nansum(0)), x)
    check(lambda x: (*x.max(1), *x.min(0), *torch.aminmax(x, dim=0)), x)
    if dtype != torch.bool:
        check(lambda x: (x.argmax(), x.argmin(1)), x)
    check(lambda x: x.mean(1, dtype=torch.float32), x)
    check(lambda x: x.logsumexp(1), x)


def test_given_dtypes() -> None:
    x = sample(torch.float32, 5, 7)
    wide, short = torch.float64, torch.bfloat16
    check(lambda x: (x.sum(1, dtype=wide), x.mean(0, dtype=wide), x.prod(dtype=wide)), x)
    check(lambda x: x.sum(1, dtype=short), x, judge=lambda x: x.sum(1))
    check(lambda x: torch.linalg.vector_norm(x, dtype=wide), x)
    half = sample(torch.float16, 5, 7)
    check(lambda x: (x.sum(1, dtype=torch.float32), x.mean(dtype=torch.float32)), half)


def test_nan_and_ties() -> None:
    nan = math.nan
    x = torch.tensor([[1.0, nan, 5.0, nan], [2.0, 2.0, 1.0, 1.0], [math.inf, -math.inf, 0.0, -0.0]])
    for dtype in FLOATS:
        y = x.to(dtype)
        check(lambda x: (*x.max(1), *x.min(1), x.argmax(1), x.argmin(1), x.argmax(), x.argmin()), y)
        check(lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), *torch.aminmax(x, dim=1)), y)
        check(lambda x: (x.nansum(1), x.sum(1), x.any(1), x.all(1), x.var(1), x.mean(1)), y)
        check(lambda x: (x.logsumexp(1), x.logsumexp(0)), y)
    check(lambda x: x.logsumexp(1), torch.full((2, 3), -math.inf))
    check(lambda x: x.logsumexp((0, 1)), torch.tensor([[math.inf, 1.0]]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_small_and_empty() -> None:
    check(
        lambda x: (x.sum(), x.mean(), x.amax(), x.argmax(), x.norm(), x.max(0)[1]), torch.ones(())
    )
    check(lambda x: (x.var(), x.std(0), x.var(1, correction=0), x.var(1)), torch.ones(1, 1))
    check(lambda x: (x.var(1), x.std(1, correction=3)), torch.rand(4, 2))
    check(lambda x: (x.sum(1), x.sum(0), x.prod(1), x.any(1), x.all(1)), torch.ones(3, 0))
    check(lambda x: (x.mean(1), x.mean(), x.norm(dim=1), x.sum((0, 1))), torch.ones(3, 0))
    check(lambda x: (x.amax(1), x.argmax(1), x.logsumexp(1)), torch.ones(0, 3))
    check(lambda x: (*x.max(1), x.argmax(1), *x.max(1, keepdim=True)), torch.rand(4, 1))


def test_extremes_of_nothing_are_refused_as_in_eager_mode() -> None:
    def extremes(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.max(), x.min()]

    for fn in (extremes, lambda x: x.max(1), lambda x: x.min(1), lambda x: x.median(1)):
        for call in (fn, torch.compile(fn, backend="litz", fullgraph=True)):
            with pytest.raises((RuntimeError, IndexError), match=r"Expected reduction dim"):
                call(torch.ones(3, 0))


def test_large_sums_are_exact_enough() -> None:
    x = torch.rand(1 << 16).to(torch.bfloat16)
    check(lambda x: (x.sum(), x.mean(), x.var(), x.norm()), x)


def test_results_that_share_an_input_share_a_nest() -> None:
    x = sample(torch.float32, 8, 16)
    for fn in (
        lambda x: x.max(1),
        lambda x: torch.aminmax(x, dim=1),
        lambda x: torch.var_mean(x, 1),
    ):
        program = check(fn, x)
        assert nests(program) == 1
        (node,) = program.nodes
        assert isinstance(node, Loops) and len(node.stores) == 2 and node.reduce_axes


def test_elementwise_inputs_are_fused_into_the_reduction() -> None:
    x = sample(torch.float32, 8, 16)
    assert nests(check(lambda x: (x * 2 + 1).exp().sum(1), x)) == 1


def test_strided_inputs() -> None:
    x = sample(torch.float32, 4, 6, 8)
    check(lambda x: (x.transpose(0, 2).sum(1), x[:, ::2].amax(2), x.permute(2, 0, 1).mean(0)), x)
    y = x.view(2, 2, 6, 8).to(memory_format=torch.channels_last)
    check(lambda y: (y.sum(1), y.mean((2, 3), keepdim=True), y.argmax(1), *y.max(3)), y)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_training(dtype: torch.dtype) -> None:
    x = sample(dtype, 4, 8).requires_grad_()

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(1), x.var(0), x.std(), x.norm(dim=1), x.logsumexp(1), x.amax(1), x.sum(0)

    check_training(fn, x)


def test_dynamic_shapes() -> None:
    x = sample(torch.float32, 6, 10)
    program = check(
        lambda x: (x.mean(1), x.var(0), x.std(), *x.max(1), x.logsumexp(1), x.argmax()),
        x,
        dynamic=True,
    )
    assert program.symbols


@pytest.mark.parametrize("dtype", FLOATS)
def test_renorm_and_dot(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, 3, generator=g, dtype=torch.float64).to(dtype)
    check(lambda x: (x.renorm(2, 1, 2.0), x.renorm(1, -1, 5), x.renorm(2.5, 0, 100.0)), x)
    check(lambda x: (torch.dot(x[0, 0], x[1, 1]), torch.vdot(x[:, 0, 0], x[:, 1, 2])), x)


def test_dot_of_integers() -> None:
    x = torch.arange(-100, 100, dtype=torch.int8)
    check(lambda x: (torch.dot(x, x), torch.dot(x[:0], x[:0])), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_truth_over_no_dimensions(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0], [-0.0, 3]]).to(dtype)
    check(lambda x: (torch.any(x, dim=()), torch.all(x, dim=(), keepdim=True)), x)


def test_renorm_of_one_element() -> None:
    x = torch.tensor([[3e38], [1e-30]])
    for order in (2, 3, 0.5):
        check(lambda x, p=order: torch.renorm(x, p, 0, 1.5), x)
