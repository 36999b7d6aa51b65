from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest
import torch

from litz.errors import ToolchainError
from litz.runtime.cache import Cache
from litz.runtime.native import Library, Runtime, Segment, Step, ensure_openmp
from litz.runtime.numbers import float_bits
from litz.targets.cpp.toolchain import SourceUnit, Toolchain, build
from tests.runtime import kernels


@pytest.fixture(scope="module")
def functions(toolchain: Toolchain, shared_cache: Cache):
    names = ("add", "scale", "gather", "threads", "helpers", "sleepy")
    units = [SourceUnit(name, getattr(kernels, name.upper())) for name in names]
    paths = build(units, toolchain, shared_cache)
    return {name: Library(path).function(name) for name, path in zip(names, paths, strict=True)}


def test_a_segment_of_several_kernels(runtime: Runtime, functions) -> None:
    """out = (a + b) * 3 + b, with a pointer used twice and arguments in another order."""
    add, scale = functions["add"], functions["scale"]
    segment = Segment(
        runtime,
        [Step(add, (2, 1, 0), (1,)), Step(scale, (0,), (1, 2)), Step(add, (0, 1, 3), (1,))],
        n_ptrs=4,
        n_ints=3,
    )
    a, b = torch.randn(1000), torch.randn(1000)
    tmp, out = torch.empty(1000), torch.full((1001,), 7.0)
    addresses = [t.data_ptr() for t in (tmp, b, a, out)]
    assert segment(*addresses, -5, 1000, float_bits(3.0)) is None
    torch.testing.assert_close(out[:1000], (a + b) * 3.0 + b, rtol=0, atol=0)
    assert out[1000] == 7.0
    out.zero_()
    segment(*addresses, -5, 10, float_bits(-0.5))
    torch.testing.assert_close(out[:10], (a + b)[:10] * -0.5 + b[:10], rtol=0, atol=0)
    assert not out[10:].any()
    assert repr(segment) == "Segment(add, scale, add)"


def test_arguments_are_checked(runtime: Runtime, functions) -> None:
    with pytest.raises(ValueError, match="add"):
        Segment(runtime, [Step(functions["add"], (0, 1, 3), (0,))], n_ptrs=3, n_ints=1)
    with pytest.raises(ValueError, match="add"):
        Segment(runtime, [Step(functions["add"], (0, 1, 2), (1,))], n_ptrs=3, n_ints=1)
    segment = Segment(runtime, [Step(functions["add"], (0, 1, 2), (0,))], n_ptrs=3, n_ints=1)
    with pytest.raises(Exception, match="expected 5 items"):
        segment(1, 2, 3)


def test_a_fault_raises_and_ends_the_segment(runtime: Runtime, functions) -> None:
    faults = ("index out of range in self", (ValueError, "index is negative"))
    segment = Segment(
        runtime,
        [
            Step(functions["gather"], (0, 1, 2), (0, 1), faults),
            Step(functions["add"], (2, 2, 3), (1,)),
        ],
        n_ptrs=4,
        n_ints=2,
    )
    table, index = torch.randn(10), torch.tensor([3, 0, 9, 9, 1])
    out, twice = torch.empty(5), torch.zeros(5)

    def run() -> None:
        segment(*(t.data_ptr() for t in (table, index, out, twice)), 10, 5)

    run()
    torch.testing.assert_close(twice, table[index] * 2)
    twice.zero_()
    index[2] = 10
    with pytest.raises(IndexError, match="^index out of range in self$"):
        run()
    assert not twice.any()
    index[2] = -1
    with pytest.raises(ValueError, match="^index is negative$"):
        run()
    index[2] = 2
    run()
    torch.testing.assert_close(twice, table[index] * 2)


def test_a_fault_names_the_right_step(runtime: Runtime, functions) -> None:
    gather = functions["gather"]
    steps = [Step(gather, (0, i + 1, 3), (0, 1), (f"gather {i} failed",)) for i in range(2)]
    segment = Segment(runtime, steps, n_ptrs=4, n_ints=2)
    good, bad = torch.tensor([0]), torch.tensor([5])
    table, out = torch.zeros(2), torch.empty(1)
    with pytest.raises(IndexError, match="gather 1 failed"):
        segment(*(t.data_ptr() for t in (table, good, bad, out)), 2, 1)
    with pytest.raises(IndexError, match="gather 0 failed"):
        segment(*(t.data_ptr() for t in (table, bad, good, out)), 2, 1)
    silent = Segment(runtime, [Step(gather, (0, 1, 2), (0, 1))], n_ptrs=3, n_ints=2)
    with pytest.raises(RuntimeError, match="gather reported fault 1"):
        silent(*(t.data_ptr() for t in (table, bad, out)), 2, 1)


def threads_of(segment: Segment) -> tuple[int, int]:
    count, where = ctypes.c_int64(), ctypes.c_void_p()
    segment(ctypes.addressof(count), ctypes.addressof(where))
    return count.value, where.value or 0


def test_set_num_threads_without_a_rebuild(runtime: Runtime, functions) -> None:
    segment = Segment(runtime, [Step(functions["threads"], (0, 1))], n_ptrs=2)
    before = torch.get_num_threads()
    try:
        for n in (1, 3, 2):
            torch.set_num_threads(n)
            assert threads_of(segment)[0] == n
            # A thread in which PyTorch has not run yet follows as well.
            seen: list[int] = []
            thread = threading.Thread(target=lambda into=seen: into.append(threads_of(segment)[0]))
            thread.start()
            thread.join()
            assert seen == [n]
    finally:
        torch.set_num_threads(before)


def test_kernels_share_the_openmp_of_torch(runtime: Runtime, functions) -> None:
    """The function that a kernel calls lies in a library of PyTorch's, and only one is loaded."""
    assert ensure_openmp()
    segment = Segment(runtime, [Step(functions["threads"], (0, 1))], n_ptrs=2)
    _, address = threads_of(segment)
    holding, loaded = "", set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) < 6:
            continue
        begin, end = (int(x, 16) for x in parts[0].split("-"))
        if begin <= address < end:
            holding = parts[5]
        if Path(parts[5]).name.startswith(("libgomp", "libiomp", "libomp")):
            loaded.add(parts[5])
    assert loaded == {holding}


def test_helpers_of_the_compiler_and_libm(runtime: Runtime, functions) -> None:
    segment = Segment(runtime, [Step(functions["helpers"], (0, 1), (0, 1))], n_ptrs=2, n_ints=2)
    whole, x = ctypes.c_int64(), ctypes.c_float(0.5)
    segment(ctypes.addressof(whole), ctypes.addressof(x), -9, 3)
    assert whole.value == -9 * 2**10 // 3
    assert x.value == pytest.approx(0.5204998778)


def test_other_threads_run_meanwhile(runtime: Runtime, functions) -> None:
    segment = Segment(runtime, [Step(functions["sleepy"], (), (0,))], n_ptrs=0, n_ints=1)
    thread = threading.Thread(target=segment, args=(300_000,))
    began = time.perf_counter()
    thread.start()
    segment(300_000)
    thread.join()
    assert 0.29 < time.perf_counter() - began < 0.55


def test_many_threads_call_one_segment(runtime: Runtime, functions) -> None:
    segment = Segment(runtime, [Step(functions["scale"], (0,), (0, 1))], n_ptrs=1, n_ints=2)
    outs = [torch.ones(64) for _ in range(8)]

    def work(i: int) -> None:
        for _ in range(200):
            segment(outs[i].data_ptr(), 64, float_bits(i))
            segment(outs[i].data_ptr(), 64, float_bits(1.0 / i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in outs:
        torch.testing.assert_close(out, torch.ones(64), rtol=1e-3, atol=0)


def test_loading_fails_clearly(
    toolchain: Toolchain, shared_cache: Cache, tmp_path: Path, functions
) -> None:
    with pytest.raises(ToolchainError, match="cannot load"):
        Library(tmp_path / "none.so")
    text = (
        'extern "C" void nowhere(); extern "C" int f(void**, const long*) { nowhere(); return 0; }'
    )
    (path,) = build([SourceUnit("f", text)], toolchain, shared_cache)
    with pytest.raises(ToolchainError, match="nowhere"):
        Library(path)
    with pytest.raises(ToolchainError, match="no kernel 'nosuch'"):
        functions["add"].library.function("nosuch")


def test_an_empty_segment(runtime: Runtime) -> None:
    assert Segment(runtime, [], n_ptrs=0)() is None
