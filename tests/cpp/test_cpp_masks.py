"""Masks of many kinds alive at once: more than the machine has mask registers."""

from __future__ import annotations

import pytest
import torch
from judge import check
from torch import Tensor


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
