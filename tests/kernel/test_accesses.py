"""What indices do along vectors, and which loads need no condition: against every lane's place."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from litz.index import Expr, Var, const, evaluate, max_, min_, var
from litz.ir import body
from litz.ir.body import Masked, Store, walk
from litz.ir.dtype import F32, I64
from litz.ir.masks import conjuncts
from litz.ir.program import Buffer
from litz.kernel.build import scaled
from litz.kernel.guards import unguarded
from litz.kernel.lanes.access import access
from litz.kernel.lanes.steps import steps
from litz.kernel.nodes import roots
from litz.kernel.tiling import (
    ENDS,
    EXTREMES,
    PLACES,
    accesses_of,
    beside,
    choose_lane,
    choose_tiling,
)

LANES = 16
X = var("x0", 160)
REFLECTED = 16383 - max_(127 - max_(1 - X, X - 1), max_(1 - X, X - 1) - 127)
KINDS: dict[str, tuple[Expr, str]] = {
    "neighbours": (X + 5, "next"),
    "wrapped": ((X + 3) % 150, "near"),
    "wrapped down": ((149 - X) % 150, "near"),
    "reflected": (REFLECTED, "near"),
    "clamped": (min_(max_(X - 4, const(0)), const(100)), "near"),
    "pairs": (X // 2 + 7, "repeat"),
    "fours": (X // 4, "repeat"),
    "parity": (X % 2, "fixed"),
    "halves up": (3 * X // 2, "fixed"),
    "a block's": (X // 32, "same"),
    "in thirds": (X // 3, "near"),
    "strided turns": (2 * max_(X, 80 - X), "any"),
}


def places(e: Expr, v: Var) -> list[int]:
    return [evaluate(e, {v: i}) for i in range(160)]


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_accesses(name: str) -> None:
    e, kind = KINDS[name]
    assert isinstance(X, Var)
    found, at = access(e, X, LANES), places(e, X)
    assert found.kind == kind
    for start in range(0, 160, LANES):
        mine = at[start : start + LANES]
        if found.offsets:
            assert [p - mine[0] for p in mine] == list(found.offsets)
        if found.first is not None:
            assert found.first is const(mine[0])
        # Ends as far apart as neighbours' are, as a kernel asks: then all are neighbours.
        for up, on in ((1, found.up), (-1, found.down)):
            if on and mine[-1] - mine[0] == up * (LANES - 1):
                assert mine == [mine[0] + up * j for j in range(LANES)]
    known = steps(e, X)
    assert known is None or all(known[0] <= b - a <= known[1] for a, b in pairwise(at))


def test_steps_that_nothing_bounds() -> None:
    assert steps(X * X, X) is None and steps(const(3), X) == (0, 0)
    assert steps(-2 * (X % 7) + X // 3, X) == (-2, 13)


def test_a_lane_is_chosen_by_what_data_depends_on() -> None:
    """Rows of a table: their elements are neighbours, the rows are anywhere."""
    i, j, t = var("i0", 2048), var("i1", 1024), var("t0", 2048)
    row = body.load(I64, "rows", i)
    value = body.load(F32, "table", 1024 * t + j, ((t, row),))
    stores = (Store("out", i, body.reduce("sum", (j,), value)),)
    accesses = accesses_of(stores, {"rows": 8, "table": 4, "out": 4})
    assert [a.through for a in accesses if a.through is not None] == [frozenset({i})]
    assert choose_lane((i,), (j,), accesses) is j
    columns = (Store("out", j, body.reduce("sum", (i,), value)),)
    assert choose_lane((j,), (i,), accesses_of(columns, {"rows": 8, "table": 4, "out": 4})) is j


def test_an_update_counts_as_a_read_and_a_write() -> None:
    i, j = var("i", 100), var("j", 100)
    value = body.load(F32, "a", 100 * i + j)
    for mode, lane in (("set", j), ("add", i)):
        store = Store("c", 100 * j + i, value, mode)  # type: ignore[arg-type]
        assert choose_lane((i, j), (), accesses_of([store], {"a": 4, "c": 4})) is lane


def test_what_a_mask_guards_counts_as_often_as_it_runs() -> None:
    """Padding that is laid out anew: most points store and do not load."""
    i, j = var("i", 100), var("j", 100)
    value = body.load(F32, "a", 100 * j + i)
    for few, lane in ((100, i), (10, j)):
        bound, zero = body.const(I64, few), body.const(F32, 0)
        inside = body.op("and_", *(body.op("lt", body.index(v), bound) for v in (i, j)))
        loaded = body.op("add", value, body.load(F32, "b", 100 * j + i))
        kept = loaded if few == 100 else body.masked(inside, loaded, zero)
        accesses = accesses_of([Store("c", 100 * i + j, kept)], {"a": 4, "b": 4, "c": 4})
        assert [a.share for a in accesses] == pytest.approx([(few / 100) ** 2] * 2 + [1])
        assert choose_lane((i, j), (), accesses) is lane


def halves(size: int, *, apart: bool = False) -> tuple[Store, ...]:
    """The even elements take a number as it is, the odd ones its root (of another, if apart)."""
    parity = body.index(X % 2)
    one = body.load(F32, "b0", X // 2)
    other = body.load(F32, "b0", X // 2 + 1) if apart else one
    zero, two = body.const(F32, 0.0), body.const(I64, 1)
    odd = body.masked(body.op("le", two, parity), body.op("sqrt", other), zero)
    return (Store("b1", X, body.masked(body.op("lt", parity, two), one, odd)),)


@pytest.mark.parametrize(
    ("size", "apart", "masks"), [(80, False, 0), (79, False, 2), (100, True, 2)]
)
def test_loads_that_are_there_need_no_condition(size: int, apart: bool, masks: int) -> None:
    """What several conditions guard and memory has; not what lies beyond its end, nor one's own."""
    buffers = {
        name: Buffer(name, F32, (const(n),), (const(1),), "cpu")
        for name, n in (("b0", size), ("b1", 160))
    }
    stores = unguarded(halves(size, apart=apart), buffers)
    assert sum(isinstance(n, Masked) for n in walk(roots(stores))) == masks


def test_a_condition_that_goes_stays_around_loads_below_conditions_within_it() -> None:
    """The left neighbour is there where the outer condition holds, whatever the inner one says."""
    buffers = {"b0": Buffer("b0", F32, (const(160),), (const(1),), "cpu")}
    one, place, number = body.load(F32, "b0", X), body.index(X), body.const(I64, 100)
    outer, inner = body.op("lt", body.const(I64, 0), place), body.op("lt", place, number)
    near = body.masked(inner, body.load(F32, "b0", X - 1), one)
    value = body.op("add", body.masked(outer, near, one), body.masked(inner, one, near))
    (store,) = unguarded((Store("b1", X, value),), buffers)
    conditions = [{*conjuncts(n.args[0])} for n in walk((store.value,)) if isinstance(n, Masked)]
    assert {outer, inner} in conditions and {outer} not in conditions


PROGRAMS = {
    "roll": lambda x: x.roll((3, 5), (0, 1)),
    "flip": lambda x: x.flip(1),
    "reflect": lambda x: torch.nn.functional.pad(x[None], (3, 2), mode="reflect")[0],
    "replicate": lambda x: torch.nn.functional.pad(x[None], (9, 20), mode="replicate")[0],
    "pairs": lambda x: torch.stack([x.relu(), x.neg()], -1).flatten(-2),
    "fours": lambda x: x.repeat_interleave(4, -1) * 2,
    "tiled": lambda x: x[:, :2].repeat(1, 21),
}


PADS = ("reflect", "replicate")  # of floats alone


@pytest.mark.parametrize("width", [5, 37, 130])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in PROGRAMS
        for dtype in (torch.float32, torch.bfloat16, torch.uint8)
        if dtype.is_floating_point or name not in PADS
    ],
)
def test_results(name: str, width: int, dtype: torch.dtype) -> None:
    x = torch.arange(7 * width).reshape(7, width).to(dtype)
    fn = PROGRAMS[name]
    torch._dynamo.reset()
    assert torch.equal(torch.compile(fn, backend="litz", dynamic=False)(x), fn(x))


def test_open_sizes_are_cut() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 2).reshape(x.shape[2], -1)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", dynamic=True)
    for sizes in ((3, 4, 5, 6), (4, 3, 7, 17), (2, 6, 2, 2)):
        x = torch.randn(sizes)
        expected = x.transpose(0, 2).flatten(1)
        assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("by", [4.0, -0.125, 2.0**126, 2.0**-126, 2.0**127, 2.0**-140, 3.0, 0.0])
def test_quotients_by_powers_of_two_are_products(by: float) -> None:
    """Of what a product has the same bits of: neither number may be subnormal."""
    x = body.load(F32, "b0", const(0))
    made = scaled(body.op("div", x, body.const(F32, by)))
    exact = by in (4.0, -0.125, 2.0**126, 2.0**-126)
    assert made is (
        body.op("mul", x, body.const(F32, 1 / by))
        if exact
        else body.op("div", x, body.const(F32, by))
    )
    assert not exact or torch.equal(VALUES / by, VALUES * (1 / by))


VALUES = torch.tensor([1.1, -0.0, 3e-45, 1e-38, 3e38, torch.inf, -torch.inf])


@pytest.mark.parametrize(
    ("columns", "longest", "stored", "walked"),
    [
        (10, ENDS, False, "down"),
        (16, EXTREMES, False, "along"),  # whole vectors
        (16, PLACES, False, "down"),
        (10, PLACES, True, "down"),
        (20, ENDS, False, "along"),
        (20, EXTREMES, False, "down"),
        (20, EXTREMES, True, "along"),  # neighbours of what is stored lie apart
        (44, EXTREMES, False, "along"),
        (100, PLACES, False, "along"),
    ],
)
def test_short_rows_are_walked_down(columns: int, longest: int, stored: bool, walked: str) -> None:
    x, r = var("x0", 1000), var("r0", columns)
    total = body.reduce("sum", (r,), body.load(F32, "b0", x * columns + r))
    full = body.op("sub", body.load(F32, "b0", x * columns + r), total)
    stores = (Store("b1", x * columns + r, full) if stored else Store("b1", x, total),)
    accesses = accesses_of(stores, {"b0": 4, "b1": 4})
    found = beside(choose_tiling((x,), (r,), accesses), (r,), accesses, longest)
    assert found.lane is (x if walked == "down" else r)
