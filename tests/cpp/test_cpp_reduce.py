"""Reductions against the reference: kinds, lanes in either role, nests, several passes."""

from __future__ import annotations

import math

import pytest
import torch
from cpp_plans import TORCH, build_together, call, check, make_plan, source
from test_cpp_pointwise import cmp, data

from litz.index import Expr, symbol, var
from litz.ir import body as B
from litz.ir.body import Store
from litz.ir.dtype import BF16, BOOL, BY_NAME, F32, I64, DType
from litz.ir.reductions import TABLE
from litz.kernel.lanes.choose import choose
from litz.kernel.plan import KernelPlan

ARITHMETIC = [k for k in TABLE.results if k not in ("any", "all")]
NAN = float("nan")


def reduction(
    kind: str, dtype: DType, p: int, r: int, lane: str, rows: bool = True
) -> tuple[KernelPlan, dict[str, torch.Tensor]]:
    """c[x0] = reduce a over r0, with a in row-major order (rows) or transposed."""
    x0, r0 = var("x0", p), var("r0", r)
    at = x0 * r + r0 if rows else r0 * p + x0
    n = B.reduce(kind, (r0,), B.load(dtype, "a", at))  # type: ignore[arg-type]
    plan = make_plan([x0], [r0], [Store("c", x0, n)], {"x0": x0, "r0": r0, "": None}[lane])
    return plan, {"a": data(dtype.name, p * r), "c": torch.zeros(p, dtype=TORCH[n.dtype.name])}


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
@pytest.mark.parametrize("kind", ARITHMETIC)
def test_kinds(kind: str, lane: str) -> None:
    sizes = ((5, 1), (3, 100), (40, 33), (1, 1000))
    cases = [reduction(kind, F32, *size, lane) for size in sizes]
    build_together([plan for plan, _ in cases])
    for plan, buffers in cases:
        if kind == "prod":
            buffers["a"] = buffers["a"].abs() * 0.01 + 0.99
        check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
@pytest.mark.parametrize("dtype", ["i64", "i32", "u8", "f64", "i8"])
def test_dtypes(dtype: str, lane: str) -> None:
    kinds = ("sum", "prod", "max", "min", "argmax", "argmin")
    cases = [reduction(k, BY_NAME[dtype], 19, 37, lane, rows=lane != "x0") for k in kinds]
    build_together([plan for plan, _ in cases])
    for plan, buffers in cases:
        check(plan, buffers)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
@pytest.mark.parametrize("kind", ["any", "all", "max", "min"])
@pytest.mark.parametrize("chance", [0.02, 0.98])
def test_bools(kind: str, lane: str, chance: float) -> None:
    plan, buffers = reduction(kind, BOOL, 50, 45, lane)
    buffers["a"] = torch.rand(50 * 45) < chance
    check(plan, buffers)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
def test_special_values(kind: str, lane: str) -> None:
    plan, buffers = reduction(kind, F32, 9, 35, lane)
    a = buffers["a"].reshape(9, 35)
    a[0, 3] = a[0, 20] = a[1, 34] = a[2, 0] = NAN
    a[3] = float("-inf")
    a[4] = float("inf")
    a[5, 7] = a[5, 30] = 100.0
    a[6, 7] = a[6, 30] = -100.0
    a[7] = 0.25
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "r0"])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 64, 1000])
def test_dynamic_extents(n: int, lane: str) -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    x0, r0 = var("x0", s0), var("r0", s1)
    total = B.reduce("sum", (r0,), B.load(F32, "a", x0 * s1 + r0))
    plan = make_plan([x0], [r0], [Store("c", x0, total)], {"x0": x0, "r0": r0}[lane], ints=[s0, s1])
    check(plan, {"a": data("f32", 21 * n), "c": torch.ones(21)}, {"s0": 21, "s1": n}, rtol=1e-4)


def softmax(x0: Expr, r0: Expr, at: Expr, dtype: DType = F32) -> B.Node:
    a = B.cast(B.load(dtype, "a", at), F32)
    e = B.op("exp", B.op("sub", a, B.reduce("max", (r0,), a)))
    return B.cast(B.op("div", e, B.reduce("sum", (r0,), e)), dtype)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_softmax(lane: str, dtype: DType) -> None:
    cases = []
    for p, r in ((4, 64), (33, 50), (2, 5000)):
        x0, r0 = var("x0", p), var("r0", r)
        for at in (x0 * r + r0, r0 * p + x0):
            stores = [Store("c", at, softmax(x0, r0, at, dtype))]
            plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
            cases.append((plan, p * r))
    build_together([plan for plan, _ in cases])
    for plan, n in cases:
        check(plan, {"a": data(dtype.name, n), "c": torch.zeros(n, dtype=TORCH[dtype.name])})


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_columns_keep_what_is_costly_and_what_it_is_made_of(dtype: DType) -> None:
    """For a block's later passes; exponentials lie where what they are of was, if it is as wide."""
    for p in (96, 160):
        x0, r0 = var("x0", p), var("r0", 1000)
        at = r0 * p + x0
        plan = make_plan([x0], [r0], [Store("c", at, softmax(x0, r0, at, dtype))], x0)
        c = torch.zeros(1000 * p, dtype=TORCH[dtype.name])
        check(plan, {"a": data(dtype.name, 1000 * p), "c": c})
        *_, last = source(plan).split("for (int64_t r0 = 0; r0 < 1000")
        assert "litz::exp(" not in last and "load<16>(a" not in last
        arrays = source(plan).count("[128000];") + source(plan).count("litz::Scratch")
        assert arrays == 1 + (dtype is BF16)


@pytest.mark.parametrize("n", [1025, 4099])
def test_rows_that_begin_within_lines_are_streamed_from_the_next(n: int) -> None:
    """Whatever is before their first line and behind their last, and wherever memory begins."""
    rows = (1 << 22) // n + 1
    x0, r0 = var("x0", rows), var("r0", n)
    at = x0 * n + r0
    plan = make_plan([x0], [r0], [Store("c", at, softmax(x0, r0, at))], r0)
    assert "litz::before<" in source(plan) and "litz::store_stream(" in source(plan)
    a = torch.randn(rows, n) * 3
    a[1], a[2, 5], a[3, -1] = -math.inf, math.inf, math.nan
    want = torch.softmax(a.double(), 1).float()
    for start in (0, 1, 5):
        c = torch.full((rows * n + 16,), 7.0)
        assert call(plan, {"a": a.view(-1), "c": c[start : start + rows * n]}, {}, 16) == 0
        got = c[start : start + rows * n].view(rows, n)
        torch.testing.assert_close(got, want, rtol=2e-6, atol=0, equal_nan=True)
        assert c[:start].eq(7).all() and c[start + rows * n :].eq(7).all()


def norm(value: B.Node, axes: tuple[Expr, ...], n: int) -> B.Node:
    mean = B.reduce("welford_mean", axes, value)
    spread = B.op("div", B.reduce("welford_m2", axes, value), B.const(F32, n))
    scale = B.op("rsqrt", B.op("add", spread, B.const(F32, 1e-5)))
    return B.op("mul", B.op("sub", value, mean), scale)


@pytest.mark.parametrize("rows", [(65547,), (130, 533)])
@pytest.mark.parametrize("known", [True, False])
def test_softmax_of_rows_beyond_the_cache(rows: tuple[int, ...], known: bool) -> None:
    """In one pass, chunk by chunk, then one that stores; whatever a chunk's maximum is."""
    inf, n = float("inf"), math.prod(rows)
    s = symbol("s0", 1, None, rows[0])
    x0, *reduced = (var(f"v{i}", k) for i, k in enumerate((14, *rows)))
    reduced[0] = reduced[0] if known else var("v1", s)
    at: Expr = x0 * (s * n // rows[0] if not known else n)
    at = at + reduced[0] * (n // rows[0]) + (reduced[1] if rows[1:] else 0)
    value = B.load(F32, "a", at)
    power = B.op("exp", B.op("sub", value, B.reduce("max", tuple(reduced), value)))
    out = B.op("div", power, B.reduce("sum", tuple(reduced), power))
    ints = () if known else (s,)
    plan = make_plan([x0], reduced, [Store("c", at, out)], reduced[-1], ints=ints)
    assert "litz::rescaled(" in source(plan)
    a = torch.randn(14, n) * 3
    for row, (where, what) in enumerate(
        [(slice(None), -inf), (5, inf), (-1, inf), (0, NAN), (n // 2, NAN), (slice(3000), -inf)]
        + [(slice(3000, None), -inf), (slice(-1), -inf), (slice(None), inf), (slice(0, n, 2), -inf)]
    ):
        a[row, where] = what
    a[10], a[11] = torch.arange(n) * 1e-3, torch.arange(n) * -1e-2
    a[12] *= 1e4
    check(plan, {"a": a.reshape(-1), "c": torch.zeros(14 * n)}, {"s0": rows[0]}, rtol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_layer_norm_in_place_with_statistics(lane: str) -> None:
    p, r = 13, 117
    x0, r0 = var("x0", p), var("r0", r)
    at = x0 * r + r0
    a = B.op("add", B.load(F32, "a", at), B.load(F32, "b", at))
    y = B.op("fma", norm(a, (r0,), r), B.load(F32, "w", r0), B.load(F32, "v", r0))
    stores = [Store("a", at, y), Store("m", x0, B.reduce("welford_mean", (r0,), a))]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
    buffers = {k: data("f32", p * r) for k in "ab"} | {k: data("f32", r) for k in "wv"}
    check(plan, {**buffers, "m": torch.zeros(p)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "x1", "r0", "r1", ""])
def test_group_norm_over_two_dims(lane: str) -> None:
    x0, x1, r0, r1 = var("x0", 3), var("x1", 4), var("r0", 6), var("r1", 35)
    at = x0 * 840 + x1 * 210 + r0 * 35 + r1
    a = B.load(F32, "a", at)
    y = B.op("mul", norm(a, (r0, r1), 210), B.load(F32, "w", x1 * 6 + r0))
    stores = [Store("c", at, B.op("mul", y, B.op("sigmoid", y)))]
    dims = {"x0": x0, "x1": x1, "r0": r0, "r1": r1, "": None}
    plan = make_plan([x0, x1], [r0, r1], stores, dims[lane])
    buffers = {"a": data("f32", 2520), "w": data("f32", 24), "c": torch.zeros(2520)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["r0", "r1", ""])
def test_reductions_of_reductions(lane: str) -> None:
    """Cross entropy: a softmax over the inner dim, its result summed over the outer one."""
    r0, r1 = var("r0", 21), var("r1", 70)
    t0 = symbol("t0", 0, 69)
    at = r0 * 70 + r1
    a = B.load(F32, "a", at)
    high = B.reduce("max", (r1,), a)
    lse = B.op("log", B.reduce("sum", (r1,), B.op("exp", B.op("sub", a, high))))
    picked = B.load(F32, "a", r0 * 70 + t0, ((t0, B.load(I64, "y", r0)),))
    loss = B.op("sub", B.op("add", lse, high), picked)
    from litz.index import const

    stores = [Store("c", const(0), B.reduce("sum", (r0,), loss))]
    plan = make_plan([], [r0, r1], stores, {"r0": r0, "r1": r1, "": None}[lane])
    buffers = {"a": data("f32", 1470), "y": torch.randint(0, 70, (21,)), "c": torch.zeros(1)}
    check(plan, buffers, rtol=1e-5)


@pytest.mark.parametrize("lane", ["r0", "r1", ""])
def test_reductions_over_crossing_dims(lane: str) -> None:
    """Sums over either of two dims, both used at every point: no loop order serves both."""
    r0, r1 = var("r0", 13), var("r1", 34)
    at = r0 * 34 + r1
    a = B.load(F32, "a", at)
    both = B.op("add", B.reduce("sum", (r0,), a), B.reduce("sum", (r1,), a))
    stores = [Store("c", at, B.op("mul", a, both))]
    plan = make_plan([], [r0, r1], stores, {"r0": r0, "r1": r1, "": None}[lane])
    check(plan, {"a": data("f32", 442), "c": torch.zeros(442)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [I64, F32])
@pytest.mark.parametrize("lane", ["x0", "r0", "r1", ""])
def test_argmax_over_two_dims_counts_in_their_order(lane: str, dtype: DType) -> None:
    x0, r0, r1 = var("x0", 17), var("r0", 5), var("r1", 21)
    a = B.load(dtype, "a", x0 * 105 + r1 * 5 + r0)
    stores = [Store("c", x0, B.reduce("argmax", (r0, r1), a))]
    plan = make_plan([x0], [r0, r1], stores, {"x0": x0, "r0": r0, "r1": r1, "": None}[lane])
    a_ = torch.randint(0, 4, (17 * 105,)).to(TORCH[dtype.name])
    check(plan, {"a": a_, "c": torch.zeros(17, dtype=torch.int64)})


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_masked_reduction(lane: str) -> None:
    """Pooling: loads out of range are masked, inside the reduction and around it."""
    x0, r0 = var("x0", 40), var("r0", 20)
    at = x0 * 20 + r0 - 3
    inside = B.masked(cmp("ge", r0, 3), B.load(F32, "a", at), B.const(F32, float("-inf")))
    high = B.reduce("max", (r0,), inside)
    row = B.reduce("sum", (r0,), B.load(F32, "a", x0 * 20 + r0 - 100))
    around = B.masked(cmp("ge", x0, 5), row, B.const(F32, 3.0))
    stores = [Store("c", x0, high), Store("d", x0, around)]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
    buffers = {"a": data("f32", 800), "c": torch.zeros(40), "d": torch.zeros(40)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_what_does_not_depend_on_the_reduced_dim_counts_every_time(lane: str) -> None:
    x0, r0 = var("x0", 21), var("r0", 37)
    total = B.reduce("sum", (r0,), B.load(F32, "a", x0))
    plan = make_plan([x0], [r0], [Store("c", x0, total)], {"x0": x0, "r0": r0, "": None}[lane])
    check(plan, {"a": data("f32", 21), "c": torch.zeros(21)}, rtol=1e-5)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_updates_from_the_full_space(lane: str) -> None:
    """A histogram: every point of the full space adds to an element that the data names."""
    x0, r0 = var("x0", 11), var("r0", 40)
    t0 = symbol("t0", 0, 6)
    one = B.load(F32, "a", x0 * 40 + r0)
    where = ((t0, B.load(I64, "i", r0)),)
    stores = [Store("c", x0 * 7 + t0, one, "add", where)]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
    buffers = {"a": data("f32", 440), "i": torch.randint(0, 7, (40,)), "c": torch.zeros(77)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["x1", "r0"])
def test_column_sums_of_many_rows(lane: str) -> None:
    x0, x1, r0 = var("x0", 3), var("x1", 70), var("r0", 2050)
    a = B.load(F32, "a", x0 * (2050 * 70) + r0 * 70 + x1)
    stores = [
        Store("c", x0 * 70 + x1, B.reduce("sum", (r0,), a)),
        Store("d", x0 * 70 + x1, B.reduce("max", (r0,), B.op("mul", a, a))),
    ]
    plan = make_plan([x0, x1], [r0], stores, {"x1": x1, "r0": r0}[lane])
    buffers = {"a": data("f32", 3 * 2050 * 70), "c": torch.zeros(210), "d": torch.zeros(210)}
    check(plan, buffers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lane", ["x0", "r0"])
@pytest.mark.parametrize("size", [(1, 5_000_011), (3, 300_000), (40, 70_000)])
def test_long_sums_are_as_accurate_as_eager(size: tuple[int, int], lane: str) -> None:
    p, r = size
    x0, r0 = var("x0", p), var("r0", r)
    rows = lane == "r0"
    at = x0 * r + r0 if rows else r0 * p + x0
    total = B.reduce("sum", (r0,), B.load(F32, "a", at))
    plan = make_plan([x0], [r0], [Store("c", x0, total)], {"x0": x0, "r0": r0}[lane])
    torch.manual_seed(0)
    a = torch.rand(p * r)
    c = torch.zeros(p)
    call(plan, {"a": a, "c": c})
    shaped, dim = (a.reshape(p, r), 1) if rows else (a.reshape(r, p), 0)
    true = shaped.double().sum(dim)
    mine = ((c - true) / true).abs().max().item()
    eager = ((shaped.sum(dim) - true) / true).abs().max().item()
    assert mine <= 2 * eager + 1e-7, (mine, eager)


@pytest.mark.parametrize("lane", ["x0", "x1", "r0", "r1"])
def test_moments_of_long_rows_take_one_pass(lane: str) -> None:
    """Mean and deviations over more than the cache holds, in chunks."""
    x0, x1, r0, r1 = var("x0", 2), var("x1", 35), var("r0", 61), var("r1", 1103)
    a = B.load(F32, "a", x0 * (35 * 61 * 1103) + r0 * (35 * 1103) + r1 * 35 + x1)
    at = x0 * 35 + x1
    stores = [
        Store("c", at, B.reduce("welford_mean", (r0, r1), a)),
        Store("d", at, B.reduce("welford_m2", (r0, r1), a)),
    ]
    dims = {"x0": x0, "x1": x1, "r0": r0, "r1": r1}
    plan = make_plan([x0, x1], [r0, r1], stores, dims[lane])
    a_ = data("f32", 2 * 35 * 61 * 1103) + 100.0
    check(plan, {"a": a_, "c": torch.zeros(70), "d": torch.zeros(70)}, rtol=3e-6)
    assert "chan" in source(plan)


@pytest.mark.parametrize("n", [0, 1, 100, 100_000])
@pytest.mark.parametrize("lane", ["x0", "r0"])
def test_moments_of_unknown_size(n: int, lane: str) -> None:
    s0 = symbol("s0", 0, None, 1 << 20)
    x0, r0 = var("x0", 3), var("r0", s0)
    a = B.load(F32, "a", x0 * s0 + r0)
    stores = [
        Store("c", x0, B.reduce("welford_mean", (r0,), a)),
        Store("d", x0, B.reduce("welford_m2", (r0,), a)),
    ]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0}[lane], ints=[s0])
    buffers = {"a": data("f32", 3 * n), "c": torch.zeros(3), "d": torch.zeros(3)}
    check(plan, buffers, {"s0": n}, rtol=1e-5)


def test_reductions_over_no_dims() -> None:
    x0 = var("x0", 20)
    a = B.load(F32, "a", x0)
    kinds = ("sum", "max", "argmax", "welford_mean", "welford_m2")
    stores = [Store(f"c{i}", x0, B.reduce(k, (), a)) for i, k in enumerate(kinds)]
    plan = make_plan([x0], [], stores, x0)
    out = {s.buffer: torch.ones(20, dtype=TORCH[s.value.dtype.name]) for s in stores}
    buffers = {"a": data("f32", 20), **out}
    assert call(plan, buffers) == 0
    for i, want in enumerate([buffers["a"], buffers["a"], 0, buffers["a"], 0]):
        assert (buffers[f"c{i}"] == want).all()


@pytest.mark.parametrize("size", [(5, 70), (3, 1000), (700, 40)])
@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_full_stores_share_the_pass_of_a_reduction(lane: str, size: tuple[int, int]) -> None:
    """A backward pass: its result and the sum of it, in one walk, in place."""
    p, r = size
    x0, r0 = var("x0", p), var("r0", r)
    for at in (x0 * r + r0, r0 * p + x0):
        a = B.op("mul", B.load(F32, "a", at), B.op("exp", B.load(F32, "b", at)))
        stores = [
            Store("a", at, a),
            Store("d", at, B.op("add", a, B.load(F32, "a", at))),
            Store("c", x0, B.reduce("sum", (r0,), a)),
        ]
        plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
        n = p * r
        buffers = {"a": data("f32", n), "b": data("f32", n) * 0.1}
        check(plan, {**buffers, "c": torch.zeros(p), "d": torch.zeros(n)}, rtol=1e-5, atol=2e-5)
        if lane:
            copies = source(plan).count("litz::exp") // (2 if p * r % 16 else 1)
            assert copies <= 4, source(plan)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_stores_wait_for_later_passes_that_read_what_they_replace(lane: str) -> None:
    x0, r0 = var("x0", 40), var("r0", 50)
    at = x0 * 50 + r0
    a = B.load(F32, "a", at)
    high = B.reduce("max", (r0,), a)
    total = B.reduce("sum", (r0,), B.op("mul", B.op("sub", a, high), B.const(F32, 0.5)))
    stores = [
        Store("a", at, B.op("add", a, B.const(F32, 3.0))),
        Store("b", at, B.op("sub", B.load(F32, "b", at), high)),
        Store("c", x0, total),
        Store("d", at, B.op("add", B.load(F32, "b", at), total)),
    ]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0, "": None}[lane])
    buffers = {k: data("f32", 2000) for k in "abd"}
    check(plan, {**buffers, "c": torch.zeros(40)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", ["r0", "r1", ""])
def test_inner_dim_stays_while_the_outer_is_reduced(lane: str) -> None:
    r0, r1 = var("r0", 23), var("r1", 34)
    at = r0 * 34 + r1
    a = B.load(F32, "a", at)
    total = B.reduce("sum", (r0,), a)
    stores = [Store("c", at, B.op("sub", a, total)), Store("d", r1, total)]
    plan = make_plan([], [r0, r1], stores, {"r0": r0, "r1": r1, "": None}[lane])
    buffers = {"a": data("f32", 782), "c": torch.zeros(782), "d": torch.zeros(34)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 40_000), (5, 33_001), (50, 20_003)])
@pytest.mark.parametrize("lane", ["x0", "r0"])
def test_phases(lane: str, size: tuple[int, int]) -> None:
    """Rows that are too few, or columns that are too long, for passes one point at a time."""
    p, r = size
    x0, r0 = var("x0", p), var("r0", r)
    at = x0 * r + r0 if lane == "r0" else r0 * p + x0
    y = norm(B.load(F32, "a", at), (r0,), r)
    stores = [
        Store("c", at, softmax(x0, r0, at)),
        Store("a", at, y),
        Store("m", x0, B.reduce("max", (r0,), y)),
    ]
    plan = make_plan([x0], [r0], stores, {"x0": x0, "r0": r0}[lane])
    assert ("_ptrs[]" in source(plan)) == (lane == "x0" or p <= 5)
    buffers = {"a": data("f32", p * r), "c": torch.zeros(p * r), "m": torch.zeros(p)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(33, 70), (64, 64)])
@pytest.mark.parametrize("turned", ["in", "out", "both"])
def test_rows_that_lie_across_the_lane(turned: str, size: tuple[int, int]) -> None:
    """They are transposed in phases of their own; masked loads stay where the mask holds."""
    p, r = size
    x0, r0 = var("x0", p), var("r0", r)
    along, across = x0 * r + r0, r0 * p + x0
    inside = B.op("lt", B.index(r0), B.const(I64, r - 3))
    shifted = B.masked(inside, B.load(F32, "m", across + 3 * p), B.const(F32, 0.5))
    at = across if turned in ("in", "both") else along
    y = B.op("add", norm(B.load(F32, "a", at), (r0,), r), shifted)
    stores = [Store("c", across if turned in ("out", "both") else along, y)]
    plan = make_plan([x0], [r0], stores, r0)
    text = source(plan)
    assert text.count("litz::turn_over<") == (2 if turned == "both" else 1)
    edges = size != (64, 64)  # tiles that are not whole
    assert ("litz::turn_in<" in text) == (edges and turned != "out")
    assert ("litz::turn_out<" in text) == (edges and turned != "in")
    buffers = {"a": data("f32", p * r), "m": data("f32", p * r), "c": torch.zeros(p * r)}
    check(plan, buffers, rtol=1e-5, atol=1e-5)


def test_unrolled_loops_go_on_in_whole_vectors() -> None:
    """Only what fills no vector is a part of one."""

    def loops(size: int) -> list[bool]:
        plan, _ = reduction("sum", F32, 3, size, "r0")
        return [text in source(plan) for text in ("r0 + 63 <", "r0 + 15 <", "load_partial<")]

    assert loops(181) == [True, True, True]
    assert loops(176) == [True, True, False]
    assert loops(130) == [True, False, True]


def test_rows_that_are_added_across_the_lane() -> None:
    """They are turned as well, and added row by row."""
    rows, width = 70, 50
    x0, x1 = var("x0", width), var("x1", rows)
    t = symbol("t0", 0, 39)
    into = B.load(I64, "i", x1)
    stores = [Store("c", t * width + x0, B.load(F32, "a", x0 * rows + x1), "add", ((t, into),))]
    plan = make_plan([x0, x1], [], stores, x0)
    assert "litz::turn_in<" in source(plan)
    buffers = {"a": data("f32", rows * width), "c": data("f32", 40 * width)}
    check(plan, {**buffers, "i": torch.arange(rows) * 7 % 40}, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 8, 24])
@pytest.mark.parametrize("groups", [5, 32])
def test_group_norm_with_channels_last(groups: int, channels: int) -> None:
    n, rows, c = 2, 35, groups * channels
    x0, x1, r0, r1 = var("x0", n), var("x1", groups), var("r0", rows), var("r1", channels)
    at = x0 * (rows * c) + r0 * c + x1 * channels + r1
    a = B.load(F32, "a", at)
    y = norm(a, (r0, r1), rows * channels)
    y = B.op("mul", y, B.load(F32, "w", x1 * channels + r1))
    stores = [
        Store("c", at, B.op("mul", y, B.op("sigmoid", y))),
        Store("m", x0 * groups + x1, B.reduce("welford_mean", (r0, r1), a)),
        Store("h", x0 * groups + x1, B.reduce("max", (r0, r1), B.op("mul", a, a))),
    ]
    buffers = {"a": data("f32", n * rows * c) + 3.0, "w": data("f32", c)}
    out = {"c": torch.zeros(n * rows * c), "m": torch.zeros(n * groups)}
    for lane in (r1, x1):  # the groups, where they are more than a group's channels
        plan = make_plan([x0, x1], [r0, r1], stores, lane)
        assert "x1g" in source(plan)
        check(plan, {**buffers, **out, "h": torch.zeros(n * groups)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(6, 70), (64, 1000), (2, 40_000)])
@pytest.mark.parametrize("lane", ["x0", "r0", ""])
def test_output_in_the_memory_of_an_input_that_dies(lane: str, size: tuple[int, int]) -> None:
    """The host may do so where every point reads and writes one index, and the store is last."""
    p, r = size
    x0, r0 = var("x0", p), var("r0", r)
    plans = []
    for at in (x0 * r + r0, r0 * p + x0):
        a = B.load(F32, "a", at)
        scaled = B.op("mul", a, B.op("exp", B.load(F32, "b", at)))
        for stores in (
            [Store("c", at, softmax(x0, r0, at))],
            [Store("c", at, norm(a, (r0,), r))],
            [Store("c", at, scaled), Store("d", x0, B.reduce("sum", (r0,), scaled))],
        ):
            dims = {"x0": x0, "r0": r0, "": None}
            plans.append(make_plan([x0], [r0], stores, dims[lane]))
    build_together(plans)
    for plan in plans:
        shared = data("f32", p * r)
        apart = {"a": shared.clone(), "b": data("f32", p * r) * 0.1}
        apart |= {"c": torch.zeros(p * r), "d": torch.zeros(p)}
        call(plan, apart)
        call(plan, {**apart, "a": shared, "c": shared})
        assert torch.equal(shared, apart["c"])


def test_rows_that_get_no_memory_are_a_fault() -> None:
    """Kept values of rows whose size only the call knows."""
    s0 = symbol("s0", 1, hint=1000)
    x, r = var("x0", 2), var("r0", s0)
    value = B.load(F32, "a", x * s0 + r)
    power = B.op("exp", B.op("sub", value, B.reduce("max", (r,), value)))
    stores = (Store("c", x * s0 + r, B.op("div", power, B.reduce("sum", (r,), power))),)
    plan = make_plan((x,), (r,), stores, r, ints=(s0,))
    assert "Scratch" in source(plan)
    rows = torch.randn(2, 50)
    found = torch.empty(2, 50)
    assert call(plan, {"a": rows, "c": found}, {"s0": 50}) == 0
    torch.testing.assert_close(found, rows.softmax(1))
    assert call(plan, {"a": rows, "c": found}, {"s0": 1 << 58}) == 4


@pytest.mark.parametrize(
    ("kind", "dtype", "lanes"),
    [("sum", F32, 8), ("max", F32, 16), ("prod", F32, 16), ("sum", I64, 8)],
)
def test_streams_at_once(kind: str, dtype: DType, lanes: int) -> None:
    """Rows from memory, whatever is left of them; parts of a row that threads divide."""
    sizes = (263, 1031), (1 << 9, 1 << 11), (3, 350_011), (2049, 130)
    cases = [reduction(kind, dtype, *size, "r0") for size in sizes]
    build_together([plan for plan, _ in cases], lanes)
    for (plan, buffers), (_, n) in zip(cases, sizes, strict=True):
        (made,) = choose(plan, lanes).kernels
        assert (made.rows > 1) == (n * dtype.bytes >= 4096)
        a = buffers["a"]
        if kind == "prod":
            a.fill_(1.0)[::4099] = 2.0
        elif dtype is F32:
            a[5], a[a.numel() // 2], a[-1] = math.inf, NAN, -math.inf
        check(plan, buffers, lanes=lanes, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("lane", ["x0", "r0", ""])
@pytest.mark.parametrize("dtype", [F32, BY_NAME["f64"]])
def test_squares_round_with_their_sum(lane: str, dtype: DType) -> None:
    """Squares go into their sum without a rounding of their own, whatever they are."""
    p, n = 5, 67
    x0, r0 = var("x0", p), var("r0", n)
    a = B.load(dtype, "a", x0 * n + r0)
    total = B.reduce("sum", (r0,), B.op("mul", a, a))
    plan = make_plan([x0], [r0], [Store("c", x0, total)], {"x0": x0, "r0": r0, "": None}[lane])
    assert "litz::mad(" in source(plan)
    rows = data(dtype.name, p * n)
    rows[3], rows[n + 5], rows[2 * n + 7] = math.inf, NAN, -math.inf
    rows[3 * n : 4 * n] = 0.0
    rows[4 * n] = 1e15 if dtype is F32 else 1e150
    check(plan, {"a": rows, "c": torch.zeros(p, dtype=rows.dtype)}, rtol=1e-6, atol=1e-6)
