"""What the operator sweep lets pass and what it does not."""

from __future__ import annotations

import math

import pytest
import torch
from sweep_compare import agree, copy_input, difference, layout_difference, widen
from sweep_table import native_entries

EPS = torch.finfo(torch.float32).eps


def values() -> torch.Tensor:
    return torch.linspace(1, 2, 64)


def test_rounding_passes_where_eager_is_exact() -> None:
    x = values()
    assert not difference(x * (1 + EPS), x, x.double())
    assert "error" in difference(x * (1 + 4 * EPS), x, x.double())


def test_twice_the_error_of_eager_passes_and_more_does_not() -> None:
    exact = values().double()
    eager = (exact * (1 + 40 * EPS)).float()
    assert not difference((exact * (1 - 78 * EPS)).float(), eager, exact)
    assert "error" in difference((exact * (1 - 90 * EPS)).float(), eager, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_bad_element_does_not_hide_in_the_norm(dtype: torch.dtype) -> None:
    x = torch.ones(1 << 20, dtype=dtype)
    x[5] = 0
    bad = x.clone()
    bad[5] = 20 * torch.finfo(dtype).eps if dtype.itemsize < 4 else 64 * torch.finfo(dtype).eps
    assert "instead of 0.0 at 5" in difference(bad, x, x.double())


def test_special_values_are_compared() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert not difference(x.clone(), x)
    for k, other in enumerate((0.0, math.nan, math.inf)):
        bad = x.clone()
        bad[k] = other
        assert "instead of" in difference(bad, x)
    # Where eager overflows on the way, the true value passes.
    assert not difference(
        torch.tensor([3.0]), torch.tensor([math.inf]), torch.tensor([3.0]).double()
    )


def test_types_and_strides_are_compared() -> None:
    x = torch.zeros(3, 4)
    assert "dtype" in layout_difference(x.double(), x)
    assert "strides" in layout_difference(x.t().contiguous().t(), x)
    assert "shape" in layout_difference(x[:2], x)
    assert not layout_difference(torch.zeros(1, 4).as_strided((1, 4), (9, 1)), torch.zeros(1, 4))
    assert difference(1, 1.0) and difference((x,), x) and not difference([x, 2], [x, 2])


def test_copies_and_wide_copies_are_of_their_own() -> None:
    x = torch.arange(6.0).reshape(2, 3)[:, 1:]
    copy = copy_input(x)
    assert copy.stride() == x.stride() and copy.storage_offset() == x.storage_offset()
    copy.zero_()
    assert x.any() and widen(x).dtype is torch.float64 and widen(torch.float16) is torch.float64
    assert agree(torch.tensor([0.5]), torch.tensor([0.5]).double())
    assert not agree(torch.tensor([0.5]), torch.tensor([0.6]).double())


def test_the_page_tells_native_entries() -> None:
    page = "| `add` | native |  |\n| `put` | partly | 7 of 8 |\n| `mm` | ATen | `aten.mm` |\n"
    assert native_entries(page) == {"add", "put"}
