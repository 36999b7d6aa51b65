"""Launches of the native executor against a stand-in driver: what Python's launchers launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda, Launched

pytest.importorskip("triton.language")

from traces import data, trace  # noqa: E402

from benchmarks.host_gpu import Gate  # noqa: E402
from litz.host.lines import (  # noqa: E402
    Allocate,
    BindSize,
    CallKernel,
    EnterDevice,
    HostProgram,
    LeaveDevice,
    Return,
)
from litz.host.native import plan_native  # noqa: E402
from litz.index import as_expr, symbol, var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import BF16, F32, F64, I32, DType  # noqa: E402
from litz.ir.program import Buffer, TensorRef  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.loading.values import load_host, namespace  # noqa: E402
from litz.options import make_options  # noqa: E402
from litz.runtime import executor  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.executor import Executor  # noqa: E402
from litz.runtime.launchers import Bound  # noqa: E402
from litz.runtime.plan import Plan  # noqa: E402
from litz.runtime.triton.driver import CudaError, Driver  # noqa: E402
from litz.runtime.tune import Choice  # noqa: E402
from litz.targets.parts import TritonPart  # noqa: E402
from litz.targets.records import part_of  # noqa: E402
from litz.targets.tools import Tools  # noqa: E402
from litz.targets.triton import tuned  # noqa: E402
from litz.targets.triton.cuda import Site, bind_cuda  # noqa: E402
from litz.targets.triton.render import render  # noqa: E402

STREAM = 0x77
u64, i32 = ctypes.c_uint64, ctypes.c_int32


class Room:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def data_ptr(self) -> int:
        return 0x5000


@dataclass
class Gpu:
    """A driver that is none, and an executor whose CUDA functions are of it.

    Memory on the device is the host's.  guards: the devices that were entered.
    """

    fake: FakeCuda
    site: Site
    executor: Executor
    guards: list[int]

    def run(
        self, host: HostProgram, args: list[Any], kernels: Mapping[str, Callable[..., None]]
    ) -> Any:
        plan = plan_native(host, {})
        assert isinstance(plan, Plan), plan
        return self.executor.program(plan, {}, kernels)(args)

    def launch(self, kernel: Bound, *args: Any) -> list[Launched]:
        """What a call of a kernel launches by the executor, which Python launches too.

        args: tensors, those on the CPU by value where they are of one element; then integers.
        """
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        places = [f"b{i}" for i in range(len(tensors))]
        buffers = {n: buffer(n, x) for n, x in zip(places, tensors, strict=True)}
        sizes = [symbol(f"s{i}", 0) for i in range(len(args) - len(tensors))]
        names = (*places, *map(str, sizes))
        binds = [BindSize(s, len(places) + i, None) for i, s in enumerate(sizes)]
        lines = (*binds, CallKernel("k", tuple(places), tuple(sizes)), Return(()))
        before = len(self.fake.launches)
        self.run(HostProgram(names, buffers, lines), list(args), {"k": kernel})
        middle = len(self.fake.launches)
        kernel(
            *(a if isinstance(a, int) else a.item() if a.dim() == 0 else a.data_ptr() for a in args)
        )
        native, python = self.fake.launches[before:middle], self.fake.launches[middle:]
        assert native == python
        return native


def buffer(name: str, x: torch.Tensor, kind: Any = "input") -> Buffer:
    """On the CPU where it is of one element."""
    shape, strides = (tuple(map(as_expr, d)) for d in (x.shape, x.stride()))
    dtypes = {torch.float32: F32, torch.bfloat16: BF16, torch.float64: F64, torch.int32: I32}
    return Buffer(name, dtypes[x.dtype], shape, strides, "cuda:0" if x.dim() else "cpu", kind)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    fake = FakeCuda()
    device = Driver(fake).device(0)
    fake.stack[:] = [device.context]
    guards: list[int] = []

    def stream(_device: int, out: int) -> int:
        u64.from_address(out).value = STREAM
        return 0

    def enter(index: int, out: int) -> int:
        guards.append(index)
        u64.from_address(out).value = 0x99
        return 0

    def leave(guard: int) -> int:
        guards.append(-1)
        return 0 if guard == 0x99 else 1

    p, i = ctypes.c_void_p, ctypes.c_int32
    stubs: dict[str, Any] = {
        "aoti_torch_get_current_cuda_stream": ctypes.CFUNCTYPE(i, i, p)(stream),
        "aoti_torch_create_cuda_guard": ctypes.CFUNCTYPE(i, i, p)(enter),
        "aoti_torch_delete_cuda_guard": ctypes.CFUNCTYPE(i, p)(leave),
    }
    real = executor.native_functions

    def functions(names: Any) -> dict[str, int]:
        return real(names) | {n: ctypes.cast(f, p).value or 0 for n, f in stubs.items()}

    monkeypatch.setattr(executor, "native_functions", functions)
    monkeypatch.setattr(executor, "device_code", lambda kind: 0)
    path = Tools(make_options({"host": "native"})).executor.path
    site = Site(device, lambda: STREAM, Room, Cache(tmp_path))
    yield Gpu(fake, site, Executor(path), guards)
    assert len(stubs) == 3  # alive up to here


def plan(n: Any, of: DType = F32, scalar: DType | None = None) -> KernelPlan:
    """``b1 = b0 * 2`` over ``n`` elements, or times ``b2``, one number of the host's."""
    x = var("x0", n)
    factor = body.const(of, 2.0)
    params = (Param("b0", of, "in"), Param("b1", of, "out"))
    if scalar is not None:
        params = (*params, Param("b2", scalar, "in", by_value=True))
        factor = body.cast(body.load(scalar, "b2", as_expr(0)), of)
    value = body.op("mul", body.load(of, "b0", x), factor)
    ints = () if isinstance(n, int) else (n,)
    return KernelPlan((Dim(x, "p"),), params, ints, (Store("b1", x, value),), x)


def bound(gpu: Gpu, p: KernelPlan) -> Bound:
    return bind_cuda(render(choose(p), "k"), gpu.site)


def memory(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_variants_by_addresses(gpu: Gpu) -> None:
    gpu.fake.types = (u64, u64, u64, u64)
    kernel = bound(gpu, plan(1 << 22))
    x, y = memory(1 << 22), memory(1 << 22)
    (first,) = gpu.launch(kernel, x, y)
    assert first.arguments == (x.data_ptr(), y.data_ptr(), 0, 0) and first.stream == STREAM
    (second,) = gpu.launch(kernel, x[1:], y)
    assert second.function != first.function and second.arguments[0] == x.data_ptr() + 4
    assert gpu.launch(kernel, x, y) == [first]


def test_a_launch_may_begin_before_the_one_in_front_has_ended(gpu: Gpu) -> None:
    gpu.fake.types = (u64,) * 4
    r = var("r0", 1 << 16)
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    total = Store("b1", as_expr(0), body.reduce("sum", (r,), body.load(F32, "b0", r)))
    kernel = bound(gpu, KernelPlan((Dim(r, "r"),), params, (), (total,), r))
    for _ in range(2):  # loaded by the first
        made = gpu.launch(kernel, memory(1 << 16), memory(1), memory(64))
        assert [x.early for x in made] == [False, True]


def test_variants_and_widths_by_sizes(gpu: Gpu) -> None:
    n = symbol("s0", 0, None, 1 << 22)
    gpu.fake.types = (u64, u64, i32, u64, u64)
    kernel = bound(gpu, plan(n))
    x, y = memory(64), memory(64)
    used = set()
    for size in (4096, 100, 5, 4096, 1 << 20, 48):
        (one,) = gpu.launch(kernel, x, y, size)
        assert one.arguments[2] == size
        used.add(one.function)
    assert len(used) == 2
    (odd,) = gpu.launch(kernel, x[1:], y, 4096)
    assert gpu.launch(kernel, x, y, 0) == []
    gpu.fake.types = (u64, u64, u64, u64, u64)
    (wide,) = gpu.launch(kernel, x, y, 1 << 32)
    assert wide.arguments[2] == 1 << 32
    assert len({*used, odd.function, wide.function}) == 4


@pytest.mark.parametrize("of", [F32, F64, BF16, I32])
def test_numbers_of_the_host_go_by_value(gpu: Gpu, of: DType) -> None:
    kinds = {F32: torch.float32, F64: torch.float64, BF16: torch.bfloat16, I32: torch.int32}
    cell = {F32: ctypes.c_float, F64: ctypes.c_double, BF16: ctypes.c_float, I32: i32}[of]
    gpu.fake.types = (u64, u64, cell, u64, u64)
    kernel = bound(gpu, plan(1 << 12, F32, of))
    x, y = memory(1 << 12), memory(1 << 12)
    for _ in range(2):  # what loads the kernel, and what finds it
        (one,) = gpu.launch(kernel, x, y, torch.tensor(-3, dtype=kinds[of]))
        assert one.arguments[2] == -3


def test_a_gate_in_front_of_the_driver(gpu: Gpu, tmp_path: Path) -> None:
    """By which `benchmarks.host` tells the driver's share of a call."""
    gate = Gate(Cache(tmp_path), gpu.site.device.driver)
    with gate.built():
        kernel = bound(gpu, plan(1 << 12))
    x, y = memory(1 << 12), memory(1 << 12)
    gpu.launch(kernel, x, y)  # by Python, which loads it
    assert len(gpu.launch(kernel, x, y)) == 1 and gate.close(True) == 1
    with pytest.raises(AssertionError):
        gpu.launch(kernel, x, y)
    assert gate.close(False) == 1 and len(gpu.launch(kernel, x, y)) == 1


def test_what_fails_is_said_as_python_says_it(gpu: Gpu) -> None:
    kernel = bound(gpu, plan(1 << 12))
    x, y = memory(1 << 12), memory(1 << 12)
    gpu.launch(kernel, x, y)
    gpu.fake.fail["cuLaunchKernelEx"] = [700, 700]
    with pytest.raises(CudaError, match="launching the kernel k on a grid.*CUDA_ERROR_BROKEN"):
        gpu.launch(kernel, x, y)
    gpu.fake.stack[:] = [gpu.site.device.context + 1]  # another device's: Python puts that right
    assert len(gpu.launch(kernel, x, y)) == 1


def test_a_kernel_becomes_another(gpu: Gpu) -> None:
    """As those do that the first call measures."""
    seen: list[tuple[int, ...]] = []
    kernel = Bound(lambda *args: seen.append(args))
    x, y = memory(1 << 12), memory(1 << 12)
    host = HostProgram(
        ("b0", "b1"), {"b0": buffer("b0", x), "b1": buffer("b1", y)},
        (CallKernel("k", ("b0", "b1")), Return(())),
    )  # fmt: skip
    made = plan_native(host, {})
    assert isinstance(made, Plan)
    call = gpu.executor.program(made, {}, {"k": kernel})
    call([x, y])
    assert seen == [(x.data_ptr(), y.data_ptr())] and not gpu.fake.launches
    kernel.follow(bound(gpu, plan(1 << 12)))
    call([x, y])
    call([x, y])
    assert len(seen) == 1 and len(gpu.fake.launches) == 2


def test_a_kernel_that_the_first_call_measures(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, y = render(choose(plan(1 << 12)), "k"), memory(1 << 12), memory(1 << 12)
    notes: list[Choice] = []
    measured = tuned._Tuned(kernel, gpu.site, print, tuned._Budget(1.0, 1), False, notes.append)
    measured.outside = outside = Bound(measured.call)
    assert outside.cell.value is None
    monkeypatch.setattr(torch, "as_tensor", lambda *_, **__: x)
    measured.tune([x.data_ptr(), y.data_ptr()], [x.nbytes] * 2)
    assert outside.cell.value is not None and len(notes) == 1
    assert notes[0].configs == (kernel.launches[0].configs[0],), "packages record these"
    measured.done = True
    assert len(gpu.launch(outside, x, y)) == 1


def test_memory_and_devices(gpu: Gpu) -> None:
    x = memory(1 << 12)
    b0, b1 = buffer("b0", x), buffer("b1", x, "temp")
    out = TensorRef("b1", F32, b1.shape, b1.strides, as_expr(0))
    host = HostProgram(
        ("b0",),
        {"b0": b0, "b1": b1},
        (
            EnterDevice("cuda:0"), Allocate("b1"), CallKernel("k", ("b0", "b1")),
            LeaveDevice("cuda:0"), Return((out,)),
        ),
    )  # fmt: skip
    kernel = bound(gpu, plan(1 << 12))
    (y,) = gpu.run(host, [x], {"k": kernel})
    assert y.shape == x.shape and y.data_ptr() != x.data_ptr()
    assert gpu.guards == [0, -1] and len(gpu.fake.launches) == 1
    gpu.fake.fail["cuLaunchKernelEx"] = [700, 700]
    with pytest.raises(CudaError):
        gpu.run(host, [x], {"k": kernel})
    assert gpu.guards == [0, -1] * 2
    elsewhere = replace(host, buffers={"b0": b0, "b1": replace(b1, device="xpu:0")})
    assert plan_native(elsewhere, {}) == "it works on xpu:0"


def test_memory_that_runs_out_is_said_as_python_says_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"{args} {kwargs}")

    b1 = Buffer("b1", F32, (as_expr(3), as_expr(1 << 60)), (as_expr(1 << 60), as_expr(1)), "cuda:0")
    host = HostProgram((), {"b1": b1}, (Allocate("b1"), Return(())))
    monkeypatch.setattr(torch, "empty_strided", empty)
    with pytest.raises(torch.OutOfMemoryError, match=r"\(3, 1152921504606846976\).*'cuda'"):
        gpu.run(host, [], {})


def blocks(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> Any:
    h = torch.addmm(b, x, w).softmax(-1) * scale
    parts = [torch.tanh(h[:, :8] * k) for k in (1.0, 2.0, 3.0)]  # of a shape: one launch
    return torch.mm(h, w.t()).relu().sum(0), h.view(-1)[3:], *parts, x.float().sum()


def test_a_whole_program(gpu: Gpu) -> None:
    """Kernels, operators, memory, views and a number of the host's, as Python runs them."""
    specs = [data(64, 32), data(32, 48), data(48), data(device="cpu")]
    (made,) = trace(blocks, *specs, training=False, check_calls=False)
    artifact = made.stages.artifact
    assert artifact is not None and isinstance(artifact.host.plan, Plan)
    parts = [part_of(k) for k in made.stages.kernels]
    natives = {p.name: bind_cuda(p.kernel, gpu.site) for p in parts if isinstance(p, TritonPart)}
    values = namespace(artifact.host.values)
    # What Python says of the device, said of the host's memory.
    source = artifact.host.source.replace("cuda:0", "cpu")
    source = source.replace("with torch.cuda.device(0):", "if True:")
    python = load_host(source, {**values, **natives})
    native = gpu.executor.program(artifact.host.plan, values, natives)
    inputs = [torch.randn(s.shape) for s in specs]
    runs = []
    for call in (python, native, native):
        gpu.fake.launches.clear()
        out = call([inputs[_position(a.shape, inputs)] for a in artifact.arguments])
        layouts = [(x.shape, x.stride(), x.dtype) for x in out]
        runs.append((layouts, [replace(x, arguments=()) for x in gpu.fake.launches]))
    assert len(runs[0][1]) == 3 and runs[0] == runs[1] == runs[2]
    assert gpu.guards == [0, -1] * 2


def test_looks_at_tensors_on_a_gpu(gpu: Gpu, capfd: pytest.CaptureFixture[str]) -> None:
    specs = [data(64, 32), data(32, 48), data(48), data(device="cpu")]
    (made,) = trace(blocks, *specs, training=False, check_calls=False, inspect="k*")
    artifact = made.stages.artifact
    assert artifact is not None and isinstance(artifact.host.plan, Plan)
    assert artifact.recording.reason == "its kernels are looked at one by one"
    parts = [part_of(k) for k in made.stages.kernels]
    natives = {p.name: bind_cuda(p.kernel, gpu.site) for p in parts if isinstance(p, TritonPart)}
    call = gpu.executor.program(artifact.host.plan, namespace(artifact.host.values), natives)
    inputs = [torch.randn(s.shape) for s in specs]
    call([inputs[_position(a.shape, inputs)] for a in artifact.arguments])
    shown = [s for s in capfd.readouterr().err.splitlines() if s.startswith("litz:")]
    assert all(f" {name} " in "\n".join(shown) for name in natives)
    assert {s.split()[1] for s in shown} == {"before", "after"}


def _position(shape: Any, inputs: list[torch.Tensor]) -> int:
    """The input of a shape, in whatever order the graph takes them."""
    return [tuple(x.shape) for x in inputs].index(tuple(shape))
