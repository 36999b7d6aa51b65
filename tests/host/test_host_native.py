"""Programs run by the native executor, and as FX graphs, give what the printed Python gives, to the
bit."""

from __future__ import annotations

import gc
import mmap
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import pytest
import torch
from threads import together
from torch.utils import _pytree as pytree

import litz
from litz import binding
from litz.errors import OutOfRangeError
from litz.host.fx import FxHost
from litz.host.lines import Allocate, BindSize, CallExtern, Free, HostProgram, Return
from litz.host.native import plan_native
from litz.host.python import print_host
from litz.index import (
    and_,
    as_expr,
    eq,
    evaluate,
    floordiv,
    le,
    lt,
    max_,
    min_,
    mod,
    ne,
    not_,
    or_,
    symbol,
)  # fmt: skip
from litz.ir.dtype import F32
from litz.ir.program import Buffer, Extern, TensorRef
from litz.loading.values import bind_host, load_host
from litz.options import make_options
from litz.runtime.executor import Executor
from litz.runtime.memory import Allocator
from litz.runtime.plan import Plan, plan_text
from litz.runtime.strided import copy_as_it_is
from litz.targets import tools
from litz.targets.tools import Tools
from tests.replay.corpus import Entry, corpus

CPU = {k: e for k, e in corpus().items() if e.build and e.device == "cpu" and not e.fake}
SAMPLE = ("cpp/rotary", "cpp/softmax_many_rows", "cpp/cross_entropy+training")

NATIVE = {"host": "native", "check_calls": False}


def compiled(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="litz", options=NATIVE, **how)


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return copy_as_it_is(value)
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal to the last bit, layouts too."""
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if not isinstance(b, torch.Tensor) or a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a.layout is not torch.strided or a.dtype.is_complex:
        return bool(torch.allclose(a.to_dense(), b.to_dense(), 0, 0, equal_nan=True))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.stride() == b.stride() and torch.equal(a.view(bits), b.view(bits))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan | str]]:
    """The plans of programs as they are bound; each call runs all ways, and compares."""
    found: list[Plan | str] = []

    def both(host: Any, values: Any, natives: Any, executor: Any) -> Any:
        native = bind_host(host, values, natives, executor)
        found.append(host.plan)
        if not isinstance(native, BuiltinFunctionType):
            return native
        plan_text(host.plan)  # it is well formed
        others = (
            load_host(host.source, {**values, **natives}),
            FxHost((), ()).program(host.plan, values, natives),
        )

        def call(args: list[Any]) -> Any:
            inputs, state = list(args), torch.get_rng_state()
            given = [[copied(a) for a in args] for _ in others]
            left = native(args)
            assert not args
            for other, own in zip(others, given, strict=True):
                torch.set_rng_state(state)
                copies = list(own)
                right = other(copies)
                assert not copies
                for a, b in zip((*inputs, *left), (*own, *right), strict=True):
                    assert same(a, b), (a, b)
            return left

        return call

    monkeypatch.setattr(binding, "bind_host", both)
    yield found


@pytest.mark.parametrize("name", [n for n in SAMPLE if n in CPU])
def test_a_sample_of_the_corpus(plans: list[Plan | str], name: str) -> None:
    run(CPU[name])
    assert plans and all(isinstance(p, Plan) for p in plans), plans


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU)
def test_the_corpus(plans: list[Plan | str], name: str) -> None:
    run(CPU[name])


def run(entry: Entry) -> None:
    assert entry.build
    torch.manual_seed(0)
    fn, args = entry.build()
    out = compiled(fn, dynamic=entry.dynamic)(*args)
    if entry.training:
        leaves = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        total = sum(x.double().sum() for x in leaves if x.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()


def test_kernels_that_python_calls(plans: list[Plan | str]) -> None:
    """By Triton's interpreter: temporaries, views, operators, sizes."""
    pytest.importorskip("triton.language")

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.mm(x[1:].relu().t(), w) * 2).sum(0) + x.mean()

    call = torch.compile(fn, backend="litz", options={**NATIVE, "target": "triton"}, dynamic=True)
    for n in (5, 6):
        call(torch.randn(n, 4), torch.randn(n - 1, 3))
    assert plans and all(isinstance(p, Plan) and p.kernels for p in plans), plans


# --- single things ---------------------------------------------------------------------------


def executed(host: HostProgram, args: list[Any]) -> Any:
    """The results of a host program without kernels."""
    plan = plan_native(host, print_host(host).values)
    assert isinstance(plan, Plan), plan
    return Tools(make_options({"host": "native"})).executor.program(plan, {}, {})(args)


def test_numbers_are_pythons() -> None:
    a, b = symbol("a", -100, 100), symbol("b", -100, 100)
    exprs = [
        a + 2 * b - 3, a * b, floordiv(a, b), mod(a, b), min_(a, b), max_(a, b, a + b),
        eq(a, b), ne(a, b), lt(a, b), le(a, b), and_(lt(a, b), lt(a, 3)),
        or_(lt(a, b), lt(a, 3)), not_(and_(lt(a, b), lt(b, 3))), -a,
    ]  # fmt: skip
    binds = (BindSize(a, 0, None), BindSize(b, 1, None))
    host = HostProgram(("a", "b"), {}, (*binds, Return(tuple(exprs))))
    for x in (-7, -1, 0, 3, 8):
        for y in (-3, 2, 5):
            wanted = tuple(int(evaluate(e, {a: x, b: y})) for e in exprs)
            assert executed(host, [x, y]) == wanted, (x, y)


def test_values_come_as_they_are() -> None:
    values = (1, 2.5, float("inf"), -0.0, True, None, "x", (1, [2, ()]), torch.float16)
    host = HostProgram((), {}, (Return(values),))
    assert repr(executed(host, [])) == repr(values)


def test_the_wrong_number_of_arguments() -> None:
    host = HostProgram(("a",), {}, (Return(()),))
    with pytest.raises(TypeError, match="another number of arguments"):
        executed(host, [])


def test_text_of_a_plan() -> None:
    x = Buffer("x", F32, (as_expr(4),), (as_expr(1),), "cpu", "input")
    y = Buffer("y", F32, (as_expr(2), as_expr(2)), (as_expr(2), as_expr(1)), "cpu")
    view = TensorRef("x", F32, y.shape, y.strides, as_expr(0))
    mm = torch.ops.aten.mm.out
    call = Extern("e", mm, "aten.mm.out", (view, view), (), ("y",), "cpu", "", out_variant=True)
    out = TensorRef("y", F32, y.shape, y.strides, as_expr(0))
    lines = (Allocate("y"), CallExtern(call), Free("x"), Return((out, 7)))
    plan = plan_native(HostProgram(("x",), {"x": x, "y": y}, lines), {})
    assert isinstance(plan, Plan)
    assert plan_text(plan).splitlines() == [
        "allocate t1 float32 cpu [2, 2] [2, 1]",
        "view t2 t0 [2, 2] [2, 1] 0",
        "view t3 t0 [2, 2] [2, 1] 0",
        "aten 'aten::mm' 'out' mm 4 [t2, t3] ['out'=t1] 1 [] 1",
        "free t2",
        "free t3",
        "return tuple[t1, 7]",
    ]
    with pytest.raises(ValueError, match="ends early"):
        plan_text(replace(plan, words=plan.words[:-16]))
    with pytest.raises(ValueError, match="without a register"):
        plan_text(replace(plan, tensors=2))


def test_operators_that_give_numbers_among_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    x = Buffer("x", F32, (as_expr(4), as_expr(4)), (as_expr(4), as_expr(1)), "cpu", "input")
    y = replace(x, name="y", kind="extern")
    whole = TensorRef("x", F32, x.shape, x.strides, as_expr(0))
    out, n = replace(whole, buffer="y"), symbol("n", 0, 100)
    op = torch.ops.aten._batch_norm_impl_index.default
    args = (whole, None, None, None, None, True, 0.1, 1e-5, False)
    outputs = ("y", None, None, None)
    call = Extern("e", op, str(op), args, (), outputs, "cpu", "", symbols=((4, n),), single=False)
    host = HostProgram(("x",), {"x": x, "y": y}, (CallExtern(call), Return((out, n + 5))))
    plan = plan_native(host, {})
    assert isinstance(plan, Plan) and plan_text(plan).startswith("call")  # no exception a call
    given = torch.randn(4, 4)
    wanted = op(given, *args[1:])
    found = executed(host, [given])
    assert torch.equal(found[0], wanted[0]) and found[1] == wanted[4] + 5
    assert capfd.readouterr().err == ""  # PyTorch prints what its C functions refuse


def test_operators_that_take_tensors_that_are_none() -> None:
    relu = torch.ops.aten.relu.default
    none = Extern("r", relu, str(relu), (None,), (), (None,), "cpu", "")
    host = HostProgram((), {}, (CallExtern(none), Return(())))
    plan = plan_native(host, {})
    assert isinstance(plan, Plan) and plan_text(plan).startswith("aten")
    with pytest.raises(Exception, match=".") as error:
        relu(None)  # type: ignore[arg-type]
    with pytest.raises(type(error.value)) as same:
        executed(host, [])
    assert str(same.value) == str(error.value)


def test_profilers_see_kernels_by_name_with_their_nodes() -> None:
    x, call = torch.randn(4, 4), compiled(lambda x: torch.mm(x.relu() * 2, x).exp())
    call(x)
    with torch.profiler.profile() as profile:
        call(x)
    names = [e.name for e in profile.events() if re.match(r"k\w+\(|aten::mm$", e.name)]
    assert [n.partition("(")[2] or n for n in names] == ["relu, mul)", "aten::mm", "exp)"]


def test_products_by_functions_of_their_own() -> None:
    def products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cube = x.expand(2, 4, 4)
        return torch.addmm(x, x, x), x @ x, torch.baddbmm(cube, cube, cube), cube @ cube

    call = compiled(products)
    turned = torch.view_as_complex(torch.randn(4, 4, 2)).conj().imag
    with torch.no_grad():
        for x in (torch.randn(4, 4), turned, torch._efficientzerotensor(4, 4)):
            for got, wanted in zip(call(x), products(x), strict=True):
                torch.testing.assert_close(got, wanted)
        with torch.profiler.profile() as profile:
            call(x)
    names = {e.name for e in profile.events()}
    assert names >= {"aten::addmm", "aten::mm", "aten::baddbmm", "aten::bmm"}
    integers = compiled(lambda x: x @ x)
    assert torch.equal(integers(torch.full((2, 2), 3)), torch.full((2, 2), 18))


def test_what_has_no_plan_runs_by_python() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    x = torch.randn(4, 4)
    report = litz.explain(fn, x, options={**NATIVE, "verify": True})
    assert "Python runs the host program: its runs are checked" in str(report)
    assert "Python runs" not in str(litz.explain(fn, x, options=NATIVE))


def test_by_default_the_executor_runs_where_it_was_built(
    plans: list[Plan | str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = Tools(make_options(NATIVE)).executor.path
    made: list[object] = []
    program = Executor.program
    monkeypatch.setattr(Executor, "program", lambda *a: made.append(a) or program(*a))
    x = torch.randn(4)
    monkeypatch.setattr(tools, "shipped", lambda: library)
    assert torch.equal(torch.compile(lambda x: x * 2 + 1, backend="litz")(x), x * 2 + 1)
    monkeypatch.setattr(tools, "shipped", lambda: None)
    with caplog.at_level("INFO", "litz"):
        assert torch.equal(torch.compile(lambda x: x * 3, backend="litz")(x), x * 3)
    monkeypatch.setattr("litz.report.gather.shipped", lambda: None)
    assert "was not built when Litz was installed" in str(litz.explain(lambda x: x * 3, x))
    assert len(made) == 1 and len(plans) == 3
    assert "was not built when Litz was installed" in caplog.text


def test_faults_of_kernels_and_operators() -> None:
    def index(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    def cholesky(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x) + 1

    call = compiled(index)
    x = torch.randn(4)
    assert torch.equal(call(x, torch.tensor([3, 0])), x[[3, 0]] * 2)
    with pytest.raises(OutOfRangeError, match="index out of range"):
        call(x, torch.tensor([4, 0]))
    if torch.__version__ < (2, 13):  # there a trace of it raises nothing, by `aot_eager` either
        return
    call = compiled(cholesky)
    call(torch.eye(3))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        call(-torch.eye(3))
    assert torch.equal(call(torch.eye(3)), torch.eye(3) + 1)


def test_threads_run_a_program_at_once() -> None:
    call = compiled(lambda x, w: torch.mm(x, w).relu().softmax(-1) + x.sum())
    w = torch.randn(32, 32)
    inputs = [torch.randn(32, 32) for _ in range(4)]
    with torch.no_grad():
        wanted = [call(x, w) for x in inputs]
        right: list[bool] = []

        def run_one(n: int) -> None:
            results = [call(inputs[n], w) for _ in range(100)]
            right.append(all(torch.equal(r, wanted[n]) for r in results))

        threads = [threading.Thread(target=run_one, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert right == [True] * 4


def test_nothing_is_left_behind() -> None:
    """Of 10,000 calls: each makes three tensors of 16 KiB."""
    call = compiled(lambda x, i: (torch.mm(x, x).sort(-1), x.view(-1)[:9], x[i]))
    x, i = torch.randn(64, 64), torch.arange(64)
    bad = torch.full((64,), 70)

    def calls(count: int) -> tuple[int, int, int]:
        for n in range(count):
            if n % 50 == 0:
                with pytest.raises(IndexError):
                    call(x, bad)
            call(x, i)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE, len(gc.get_objects()), sys.getrefcount(x)

    with torch.no_grad():
        calls(500)
        before = calls(100)
        after = calls(10_000)
    assert after[0] - before[0] < 24 << 20
    assert after[1] - before[1] < 1000 and after[2] == before[2]


def test_large_results_are_recycled_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = Allocator._take
    monkeypatch.setattr(Allocator, "_take", lambda a, n: (taken.append(n), take(a, n))[1])
    fn = compiled(lambda x: x + 1)
    x = torch.zeros(1 << 20)
    kept = [fn(x), fn(x)]
    del taken[:], kept
    for _ in range(60):
        assert fn(x)[0] == 1
    assert len(taken) <= 2  # each 64th, and where another test's blocks went meanwhile
    kept = [fn(x + k) for k in range(4)]
    assert [float(t[5]) for t in kept] == [1, 2, 3, 4]
    seen = fn(x).numpy()
    assert all(fn(x).data_ptr() != seen.ctypes.data for _ in range(3))
    with torch.inference_mode():
        assert fn(x).is_inference()
    assert not fn(x).is_inference()
    assert fn(x).requires_grad_().exp().sum().requires_grad


def test_threads_recycle_no_block_twice() -> None:
    fn = compiled(lambda x: x * 2)
    wrong: list[float] = []

    def work(k: int) -> None:
        x = torch.full((1 << 20,), float(k))
        for _ in range(40):
            y = fn(x)
            z = torch.empty(0).set_(y.untyped_storage(), 0, (4,), (1,))
            wrong.extend(v for v in (float(y[-1]), float(z[0])) if v != 2 * k)

    work(0)
    together(partial(work, k) for k in range(4))
    assert not wrong
