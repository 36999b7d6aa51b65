"""Users' Triton kernels in compiled graphs: what is launched on which memory, and the results."""

from __future__ import annotations

import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._higher_order_ops import triton_kernel_wrap as wrap
from torch._subclasses import FakeTensorMode
from user_samples import InterpretedJit, add_kernel, captured, cdiv, increment_kernel

from litz.backend import compile_or_fall_back, compile_with
from litz.compiler import Stages
from litz.ir.parse import parse
from litz.ir.program import Extern, Program
from litz.ir.text import program_text
from litz.options import Options
from litz.runtime.user_kernels import GridOfConfig, copy_as_it_is, tma_descriptor


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with captured():
        yield


class Compiled:
    """A function under Litz, with the programs that it was compiled to, by their kind."""

    def __init__(self, fn: Callable[..., Any], dynamic: bool | None = False) -> None:
        self.programs: list[Program] = []
        self.kinds: list[str] = []
        self.calls = torch.compile(fn, backend=self._backend, dynamic=dynamic, fullgraph=True)

    def _backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_with(gm, inputs, Options(check_ir=True), self._observe)

    def _observe(self, kind: str, graph: torch.fx.GraphModule, stages: Stages) -> None:
        assert stages.program is not None, stages.fallback
        self.programs.append(stages.program)
        self.kinds.append(kind)

    def externs(self, prefix: str = "") -> list[Extern]:
        found = [n for p in self.programs for n in p.nodes if isinstance(n, Extern)]
        return [n for n in found if n.target_name.startswith(prefix)]


def agree(fn: Callable[..., Any], *args: Any, dynamic: bool | None = False) -> Compiled:
    """Results and changed arguments are eager's; the compiled function."""
    torch._dynamo.reset()
    mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    compiled = Compiled(fn, dynamic)
    actual, expected = compiled.calls(*mine), fn(*theirs)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(mine, theirs)
    return compiled


def increment(x: torch.Tensor) -> None:
    increment_kernel[(cdiv(x.numel(), 16),)](x, x.numel(), BLOCK=16)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    n = out.numel()
    add_kernel[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=16)


# --- launches ------------------------------------------------------------------------------------


def test_memory_for_a_result_is_neither_filled_nor_copied() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add(x, y * 2, out)
        return out + 1

    compiled = agree(fn, torch.randn(50), torch.randn(50))
    (launch,) = compiled.externs("triton.")
    assert launch.args[0] == ((4, 1, 1),) and launch.args[-2:] == (50, 16)
    if len(launch.mutates) > 1:
        pytest.skip("the interpreter has run in this process: PyTorch's analysis fails beside it")
    (out,) = launch.mutates
    makers = [n.target_name for n in compiled.externs() if out in n.outputs]
    assert makers == ["empty_strided"]
    (program,) = compiled.programs
    assert len(program.nodes) == 4  # y * 2, memory, the launch, + 1


def test_sizes_may_be_symbolic() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add(x, y, out)
        return out

    compiled = agree(fn, torch.randn(50), torch.randn(50), dynamic=True)
    for n in (1, 16, 77):
        a, b = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(compiled.calls(a, b), a + b)
    (launch, *_) = compiled.externs("triton.")
    assert "//16" in str(launch.args[0])


def test_the_text_of_a_launch_reads_back() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        increment(x)
        return x * 2

    (program,) = agree(fn, torch.randn(20), dynamic=True).programs
    names = {n.target_name: n.target for n in program.nodes if isinstance(n, Extern)}
    text = program_text(program)
    assert "extern triton.increment_kernel(" in text and "mutates (" in text
    assert program_text(parse(text, resolve=lambda name: names.get(name, name))) == text


@InterpretedJit
def _options_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, scale, n, TO: tl.constexpr, HOW: tl.constexpr, TWICE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    x = tl.load(x_ptr + i, mask=m) * scale
    if bias_ptr is not None:
        x += tl.load(bias_ptr + i, mask=m)
    if HOW == "square":
        x = x * x
    if TWICE:
        x = x + x
    tl.store(x_ptr + i, x.to(TO), mask=m)


@pytest.mark.parametrize("bias", [False, True])
def test_arguments_that_are_no_tensors(bias: bool) -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        _options_kernel[(cdiv(x.numel(), 32), 1)](
            x, b if bias else None, 0.5, n=x.numel(), TO=tl.float32, HOW="square", TWICE=bias,
            BLOCK=32, num_warps=2,
        )  # fmt: skip
        return x

    agree(fn, torch.randn(70), torch.randn(70))
    grid, _, kwargs = _options_kernel.launches[-2]  # the last is eager's
    assert tuple(grid) == (3, 1, 1) and kwargs["num_warps"] == 2


def _tuned(configs: list[triton.Config], **kwargs: Any) -> Any:
    def body(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        m = i < n
        tl.store(x_ptr + i, tl.load(x_ptr + i, mask=m) * 2 + BLOCK * 0, mask=m)

    kernel = InterpretedJit(body)
    return triton.autotune(configs=configs, key=["n"], restore_value=["x_ptr"], **kwargs)(kernel)


@pytest.mark.parametrize("blocks", [(16,), (16, 32, 64)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_autotuned_kernels_have_a_grid_for_each_configuration(
    blocks: tuple[int, ...], dynamic: bool
) -> None:
    kernel = _tuned([triton.Config({"BLOCK": b}, num_warps=w) for b in blocks for w in (1, 2)])

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        return x

    compiled = agree(fn, torch.randn(100), dynamic=dynamic)
    (launch,) = compiled.externs("triton.")
    assert len(launch.args[0]) == (1 if len(blocks) == 1 else 2 * len(blocks))  # type: ignore
    tried = {(tuple(grid)[0], kw.get("BLOCK")) for grid, _, kw in kernel.fn.launches}
    assert tried == {(-(-100 // b), b) for b in blocks}


def test_pruned_configurations() -> None:
    kernel = _tuned(
        [triton.Config({"BLOCK": b}) for b in (16, 32, 64)],
        prune_configs_by={"early_config_prune": lambda configs, *_, **__: configs[1:]},
    )

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        return x

    x = torch.randn(100)
    torch.testing.assert_close(Compiled(fn).calls(x), (x + 1) * 2)
    assert {kw["BLOCK"] for _, _, kw in kernel.fn.launches} == {32, 64}


# --- whose memory is written ---------------------------------------------------------------------


def test_an_argument_is_written_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        increment(x)
        add(x, x, x)
        return x * 2

    compiled = agree(fn, torch.randn(40))
    assert [n.mutates for n in compiled.externs("triton.")] == [("arg0_1",), ("arg0_1",)]
    assert len(compiled.programs[0].nodes) == 3  # two launches and x * 2


def test_an_argument_through_a_view_is_written_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        increment(x.view(-1))
        return x.sum()

    compiled = agree(fn, torch.randn(4, 10))
    assert len(compiled.programs[0].nodes) == 2


def test_an_intermediate_is_written_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x.cumsum(0)
        g = h * 2
        increment(g)
        increment(g)
        return g

    compiled = agree(fn, torch.randn(40))
    assert len(compiled.programs[0].nodes) == 4


def test_an_old_value_that_is_read_later_is_copied_once() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x @ x
        late = h.sin()
        g = h.clone()
        increment(g)
        return g, late + h

    compiled = agree(fn, torch.randn(4, 4))
    (program,) = compiled.programs
    (launch,) = compiled.externs("triton.")
    assert len(program.nodes) == 4  # product, copy, launch, late + h
    assert launch.mutates != compiled.externs("aten.mm")[0].outputs


def test_an_input_that_stays_as_it_is_is_copied() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        g = x.clone()
        increment(g)
        return g

    compiled = agree(fn, torch.randn(40))
    assert len(compiled.programs[0].nodes) == 2


def test_a_stencil_reads_old_values() -> None:
    """A clone whose source the kernel reads too must stay one."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        _shift_kernel[(1,)](x, out, x.numel(), BLOCK=64)
        return out

    agree(fn, torch.randn(50))

    def other(x: torch.Tensor) -> torch.Tensor:
        h = x @ x
        out = h.clone()
        _shift_kernel[(1,)](h, out, h.numel(), BLOCK=64)
        return out

    agree(other, torch.randn(7, 7))


@InterpretedJit
def _shift_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One element after the other, so that a wrong alias shows."""
    for i in range(1, n):
        tl.store(out_ptr + i, tl.load(x_ptr + i - 1))


def test_equal_temporaries_stay_apart() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        _two_kernel[(1,)](x, a, b, x.numel(), BLOCK=64)
        return a, b

    agree(fn, torch.randn(50))


@InterpretedJit
def _two_kernel(x_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(a_ptr + i, x, mask=i < n)
    tl.store(b_ptr + i, -x, mask=i < n)


@InterpretedJit
def _strided_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, rows, cols, x0, x1, o0, o1, BLOCK: tl.constexpr
):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < cols
    tl.store(out_ptr + r * o0 + i * o1, tl.load(x_ptr + r * x0 + i * x1, mask=m), mask=m)


def _copy_rows(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = x.shape
    _strided_kernel[(rows,)](x, out, rows, cols, *x.stride(), *out.stride(), BLOCK=16)


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_find_the_strides_that_eager_has(dynamic: bool) -> None:
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: (x + 1).t(),
        lambda x: (x + 1)[:, ::2],
        lambda x: (x + 1)[1:, 1:],
        lambda x: (x.sum(0) + 1).expand(3, -1),
        lambda x: x.t(),
        lambda x: (x @ x.t())[:, :2],
    ]
    for view in views:

        def fn(x: torch.Tensor) -> torch.Tensor:
            v = view(x)  # noqa: B023
            out = torch.zeros(v.shape)
            _copy_rows(v, out)
            wide = torch.zeros(v.shape[0], v.shape[1] + 3)[:, 1:-2]
            _copy_rows(out * 2, wide)
            return out + wide

        agree(fn, torch.randn(6, 8), dynamic=dynamic)


def test_a_part_of_an_argument() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        increment(x[4:20])
        return x * 3

    agree(fn, torch.randn(40))


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add(x, x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        out = torch.empty_like(grad)
        grad = grad.contiguous()
        add(grad, grad, out)
        return out


def test_training() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (_Double.apply(x * 3) ** 2).sum()  # type: ignore[no-untyped-call]

    compiled = Compiled(fn)
    x = torch.randn(30, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled.calls(x).backward()
    fn(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert compiled.kinds == ["forward", "backward"]
    assert len(compiled.externs("triton.add_kernel")) == 2


class _Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        _two_kernel[(1,)](x, a, b, x.numel(), BLOCK=64)
        return a, b

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore
        return a - b


def test_equal_temporaries_of_a_training_graph_stay_apart() -> None:
    """The partitioner makes one node of both."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = _Two.apply(x * 2)  # type: ignore[no-untyped-call]
        return (a * 3 + b * b).sum()

    x = torch.randn(30, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    out = Compiled(fn).calls(x)
    torch.testing.assert_close(out, fn(y))


def test_a_launch_that_is_not_functional_runs_through_aten() -> None:
    """AOTAutograd makes none; nothing may take it for dead code."""
    table = wrap.kernel_side_table
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    launch = graph.call_function(
        wrap.triton_kernel_wrapper_mutation,
        kwargs={
            "kernel_idx": table.add_kernel(increment_kernel),
            "constant_args_idx": table.add_constant_args({"n": 20, "BLOCK": 32}),
            "grid": [(1, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"x_ptr": x},
        },
    )
    graph.output((x,))
    x.meta["val"], launch.meta["val"] = FakeTensorMode().from_tensor(torch.zeros(20)), None
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    stages = Stages()
    call = compile_or_fall_back(gm, Options(), stages, "inference")
    given = torch.zeros(20)
    (result,) = call([given])
    assert torch.equal(given, torch.ones(20)) and torch.equal(result, given)
    assert "functional" in stages.fallback


# --- types that only ATen handles -----------------------------------------------------------------


@InterpretedJit
def _double_fp8_kernel(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    tl.store(x_ptr + i, (x * 2).to(tl.float8e5), mask=i < n)


def test_small_floats() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own = y.clone()
        _double_fp8_kernel[(2,)](own, own.numel(), BLOCK=32)
        _double_fp8_kernel[(2,)](x, x.numel(), BLOCK=32)
        return x.float(), y.float(), own.float()

    compiled = agree(fn, *(torch.randn(40).to(torch.float8_e5m2) for _ in range(2)))
    assert not compiled.externs("aten.clone") and not compiled.externs("litz.copy")


# --- TMA descriptors ------------------------------------------------------------------------------


@InterpretedJit
def _rows_kernel(x_desc, out_desc, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    r = tl.program_id(0) * ROWS
    out_desc.store([r, 0], x_desc.load([r, 0]) * 2)


@InterpretedJit
def _line_kernel(x_desc, out_desc, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK
    out_desc.store([at], x_desc.load([at]) * 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_descriptors_are_built_once_a_tensor(dynamic: bool) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x + 1
        out, flat = torch.empty_like(x), torch.empty_like(x).view(-1)
        a, b = (TensorDescriptor.from_tensor(t, [4, 8]) for t in (y, out))
        grid = (cdiv(x.shape[0], 4),)
        _rows_kernel[grid](a, b, 4)
        _rows_kernel[grid](b, a, 4)
        line = TensorDescriptor.from_tensor(y.view(-1), [16])
        grid = (cdiv(y.numel(), 16),)
        _line_kernel[grid](line, TensorDescriptor.from_tensor(flat, [16]), 16)
        return y, out, flat

    compiled = agree(fn, torch.randn(12, 8), dynamic=dynamic)
    (program,) = compiled.programs
    built = compiled.externs("litz.tensor_descriptor")
    assert len(built) == 4
    for n in built:  # what is built on memory is an alias of it: it outlives the descriptor
        (name,) = n.outputs
        assert program.buffers[name].alias == n.args[0].buffer  # type: ignore
    launches = compiled.externs("triton._rows_kernel")
    assert launches[0].args[1:3] == launches[1].args[2:0:-1]
    assert compiled.externs("aten.clone") == []


def test_tuning_writes_copies_under_descriptors() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def body(x_desc, out_desc, ROWS: tl.constexpr, GAIN: tl.constexpr):  # type: ignore
        r = tl.program_id(0) * ROWS
        out_desc.store([r, 0], out_desc.load([r, 0]) + x_desc.load([r, 0]) * (1 + 0 * GAIN))

    configs = [triton.Config({"GAIN": g}) for g in (1, 2)]
    kernel = triton.autotune(configs=configs, key=[])(InterpretedJit(body))

    def fn(x: torch.Tensor) -> torch.Tensor:
        out = x + 1
        a, b = (TensorDescriptor.from_tensor(t, [4, 8]) for t in (x, out))
        kernel[(2,)](a, b, 4)
        return out

    x = torch.randn(8, 8)
    torch.testing.assert_close(Compiled(fn).calls(x), x + 1 + x)


def test_descriptors_of_the_older_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects know an address alone: the tensor must live as long."""
    made: list[tuple[Any, ...]] = []

    class Parameter:
        pass

    def make(*args: Any) -> Parameter:
        made.append(args)
        return Parameter()

    api: Any = types.ModuleType("triton.tools.experimental_descriptor")
    api.create_1d_tma_descriptor = api.create_2d_tma_descriptor = make
    monkeypatch.setitem(sys.modules, api.__name__, api)
    monkeypatch.setattr(triton.tools, "experimental_descriptor", api, raising=False)
    x = torch.randn(4, 8)
    address, alive = x.data_ptr(), weakref.ref(x)
    descriptor = tma_descriptor(x, (4, 8), (2, 8), 4)
    assert made == [(address, 4, 8, 2, 8, 4)]
    del x
    assert alive() is not None
    del descriptor
    assert alive() is None
    tma_descriptor(torch.randn(8), (8,), (4,), 4)
    assert made[-1][1:] == (8, 4, 4)


# --- the runtime ----------------------------------------------------------------------------------


def test_the_grid_of_a_configuration() -> None:
    grid = GridOfConfig(({"A": 1, "B": 2}, {"A": 1, "B": 3}), ((1, 1, 1), (2, 1, 1)))
    assert grid({"A": 1, "B": 3, "n": 5}) == (2, 1, 1)
    with pytest.raises(RuntimeError, match="does not know"):
        grid({"A": 2, "B": 3})


def test_copies_have_the_same_strides() -> None:
    base = torch.arange(40.0)
    for x in (base, base.view(5, 8)[1:, 2:5], base[:4].expand(3, 4), base[:0], base.view(8, 5).t()):
        y = copy_as_it_is(x)
        assert y.stride() == x.stride() and torch.equal(x, y)
        assert y.numel() == 0 or y.data_ptr() != x.data_ptr()


# --- many graphs ---------------------------------------------------------------------------------


STEPS = ("increment", "add", "new", "old", "view", "clone", "product", "part", "both")


def _random_program(seed: int) -> Callable[..., Any]:
    r = random.Random(seed)
    # Of n tensors the one that is a fraction of n along.
    steps = [(r.choice(STEPS), r.random(), r.random()) for _ in range(7)]

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        live = [x, y, x * 2]
        for step, p, q in steps:
            a, b = live[int(p * len(live))], live[int(q * len(live))]
            if step == "increment":
                increment(a)
            elif step == "add":
                out = torch.empty_like(a)
                add(a, b, out)
                live.append(out)
            elif step == "new":
                live.append(a.sin() + b)
            elif step == "old":
                live.append((a * 3).clone())
            elif step == "view":
                live.append(a.view(36).view(6, 6))
            elif step == "clone":
                live.append(a.clone())
            elif step == "product":
                live.append(a @ b)
            elif step == "part":
                increment(a[2:4])
            else:
                add(a, a, a)
        return [v + 0 if k % 2 else v for k, v in enumerate(live[2:])]

    return fn


@pytest.mark.parametrize("seed", range(10))
def test_random_programs(seed: int) -> None:
    agree(_random_program(seed), torch.randn(6, 6), torch.randn(6, 6))
