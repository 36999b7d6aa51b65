"""Loading and launching over the CUDA driver, against a stand-in for it."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from fake_cuda import FakeCuda
from threads import together
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.backend import compile_or_fall_back
from litz.compiler import Stages
from litz.errors import ToolchainError
from litz.options import Options
from litz.runtime.triton import driver
from litz.runtime.triton.driver import CudaError, Driver, Function
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.triton.launch import bind

u64, i64, i32 = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32
BINARY = Binary(b"code", "kernel", (8, 8, 8, 4, 8, 8), 1024, 4)
JOB = KernelJob(
    "",
    "kernel",
    (("a", "*fp32"), ("out", "*bf16"), ("n", "i64"), ("m", "i32"), ("XBLOCK", "constexpr")),
)
TYPES = (u64, u64, i64, i32, u64, u64)
FAR = 0x7F3A_0000_1000


def bound(fake: FakeCuda, binary: Binary = BINARY, job: KernelJob = JOB, index: int = 0) -> object:
    device = Driver(fake).device(index)
    fake.stack[:] = [device.context]
    return bind(device.load(binary), job, lambda: 0xABC_0000_0001)


def test_properties() -> None:
    p = Driver(FakeCuda()).device(1).properties
    assert (p.name, p.capability) == ("Fake H200", (9, 0))
    assert (p.shared, p.warp_size) == (227 << 10, 32)
    assert p.target == ("cuda", 90, 32)


def test_a_launch_hands_over_everything() -> None:
    fake = FakeCuda(TYPES)
    launch = bound(fake)
    launch(7, 6, 5, FAR, FAR + 16, -3, -2)  # type: ignore[operator]
    launch(1, 1, 1, 0, 2**64 - 16, 2**62, 2**31 - 1)  # type: ignore[operator]
    one, two = fake.launches
    assert one.grid == (7, 6, 5) and one.block == (128, 1, 1)
    assert one.shared == 1024 and one.stream == 0xABC_0000_0001
    assert one.arguments == (FAR, FAR + 16, -3, -2, 0, 0)
    assert two.arguments == (0, 2**64 - 16, 2**62, 2**31 - 1, 0, 0)
    assert one.function == (1000 << 32) + 1
    assert fake.loaded == [b"code"]


def test_every_type_of_argument() -> None:
    kinds = {
        "i8": (ctypes.c_int8, 1, -5),
        "i16": (ctypes.c_int16, 2, -300),
        "u8": (ctypes.c_uint8, 1, 200),
        "u16": (ctypes.c_uint16, 2, 60000),
        "u32": (ctypes.c_uint32, 4, 4_000_000_000),
        "u64": (ctypes.c_uint64, 8, 2**63 + 1),
        "fp32": (ctypes.c_float, 4, 0.5),
        "fp64": (ctypes.c_double, 8, 0.1),
        "*i1": (ctypes.c_uint64, 8, FAR),
    }
    fake = FakeCuda(tuple(k for k, _, _ in kinds.values()))
    job = replace(JOB, signature=tuple((f"v{i}", t) for i, t in enumerate(kinds)))
    binary = replace(BINARY, params=tuple(n for _, n, _ in kinds.values()))
    bound(fake, binary, job)(1, 1, 1, *(v for _, _, v in kinds.values()))  # type: ignore[operator]
    assert fake.launches[0].arguments == tuple(v for _, _, v in kinds.values())


def test_an_integer_that_does_not_fit_is_an_error() -> None:
    fake = FakeCuda(TYPES)
    launch = bound(fake)
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(struct.error):
            launch(1, 1, 1, FAR, FAR, 0, bad)  # type: ignore[operator]
    with pytest.raises(struct.error):
        launch(2**32, 1, 1, FAR, FAR, 0, 0)  # type: ignore[operator]
    with pytest.raises(TypeError):
        launch(1, 1, 1, FAR, FAR, 0)  # type: ignore[operator]
    assert not fake.launches


def test_parameters_that_do_not_match_are_refused() -> None:
    device = Driver(FakeCuda(TYPES)).device(0)
    for params in ((8, 8, 8, 8, 8, 8), (8, 8, 8), (8, 8, 8, 4, 8, 8, 8), (8, 8, 8, 4, 4)):
        function = device.load(replace(BINARY, params=params))
        with pytest.raises(ToolchainError, match="parameters"):
            bind(function, JOB, lambda: 0)
    with pytest.raises(ToolchainError, match="nvTmaDesc"):
        bind(device.load(BINARY), replace(JOB, signature=(("d", "nvTmaDesc"),)), lambda: 0)


def test_fewer_hidden_parameters() -> None:
    fake = FakeCuda(TYPES[:4])
    bound(fake, replace(BINARY, params=BINARY.params[:4]))(1, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
    assert fake.launches[0].arguments == (FAR, FAR, 1, 2)


class Room:
    """Memory of the device, as a tensor would be."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def data_ptr(self) -> int:
        return FAR + self.nbytes


def test_scratch_memory() -> None:
    fake = FakeCuda(TYPES)
    device = Driver(fake).device(0)
    function = device.load(replace(BINARY, scratch=(256, 128), profile_scratch=(8, 8)))
    with pytest.raises(ToolchainError, match="scratch"):
        bind(function, JOB, lambda: 0)
    fake.stack[:] = [device.context]
    behind = replace(JOB, constants=(("FOLLOWS", True),))
    bind(function, behind, lambda: 0, Room)(5, 3, 2, FAR, FAR, 1, 2)
    assert fake.launches[0].arguments[4:] == (FAR + 30 * 256, FAR + 30 * 8)
    assert not fake.launches[0].early  # the launch in front may still use the same memory
    short = device.load(replace(BINARY, scratch=(256, 128), params=BINARY.params[:4]))
    with pytest.raises(ToolchainError, match="no parameter"):
        bind(short, JOB, lambda: 0, Room)


def test_shared_memory_is_asked_for_where_it_is_much() -> None:
    fake = FakeCuda(TYPES)
    device = Driver(fake).device(0)
    device.load(replace(BINARY, shared=48 << 10))
    assert fake.wanted == {}
    device.load(replace(BINARY, shared=100 << 10))
    assert fake.wanted == {8: 100 << 10}
    with pytest.raises(CudaError, match="shared memory, and Fake H200 has"):
        device.load(replace(BINARY, shared=228 << 10))


def test_threads_that_registers_leave_no_room_for() -> None:
    fake = FakeCuda(TYPES)
    fake.function[0] = 256
    with pytest.raises(CudaError, match="1024 threads a block"):
        Driver(fake).device(0).load(replace(BINARY, num_warps=32))


def test_a_kernel_is_loaded_once_for_each_device() -> None:
    fake = FakeCuda(TYPES)
    driver = Driver(fake)
    first = driver.device(0).load(BINARY)
    assert driver.device(0).load(replace(BINARY)) is first
    other = driver.device(1).load(BINARY)
    assert other.handle >> 32 == 1001 and first.handle >> 32 == 1000
    assert len(fake.loaded) == 2


# --- contexts ---


def test_loading_makes_the_context_current_and_gives_it_back() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    device = driver.device(1)
    fake.stack[:] = [1000]
    device.load(BINARY)
    assert fake.stack == [1000]
    fake.stack.clear()
    device.load(replace(BINARY, shared=1))
    assert fake.stack == [1001]


def test_a_thread_without_a_context_launches() -> None:
    fake = FakeCuda(TYPES)
    launch = bound(fake)
    calls: list[int] = []

    def run() -> None:
        launch(2, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
        fake.calls.clear()
        launch(3, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
        calls.append(len(fake.calls))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [x.grid[0] for x in fake.launches] == [2, 3]
    assert {x.context for x in fake.launches} == {1000}
    assert calls == [1]  # from then on a launch is one call


def test_a_launch_while_another_device_is_current() -> None:
    fake = FakeCuda(TYPES)
    launch = bound(fake, index=1)
    fake.stack[:] = [1000]
    launch(2, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
    assert fake.launches[0].context == 1001
    assert fake.stack == [1000]


# --- errors ---


def test_errors_say_what_failed() -> None:
    fake = FakeCuda(TYPES, {"cuLaunchKernelEx": [1]})
    launch = bound(fake)
    with pytest.raises(CudaError) as caught:
        launch(3, 70000, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
    text = str(caught.value)
    assert "launching the kernel kernel on a grid of 3 x 70000 x 1" in text
    assert "CUDA_ERROR_INVALID_VALUE (invalid argument)" in text and caught.value.code == 1
    launch(3, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]
    assert len(fake.launches) == 1


@pytest.mark.parametrize(("code", "words"), [(700, "BROKEN"), (12345, "12345")])
@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleGetFunction"])
def test_errors_of_loading(code: int, words: str, call: str) -> None:
    fake = FakeCuda(TYPES)
    device = Driver(fake).device(0)
    fake.fail[call] = [code]
    with pytest.raises(
        CudaError, match=rf"loading the kernel kernel: {call} failed.*{code}|BROKEN"
    ):
        device.load(BINARY)
    # A failure is not remembered.
    assert device.load(BINARY).handle


def test_an_error_that_stays_invalid_is_raised() -> None:
    fake = FakeCuda(TYPES, {"cuLaunchKernelEx": [201]})
    launch = bound(fake)
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        launch(1, 1, 1, FAR, FAR, 1, 2)  # type: ignore[operator]


def test_no_such_device_and_no_initialisation() -> None:
    with pytest.raises(CudaError, match="CUDA device 7"):
        Driver(FakeCuda()).device(7)
    with pytest.raises(CudaError, match="cuInit"):
        Driver(FakeCuda(fail={"cuInit": [700]}))


def test_a_driver_without_an_entry_point() -> None:
    fake = FakeCuda()
    del fake.cuLaunchKernelEx  # type: ignore[attr-defined]
    with pytest.raises(ToolchainError, match="too old: it has no cuLaunchKernelEx"):
        Driver(fake)


def test_without_a_driver_a_graph_runs_through_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda-of-nobody.so.1")
    driver._driver_of.cache_clear()
    with FakeTensorMode():
        graph = make_fx(lambda x: (torch.relu(x) + 1,))(torch.empty(8, device="cuda"))
    stages = Stages()
    try:
        with pytest.warns(UserWarning, match="install the driver") as seen:
            call = compile_or_fall_back(graph, Options(), stages, "inference")
    finally:
        driver._driver_of.cache_clear()
    assert "libcuda-of-nobody" in str(seen[0].message) and len(seen) == 1
    assert stages.fallback
    (out,) = call([torch.arange(-2.0, 2.0)])
    assert torch.equal(out, torch.tensor([1.0, 1, 1, 2]))


# --- threads ---


def test_threads_never_share_arguments() -> None:
    fake = FakeCuda(TYPES)
    device = Driver(fake).device(0)
    fake.strict_context = False
    # The stand-in rests in the middle of a launch, while it holds the addresses.
    fake.seen = lambda: time.sleep(0)
    launch = bind(device.load(BINARY), JOB, lambda: 1)

    def run(number: int) -> None:
        for i in range(200):
            launch(number, 1, 1, number, i, number * i, number)

    together(partial(run, n) for n in range(1, 7))
    assert len(fake.launches) == 6 * 200
    for x in fake.launches:
        n, i, product, m, *_ = x.arguments
        assert x.grid[0] == n == m and product == n * i


def test_a_launch_within_a_launch() -> None:
    fake = FakeCuda(TYPES)
    launch = bound(fake)
    depth: list[int] = []

    def nested() -> None:
        if len(depth) < 3:
            depth.append(1)
            launch(1, 1, 1, len(depth), 0, 0, 0)  # type: ignore[operator]

    fake.seen = nested
    launch(9, 1, 1, FAR, FAR, 5, 5)  # type: ignore[operator]
    assert [x.arguments[0] for x in fake.launches] == [3, 2, 1, FAR]


def test_a_launch_costs_little() -> None:
    library = ctypes.CDLL(None)
    try:
        # Compares its first two arguments, ignores the others, and returns 0: an idle driver.
        idle = library["pthread_equal"]
    except AttributeError:
        pytest.skip("no function to stand in for the driver")

    class Idle:
        launch = idle

    class Nowhere:
        context = 1
        driver = Idle

    function = Function(Nowhere(), BINARY, 1234)  # type: ignore[arg-type]
    launch = bind(function, JOB, lambda: 0)
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1000):
            launch(10, 1, 1, FAR, FAR, 77, 5)
        best = min(best, (time.perf_counter() - start) / 1000)
    # The aim is 3 microseconds, of which the driver's own part is most; a busy machine is slower.
    assert best < 10e-6
