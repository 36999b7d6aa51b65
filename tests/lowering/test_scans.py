"""Running sums, products, extremes and logarithms of sums of exponentials, against eager."""

from __future__ import annotations

import math

import pytest
import torch

import litz
from litz.ir.program import Extern, Loops, Program
from litz.lowering.context import Settings
from litz.lowering.graph import lower
from tests.lowering.evaluate import check, nests, trace

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OTHERS = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
OPS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
}


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(4)) * 2).to(dtype)


@pytest.mark.parametrize("dtype", (*FLOATS, *OTHERS), ids=str)
@pytest.mark.parametrize("name", OPS)
def test_values(name: str, dtype: torch.dtype) -> None:
    """What the program says, evaluated."""
    if name == "logcumsumexp" and not dtype.is_floating_point:
        return
    x = draw(3, 5, 4, dtype=dtype)
    for dim in (0, 1, -1):
        program = check(lambda x, d=dim: OPS[name](x, d), x)
        assert nests(program) == 1


def test_sums_of_expanded_tensors() -> None:
    special = torch.tensor([math.nan, -math.inf, -0.0, 1e38, 3.0])
    for x in (draw(5), special, special.bfloat16(), draw(5, dtype=torch.int8), draw(5) > 0):
        program = check(lambda x: x.expand(200, 5).cumsum(0), x)
        assert not any(n.reduce_axes for n in program.nodes if isinstance(n, Loops))


@pytest.mark.parametrize("name", OPS)
def test_one_element_or_none(name: str) -> None:
    for shape in ((), (1,), (4, 1), (0,), (3, 0), (0, 3)):
        dim = len(shape) - 1
        check(lambda x, d=dim: OPS[name](x, d), draw(*shape))


def test_sums_in_other_types() -> None:
    x = draw(4, 9, dtype=torch.float32)
    check(lambda x: x.cumsum(1, dtype=torch.float64), x)
    check(lambda x: x.cumprod(0, dtype=torch.bfloat16), x)
    check(lambda x: (x > 0).cumsum(1, dtype=torch.int8), x)


def test_values_that_are_no_numbers() -> None:
    x = draw(5, 40).round()
    x[0, 3], x[1, 9], x[2, 4], x[2, 30] = math.nan, math.inf, math.inf, -math.inf
    x[3, 7] = x[3, 9] = x[3, 20] = math.nan
    x[4] = -math.inf
    for name, fn in OPS.items():
        if name != "cumprod":
            check(lambda x, f=fn: f(x, 1), x)


def kernels(fn, *args: torch.Tensor) -> int:
    return sum(len(g.stages.kernels) for g in litz.explain(fn, *args).graphs)


def test_what_a_mask_places() -> None:
    """Elements in turn, in the order of the tensor and not of its memory."""
    x, mask, source = draw(5, 7), draw(5, 7) > 0, draw(6, 6)
    for args in ((x, mask, source), (x.t(), mask.t(), source.t()), (x, mask[0], source)):
        assert nests(check(torch.Tensor.masked_scatter, *args)) == 1
    check(torch.Tensor.masked_scatter, x[:1, :1], mask[:1, :1], source)
    check(torch.Tensor.masked_scatter, x[:0], mask[:0], source)
    compiled = torch.compile(lambda x, m, s: x.masked_scatter(m, s), backend="litz")
    with pytest.raises(IndexError):
        compiled(x, mask, source[0])


def test_one_kernel_with_what_is_around() -> None:
    x = draw(50, 70, dtype=torch.float32)
    for fn in (
        lambda x: torch.softmax(x, -1).cumsum(-1) <= 0.9,
        lambda x: x.exp().cumsum(1) * x,
        lambda x: (x > 0).cumsum(0) + 1,
        lambda x: x.cumsum(1).cumsum(1).amax(1),
        lambda x: torch.cummax(x * 2, 1)[0] - x,
    ):
        assert kernels(fn, x) == 1


def test_scans_along_different_loops_stay_apart() -> None:
    x = draw(50, 70, dtype=torch.float32)
    assert kernels(lambda x: x.cumsum(0).cumsum(1), x) == 2


def scanned(fn, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ops.higher_order.associative_scan(fn, xs, ())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_two_states(dtype: torch.dtype) -> None:
    """What the program says, evaluated; states of 16 bits are combined in 32."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pair = scanned(lambda a, x, b, y: (a * b, b * x + y), x.sigmoid(), x * 2)
        flagged = scanned(lambda p, a, q, b: (p | q, torch.where(q, b, a + b)), x > 1, x)
        (one,) = scanned(lambda a, b: (a + b + 0.5,), x.flip(0))
        return (*pair, flagged[1], one.flip(0))

    program = check(fn, draw(7, 5, dtype=dtype))
    assert nests(program) == 4  # three scans, and the last one's reversed rows


def test_functions_that_are_none_of_two_states() -> None:
    """PyTorch gives such graphs to nobody who asks it by Dynamo."""
    cases = {
        "captures tensors": lambda x, w: torch.ops.higher_order.associative_scan(
            lambda a, b, w: (a * w + b,), (x,), (w,)
        ),
        "is not pointwise": lambda x, w: scanned(lambda a, b: (a + b.flip(0),), x),
        "with check_divisor": lambda x, w: scanned(lambda a, b: (a // b,), (x * 9).long()),
    }
    for why, fn in cases.items():
        gm = trace(fn, draw(6, 4, 4), draw(4, 4))
        found = lower(gm, Settings(), lambda name, gm: Program((), {}, (), ()))
        (call,) = (n for n in found.program.nodes if isinstance(n, Extern))
        assert why in call.reason
