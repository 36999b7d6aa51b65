"""Softmax and log-softmax, forwards and backwards, against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import check, check_training, nests

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values(dtype: torch.dtype) -> None:
    x = sample(dtype, 4, 6, 64)
    for dim in (-1, 0, 1):
        check(lambda x, d=dim: (F.softmax(x, d), F.log_softmax(x, d)), x)
    check(lambda x: aten._safe_softmax(x, -1), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    g, y = sample(dtype, 5, 64), F.softmax(sample(dtype, 5, 64), 1)
    for back, out in ((aten._softmax_backward_data, y), (aten._log_softmax_backward_data, y.log())):
        for dim in (1, 0):
            check(
                lambda g, y, f=back, d=dim: f(g, y, d, dtype),
                g,
                out,
                judge=lambda g, y, f=back, d=dim: f(g, y, d, torch.float64),
            )
    x = sample(dtype, 4, 8).requires_grad_()
    check_training(lambda x: (F.softmax(x, 0), F.log_softmax(x * 2, 1)), x)


def test_last_dim_softmax_of_16_bits_is_rounded_once() -> None:
    x = sample(torch.bfloat16, 16, 64)
    check(lambda x: F.softmax(x, 1), x, exact=True)


def test_rows_without_weight() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[-inf, -inf, -inf], [-inf, 1.0, 2.0], [inf, 1.0, 2.0], [nan, -inf, -inf]])
    check(lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), x)
    program = check(lambda x: aten._safe_softmax(x, 1), x)
    assert nests(program) == 3
    check(lambda x: aten._safe_softmax(x, -1, torch.float64), x)


def test_masked_scores_are_read_where_they_are() -> None:
    q, mask = sample(torch.float32, 3, 8, 8), torch.rand(8, 8) > 0.3

    def fn(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.softmax((q / 8.0).masked_fill(~mask, -10000.0), -1)

    assert nests(check(fn, q, mask)) == 3  # the mask and the scale cost less than memory


def test_costly_inputs_are_stored_once() -> None:
    program = check(lambda x: F.softmax(F.gelu(x), -1), sample(torch.float32, 8, 16))
    assert nests(program) == 4


def test_large_magnitudes() -> None:
    x = torch.tensor([[1e4, 1e4 - 1, 1e4 - 2], [-3e38, 3e38, 0.0]])
    check(lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), x)


def test_scalars() -> None:
    check(lambda x: (F.softmax(x, 0), F.log_softmax(x, -1)), torch.tensor(2.0))


def test_one_element_rows_and_empty() -> None:
    check(lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), torch.rand(4, 1))
    check(lambda x: (F.softmax(x, 1), F.log_softmax(x, 1)), torch.rand(0, 3))


def test_dynamic_shapes_and_strides() -> None:
    x = sample(torch.float32, 4, 6, 8)
    program = check(lambda x: F.softmax(x.transpose(1, 2), -1), x, dynamic=True)
    assert program.symbols
    check(lambda x: F.log_softmax(x, 1), x.view(2, 2, 6, 8).to(memory_format=torch.channels_last))
