"""Scans on GPUs: interpreted, and built ahead for one that is not there."""

from __future__ import annotations

from inspect import signature
from random import Random
from threading import Thread
from time import sleep
from types import FunctionType
from typing import Any

import pytest
import torch
from judge import check
from scan_cases import FUNCTIONS, OPS, check_scan, scan_of
from torch.utils import _pytree as pytree

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from traces import data, trace  # noqa: E402

from benchmarks.gpu import lookback as benchmark  # noqa: E402
from litz.kernel import scans  # noqa: E402
from litz.kernel.blocks import lookback, sizes, split  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.targets.triton.source import Launch, TritonKernel  # noqa: E402
from tests.quick import some

TRITON = {"target": "triton"}


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of some hundred elements take loops, of several turns."""
    monkeypatch.setattr(sizes, "PERSISTENT", 32)
    monkeypatch.setattr(sizes, "HELD_COLUMNS", 32)
    monkeypatch.setattr(sizes, "ROW", 64)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of some hundred elements are scanned in parts."""
    monkeypatch.setattr(sizes, "HELD_COLUMNS", 32)
    for name, size in {"LONG": 128, "PART": 64, "TALL": 128, "DEEP": 16, "PROGRAMS": 40}.items():
        monkeypatch.setattr(split, name, size)


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that scan rows of some ten elements look back at several groups."""
    for name, size in {"LONG": 32, "TALL": 32, "BLOCK": 64, "HELD": 256, "GROUP": 2}.items():
        monkeypatch.setattr(lookback, name, size)
    monkeypatch.setattr(sizes, "HELD_COLUMNS", 32)


def kernels(fn: Any, *args: torch.Tensor, **options: Any) -> list[TritonKernel]:
    """Nothing is run: `check` does that."""
    graphs = trace(fn, *(data(*a.shape, dtype=a.dtype) for a in args), training=False, **options)
    return [k.triton for g in graphs for k in g.stages.kernels if k.triton is not None]


def launches(fn: Any, *args: torch.Tensor, **options: Any) -> list[Launch]:
    return [x for k in kernels(fn, *args, **options) for x in k.launches]


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", some(OPS, 3))
def test_whole_rows(name: str, dim: int) -> None:
    check(lambda x: OPS[name](x, dim), draw(3, 20, 9), runs=1, judge=False, **TRITON)


@pytest.mark.parametrize("name", some(OPS, 2))
def test_loops(name: str, loops: None) -> None:
    x = draw(2, 150)
    for fn in (lambda x: OPS[name](x, 1), lambda x: OPS[name](x.t(), 0)):
        (made,) = launches(fn, x)
        assert "for rstart" in made.source and "litz.last(" in made.source
        check(fn, x, runs=1, judge=False, **TRITON)
    check(lambda x: OPS[name](x, 1), x, runs=1, judge=False, dynamic=True, **TRITON)


@pytest.mark.parametrize("shape", some([(150,), (192,), (2, 150), (150, 3)], 2), ids=str)
@pytest.mark.parametrize("name", some(OPS, 2))
def test_parts(name: str, shape: tuple[int, ...], parts: None) -> None:
    dim = 1 if shape[0] < 9 else 0
    fn = lambda x: OPS[name](x * 2, dim)  # noqa: E731
    assert len(launches(fn, draw(*shape), reduction="split")) == 3
    check(fn, draw(*shape), runs=1, judge=False, **TRITON, reduction="split")


LONG_ROWS = [(2, 50), (50, 3), (64,), (2, 40, 2)]


@pytest.mark.parametrize("shape", some(LONG_ROWS, 1), ids=str)
@pytest.mark.parametrize("name", some(OPS, 2))
def test_looking_back(name: str, shape: tuple[int, ...], near: None) -> None:
    dim = 1 if shape[0] < 9 else 0
    fn = lambda x: OPS[name](x * 2, dim)  # noqa: E731
    clear, scan = launches(fn, draw(*shape))
    assert "litz.ticket(" in scan.source and "program_id" not in scan.source
    check(fn, draw(*shape), judge=False, **TRITON)


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_few_rows_leave_what_blocks_come_to_before_they_are_scanned(rows: int) -> None:
    """Programs of one row wait for each other; those of many rows hardly."""
    _, scan = launches(lambda x: x.cumsum(1), torch.empty(rows, 1 << 20))
    assert (scan.source.index("litz.leave(") < scan.source.index("litz.scan(")) is (rows <= 4)
    _, scan = launches(lambda x: x.logcumsumexp(1), torch.empty(rows, 1 << 20))
    assert scan.source.index("litz.leave(") > scan.source.index("litz.scan(")


def test_looking_back_at_open_sizes(near: None) -> None:
    fn = lambda x: x.cumsum(-1) * x  # noqa: E731
    others = [(draw(3, n, dtype=torch.float32),) for n in (33, 90)]
    check(fn, draw(2, 43, dtype=torch.float32), others=others, dynamic=True, runs=1, **TRITON)
    check(lambda x: x.t().cumsum(0), draw(2, 43), others=[(draw(3, 9),)], dynamic=True, **TRITON)


def test_looking_back_at_several_scans(near: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookback, "BLOCK", 512)

    def fn(x: torch.Tensor) -> Any:
        total = (x.exp() / 4).cumsum(1)
        return total, torch.cummax(total - x, 1), torch.cumprod(x, 1) - total.cumsum(1)

    x = draw(2, 60)
    assert len(launches(fn, x)) == 2
    check(fn, x, runs=1, judge=False, **TRITON)


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.int8, torch.bool], 1), ids=str)
def test_looking_back_at_other_types(dtype: torch.dtype, near: None) -> None:
    x = (draw(2, 40) * 2).to(dtype)
    check(lambda x: (x.cumsum(1), *torch.cummin(x, 1)), x, runs=1, judge=False, **TRITON)


def test_programs_that_begin_in_another_order(near: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import interpreter_builder

    x = draw(2, 60, dtype=torch.float32)
    compiled = torch.compile(lambda x: torch.logcumsumexp(x, 1), backend="litz", options=TRITON)
    first = compiled(x)
    set_index, began = type(interpreter_builder).set_grid_idx, []

    def turned(self: Any, i: int, j: int, k: int) -> None:
        began.append(i)
        set_index(self, self.grid_dim[0] - 1 - i, j, k)

    monkeypatch.setattr(type(interpreter_builder), "set_grid_idx", turned)
    assert torch.equal(compiled(x), first) and len(began) > 8


def test_looking_back_behind_a_softmax(parts: None, near: None) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1).cumsum(1) * 2

    x = draw(2, 140)
    assert "litz.ticket(" in launches(fn, x)[-1].source
    check(fn, x, runs=1, judge=False, **TRITON)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool], ids=str)
def test_narrow_types(dtype: torch.dtype, loops: None) -> None:
    x = (draw(2, 90) * 2).to(dtype)
    check(lambda x: (x.cumsum(1), *torch.cummax(x, 1)), x, runs=1, judge=False, **TRITON)


def test_values_that_are_no_numbers(loops: None) -> None:
    x = (draw(6, 90) * 2).round()
    x[1, 9], x[2, 80], x[3, 5], x[3, 70] = (float(v) for v in ("nan", "inf", "inf", "-inf"))
    x[4, 7] = x[4, 9] = x[4, 80] = float("nan")
    x[5] = float("-inf")
    for name, fn in OPS.items():
        if name != "cumprod":
            check(lambda x, f=fn: f(x, 1), x, runs=1, judge=False, **TRITON)


def test_one_kernel_with_what_is_around() -> None:
    def sampled(x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(x, -1)
        return torch.where(p.cumsum(-1) - p > 0.9, 0, p)

    programs = (
        sampled,
        lambda x: x.cumsum(-1) * x.exp(),
        lambda x: (x > 0).cumsum(1),
        lambda x: x.cumsum(1).cumsum(1).amax(1),
        lambda x: (x.cumsum(1) < 1).sum(1),
    )
    for fn in programs:
        assert len(launches(fn, draw(64, 40))) == 1
        check(fn, draw(9, 40), runs=1, judge=False, **TRITON)


FORMS = {
    "rows": ((600, 1000), 1),
    "loops": ((600, 40000), 1),
    "columns": ((3000, 4000), 0),
    "parts": ((1 << 20,), 0),
    "ragged parts": ((70000,), 0),
    "parts of columns": ((50000, 60), 0),
    "three kernels": ((2, 70000), 1),
    "many rows": ((300, 20000), 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["cumsum", *(pytest.param(n, marks=pytest.mark.slow) for n in OPS if n != "cumsum")]
)
def test_built_ahead(name: str, form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    shape, dim = FORMS[form]
    way = "split" if form == "three kernels" else ""
    build(lambda x: OPS[name](x, dim), shape, tmp_path_factory, reduction=way)


@pytest.mark.parametrize("form", some(FORMS, 2))
@pytest.mark.parametrize(
    "name", ["recurrence", "segments", pytest.param("matrices", marks=pytest.mark.slow)]
)
def test_functions_built_ahead(
    name: str, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape, dim = FORMS[form]
    build(scan_of(name, dim), shape, tmp_path_factory)


def build(fn: Any, shape: tuple[int, ...], made_in: pytest.TempPathFactory, **options: Any) -> None:
    (made,) = trace(fn, data(*shape), training=False, **options)
    binaries = made.build(Cache(made_in.mktemp("binaries")))
    assert binaries
    for job, binary in zip(made.jobs, binaries, strict=True):
        registers, local = resources(binary.code)
        assert 32 * binary.num_warps * registers <= 65536, job.name
        # Two numbers a thread at most, of states with places in blocks of columns.
        assert local <= 16, f"{job.name} spills {local} bytes a thread"


def test_parts_are_of_one_length_where_they_can_be() -> None:
    assert scans.part_of(1 << 20, 1 << 11, 1 << 13, 1, 512) == 1 << 11
    assert scans.part_of(70000, 1 << 11, 1 << 13, 1, 512) == 2000


@pytest.mark.parametrize("name", some(FUNCTIONS, 3))
def test_functions_of_two_states(name: str) -> None:
    for dim in (0, 1, 2):
        check_scan(name, draw(3, 10, 5), dim, reverse=dim == 1, **TRITON)
    check_scan(name, draw(3, 20, dtype=torch.bfloat16), 1, **TRITON)


@pytest.mark.parametrize("name", some(FUNCTIONS, 1))
def test_functions_in_loops(name: str, loops: None) -> None:
    x = draw(2, 150, dtype=torch.float32)
    (made,) = launches(scan_of(name, 1), x)
    assert "for rstart" in made.source and "_is = " in made.source
    check_scan(name, x, 1, **TRITON)
    check_scan(name, x.t(), 0, **TRITON)


@pytest.mark.parametrize("shape", some([(140, 2), (192,), (140,)], 1), ids=str)
@pytest.mark.parametrize("name", some(FUNCTIONS, 2))
def test_functions_in_parts(name: str, shape: tuple[int, ...], parts: None) -> None:
    assert len(launches(scan_of(name, 0), draw(*shape), reduction="split")) == 3
    check_scan(name, draw(*shape), 0, **TRITON, reduction="split")


@pytest.mark.parametrize("shape", some([(36, 3), (40,)], 1), ids=str)
@pytest.mark.parametrize("name", some(FUNCTIONS, 1))
def test_functions_looking_back(name: str, shape: tuple[int, ...], near: None) -> None:
    assert "litz.ticket(" in launches(scan_of(name, 0), draw(*shape))[-1].source
    check_scan(name, draw(*shape), 0, **TRITON)


def at_once(function: Any, programs: Any, order: Random) -> Any:
    """A kernel whose programs are threads, which begin in any order."""
    threads: list[Thread] = []
    faults: list[BaseException] = []

    def run(given: Any) -> None:
        try:
            function(**given)
        except BaseException as e:
            faults.append(e)

    def kernel(**given: Any) -> None:
        threads.append(Thread(target=run, args=(given,)))
        if len(threads) == programs.grid_dim[0]:
            order.shuffle(threads)
            for step in (Thread.start, Thread.join):
                for thread in threads:
                    step(thread)
            threads.clear()
            if faults:
                raise faults[0]

    # The interpreter looks at what a kernel's module has imported, and at its arguments.
    scope = {**function.__globals__, "Thread": Thread}
    made: Any = FunctionType(kernel.__code__, scope, function.__name__, None, kernel.__closure__)
    made.__signature__ = signature(function)
    made.__annotations__ = function.__annotations__
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_programs_that_run_at_once(name: str, near: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import GridExecutor, interpreter_builder

    begin, load = GridExecutor.__init__, type(interpreter_builder).create_masked_load
    order, loads = Random(1), []

    def threaded(self: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        if {"words", "RBLOCK"} <= set(signature(function).parameters):
            function = at_once(function, interpreter_builder, order)
        begin(self, function, *args, **kwargs)

    def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        sleep(order.choice((0, 0, 0.002)))
        loads.append(1)
        return load(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__init__", threaded)
    monkeypatch.setattr(type(interpreter_builder), "create_masked_load", late)
    x = draw(2, 100, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: OPS[name](x, 1), backend="litz", options=TRITON)
    counts, found = set(), []
    for _ in range(8):
        loads.clear()
        found.append(pytree.tree_leaves(compiled(x)))
        counts.add(len(loads))
    assert len(counts) > 1, "nobody waited for another one"
    for some_run in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(some_run, found[0], strict=True))
    for a, b in zip(found[0], pytree.tree_leaves(OPS[name](x, 1)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_the_benchmark_of_looking_back_runs() -> None:
    assert benchmark.main(["--quick", "--only", "cumsum,cummax,flipped_recurrence"]) == 0


REVERSED: dict[str, Any] = {
    "both": lambda x: x.flip(1).cumsum(1).flip(1) * 2 + x,
    "columns": lambda x: x.flip(0).cumsum(0).flip(0),
    "places": lambda x: torch.cummax(x.exp().flip(1), 1)[1].flip(1),
    "recurrence": scan_of("recurrence", 1, reverse=True),
}


def test_reversed_scans_are_one_kernel(loops: None) -> None:
    for name, fn in REVERSED.items():
        (made,) = launches(fn, draw(64, 90))
        # Along rows, blocks lie as memory does, and scans run the other way.
        assert ("reverse=True" in made.source) is (name != "columns")
        if name != "recurrence":
            check(fn, draw(3, 90), runs=1, judge=False, **TRITON)
    check_scan("recurrence", draw(2, 70), 1, reverse=True, **TRITON)
    check(REVERSED["both"], draw(2, 96), runs=1, judge=False, dynamic=True, **TRITON)


def test_reversed_scans_look_back(near: None) -> None:
    for name in ("both", "places"):
        assert "litz.ticket(" in launches(REVERSED[name], draw(2, 50))[-1].source
        check(REVERSED[name], draw(2, 50), runs=1, judge=False, **TRITON)
    check_scan("recurrence", draw(2, 50), 1, reverse=True, **TRITON)


@pytest.mark.parametrize("shape", some([(2, 70000), (3, 1000), (1000, 40000)], 1), ids=str)
def test_reversed_scans_build(
    shape: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("both", "recurrence"):
        build(REVERSED[name], shape, tmp_path_factory)
