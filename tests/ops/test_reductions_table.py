"""Every row of the table of reductions: its laws in Python, and both targets against that."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ops_harness import TORCH, build
from ops_python import combined, evaluate
from ops_samples import moderate, random_bits, specials

from litz.index import Expr, var
from litz.ir import body, reductions
from litz.ir import dtype as dt
from litz.ir.body import Store
from litz.ir.dtype import DType
from litz.ir.ops import accepts
from litz.ir.reductions import EXPONENTIALS, TABLE, Part, Reduction, Result
from litz.kernel.lanes.choose import choose as choose_lanes
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.targets.cpp.render import render, unit

TYPES = (dt.BOOL, dt.U8, dt.I16, dt.I64, dt.F32, dt.F64)
CASES = [(r, t) for r in TABLE.rows for t in TYPES if r.takes(t)]
NAMES = [f"{r.name}-{t}" for r, t in CASES]
WIDTH = 37


def rows_of(row: Reduction, dtype: DType) -> torch.Tensor:
    """Rows to reduce: values of everyday size, special ones among them, and nothing but those.

    Where the order of combining shows, only specials that outdo all rounding: nan, infinities.
    """
    base = moderate(dtype, 8 * WIDTH).reshape(8, WIDTH)
    if accepts(row.exact, dtype):
        some = specials(dtype)
        tiled = some.repeat(-(-3 * WIDTH // len(some)))[: 3 * WIDTH].reshape(3, WIDTH)
        alike = some[:, None].expand(-1, WIDTH)
        if row.samples == "small" and dtype.kind != "bool":
            base = base % 3 + 1
        bits = random_bits(dtype, 4 * WIDTH).reshape(4, WIDTH)
        return torch.cat([base, tiled, tiled.flip(1), alike, bits]).contiguous()
    if row.samples == "small":
        base = 1 + base / 100
    base[0] = -0.0
    base[1, 30] = math.nan
    base[2] = math.nan
    if row.samples != "finite":
        base[3, 5] = math.inf
        base[4, 35] = -math.inf
        base[5, 3], base[5, 33] = math.inf, -math.inf
    return base


def same(found: float, expected: float, row: Reduction, dtype: DType) -> bool:
    if expected != expected or math.isinf(expected) or accepts(row.exact, dtype):
        return found == expected or (found != found and expected != expected)
    eps = 2e-6 if dtype is dt.F32 else 1e-13
    return math.isclose(found, expected, rel_tol=WIDTH * eps, abs_tol=WIDTH * eps)


# --- laws ----------------------------------------------------------------------------------------


def agree(a: Sequence[float], b: Sequence[float], exact: bool) -> bool:
    def close(x: float, y: float) -> bool:
        if x != x or y != y:
            return x != x and y != y
        return x == y or (not exact and math.isclose(x, y, rel_tol=1e-12, abs_tol=1e-12))

    return len(a) == len(b) and all(map(close, a, b))


@pytest.mark.parametrize(("row", "dtype"), CASES, ids=NAMES)
def test_laws(row: Reduction, dtype: DType) -> None:
    """The identity changes nothing; order does not show, or as little as roundings."""
    exact = accepts(row.exact, dtype)
    values = specials(dtype) if exact else rows_of(row, dtype)[:, [0, 5, 30, 33]].flatten()
    values = values.double() if dtype is dt.F32 else values
    states = [row.lift(x, at) for at, x in enumerate(values.tolist())]
    none = tuple(p.identity(dtype) for p in row.state)
    assert len(states[0]) == len(none)
    for a in states:
        assert agree(combined(row, none, a), a, exact)
        assert agree(combined(row, a, none), a, exact)
    for a, b in itertools.product(states, repeat=2):
        assert agree(combined(row, a, b), combined(row, b, a), exact)
    for a, b, c in itertools.product(states[::3], repeat=3):
        left = combined(row, combined(row, a, b), c)
        assert agree(left, combined(row, a, combined(row, b, c)), exact)


@pytest.mark.parametrize("kind", TABLE.results)
def test_a_single_element_and_none(kind: str) -> None:
    row, found = TABLE.results[kind]
    for dtype in (t for t in TYPES if row.takes(t)):
        for x in specials(dtype).tolist():
            if math.isfinite(x):
                expected = x if found.single is None else found.single
                assert evaluate(kind, dtype, [x]) == expected
        nothing = body.reduce(kind, (var("r0", 0),), body.const(dtype, 0))
        assert isinstance(nothing, body.Const)
        assert nothing.dtype is reductions.result_dtype(kind, dtype)


# --- targets -------------------------------------------------------------------------------------


def plan_of(kinds: Sequence[str], dtype: DType, rows: int, width: int, lane: str) -> KernelPlan:
    """Each kind over the rows of one matrix."""
    x, r = var("x0", rows), var("r0", width)
    value = body.load(dtype, "a", x * width + r)
    stores = tuple(Store(f"c{i}", x, body.reduce(k, (r,), value)) for i, k in enumerate(kinds))
    lanes: dict[str, Expr | None] = {"across": x, "along": r, "none": None}
    return planned((x, r), dtype, stores, lanes[lane])


def planned(
    dims: tuple[Expr, Expr], dtype: DType, stores: tuple[Store, ...], lane: Expr | None
) -> KernelPlan:
    outs = [Param(s.buffer, s.value.dtype, "out") for s in stores]
    (x, r) = dims
    return KernelPlan(
        (Dim(x, "p"), Dim(r, "r")), (Param("a", dtype, "in"), *outs), (), stores, lane
    )


def outputs(plan: KernelPlan, rows: int) -> list[torch.Tensor]:
    return [torch.zeros(rows, dtype=TORCH[s.value.dtype]) for s in plan.stores]


def by_cpp(plans: Sequence[KernelPlan], rows: torch.Tensor) -> list[list[torch.Tensor]]:
    """What kernels of one translation unit make of ``rows``."""
    texts = [
        (p, render(replace(choose_lanes(p, 16), grain=1), f"k{i}")) for i, p in enumerate(plans)
    ]
    library = build('#pragma GCC diagnostic ignored "-Wunused-variable"\n' + unit(texts))
    made = []
    for i, p in enumerate(plans):
        out = outputs(p, len(rows))
        ptrs = (ctypes.c_void_p * (1 + len(out)))(rows.data_ptr(), *(t.data_ptr() for t in out))
        assert getattr(library, f"k{i}")(ptrs, (ctypes.c_int64 * 1)()) == 0
        made.append(out)
    return made


def by_triton(plan: KernelPlan, rows: torch.Tensor, uses: str = "") -> list[torch.Tensor]:
    """The same under Triton's interpreter.  uses: what is in the source."""
    from litz.kernel.blocks.choose import choose
    from litz.targets.triton.interpreted import bind_interpreted
    from litz.targets.triton.render import render

    out = outputs(plan, len(rows))
    recipe = choose(plan)
    kernel = render(recipe, "kernel")
    assert uses in kernel.launches[0].source
    own = [torch.empty(int(str(t.size)), dtype=TORCH[t.dtype]) for t in recipe.temporaries]
    bind_interpreted(kernel)(rows.data_ptr(), *(t.data_ptr() for t in (*out, *own)))
    return out


def judge(row: Reduction, dtype: DType, rows: torch.Tensor, made: Sequence[torch.Tensor]) -> None:
    for kind, out in zip(row.results, made, strict=True):
        for values, found in zip(rows.tolist(), out.tolist(), strict=True):
            expected = evaluate(kind.name, dtype, values)
            assert same(found, expected, row, dtype), (kind.name, values, found, expected)


WITH_RESULTS = [(r, t) for r, t in CASES if r.results]
IDS = [f"{r.name}-{t}" for r, t in WITH_RESULTS]


@pytest.mark.parametrize("row", [r for r in TABLE.rows if r.results], ids=lambda r: r.name)
def test_cpp(row: Reduction) -> None:
    """Lanes across rows, lanes along them, and none."""
    kinds = [k.name for k in row.results]
    for dtype in (t for t in TYPES if row.takes(t)):
        rows = rows_of(row, dtype)
        plans = [plan_of(kinds, dtype, *rows.shape, lane) for lane in ("across", "along", "none")]
        for made in by_cpp(plans, rows):
            judge(row, dtype, rows, made)


@pytest.mark.parametrize(("row", "dtype"), WITH_RESULTS, ids=IDS)
def test_triton(row: Reduction, dtype: DType) -> None:
    pytest.importorskip("triton.language")
    rows = rows_of(row, dtype)
    plan = plan_of([k.name for k in row.results], dtype, *rows.shape, "along")
    judge(row, dtype, rows, by_triton(plan, rows))


@pytest.mark.parametrize("how", ["in turns", "in parts"])
@pytest.mark.parametrize("row", [r for r in TABLE.rows if r.results], ids=lambda r: r.name)
def test_triton_beyond_a_block(row: Reduction, how: str) -> None:
    """Accumulators over a loop; and several programs to a row."""
    pytest.importorskip("triton.language")
    dtype = next(t for t in (dt.F32, dt.I64, dt.BOOL) if row.takes(t))
    rows = repeated(rows_of(row, dtype)[[0, 1, 3, 4, 5]], 3 if how == "in turns" else 230, row)
    lane = "across" if how == "in turns" else "along"
    plan = plan_of([k.name for k in row.results], dtype, *rows.shape, lane)
    made = by_triton(plan, rows, "acc0" if how == "in turns" else "part0")
    judge(row, dtype, rows, made)


def repeated(rows: torch.Tensor, times: int, row: Reduction) -> torch.Tensor:
    """Longer rows; of a product by ones."""
    if row.samples != "small":
        return rows.repeat(1, times)
    return torch.cat([torch.ones(len(rows), (times - 1) * WIDTH).to(rows.dtype), rows], 1)


def test_maximum_and_sum_of_exponentials() -> None:
    """The row without results: a maximum and what is summed below it."""
    rows = rows_of(EXPONENTIALS, dt.F32).repeat(1, 3)
    x, r = var("x0", len(rows)), var("r0", 3 * WIDTH)
    value = body.load(dt.F32, "a", x * (3 * WIDTH) + r)
    top = body.reduce("max", (r,), value)
    total = body.reduce("sum", (r,), body.op("exp", body.op("sub", value, top)))
    stores = (Store("c0", x, top), Store("c1", x, total))
    made = by_cpp([planned((x, r), dt.F32, stores, r)], rows)
    pytest.importorskip("triton.language")
    made.append(by_triton(planned((x, r), dt.F32, stores, x), rows, "_top"))
    for tops, totals in made:
        for i, values in enumerate(rows.tolist()):
            state = tuple(p.identity(dt.F32) for p in EXPONENTIALS.state)
            for at, number in enumerate(values):
                state = combined(EXPONENTIALS, state, EXPONENTIALS.lift(number, at))
            assert same(float(tops[i]), state[0], reductions.MAX, dt.F32)
            assert same(float(totals[i]), state[1], EXPONENTIALS, dt.F32)


# --- a row more ----------------------------------------------------------------------------------

XOR = Reduction(
    "xor",
    (Part("value", lambda dtype: 0),),
    (Result("xor", "value", 0),),
    "i",
    "i",
    "xor",
    cpp="litz::xor_",
    cpp_fold="litz::detail::horizontal({0}, [](auto a, auto b) {{ return litz::xor_(a, b); }})",
    triton="{0} ^ {1}",
    triton_fold="tl.xor_sum({0}, {axis}, keep_dims=True)",
)


def test_a_reduction_brings_the_header_of_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = replace(
        XOR,
        name="norm",
        results=(Result("norm", "value", 0),),
        elements="f",
        exact="",
        op="hypot",
        cpp="litz::hypot",
        cpp_fold=XOR.cpp_fold.replace("xor_", "hypot"),
    )
    monkeypatch.setattr(reductions, "TABLE", reductions.table((*TABLE.rows, norm)))
    rows = moderate(dt.F32, 4 * WIDTH).reshape(4, WIDTH).abs()
    plans = [plan_of(["norm"], dt.F32, *rows.shape, lane) for lane in ("across", "along")]
    for (found,) in by_cpp(plans, rows):
        torch.testing.assert_close(found, rows.double().norm(dim=1).float())


def test_a_new_reduction_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the table says what there is."""
    monkeypatch.setattr(reductions, "TABLE", reductions.table((*TABLE.rows, XOR)))
    rows = rows_of(XOR, dt.I32)[:9]
    plans = [plan_of(["xor"], dt.I32, *rows.shape, lane) for lane in ("across", "along")]
    for made in by_cpp(plans, rows):
        judge(XOR, dt.I32, rows, made)
    pytest.importorskip("triton.language")
    judge(XOR, dt.I32, rows, by_triton(plans[1], rows))
    long = rows.repeat(1, 3)
    plan = plan_of(["xor"], dt.I32, *long.shape, "across")
    judge(XOR, dt.I32, long, by_triton(plan, long, "acc0"))
