"""Pointwise kernels against the reference: accesses, sizes, dtypes, masks, stores."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from cpp_plans import TORCH, build_together, call, check, make_plan, source

from litz.index import ceildiv, const, lt, min_, symbol, var
from litz.ir import body as B
from litz.ir.body import Store
from litz.ir.dtype import ALL, BF16, BOOL, F32, F64, I32, I64, U8
from litz.kernel.lanes.recipe import STREAM, STREAM_THREADS
from litz.kernel.plan import KernelPlan
from tests.quick import some


def data(dtype: str, n: int) -> torch.Tensor:
    torch.manual_seed(n)
    t = TORCH[dtype]
    if t is torch.bool:
        return torch.rand(n) > 0.5
    if t.is_floating_point:
        return torch.randn(n).to(t)
    return torch.randint(0 if t is torch.uint8 else -50, 50, (n,)).to(t)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("n", [0, 1, 7, 16, 31, 32, 1000])
def test_sizes(n: int, lanes: int) -> None:
    x0 = var("x0", n)
    a = B.load(F32, "a", x0)
    plan = make_plan([x0], [], [Store("c", x0, B.op("exp", B.op("sub", a, a)))], x0)
    check(plan, {"a": data("f32", n), "c": torch.zeros(n)}, lanes=lanes)


@pytest.mark.parametrize("n", [0, 1, 16, 100, 50_001])
def test_dynamic_size(n: int) -> None:
    s0 = symbol("s0")
    x0, x1 = var("x0", 3), var("x1", s0)
    a = B.load(F32, "a", x0 * s0 + x1)
    plan = make_plan([x0, x1], [], [Store("c", x0 * s0 + x1, B.op("mul", a, a))], x1, ints=[s0])
    check(plan, {"a": data("f32", 3 * n), "c": torch.zeros(3 * n)}, {"s0": n})


@pytest.mark.parametrize("dtype", [d.name for d in ALL if d.name in TORCH])
def test_every_dtype_moves(dtype: str) -> None:
    d = next(d for d in ALL if d.name == dtype)
    x0, x1 = var("x0", 5), var("x1", 37)
    a, b = B.load(d, "a", x0 * 37 + x1), B.load(d, "b", x1 * 5 + x0)
    pick = B.op("lt", B.index(x1), B.const(I64, 20))
    plan = make_plan([x0, x1], [], [Store("c", x0 * 37 + x1, B.op("where", pick, a, b))], x1)
    n = 5 * 37
    check(plan, {"a": data(dtype, n), "b": data(dtype, n), "c": torch.zeros(n, dtype=TORCH[dtype])})


def test_bf16_chain_rounds_like_eager() -> None:
    n = 1003
    x0 = var("x0", n)
    a = B.cast(B.load(BF16, "a", x0), F32)
    b = B.op("round_to", B.op("mul", a, B.const(F32, 1.7)), to=BF16)
    plan = make_plan([x0], [], [Store("c", x0, B.cast(B.op("add", b, a), BF16))], x0)
    buffers = {"a": data("bf16", n), "c": torch.zeros(n, dtype=torch.bfloat16)}
    check(plan, buffers)


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_any_dim_may_be_the_lane(lane: int) -> None:
    dims = [var("x0", 5), var("x1", 18), var("x2", 21)]
    x0, x1, x2 = dims
    a = B.load(F32, "a", x0 * (18 * 21) + x1 * 21 + x2)
    b = B.load(F32, "b", x2 * 90 + x1 * 5 + (4 - x0))
    row = B.op("add", B.load(F32, "d", x1), B.const(F32, 2.0))
    value = B.op("mul", B.op("add", a, b), row)
    stores = [Store("c", x0 * 378 + x1 * 21 + x2, value), Store("e", x2 * 90 + x1 * 5 + x0, a)]
    plan = make_plan(dims, [], stores, dims[lane])
    n = 5 * 18 * 21
    names = {k: data("f32", n) for k in "abd"}
    check(plan, {**names, "c": torch.zeros(n), "e": torch.zeros(n)})


def test_lane_in_division_and_modulo() -> None:
    x0 = var("x0", 7 * 96)
    a = B.load(F32, "a", x0 % 96 + (x0 // 96) * 100)
    b = B.load(F32, "b", (64 + x0) % 96)
    c = B.load(F32, "d", x0 // 32)
    d = B.load(F32, "e", x0 // 7 + x0 % 5)
    value = B.op("add", B.op("add", a, b), B.op("sub", c, d))
    plan = make_plan([x0], [], [Store("c", x0, value)], x0)
    check(plan, {**{k: data("f32", 800) for k in "abde"}, "c": torch.zeros(672)})


def test_gather_and_nested_indirection() -> None:
    x0, x1 = var("x0", 33), var("x1", 40)
    t0, t1 = symbol("t0", 0, 19), symbol("t1", 0, 39)
    row = B.load(I64, "rows", x0)
    col = B.cast(B.load(I32, "cols", x1), I64)
    a = B.load(F32, "a", t0 * 40 + x1, ((t0, row),))
    b = B.load(F32, "a", t0 * 40 + t1, ((t0, row), (t1, col)))
    plan = make_plan([x0, x1], [], [Store("c", x0 * 40 + x1, B.op("sub", a, b))], x1)
    buffers = {
        "rows": torch.randint(0, 20, (33,)),
        "cols": torch.randint(0, 40, (40,)).to(torch.int32),
        "a": data("f32", 800),
        "c": torch.zeros(33 * 40),
    }
    check(plan, buffers)


def pad(lane_dependent: bool, inner: int = 40) -> tuple[object, ...]:
    """Zero padding: the load lies out of range where the mask does not hold."""
    x0, x1 = var("x0", 12), var("x1", inner)
    if lane_dependent:
        cond = B.op("and_", cmp("ge", x1, 3), cmp("lt", x1, inner - 2))
        a = B.load(F32, "a", x0 * inner + x1 - 3)
    else:
        cond = B.op("and_", cmp("ge", x0, 3), cmp("lt", x0, 9))
        a = B.load(F32, "a", (x0 - 3) * inner + x1)
    value = B.masked(cond, B.op("exp", a), B.const(F32, -1.0))
    return x0, x1, value


def cmp(name: str, x: object, n: int) -> B.Node:
    return B.op(name, B.index(x), B.const(I64, n))  # type: ignore[arg-type]


@pytest.mark.parametrize("lane_dependent", [False, True])
@pytest.mark.parametrize("inner", [32, 40])
def test_masked_loads(lane_dependent: bool, inner: int) -> None:
    x0, x1, value = pad(lane_dependent, inner)
    plan = make_plan([x0, x1], [], [Store("c", x0 * inner + x1, value)], x1)
    n = 12 * inner
    check(plan, {"a": data("f32", n), "c": torch.zeros(n)})


def test_masked_load_never_touches_other_memory() -> None:
    """The pointer is only valid where the mask holds: anything else would crash."""
    x0 = var("x0", 64)
    a = B.load(F32, "a", x0 * (1 << 40))
    plan = make_plan(
        [x0], [], [Store("c", x0, B.masked(cmp("lt", x0, 1), a, B.const(F32, 5.0)))], x0
    )
    check(plan, {"a": torch.tensor([3.0]), "c": torch.zeros(64)})


def test_masks_nest() -> None:
    x0, x1 = var("x0", 9), var("x1", 50)
    inner = B.masked(cmp("ge", x1, 5), B.load(F32, "a", x0 * 50 + x1 - 5), B.const(F32, 1.0))
    mid = B.masked(cmp("lt", x0, 5), B.op("add", inner, B.load(F32, "b", x1)), B.const(F32, 2.0))
    top = B.masked(cmp("lt", x1, 45), B.op("mul", mid, B.load(F32, "b", x1 + 5)), mid)
    plan = make_plan([x0, x1], [], [Store("c", x0 * 50 + x1, top)], x1)
    check(plan, {"a": data("f32", 450), "b": data("f32", 50), "c": torch.zeros(450)})


def test_masked_division_by_zero_does_not_trap() -> None:
    x0 = var("x0", 37)
    a = B.load(I64, "a", x0)
    b = B.load(I64, "b", x0)
    value = B.masked(B.op("ne", b, B.const(I64, 0)), B.op("floordiv", a, b), B.const(I64, 7))
    plan = make_plan([x0], [], [Store("c", x0, value)], x0)
    x, y = torch.arange(37), torch.arange(1, 38)
    check(plan, {"a": x, "b": y, "c": torch.zeros(37, dtype=torch.int64)}, lanes=8)


def test_inout() -> None:
    x0, x1 = var("x0", 11), var("x1", 45)
    at = x0 * 45 + x1
    a = B.load(F32, "a", at)
    stores = [Store("a", at, B.op("add", a, B.const(F32, 1.0))), Store("c", at, B.op("mul", a, a))]
    check(make_plan([x0, x1], [], stores, x1), {"a": data("f32", 495), "c": torch.zeros(495)})


@pytest.mark.parametrize("lane", ["x0", "x1", None])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "f64"])
def test_scatter(dtype: str, lane: str | None) -> None:
    d = next(d for d in ALL if d.name == dtype)
    x0, x1 = var("x0", 23), var("x1", 36)
    t0 = symbol("t0", 0, 9)
    plans = {}
    for mode in ("set", "add", "max", "min", "mul"):
        store = Store(
            "c",
            t0 * 36 + x1,
            B.load(d, "a", x0 * 36 + x1),
            mode,  # type: ignore[arg-type]
            ((t0, B.load(I64, "rows", x0)),),
        )
        plans[mode] = make_plan([x0, x1], [], [store], {"x0": x0, "x1": x1, None: None}[lane])
    build_together([*plans.values()])
    for mode, plan in plans.items():
        rows = torch.randint(0, 10, (23,)) if mode != "set" else torch.arange(23)
        buffers = {"rows": rows, "a": data(dtype, 23 * 36), "c": data(dtype, 23 * 36)}
        if dtype == "bf16":  # values whose sums and products are exact
            buffers["a"] = torch.randint(1, 3, (23 * 36,)).to(torch.bfloat16)
            buffers["c"] = torch.ones(23 * 36, dtype=torch.bfloat16)
        check(plan, buffers, rtol=1e-5)


def test_masked_store() -> None:
    x0 = var("x0", 77)
    keep = B.load(BOOL, "m", x0)
    plan = make_plan([x0], [], [Store("c", x0, B.load(F32, "a", x0), mask=keep)], x0)
    check(plan, {"m": data("bool", 77), "a": data("f32", 77), "c": torch.full((77,), 9.0)})


def test_no_dims() -> None:
    plan = make_plan([], [], [Store("c", const(0), B.op("exp", B.load(F32, "a", const(0))))], None)
    check(plan, {"a": torch.ones(1), "c": torch.zeros(1)})


def test_sizes_as_values() -> None:
    s0 = symbol("s0", 1)
    x0 = var("x0", s0)
    last = B.op("eq", B.index(x0), B.index(s0 - 1))
    value = B.op("where", last, B.cast(B.index(x0 * x0), F64), B.cast(B.index(min_(x0, 5)), F64))
    plan = make_plan([x0], [], [Store("c", x0, value)], x0, ints=[s0])
    check(plan, {"c": torch.zeros(45, dtype=torch.float64)}, {"s0": 45})


def test_truth_of_an_index() -> None:
    x0 = var("x0", 40)
    value = B.cast(B.index(lt(x0 % 7, 3)), U8)
    plan = make_plan([x0], [], [Store("c", x0, value)], x0)
    check(plan, {"c": torch.zeros(40, dtype=torch.uint8)})


def test_symbolic_strides() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    x0, x1 = var("x0", s0), var("x1", s1)
    a, b = B.load(F32, "a", x0 * s1 + x1), B.load(F32, "b", x1 * s0 + x0)
    value = B.op("add", a, b)
    plan = make_plan([x0, x1], [], [Store("c", x0 * s1 + x1, value)], x1, ints=[s0, s1])
    n = 19 * 35
    buffers = {"a": data("f32", n), "b": data("f32", n), "c": torch.zeros(n)}
    check(plan, buffers, {"s0": 19, "s1": 35})


def test_special_values_survive() -> None:
    x0 = var("x0", 40)
    a = B.load(F32, "a", x0)
    value = B.op("maximum", B.op("mul", a, B.const(F32, -0.0)), B.const(F32, float("-inf")))
    plan = make_plan([x0], [], [Store("c", x0, value)], x0)
    a_ = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, -1.0, 1e-42] * 5)
    buffers = {"a": a_, "c": torch.zeros(40)}
    check(plan, buffers)


def test_ceildiv_extent() -> None:
    s0 = symbol("s0", 1)
    x0 = var("x0", ceildiv(s0, 3))
    plan = make_plan([x0], [], [Store("c", x0, B.load(F32, "a", x0 * 3))], x0, ints=[s0])
    check(plan, {"a": data("f32", 110), "c": torch.zeros(37)}, {"s0": 110})


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "bool", "i8"])
def test_tiles(dtype: str) -> None:
    """One operand and one result are transposed; another depends on rows or lanes alone."""
    d = next(d for d in ALL if d.name == dtype)
    plans = {}
    for p, q in ((64, 64), (32, 48), (37, 100), (5, 130), (150, 3)):
        x0, x1, x2 = var("x0", 3), var("x1", p), var("x2", q)
        at, turned = x0 * p * q + x1 * q + x2, x0 * p * q + x2 * p + x1
        a, b = B.load(d, "a", at), B.load(d, "b", turned)
        pick = B.op(
            "and_", cmp("lt", x2, q // 2), B.op("ne", B.load(I64, "r", x1), B.load(I64, "l", x2))
        )
        value = B.op("where", pick, a, b)
        stores = [Store("c", at, value), Store("d", turned, B.op("where", pick, b, a))]
        plans[p, q] = make_plan([x0, x1, x2], [], stores, x2, tile=x1)
    build_together([*plans.values()])
    for (p, q), plan in plans.items():
        n = 3 * p * q
        buffers = {k: data(dtype, n) for k in "ab"}
        buffers |= {"r": torch.arange(p), "l": torch.arange(q)}
        check(plan, {**buffers, **{k: torch.zeros(n, dtype=TORCH[dtype]) for k in "cd"}})


def test_tiles_of_unknown_size_in_place() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    x0, x1 = var("x0", s0), var("x1", s1)
    at = x0 * s1 + x1
    value = B.op("add", B.load(F32, "a", at), B.load(F32, "b", x1 * s0 + x0))
    plan = make_plan([x0, x1], [], [Store("a", at, value)], x1, tile=x0, ints=[s0, s1])
    check(plan, {k: data("f32", 70 * 33) for k in "ab"}, {"s0": 70, "s1": 33})


@pytest.mark.parametrize("half", [32, 48, 40])
def test_masks_that_whole_vectors_share_become_branches(half: int) -> None:
    """Rotary embedding: halves of a row change places.  Others cut the loop where they turn."""
    n = 2 * half
    x0, x1 = var("x0", 7), var("x1", n)
    low = cmp("lt", x1, half)
    high = B.op("le", B.const(I64, half), B.index(x1))
    a = B.masked(low, B.op("neg", B.load(F32, "a", x0 * n + x1 + half)), B.const(F32, 0.0))
    b = B.masked(high, B.load(F32, "a", x0 * n + x1 - half), B.const(F32, 0.0))
    plan = make_plan([x0, x1], [], [Store("c", x0 * n + x1, B.op("add", a, b))], x1)
    text = source(plan)
    assert "load_masked" not in text and ("load_partial" in text) == (half % 16 != 0)
    check(plan, {"a": data("f32", 7 * n), "c": torch.zeros(7 * n)})


@pytest.mark.parametrize("shift", [0, 16, 17])
def test_masks_of_shifted_and_wrapped_lanes(shift: int) -> None:
    x0, x1 = var("x0", 3), var("x1", 100)
    k = (x1 + shift) % 64
    inside = B.op("and_", cmp("ge", k, 16), cmp("gt", x1 + shift, 31))
    value = B.masked(inside, B.load(F32, "a", x0 * 100 + x1), B.const(F32, 7.0))
    same = B.op("where", B.op("le", B.index(k), B.const(I64, 47)), value, B.const(F32, 2.0))
    plan = make_plan([x0, x1], [], [Store("c", x0 * 100 + x1, same)], x1)
    check(plan, {"a": data("f32", 300), "c": torch.zeros(300)})


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool", "f64"])
@pytest.mark.parametrize("n", [64, 77])
def test_strided_and_gathered_loads(n: int, dtype: str) -> None:
    d = next(d for d in ALL if d.name == dtype)
    s0, t0 = symbol("s0", 1), symbol("t0", 0, 30)
    x0, x1 = var("x0", 3), var("x1", n)
    two = B.load(d, "a", x0 * 200 + x1 * 2 + 1)
    back = B.load(d, "a", x0 * 200 + (n - 1) - x1)
    far = B.load(d, "a", x1 * s0 + x0)
    there = B.load(d, "a", t0 * 3 + x1 * s0 + x0, ((t0, B.load(I64, "i", x1)),))
    part = B.masked(cmp("lt", x1, 20), B.load(d, "a", x1 * 7), B.const(d, 1))
    at = x0 * n + x1
    values = [two, back, far, there, part]
    stores = [Store(f"c{i}", at, v) for i, v in enumerate(values)]
    plan = make_plan([x0, x1], [], stores, x1, ints=[s0])
    out = {s.buffer: torch.zeros(3 * n, dtype=TORCH[dtype]) for s in stores}
    buffers = {"a": data(dtype, 800), "i": torch.randint(0, 31, (n,)), **out}
    check(plan, buffers, {"s0": 3})


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
def test_loads_of_less_than_a_vector(dtype: str) -> None:
    """By themselves: a kernel includes what such loads need; no lane behind the last is read."""
    d = next(d for d in ALL if d.name == dtype)
    t0, x0 = symbol("t0", 0, 4), var("x0", 5)
    for value in (B.load(d, "a", x0 * 7), B.load(d, "a", t0 * 7, ((t0, B.load(I64, "i", x0)),))):
        plan = make_plan([x0], [], [Store("c", x0, value)], x0)
        out = torch.zeros(5, dtype=TORCH[dtype])
        check(plan, {"a": data(dtype, 29), "i": torch.tensor([4, 0, 3, 3, 1]), "c": out})


def test_large_results_are_written_past_the_caches() -> None:
    """By so many threads that their caches do not hold them together."""
    n = (1 << 21) + 21
    x0 = var("x0", n)
    a = B.load(F32, "a", x0)
    plan = make_plan([x0], [], [Store("c", x0, B.op("mul", a, a))], x0)
    assert "store_stream" in source(plan)
    twice = make_plan([x0], [], [*plan.stores, Store("d", x0, a)], x0)
    threads = f"litz::least(omp_get_num_threads(), {STREAM_THREADS})"
    assert f"kept_ = {8 * n} < {threads} * int64_t({STREAM});" in source(twice)
    assert "store_stream" not in source(
        make_plan([x0], [], [Store("a", x0, B.op("mul", a, a))], x0)
    )
    a_ = data("f32", n)
    c = torch.zeros(n + 1)[1:]  # not aligned to a vector
    check(plan, {"a": a_, "c": c}, threads=(1, 2))
    check(plan, {"a": a_, "c": torch.zeros(n)}, threads=(1, 2))


def test_sizes_that_a_call_knows_decide_there_what_goes_past_the_caches() -> None:
    for hint, streams in ((STREAM // 4, True), (STREAM // 4 - 1, False)):
        s0 = symbol("s0", 1, hint=hint)
        x0 = var("x0", s0)
        a = B.load(F32, "a", x0)
        plan = make_plan([x0], [], [Store("c", x0, B.op("mul", a, a))], x0, ints=[s0])
        assert ("kept_ = 4*s0 < " in source(plan)) is streams
        for n in (5, STREAM // 4 + 21):
            check(plan, {"a": data("f32", n), "c": torch.zeros(n)}, {"s0": n})


def test_rows_that_begin_within_vectors_are_written_through_the_caches() -> None:
    for columns, streams in ((1 << 12, True), ((1 << 12) + 1, False)):
        x0, x1 = var("x0", 1 << 11), var("x1", columns)
        back = B.load(F32, "a", x0 * columns + (columns - 1) - x1)
        plan = make_plan([x0, x1], [], [Store("c", x0 * columns + x1, back)], x1)
        assert ("store_stream" in source(plan)) is streams


def test_one_plus_an_error_function_is_one_op() -> None:
    """Whichever comes first; not where another value needs the error function."""
    x0 = var("x0", 1001)
    a = B.load(F32, "a", x0)
    erf, one = B.op("erf", B.op("mul", a, a)), B.const(F32, 1)
    for total in (B.op("add", one, erf), B.op("add", erf, one)):
        plan = make_plan([x0], [], [Store("c", x0, B.op("mul", a, total))], x0)
        assert "litz::erf_plus_one(" in source(plan) and "litz::erf(" not in source(plan)
        check(plan, {"a": data("f32", 1001), "c": torch.zeros(1001)}, rtol=1e-6, atol=1e-6)
    both = make_plan([x0], [], [Store("c", x0, B.op("mul", erf, total))], x0)
    two = make_plan([x0], [], [Store("c", x0, B.op("add", B.const(F32, 2), erf))], x0)
    assert "erf_plus_one" not in source(both) + source(two)


def test_picked_rows_that_begin_within_lines_are_streamed_from_the_next() -> None:
    """Rows that data picks, parts of rows that threads share; not lanes that data picks."""
    rows, n = (1 << 11) + 3, (1 << 10) + 3
    x0, x1, t0 = var("x0", rows), var("x1", n), symbol("t0", 0, 9)
    row = (t0, B.load(I64, "rows", x0))
    plan = make_plan(
        [x0, x1], [], [Store("c", x0 * n + x1, B.load(F32, "a", t0 * n + x1, (row,)))], x1
    )
    text = source(plan, 16)
    assert "litz::before<" in text and "litz::store_stream(" in text
    given = {"a": data("f32", 10 * n), "rows": torch.randint(10, (rows,))}
    for start in (0, 1, 5):
        check(plan, {**given, "c": torch.zeros(rows * n + 8)[start:]}, threads=(1, 3), lanes=16)
    lane = (t0, B.load(I64, "rows", x1))
    value = B.load(F32, "a", x0 * n + t0, (lane,))
    plan = make_plan([x0, x1], [], [Store("c", x0 * n + x1, value)], x1)
    assert "litz::before<" not in source(plan, 16)


def test_whole_lines_of_transposed_tiles_are_written_past_the_caches() -> None:
    rows, columns = 1030, 1040

    def turned(columns: int) -> KernelPlan:
        x0, x1 = var("x0", rows), var("x1", columns)
        a = B.load(F32, "a", x1 * rows + x0)
        to = Store("c", x0 * columns + x1, B.op("mul", a, a))
        return make_plan([x0, x1], [], [to], x1, tile=x0)

    # Half a line each, too; rows that begin within lines.
    for width, lanes in ((columns, 16), (columns, 8), (1041, 16), (1043, 8)):
        plan = turned(width)
        text = source(plan, lanes)
        assert "store_stream(" in text and "stream_fence" in text
        assert ("litz::before<" in text) == (width != columns)
        n = rows * width
        given = {"a": data("f32", n), "c": torch.zeros(n + 1)[1:]}
        check(plan, given, threads=(1, 2), lanes=lanes)


@pytest.mark.parametrize("lanes", [16, 8])
@pytest.mark.parametrize("back", [False, True])
def test_blocks_that_are_turned_first_have_room_for_the_narrowest(lanes: int, back: bool) -> None:
    """A line more of what is written is read, and may be several of the operand; one beside it."""
    rows, columns = 1033, 2051
    x0, x1 = var("x0", rows), var("x1", columns)
    value = B.op("add", B.load(F32, "a", x1 * rows + x0), B.load(F32, "b", x1))
    narrow = B.cast(value, BF16)
    lane, tile = (x0, x1) if back else (x1, x0)
    plan = make_plan([x0, x1], [], [Store("c", x0 * columns + x1, narrow)], lane, tile=tile)
    text = source(plan, lanes)
    assert "turn_block<" in text and "litz::before<" in text
    n = rows * columns
    given = {"a": data("f32", n), "b": data("f32", columns)}
    check(plan, {**given, "c": torch.zeros(n, dtype=torch.bfloat16)}, threads=(1, 2), lanes=lanes)


@pytest.mark.parametrize(
    "dtype, lanes", [("f32", 16), ("f32", 8), ("f64", 8), ("i8", 16), ("bool", 16), ("bf16", 8)]
)
@pytest.mark.parametrize("back", [False, True])
def test_transposed_copies_are_written_past_the_caches_in_long_runs(
    dtype: str, lanes: int, back: bool
) -> None:
    """Rows that begin anywhere, blocks that are not whole; read down the rows, or written so."""
    d = next(d for d in ALL if d.name == dtype)
    rows, columns = 2051, (1 << 22) // (2051 * d.bytes) + 2
    x0, x1 = var("x0", rows), var("x1", columns)
    ends = [x1 * rows + x0, x0 * columns + x1]
    source_at, to = reversed(ends) if back else ends
    plan = make_plan([x0, x1], [], [Store("c", to, B.load(d, "a", source_at))], x1, tile=x0)
    text = source(plan, lanes)
    assert "turn_block<" in text and "stream_fence" in text
    n = rows * columns
    zeros = torch.zeros(n + 1, dtype=TORCH[dtype])
    check(plan, {"a": data(dtype, n), "c": zeros[1:]}, threads=(1, 2), lanes=lanes)


def test_turned_rows_begin_within_lines_of_which_they_are_whole_ones_apart() -> None:
    x0, x1, x2 = var("x0", 72), var("x1", 300), var("x2", 88)
    value = B.load(F32, "a", x0 * 300 * 88 + x1 * 88 + x2)
    to = Store("c", x2 * 300 * 72 + x1 * 72 + x0, value)
    plan = make_plan([x2, x1, x0], [], [to], x0, tile=x2)
    assert "litz::before<" in source(plan, 16)
    n = 72 * 300 * 88
    check(plan, {"a": data("f32", n), "c": torch.zeros(n)}, threads=(1, 2), lanes=16)


@pytest.mark.parametrize("rows, columns", [(197, 331), (67, 259), (1024, 129)])
def test_batches_of_transposes_ask_for_the_next_block(rows: int, columns: int) -> None:
    """Rows that begin at another place of a line each; past the last block there is nothing."""
    count = -(-(1 << 20) // (rows * columns)) + 1
    x0, x1, x2 = var("x0", count), var("x1", rows), var("x2", columns)
    each = x0 * rows * columns
    value = B.load(F32, "a", each + x1 * columns + x2)
    plan = make_plan([x0, x1, x2], [], [Store("c", each + x2 * rows + x1, value)], x1, tile=x2)
    text = source(plan, 16)
    assert "x0_next = x0 +" in text and "unit_ + 1 < units_" in text
    n = count * rows * columns
    check(plan, {"a": data("f32", n + 3)[3:], "c": torch.zeros(n)}, threads=(1, 2, 3), lanes=16)


def test_short_runs_of_transposed_copies_go_through_the_caches() -> None:
    x0, x1 = var("x0", 1 << 17), var("x1", 10)
    value = B.load(F32, "a", x1 * (1 << 17) + x0)
    plan = make_plan([x0, x1], [], [Store("c", x0 * 10 + x1, value)], x1, tile=x0)
    assert "_stream" not in source(plan)


@pytest.mark.parametrize("dtype", some(["bf16", "bool", "i8"], 1))
@pytest.mark.parametrize("back", [False, True])
def test_tiles_of_narrow_elements_are_moved(dtype: str, back: bool) -> None:
    """Of as many lanes as fill a register; read down the rows, or written so."""
    rows, columns = 67, 131
    d = next(d for d in ALL if d.name == dtype)
    x0, x1 = var("x0", rows), var("x1", columns)
    ends = [x1 * rows + x0, x0 * columns + x1]
    source_at, to = reversed(ends) if back else ends
    plan = make_plan([x0, x1], [], [Store("c", to, B.load(d, "a", source_at))], x1, tile=x0)
    assert "turn_over<32>" in source(plan)
    zeros = torch.zeros(rows * columns, dtype=TORCH[dtype])
    check(plan, {"a": data(dtype, rows * columns), "c": zeros}, threads=(2,))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i64", "bool", "i8"])
@pytest.mark.parametrize("width", [32, 56])
def test_max_pool(width: int, dtype: str) -> None:
    """Windows of three at every second place: the first and the last reach over the border."""
    d = next(d for d in ALL if d.name == dtype)
    x0, x1 = var("x0", 5), var("x1", width)
    low = -50 if d.is_int else float("-inf") if d.is_float else False
    value = B.const(d, low)
    for k in range(3):
        at = x1 * 2 + k - 1
        inside = B.op("and_", cmp("ge", at, 0), cmp("lt", at, 2 * width - 1))
        a = B.masked(inside, B.load(d, "a", x0 * (2 * width - 1) + at), B.const(d, low))
        pick = B.op("gt", B.cast(a, d.opmath), B.cast(value, d.opmath))
        value = B.op("where", pick, a, value)
    plan = make_plan([x0, x1], [], [Store("c", x0 * width + x1, value)], x1)
    assert ("load_alone" if dtype in ("f32", "f64") else "load_evens") in source(plan)
    n = 5 * (2 * width - 1)
    check(plan, {"a": data(dtype, n), "c": torch.zeros(5 * width, dtype=TORCH[dtype])})


@pytest.mark.parametrize("n", [64, 61])
@pytest.mark.parametrize("taps", [(0,), (0, 2), (0, 1, 2)])
def test_every_second_element_touches_no_other_memory(taps: tuple[int, ...], n: int) -> None:
    """The last vector ends at the end of mapped memory."""
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    a = torch.frombuffer(area, dtype=torch.float32)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(a.data_ptr() + page), page, 0) == 0
    x0 = var("x0", n)
    value, *others = (B.load(F32, "a", x0 * 2 + k) for k in taps)
    for other in others:
        value = B.op("maximum", value, other)
    plan = make_plan([x0], [], [Store("c", x0, value)], x0)
    size = 2 * n - 1 + taps[-1]
    last = a[page // 4 - size : page // 4]
    last.copy_(torch.rand(size))
    check(plan, {"a": last, "c": torch.zeros(n)}, shared=("a",))


@pytest.mark.parametrize("tile", [False, True])
def test_output_in_the_memory_of_an_input(tile: bool) -> None:
    x0, x1 = var("x0", 37), var("x1", 50)
    at, turned = x0 * 50 + x1, x1 * 37 + x0
    a, b = B.load(F32, "a", at), B.load(F32, "b", turned)
    for memory, place in (("a", at), ("b", turned)):
        stores = [Store("c", place, B.op("add", a, b)), Store("d", at, B.op("sub", a, b))]
        plan = make_plan([x0, x1], [], stores, x1, tile=x0 if tile else None)
        n = 37 * 50
        apart = {"a": data("f32", n), "b": data("f32", n) + 1.0}
        apart |= {"c": torch.zeros(n), "d": torch.zeros(n)}
        shared = apart[memory].clone()
        call(plan, apart)
        again = {**apart, "d": torch.zeros(n), memory: shared, "c": shared}
        call(plan, again)
        assert torch.equal(shared, apart["c"]) and torch.equal(again["d"], apart["d"])


def test_functions_of_long_bodies_are_called() -> None:
    """Inlined they would take compilers the square of their number in time."""

    def chain(length: int) -> KernelPlan:
        """Vectors along rows, and scalars once a row."""
        x0, r0 = var("x0", 5), var("r0", 37)
        stores = []
        for name, at, to in (("a", x0 * 37 + r0, "c"), ("b", x0, "d")):
            value = B.load(F32, name, at)
            for _ in range(length):
                value = B.op("pow", B.op("abs", B.op("sin", value)), B.const(F32, 0.9))
            stores.append(Store(to, at, value))
        return make_plan([x0], [r0], stores, r0)

    long, short = source(chain(20)), source(chain(2))
    assert (long.count("litz::sin("), long.count("litz::pow(")) == (1, 1)
    assert "LITZ_CALLED" not in short and short.count("litz::sin(") > 2
    given = {"a": data("f32", 185), "b": data("f32", 5)}
    check(chain(20), {**given, "c": torch.zeros(185), "d": torch.zeros(5)}, rtol=1e-4)
