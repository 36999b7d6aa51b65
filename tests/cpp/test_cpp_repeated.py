"""Costly values that loops would repeat: these run inside, or find the values stored."""

from __future__ import annotations

import pytest
import torch
from cpp_plans import build_together, check, make_plan
from test_cpp_pointwise import data

from litz.index import const, symbol, var
from litz.ir import body as B
from litz.ir.body import Node, Store, walk
from litz.ir.dtype import F32, I64
from litz.kernel.lanes.choose import choose
from litz.kernel.lanes.recipe import LaneRecipe
from litz.kernel.nodes import roots
from litz.kernel.parse import parse_recipe
from litz.kernel.plan import KernelPlan
from litz.kernel.verify import verify

IMAGES, PIXELS, SIZE = 2, 300, 50


def sampled(channels: int, some: bool = False) -> KernelPlan:
    """c[x0, x1, x2] = exp(d[x0, x2]) * a at a place of x0 and x1 that data says, of ``SIZE``.

    some: where the place is not below zero, else 0.
    """
    x0, x1, x2 = var("x0", IMAGES), var("x1", channels), var("x2", PIXELS)
    at, pixel = symbol("i", 0, SIZE - 1), x0 * PIXELS + x2
    given = B.load(I64, "b", pixel)
    place = B.op("maximum", given, B.const(I64, 0))
    weight = B.op("exp", B.load(F32, "d", pixel))
    value: Node = B.load(F32, "a", (x0 * channels + x1) * SIZE + at, ((at, place),))
    if some:
        value = B.masked(B.op("ge", given, B.const(I64, 0)), value, B.const(F32, 0.0))
    index = (x0 * channels + x1) * PIXELS + x2
    return make_plan([x0, x1, x2], [], [Store("c", index, B.op("mul", value, weight))], x2)


def biased(rows: int, size: int, how: str = "rows") -> KernelPlan:
    """c = a + log1p(exp(b)) of a bias that all rows share; summed, guarded or written as well."""
    x0, x1 = var("x0", rows), var("x1", size)
    bias = B.op("log1p", B.op("exp", B.load(F32, "b", x1)))
    if how == "guarded":
        some = B.op("lt", B.load(I64, "n", const(0)), B.index(x0))
        bias = B.masked(some, bias, B.const(F32, 0.0))
    value: Node = B.op("add", B.load(F32, "a", x0 * size + x1), bias)
    stores = [Store("c", x0 * size + x1, value)]
    if how == "summed":
        return make_plan([x0], [x1], [Store("c", x0, B.reduce("sum", (x1,), value))], x1)
    if how == "written":
        stores.append(Store("b", x1, B.const(F32, 0.0)))
    return make_plan([x0, x1], [], stores, x1)


def recipe(plan: KernelPlan) -> LaneRecipe:
    made = choose(plan, 16)
    verify(made)
    assert parse_recipe(made.text) == made
    return made


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("channels", [3, 40])
def test_channels_run_within_pixels(channels: int, some: bool) -> None:
    plan = sampled(channels, some)
    (made,) = recipe(plan).kernels
    x0, x1, x2 = plan.parallel
    assert (made.form, made.space.units, made.space.reduced) == ("rows", (x0, x2), (x1,))


def test_weights_of_more_channels_than_the_cache_holds_are_stored() -> None:
    made = recipe(sampled(2000))
    assert [(t.dtype, str(t.size)) for t in made.temporaries] == [(F32, "600")]
    assert len(made.kernels) == 2


def test_a_function_of_a_bias_is_stored() -> None:
    for how in ("rows", "summed"):
        made = recipe(biased(64, 500, how))
        first, last = made.kernels
        assert [str(t.size) for t in made.temporaries] == ["500"] and len(first.space.units) == 1
        assert not any(getattr(n, "name", "") == "exp" for n in walk(roots(last.plan.stores)))
    for how in ("guarded", "written"):
        assert len(recipe(biased(64, 500, how)).kernels) == 1
    assert len(recipe(biased(2, 500)).kernels) == 1  # as good as computed again


def test_long_rows_share_blocks() -> None:
    (made,) = recipe(biased(64, 1 << 15)).kernels
    assert made.form == "columns" and made.kept and not made.plan.reduced == ()


@pytest.mark.parametrize("lanes", [8, 16])
def test_values_of_repeated_loops(lanes: int) -> None:
    images, biases = [sampled(3), sampled(20)], [biased(64, 500), biased(64, 500, "summed")]
    biases.append(biased(5, 1 << 14))
    build_together([*images, *biases], lanes)
    for plan in images:
        channels = int(plan.parallel[1].extent)  # type: ignore[attr-defined]
        places = (torch.arange(IMAGES * PIXELS) * 37) % (SIZE + 9) - 9
        given = {"a": data("f32", IMAGES * channels * SIZE), "b": places}
        given["d"] = torch.linspace(-2, 2, IMAGES * PIXELS)
        check(plan, given | {"c": torch.zeros(IMAGES * channels * PIXELS)}, lanes=lanes)
    for plan in biases:
        rows, size = (int(d.var.extent) for d in plan.dims)  # type: ignore[attr-defined]
        out = torch.zeros(rows if plan.reduced else rows * size)
        given = {"a": data("f32", rows * size), "b": torch.linspace(-3, 3, size)}
        check(plan, given | {"c": out}, lanes=lanes)
