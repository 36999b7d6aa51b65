"""Masks of many kinds alive at once: more than the machine has mask registers."""

from __future__ import annotations

import pytest
import torch
from cpp_plans import check as run_plan
from cpp_plans import make_plan
from judge import check
from torch import Tensor

from litz.index import Expr, var
from litz.ir import body as B
from litz.ir.dtype import F32, I64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_values_by_position(length: int, dtype: torch.dtype) -> None:
    """One column after the other is written: a chain of masks over the vector's lanes.

    GCC 12 spilled joined masks as one byte and read them back as four.
    """
    columns = [torch.randn(2, 64).to(dtype) for _ in range(min(length, 14))]

    def f(*columns: Tensor) -> Tensor:
        y = torch.zeros(2, 64, length, dtype=dtype)
        for t, c in enumerate(columns):
            y[:, :, t] = c
        return y

    check(f, *columns, judge=False, runs=1)


def test_a_mask_is_not_read_back_wider_than_it_was_kept() -> None:
    """GCC 12 kept the mask ``x2 == 3`` of a tail of 8 lanes as one byte, and read two."""
    x0, x1, x2, r0 = (var(n, s) for n, s in (("x0", 5), ("x1", 3), ("x2", 24), ("r0", 4)))
    limit = B.const(F32, 60.0)

    def at(index: Expr) -> B.Node:
        return B.op("minimum", B.op("maximum", B.load(F32, "b0", index), B.op("neg", limit)), limit)

    rows = B.op("maximum", at((5 * r0 + 3 * x2 + (3 * x0 + x1 + 3 * x2) // 4) % 85), at(17 * x0))
    every = B.reduce("all", (r0,), B.op("gt", rows, B.const(F32, -3.0)))
    value = B.op("sub", B.op("maximum", B.cast(every, F32), B.load(F32, "b1", x2)), at(8 * x1))
    third = B.op("eq", B.index(x2), B.const(I64, 3))
    store = B.Store("b2", 2 * x0 + x2 // 12 + 10 * (x2 % 12), value, "min", mask=third)
    plan = make_plan([x0, x1, x2], [r0], [store], x2)
    buffers = {
        "b0": torch.arange(85.0) % 9 - 4,
        "b1": torch.ones(24),
        "b2": torch.full((200,), 9.0),
    }
    run_plan(plan, buffers)
