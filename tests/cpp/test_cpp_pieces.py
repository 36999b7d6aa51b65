"""Loops along the lane that are cut where indices and masks turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cpp_plans import build_together, call, check, make_plan, source
from test_cpp_pointwise import data

from litz.index import Expr, const, max_, min_, symbol, var
from litz.ir import body as B
from litz.ir.body import Node, Store
from litz.ir.dtype import BF16, F32, I64, DType
from litz.kernel.lanes.choose import choose
from litz.kernel.lanes.pieces import MOST
from litz.kernel.parse import parse_recipe
from litz.kernel.plan import KernelPlan
from litz.kernel.verify import verify

ROWS = 70


def reflected(v: Expr, size: int, pad: int) -> Expr:
    at = max_(pad - v, v - pad)
    return size - 1 - max_(size - 1 - at, at - size + 1)


INDICES: dict[str, Callable[[Expr, int, int], Expr]] = {
    "reflected": reflected,
    "clamped": lambda v, size, pad: max_(min_(v - pad, size - 1), 0),
    "circular": lambda v, size, pad: (v - pad) % size,
    "flipped": lambda v, size, pad: size - 1 - (v + pad) % size,
}


def padded(how: str, size: int, pad: int, dtype: DType = F32, rows: int = ROWS) -> KernelPlan:
    """c[x0, x1] = a at a place of row x0, of ``size`` elements and ``pad`` on either side."""
    wide = size + 2 * pad
    x0, x1 = var("x0", rows), var("x1", wide)
    if how == "masked":
        lane = B.index(x1)
        inside = B.op("le", B.const(I64, pad), lane), B.op("gt", B.const(I64, size + pad), lane)
        within = B.op("lt", B.const(I64, 2), B.index(x0))
        mask = B.op("and_", B.op("and_", *inside), within)
        value: Node = B.masked(mask, load(dtype, x0, x1 - pad, size), B.const(dtype, -0.0))
    else:
        value = load(dtype, x0, INDICES[how](x1, size, pad), size)
    wider = B.cast(value, F32)
    twice = B.cast(B.op("add", wider, wider), dtype)
    stores = [Store("c", x0 * wide + x1, twice), Store("d", x1 * ROWS + x0, value)]
    return make_plan([x0, x1], [], stores[: 1 + (how == "masked")], x1)


def load(dtype: DType, row: Expr, at: Expr, size: int) -> Node:
    return B.load(dtype, "a", row * size + at)


def test_places_where_indices_turn() -> None:
    def cuts(how: str, size: int, pad: int) -> tuple[int, ...]:
        (made,) = choose(padded(how, size, pad), 16).kernels
        verify_text(padded(how, size, pad))
        return made.cuts

    assert cuts("reflected", 60, 2) == (2, 62)
    assert cuts("reflected", 90, 1) == (1, 91)
    assert cuts("clamped", 60, 3) == (3, 63)
    assert cuts("circular", 61, 3) == (3, 64)
    assert cuts("masked", 50, 5) == (5, 55)
    assert cuts("masked", 12, 1) == ()  # too short
    (made,) = choose(crowded(), 16).kernels
    assert made.cuts == ()


def verify_text(plan: KernelPlan) -> None:
    recipe = choose(plan, 16)
    verify(recipe)
    assert parse_recipe(recipe.text) == recipe


def crowded() -> KernelPlan:
    """Turns at more places than a body is worth repeating for."""
    x0, x1 = var("x0", ROWS), var("x1", 500)
    at = [load(F32, x0, max_(x1 - 40 * k, const(0)), 500) for k in range(1, MOST + 2)]
    value = at[0]
    for n in at[1:]:
        value = B.op("add", value, n)
    return make_plan([x0, x1], [], [Store("c", x0 * 500 + x1, value)], x1)


def test_few_long_rows_are_kernels_that_threads_divide() -> None:
    size = 20_000
    plan = padded("reflected", size, 3, rows=2)
    assert [k.cuts for k in choose(plan, 16).kernels] == [()] * 3
    verify(choose(plan, 16))
    check(plan, {"a": data("f32", 2 * size), "c": torch.zeros(2 * (size + 6))})


def test_both_sides_of_tiles_are_cut() -> None:
    rows, columns = 40, 50
    x0, x1 = var("x0", rows + 6), var("x1", columns + 2)
    at = reflected(x1, columns, 1) * rows + reflected(x0, rows, 3)
    stores = (Store("c", x0 * (columns + 2) + x1, B.load(F32, "a", at)),)
    plan = replace(make_plan([x0, x1], [], stores, x1), tile=x0)
    kernels = choose(plan, 16).kernels
    tiles = [k for k in kernels if k.form == "tiles"]
    assert len(kernels) == 9 and len(tiles) == 1 and tiles[0].turned
    verify_text(plan)
    made = torch.zeros((rows + 6) * (columns + 2))
    check(plan, {"a": data("f32", rows * columns), "c": made})


@pytest.mark.parametrize("how", ["reflected", "masked"])
def test_short_rows_go_on_in_the_next(how: str) -> None:
    """Pixels of three channels: but for the first and the last of a row they are one loop."""
    rows, pixels = 5, 100
    x0, x1, x2 = (var(f"x{i}", n) for i, n in enumerate((rows, pixels + 2, 3)))
    at = reflected(x1, pixels, 1) if how == "reflected" else x1 - 1
    value: Node = B.load(F32, "a", x0 * pixels * 3 + at * 3 + x2)
    if how == "masked":
        lane = B.index(x1)
        inside = B.op("le", B.const(I64, 1), lane), B.op("gt", B.const(I64, pixels + 1), lane)
        value = B.masked(B.op("and_", *inside), value, B.const(F32, 1.0))
    plan = make_plan([x0, x1, x2], [], [Store("c", (x0 * (pixels + 2) + x1) * 3 + x2, value)], x2)
    sizes = [[str(v.extent) for v in k.plan.parallel] for k in choose(plan, 16).kernels]
    assert [str(rows), str(3 * pixels)] in sizes and len(sizes) == 3
    verify_text(plan)
    made = torch.zeros(rows * (pixels + 2) * 3)
    check(plan, {"a": data("f32", rows * pixels * 3), "c": made})


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("lanes", [8, 16])
def test_values_beside_borders(lanes: int, dtype: DType) -> None:
    plans = [padded(how, n, pad, dtype) for how in (*INDICES, "masked") for n, pad in SIZES]
    build_together(plans, lanes)
    for plan in plans:
        assert "litz::load_near<" not in source(plan, lanes)
        x1 = plan.parallel[1]
        size = int(x1.extent)  # type: ignore[attr-defined]
        buffers = {"a": data(dtype.name, ROWS * size), "c": zeros(size, dtype)}
        if any(p.name == "d" for p in plan.params):
            buffers["d"] = zeros(size, dtype)
        check(plan, buffers, lanes=lanes)


SIZES = ((64, 1), (33, 7), (45, 20))


def zeros(size: int, dtype: DType) -> torch.Tensor:
    return torch.zeros(ROWS * size, dtype=torch.float32 if dtype is F32 else torch.bfloat16)


def test_pieces_check_what_they_do_not_choose() -> None:
    size = 65
    x0 = var("x0", size)
    at, symbol_ = B.op("check_index", B.load(I64, "b", x0), B.const(I64, size)), symbol("i")
    read = B.load(F32, "a", symbol_, ((symbol_, at),))
    first = B.op("lt", B.index(x0), B.const(I64, 5))
    positive = B.op("and_", first, B.op("gt", read, B.const(F32, 0.0)))
    zero = B.const(F32, 0.0)
    for value in (B.op("where", first, read, zero), B.op("where", positive, zero, zero + 1)):
        plan = make_plan([x0], [], [Store("c", x0, value)], x0)
        assert choose(plan, 16).kernels[0].cuts == (5,)
        places = torch.arange(size)
        buffers = {"a": data("f32", size), "b": places, "c": torch.zeros(size)}
        assert not call(plan, buffers)
        places[40] = size
        assert call(plan, buffers)


def test_pieces_ask_for_the_next_row_that_data_picks() -> None:
    x0, x1, t0 = var("x0", 4096), var("x1", 512), symbol("t0", 0, 4095)
    row = B.load(F32, "a", t0 * 512 + x1, ((t0, B.load(I64, "i", x0)),))
    inside = B.op("le", B.const(I64, 100), B.index(x1))
    beside = B.masked(inside, B.load(F32, "b", x0 * 412 + x1 - 100), B.const(F32, 0.0))
    store = Store("c", x0 * 512 + x1, B.op("add", row, beside))
    text = source(make_plan([x0, x1], [], [store], x1))
    asked = [line for line in text.splitlines() if "__builtin_prefetch(a + " in line]
    assert asked and all("+ 512 * t" in line for line in asked)
    assert "i[litz::least(4095, x0 + 1)]" in text
