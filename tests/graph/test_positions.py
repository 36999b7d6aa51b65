"""Positions that are computed in floating point and read at as integer arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import some

from litz.graph.positions import formula_of, name_positions
from tests.graph.test_complex_pairs import compiled


@pytest.mark.parametrize("times,by", [(1, 1), (3, 1), (1, 2), (1, 3), (3, 2), (5, 7), (7, 64)])
def test_a_formula_has_every_value(times: int, by: int) -> None:
    for plus in range(-3, by):
        for size in (8, 57, 200):
            places = [min(max((times * i + plus) // by, 0), 40) for i in range(size)]
            found = formula_of(places)
            assert found is None or [found[i] for i in range(size)] == places
            assert found is not None or places[0] == places[-1] or size < 3 * by + 8


def test_no_formula_stands_for_others() -> None:
    assert formula_of([0, 1, 2, 9, 10, 11, 12]) is None
    assert formula_of([3, 2, 1, 0]) is None
    assert formula_of([-2, -1, 0, 1, 2]) is None
    assert formula_of([0, 0, 0]) is None


@pytest.mark.parametrize("places", [[0, 0, 0, 1, 1, 2, 2, 3], [1, 1, 1, 2, 2, 3, 3, 3]])
def test_places_of_small_images_have_formulas_from_bound_to_bound(places: list[int]) -> None:
    found = formula_of(places)
    assert found is not None and [found[i] for i in range(8)] == places


def test_positions_of_integers_are_left_alone_however_many_calls_make_them() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, at = graph.placeholder("x"), graph.call_function(aten.arange.default, (4,))
    for _ in range(1000):  # each of two ways back to the one before it
        low = graph.call_function(aten.clamp.default, (at, 0, 3))
        at = graph.call_function(aten.add.Tensor, (at, low))
        low.meta["val"] = at.meta["val"] = torch.empty(4, dtype=torch.int64, device="meta")
    graph.output((graph.call_function(aten.index.Tensor, (x, [at])),))
    assert not name_positions(torch.fx.GraphModule({}, graph))


CASES: dict[str, dict[str, Any]] = {
    f"{mode} {size} {'corners' if corners else ''}": {
        "mode": mode,
        "size": size,
        **({} if mode == "nearest" else {"align_corners": corners}),
    }
    for mode in ("bilinear", "bicubic", "nearest")
    for size in ((18, 24), (27, 36), (31, 17), (4, 6), (36, 48))
    for corners in (False, True)
}


@pytest.mark.parametrize("name", some(list(CASES), 5))
def test_interpolation(name: str) -> None:
    x = torch.randn(2, 3, 9, 12)
    got, calls, _ = compiled(lambda x: F.interpolate(x, **CASES[name]), x)
    expected = F.interpolate(x, **CASES[name])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert (got.stride(), calls) == (expected.stride(), [])


def test_what_windows_read_once_is_computed_there() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        wide = F.interpolate(x, scale_factor=2, mode="bilinear")
        return F.max_pool2d(F.pad(wide, (1, 1, 1, 1)), 2)

    x = torch.randn(2, 3, 9, 12)
    got, _, kernels = compiled(fn, x)
    torch.testing.assert_close(got, fn(x), rtol=1e-5, atol=1e-5)
    assert kernels == 2  # one of them makes the shares


@pytest.mark.parametrize("size", [4, 6])
def test_odd_and_even_places_of_short_rows(size: int) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        turned = torch.stack([-x[:, 1::2], x[:, ::2]], -1).flatten(-2)
        return turned + x[:, (torch.arange(size) + 1) // 2]

    x = torch.randn(5, size)
    assert torch.equal(compiled(fn, x)[0], fn(x))


def test_integer_arithmetic_needs_no_table() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        at = (torch.arange(20) + 1) // 2
        return x[:, at] + x[:, at - 1 + (at == 0)] * at

    x = torch.randn(5, 11)
    got, _, kernels = compiled(fn, x)
    assert torch.equal(got, fn(x))
