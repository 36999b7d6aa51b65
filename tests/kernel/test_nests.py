"""What recipes say of loop nests: who shares one, what runs along, what comes last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from litz.errors import VerifyError
from litz.index import Expr, var
from litz.ir import body
from litz.ir.body import Node, Store
from litz.ir.dtype import BF16, F32, I64, DType
from litz.kernel.blocks import choose as blocks
from litz.kernel.blocks.recipe import BlockRecipe
from litz.kernel.lanes import choose as lanes
from litz.kernel.lanes.neighbours import unordered
from litz.kernel.lanes.pieces import pieces
from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.kernel.parse import parse_recipe
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.kernel.verify import verify
from litz.targets.cpp.render import build

X, R, Q = var("x0", 4096), var("r0", 64), var("r1", 64)


def plan(
    stores: tuple[Store, ...], dims: dict[Expr, Any], lane: Expr, dtype: DType = F32, **more: Any
) -> KernelPlan:
    """Of buffers ``b0, ...`` that are read, written or both."""
    written = {s.buffer for s in stores}
    read = {n.buffer for s in stores for n in body.loads(s.roots())}
    modes = dict.fromkeys(written, "out") | {n: "inout" if n in written else "in" for n in read}
    params = tuple(Param(n, dtype, modes[n]) for n in sorted(modes))
    return KernelPlan(tuple(Dim(v, r) for v, r in dims.items()), params, (), stores, lane, **more)


def whole(made: KernelPlan) -> LanePlan:
    """The one kernel of a recipe that keeps the rules and is read back."""
    recipe = lanes.choose(made, 16)
    verify(recipe)
    assert parse_recipe(recipe.text) == recipe
    (kernel,) = recipe.kernels
    return kernel


def columns(late: bool = False) -> KernelPlan:
    """``b2[r, x] = b0[r, x] * exp(b1[2 * x])``, and the sums of its columns."""
    scale = body.op("exp", body.load(F32, "b1", X * 2))
    product = body.op("mul", body.load(F32, "b0", R * 4096 + X), scale)
    total = body.reduce("sum", (R,), product)
    full = body.op("sub", product, total)
    stores = (Store("b2", R * 4096 + X, full), Store("b1" if late else "b3", X * 2, total))
    return plan(stores, {X: "p", R: "r"}, X)


def test_columns_keep_what_all_rows_share() -> None:
    made = whole(columns())
    assert made.form == "columns" and not made.late
    kept = {getattr(n, "name", "") for n in made.kept}
    assert kept == {"exp"}  # once a lane, with what it reads
    assert len(build(made, "k").arrays) == 4  # of that, the sums, their totals, and these as floats
    again = build(replace(made, kept=()), "k")
    assert len(again.arrays) == 3


def test_columns_store_late_what_rows_still_read() -> None:
    assert whole(columns(late=True)).late


def test_nests_are_reductions_within_the_same_loops() -> None:
    """Of one level over one dim: of a row by itself, and of a row within those of others."""
    value = body.load(F32, "b0", (X * 64 + R) * 64 + Q)
    inner = body.reduce("max", (Q,), value)  # for each x and r
    alone = body.reduce("max", (Q,), body.load(F32, "b1", X * 64 + Q))  # for each x
    other = body.reduce("sum", (Q,), body.load(F32, "b2", X * 64 + Q))
    total = body.reduce("sum", (R,), inner)
    stores = (Store("b3", X, body.op("add", total, body.op("mul", alone, other))),)
    made = whole(plan(stores, {X: "p", R: "r", Q: "r"}, X))
    groups = [{made.reductions[i] for g in p.groups for i in g} for p in made.passes]
    assert {alone, other} in groups and {inner} in groups and {total} in groups


def test_mean_and_deviations_share_a_nest() -> None:
    value = body.load(F32, "b0", R * 4096 + X)
    mean, m2 = (body.reduce(f"welford_{k}", (R,), value) for k in ("mean", "m2"))
    long = var("r0", 1 << 20)
    grown = [body.substitute(n, {R: long}) for n in (mean, m2)]
    found: list[Node] = grown
    stores = tuple(Store(f"b{i + 1}", X, n) for i, n in enumerate(found))
    recipe = lanes.choose(plan(stores, {X: "p", long: "r"}, X), 16)
    verify(recipe)
    assert any(p.groups == ((0, 1),) for k in recipe.kernels for p in k.passes)


def tiles() -> KernelPlan:
    x, y = var("x0", 256), var("x1", 256)
    stores = (Store("b1", x * 256 + y, body.op("sin", body.load(F32, "b0", y * 256 + x))),)
    return plan(stores, {x: "p", y: "p"}, y, tile=x)


def test_tiles_name_what_goes_through_them() -> None:
    made = whole(tiles())
    assert made.form == "tiles"
    assert [str(n.index) for n in body.loads(made.turned)] == ["x0 + 256*x1"]
    assert made.turned_stores == ()


def pairs(last: int = 1, dtype: DType = F32) -> KernelPlan:
    """Numbers that change places in pairs: (a, b) becomes (b, a)."""
    x, y = var("x0", 256), var("x1", 32)
    at = x * 64 + y * 2
    a, b = (body.load(dtype, "b0", at + k) for k in (0, last))
    stores = (Store("b1", at, b), Store("b1", at + 1, a))
    return plan(stores, {x: "p", y: "p"}, y, dtype)


def test_pairs_may_lie_in_whatever_order() -> None:
    p = pairs()
    assert whole(p).unordered == (0,)
    assert sorted(unordered(p.stores, p.lane).values()) == ["firsts", "seconds"]
    assert whole(pairs(last=2)).unordered == (0,)
    for other in (pairs(dtype=BF16), tiles()):
        assert whole(other).unordered == ()


def windows(asked: bool = False, size: int = 33) -> KernelPlan:
    """Maxima of three, two apart, which one border has less of; asked: and which element it is."""
    x, y = var("x0", 256), var("x1", size)
    first = body.op("le", body.const(I64, 1), body.index(y))
    row = x * 66 + y * 2
    taps = [body.load(F32, "b0", row + k) for k in (-1, 0, 1)]
    taps[0] = body.masked(first, taps[0], body.const(F32, -1.0))
    top = body.op("maximum", taps[0], body.op("maximum", taps[1], taps[2]))
    where = body.op("where", body.op("lt", taps[1], top), body.cast(body.index(y), F32), top)
    return plan((Store("b1", x * size + y, where if asked else top),), {x: "p", y: "p"}, y, F32)


def test_windows_two_apart_are_put_in_order_once() -> None:
    p = windows()
    made = whole(p)
    assert (made.cuts, made.unordered) == ((1,), (1,))  # not the border
    loop = pieces(p.stores, p.lane, made.cuts)[1]
    assert sorted(unordered(loop.stores, loop.var).values()) == [
        *("alone", "apart", "apart", "firsts", "seconds")
    ]
    assert whole(windows(asked=True)).unordered == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"late": True, "form": "rows", "block": ()}, "late, as those of columns alone"),
        ({"turned_stores": (5,)}, "store 5 is named, but there is none"),
        ({"turned": (body.load(F32, "b9", X),)}, "is named, but not computed"),
        ({"turned": (body.load(F32, "b9", X),)}, "accesses of columns go through tiles"),
        ({"unordered": (0,)}, "where something asks"),
        ({"past": X * 4}, "bytes go past the caches, but no store"),
    ],
)
def test_broken_recipes_of_nests(change: dict[str, Any], words: str) -> None:
    recipe = lanes.choose(columns(), 16)
    (made,) = recipe.kernels
    with pytest.raises(VerifyError, match=words):
        verify(replace(recipe, kernels=(replace(made, **change),)))


def test_a_nest_of_others_is_refused() -> None:
    value = body.load(F32, "b0", (X * 64 + R) * 64 + Q)
    inner = body.reduce("max", (Q,), value)
    alone = body.reduce("max", (Q,), body.load(F32, "b1", X * 64 + Q))
    total = body.reduce("sum", (R,), inner)
    stores = (Store("b3", X, body.op("add", total, alone)),)
    recipe = lanes.choose(plan(stores, {X: "p", R: "r", Q: "r"}, X), 16)
    (made,) = recipe.kernels
    first = replace(made.passes[0], groups=((0,), (1,)))
    changed = (first, *(p for p in made.passes if p.groups not in (((0,),), ((1,),))))
    broken: LaneRecipe = replace(recipe, kernels=(replace(made, passes=changed),))
    with pytest.raises(VerifyError, match="reductions of pass 0 run within other loops"):
        verify(broken)


def test_values_of_16_bits_have_cheaper_functions() -> None:
    """Where all uses round: not what is stored as it is."""
    value = body.load(BF16, "b0", X)
    exact = body.cast(value, F32)
    power = body.op("exp", exact)
    stores = (Store("b1", X, body.cast(power, BF16)),)
    recipe = blocks.choose(plan(stores, {X: "p"}, X, BF16))
    verify(recipe)
    (made,) = recipe.kernels
    assert made.narrow == (power,) and made.flushed == ()
    for change, words in (
        ({"flushed": (power,), "narrow": ()}, "not in a cheaper form"),
        ({"shared": ((power, "x"),)}, "no random number"),
        ({"narrow": (body.op("sin", exact),)}, "named, but not computed"),
        ({"neighbours": 3}, "3 neighbours share"),
        ({"late": True}, "late, as those of a nest alone"),
    ):
        broken: BlockRecipe = replace(recipe, kernels=(replace(made, **change),))  # type: ignore[arg-type]
        with pytest.raises(VerifyError, match=words):
            verify(broken)


def test_loops_of_a_nest_are_passes() -> None:
    """What replaces comes behind what reads, the loops over most dims first."""
    row = body.reduce("sum", (Q,), body.load(F32, "b0", X * 64 + Q))
    stores = (
        Store("b3", X, row),
        Store("b2", X * 64 + R, body.op("mul", body.load(F32, "b1", X * 64 + R), row)),
    )
    recipe = blocks.choose(plan(stores, {X: "p", R: "r", Q: "r"}, X))
    verify(recipe)
    (made,) = recipe.kernels
    assert made.form == "nest"
    assert [p.stores for p in made.passes] == [(1,), (0,)] and not made.late
    with pytest.raises(VerifyError, match="not every store is done"):
        verify(replace(recipe, kernels=(replace(made, passes=made.passes[:1]),)))
    crossed = (Store("b1", X, row), stores[1])
    read = body.load(F32, "b1", X)
    late = blocks.choose(
        plan(
            (replace(crossed[0]), Store("b0", X * 64 + R, body.op("add", read, row))),
            {X: "p", R: "r", Q: "r"},
            X,
        )
    )
    verify(late)
    assert late.kernels[0].late
