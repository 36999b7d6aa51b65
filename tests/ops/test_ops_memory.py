"""Loads, stores, gathers, transposes, reductions, accumulators and atomics of the C++ headers."""

from __future__ import annotations

import pytest
import torch
from ops_harness import LANES, TORCH, WAYS, build, call, same_bits
from ops_samples import moderate, random_bits

from litz.ir import dtype as dt
from litz.ir.dtype import DType
from litz.ir.ops import CPP_TYPES

GUARD = 77  # bytes around what a kernel may touch
SHAPES = [(arch, lanes) for arch in WAYS for lanes in LANES]
FAST = ("native", 16)
PARAMS = [
    pytest.param(a, n, marks=() if (a, n) == FAST else pytest.mark.slow, id=f"{a}-{n}")
    for a, n in SHAPES
]

MOVES = """
#include <litz/strides.h>
using namespace litz;
extern "C" {{
void copy(long n, const {T}* a, {T}* c) {{
  for (long i = 0; i < n; i += {N}) store(c + i, load<{N}>(a + i));
}}
void partial(long n, const {T}* a, {T}* c) {{
  store_partial(c, load_partial<{N}>(a, n), n);
}}
void filled(long n, const {T}* a, const {T}* fill, {T}* c) {{
  store(c, load_partial<{N}>(a, n, fill[0]));
}}
void masked(long n, const {T}* a, const bool* m, {T}* c) {{
  auto k = load<{N}>(m);
  store_masked(c, load_masked(a, k, load<{N}>(c)), k);
}}
void gathered(long n, const {T}* a, const i64* index, {T}* c) {{
  store(c, gather<{N}>(a, load<{N}>(index)));
}}
void gather_masked(long n, const {T}* a, const i64* index, const bool* m, {T}* c) {{
  store(c, gather<{N}>(a, load<{N}>(index), load<{N}>(m), load<{N}>(c)));
}}
void strided(long n, const {T}* a, {T}* c) {{ store_strided(c, 3, load_strided<{N}>(a, n)); }}
void evens(long n, const {T}* a, {T}* c) {{ store_partial(c, load_evens<{N}>(a, n), n); }}
void strided_partial(long n, const {T}* a, {T}* c) {{
  store_strided_partial(c, 2, load_strided_partial<{N}>(a, 3, n, a[0]), n);
}}
void transposed(long n, const {T}* a, {T}* c) {{ transpose<{N}>(a, {N} + 3, c, {N} + 1); }}
void in_place(long n, {T}* c) {{ transpose<{N}>(*({T}(*)[{N}][{N}])c); }}
void stream(long n, const {T}* a, {T}* c) {{
  for (long i = 0; i < n; i += {N}) store_stream(c + i, load<{N}>(a + i));
  stream_fence();
}}
void selected(long n, const {T}* a, const {T}* b, const bool* m, {T}* c) {{
  store(c, where(load<{N}>(m), load<{N}>(a), load<{N}>(b)));
}}
}}
"""


def guarded(count: int, dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer of ``count`` elements inside a larger one of a known pattern."""
    whole = torch.full((count + 2 * GUARD,), 1, dtype=torch.int8).to(TORCH[dtype])
    return whole, whole[GUARD : GUARD + count]


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(same_bits(a.contiguous(), b.contiguous()).all())


def moves(dtype: DType, arch: str, n: int):  # type: ignore[no-untyped-def]
    library = build(MOVES.format(T=CPP_TYPES[dtype.name], N=n), arch)
    return lambda name, *tensors, count=0: call(library, name, *tensors, n=count)


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_contiguous_moves(dtype: DType, arch: str, n: int) -> None:
    run = moves(dtype, arch, n)
    a = random_bits(dtype, 4 * n)
    for name in ("copy", "stream"):
        for shift in (0, 1):  # aligned for streaming or not
            c = torch.zeros(5 * n, dtype=a.dtype)[shift : shift + 4 * n]
            run(name, a, c, count=4 * n)
            assert equal(c, a)
    fill = moderate(dtype, 4)
    for count in range(n + 1):
        whole, c = guarded(n, dtype)
        run("partial", a, c, count=count)
        assert equal(c[:count], a[:count])
        assert equal(whole[GUARD + count :], torch.ones_like(whole[GUARD + count :]))
        c = torch.zeros(n, dtype=a.dtype)
        run("filled", a, fill, c, count=count)
        assert equal(c, torch.where(torch.arange(n) < count, a[:n], fill[:1]))
    for seed in range(8):
        m = random_bits(dt.BOOL, n, seed)
        c = torch.zeros(n, dtype=a.dtype)
        run("masked", a, m, c)
        assert equal(c, torch.where(m, a[:n], torch.zeros_like(c)))
        run("selected", a, a[n:], m, c)
        assert equal(c, torch.where(m, a[:n], a[n : 2 * n]))


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_indexed_moves(dtype: DType, arch: str, n: int) -> None:
    run = moves(dtype, arch, n)
    a = random_bits(dtype, 200)
    index = torch.randperm(200, generator=torch.Generator().manual_seed(3))[:n].contiguous()
    m = random_bits(dt.BOOL, n, 5)
    c = torch.zeros(n, dtype=a.dtype)
    for start in (0, 1, 2, 3, 150):  # where words do not begin; places before the first
        run("gathered", a[start:], index - start, c)
        assert equal(c, a[index])
    far = torch.where(m, index, torch.full_like(index, 1 << 60))  # never followed
    c = random_bits(dtype, n, 9)
    want = torch.where(m, a[index], c)
    run("gather_masked", a, far, m, c)
    assert equal(c, want)


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_strides_and_transposes(dtype: DType, arch: str, n: int) -> None:
    run = moves(dtype, arch, n)
    a = random_bits(dtype, n * (n + 3))
    whole, c = guarded(3 * n, dtype)
    want = whole.clone()
    want[GUARD : GUARD + 3 * n : 3] = a[: 5 * n : 5]
    run("strided", a, c, count=5)
    assert equal(whole, want)
    whole, c = guarded(2 * n, dtype)
    want = whole.clone()
    want[GUARD : GUARD + 2 * (n - 3) : 2] = a[: 3 * (n - 3) : 3]
    run("strided_partial", a, c, count=n - 3)
    assert equal(whole, want)
    tile = a.view(n, n + 3)[:, :n]
    c = torch.zeros(n, n + 1, dtype=a.dtype)
    run("transposed", a, c)
    assert equal(c[:, :n], tile.t())
    c = tile.contiguous()
    run("in_place", c)
    assert equal(c, tile.t())


NEIGHBOURS = """
#include <litz/strides.h>
using namespace litz;
extern "C" void turned(long n, const {T}* a, {T}* c) {{
  store_neighbours(c, load_seconds<{N}>(a), load_firsts<{N}>(a));
}}
extern "C" void seconds(long n, const {T}* a, {T}* c) {{
  store(c, in_order(load_seconds<{N}>(a)));
}}
extern "C" void alone(long n, const {T}* a, {T}* c) {{ store(c, in_order(load_alone<{N}>(a))); }}
extern "C" void some(long n, const {T}* a, {T}* c) {{
  store_partial(c, in_order(load_firsts<{N}>(a, n)), n);
  store_partial(c + {N}, in_order(load_seconds<{N}>(a, n)), n);
  store_partial(c + 2 * {N}, in_order(load_alone<{N}>(a, n)), n);
  store_partial(c + 3 * {N}, load_evens<{N}>(a, n), n);
}}
"""


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", (dt.F32, dt.F64), ids=str)
def test_neighbours_in_whatever_order(dtype: DType, arch: str, n: int) -> None:
    lib = build(NEIGHBOURS.format(T=CPP_TYPES[dtype.name], N=n), arch)
    a = random_bits(dtype, 2 * n)
    pairs = a.view(n, 2)
    whole, c = guarded(2 * n, dtype)
    want = whole.clone()
    want[GUARD : GUARD + 2 * n] = pairs.flip(1).flatten()
    call(lib, "turned", a, c)
    assert equal(whole, want)
    for name, column in (("seconds", 1), ("alone", 0)):
        whole, c = guarded(n, dtype)
        want = whole.clone()
        want[GUARD : GUARD + n] = pairs[:, column]
        call(lib, name, a, c)
        assert equal(whole, want)
    for count in range(n + 1):
        whole, c = guarded(4 * n, dtype)
        want = whole.clone()
        for k, column in enumerate((0, 1, 0, 0)):
            want[GUARD + k * n :][:count] = pairs[:count, column]
        call(lib, "some", a, c, n=count)
        assert equal(whole, want)


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_every_second_of_a_part_of_a_vector(dtype: DType, arch: str, n: int) -> None:
    run = moves(dtype, arch, n)
    a = random_bits(dtype, 2 * n)
    for count in (0, 1, n // 2, n // 2 + 1, n):
        whole, c = guarded(n, dtype)
        want = whole.clone()
        want[GUARD : GUARD + count] = a[: 2 * count : 2]
        run("evens", a, c, count=count)
        assert equal(whole, want)


REDUCE = """
#include <litz/loops.h>
using namespace litz;
template <class P> static void search(long n, const {T}* a, i64* c) {{
  Vec<{T}, {N}> most(a[0]), least_(a[0]);
  Vec<P, {N}> top(P(0)), bottom(P(0));
  for (i64 i = 0; i < n; i += {N}) {{
    auto v = load_partial<{N}>(a + i, n - i);
    auto m = first_n<{N}>(n - i);
    take<true>(most, top, where(m, v, most), iota<{N}>(P(i)));
    take<false>(least_, bottom, where(m, v, least_), iota<{N}>(P(i)));
  }}
  c[0] = fold_arg<true>(most, top).at; c[1] = fold_arg<false>(least_, bottom).at;
}}
extern "C" {{
void horizontal(long n, const {T}* a, {T}* c) {{
  auto v = load<{N}>(a);
  c[0] = hsum(v); c[1] = hprod(v); c[2] = hmax(v); c[3] = hmin(v);
}}
void lanes_(long n, {T}* c) {{ store(c, iota<{N}>({T}(n), {T}(3))); }}
void arg(long n, const {T}* a, i64* c) {{ search<i64>(n, a, c); search<i32>(n, a, c + 2); }}
}}
"""


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.bits != 16 and d.kind != "bool"], ids=str)
def test_reductions(dtype: DType, arch: str, n: int) -> None:
    library = build(REDUCE.format(T=CPP_TYPES[dtype.name], N=n), arch)
    torch_type = TORCH[dtype]
    wide = torch.float64 if dtype.is_float else torch.int64
    for seed in range(4):
        a = moderate(dtype, n, seed)
        c = torch.zeros(4, dtype=torch_type)
        call(library, "horizontal", a, c)
        w = a.to(wide)
        want = torch.stack([w.sum(), w.prod(), w.max(), w.min()])
        if dtype.is_float:
            torch.testing.assert_close(c.to(wide), want, rtol=1e-5, atol=1e-5)
        else:
            assert equal(c, want.to(torch_type))
        # Ties and, for floats, nan: the first index wins.
        b = (moderate(dtype, 3 * n + 5, seed) / 8).to(torch_type)
        if dtype.is_float and seed:
            b = b.round()
            b[[7, 11]] = float("nan") if seed > 1 else float("inf")
        got = torch.zeros(4, dtype=torch.int64)
        call(library, "arg", b, got, n=len(b))
        key = b.to(wide) if dtype != dt.U64 else b.to(torch.int64)
        values = key.tolist()
        order = [i for i, v in enumerate(values) if v != v] or range(len(values))
        top = order[0] if len(order) < len(values) else values.index(max(values))
        bottom = order[0] if len(order) < len(values) else values.index(min(values))
        assert got.tolist() == [top, bottom, top, bottom]
    c = torch.zeros(n, dtype=torch_type)
    call(library, "lanes_", c, n=5)
    assert equal(c, (5 + 3 * torch.arange(n)).to(torch_type))


HALVES = """
#include <litz/vec.h>
using namespace litz;
extern "C" {{
void nan_wins(long n, const {T}* a, {T}* c) {{
  c[0] = hmax(load<{N}>(a)); c[1] = hmin(load<{N}>(a));
}}
void masks(long n, const bool* a, bool* c) {{
  auto m = load<{N}>(a);
  c[0] = hany(m); c[1] = hall(m); c[2] = count(m) == n; c[3] = m[3]; c[4] = first_n<{N}>(3)[2];
  c[5] = hany(first_n<{N}>(0)) || hany(first_n<{N}>(-5)); c[6] = hall(first_n<{N}>((i64)1 << 40));
  store(c + 8, low(m)); store(c + 8 + {N} / 2, high(m));
}}
}}
"""


@pytest.mark.parametrize(("arch", "n"), PARAMS)
@pytest.mark.parametrize("dtype", (dt.F32, dt.F64), ids=str)
def test_float_folds_and_masks(dtype: DType, arch: str, n: int) -> None:
    library = build(HALVES.format(T=CPP_TYPES[dtype.name], N=n), arch)
    for lane in range(n):
        a = moderate(dtype, n)
        a[lane] = float("nan")
        c = torch.zeros(2, dtype=a.dtype)
        call(library, "nan_wins", a, c)
        assert bool(c.isnan().all())
    for seed in range(6):
        m = random_bits(dt.BOOL, n, seed) if seed > 1 else torch.full((n,), bool(seed))
        c = torch.zeros(8 + n, dtype=torch.bool)
        call(library, "masks", m, c, n=int(m.sum()))
        wanted = [bool(m.any()), bool(m.all()), True, bool(m[3]), True, False, True]
        assert c[:7].tolist() == wanted
        assert torch.equal(c[8:], m)


ATOMIC = """
#include <litz/memory.h>
using namespace litz;
extern "C" {{
void sum(long n, const {T}* one, {T}* c) {{
#pragma omp parallel for num_threads(4)
  for (long i = 0; i < n; i++) atomic_add(c + i % 3, one[0]);
}}
void rest(long n, const {T}* a, {T}* c) {{
  for (long i = 0; i < n; i++) atomic_max(c, a[i]), atomic_min(c + 1, a[i]);
  atomic_mul(c + 2, a[0]);
}}
void lanes_(long n, const {T}* a, const i64* index, {T}* c) {{
  atomic_add(c, load<{N}>(index), load<{N}>(a));
}}
}}
"""


@pytest.mark.parametrize("dtype", (dt.F32, dt.F64, dt.I32, dt.I64, dt.U8, dt.BF16, dt.F16), ids=str)
def test_atomics(dtype: DType) -> None:
    half = dtype.is_float and dtype.bits == 16
    text = (
        ATOMIC
        if not half
        else ATOMIC[: ATOMIC.index("void rest")] + ATOMIC[ATOMIC.index("void lanes_") :]
    )
    library = build(text.format(T=CPP_TYPES[dtype.name], N=16))
    c = torch.zeros(3, dtype=TORCH[dtype])
    count = 240 if dtype.bits <= 16 else 30000
    call(library, "sum", torch.ones(1, dtype=c.dtype), c, n=count)
    assert c.tolist() == [count / 3] * 3
    index = torch.arange(16) % 4
    a = torch.arange(16).to(TORCH[dtype])
    c = torch.zeros(4, dtype=TORCH[dtype])
    call(library, "lanes_", a, index, c)
    assert c.tolist() == [24, 28, 32, 36]
    if not half:
        c = torch.tensor([2, 9, 5], dtype=TORCH[dtype])
        call(library, "rest", torch.tensor([3, 8, 1], dtype=TORCH[dtype]), c, n=3)
        assert c.tolist() == [8, 1, 15]
