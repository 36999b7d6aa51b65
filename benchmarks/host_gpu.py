"""``python -m benchmarks.host --device cuda``: what issuing launches costs the host on a GPU.

First a chain of small kernels: microseconds a launch beyond what Dynamo and AOTAutograd cost in all
columns, beside the driver's own: cuLaunchKernelEx from a loop in C++, the same number of arguments,
and within the chain: what a call costs more than one whose launches stop in front of the driver
(``Gate``).  Then whole steps: milliseconds until a step is issued, the GPU still at work, and of
the executor's what is spent outside its graphs (Dynamo's guards, AOTAutograd's wrappers, autograd),
by the driver's launches, by the same calls of ATen without anything around them (``aten.alone``),
and by itself.  Wall time, medians of turns, columns in turn.  Results of both hosts are compared
bit by bit, where runs of one host agree: kernels of ATen may add in no fixed order.
"""

from __future__ import annotations

import ctypes
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import litz.binding
from benchmarks.aten import Made, Recorder, alone
from benchmarks.gpu.workloads import build_on
from benchmarks.step import Step
from litz.dynamo import boxed
from litz.loading.values import bind_host
from litz.runtime.cache import Cache
from litz.runtime.triton.build import build as build_triton
from litz.runtime.triton.driver import Driver, cuda_driver
from litz.runtime.triton.job import KernelJob
from litz.targets.cpp.toolchain import SourceUnit, build, find_toolchain

Call = Callable[..., Any]
HOSTS = ("python", "native")
STEPS = ("resnet50", "gpt2_training")
RUNS = 4  # of a host, whose results are compared

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def add(a, b, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, tl.load(a + x, x < n, 0) + tl.load(b + x, x < n, 0), x < n)
"""
LOOP = """\
#include <time.h>
static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
extern "C" double litz_bare(int (*launch)(void*, void*, void**, void**), void* config,
                            void* function, void** params, int n) {
    double start = now();
    for (int i = 0; i < n; ++i)
        if (launch(config, function, params, nullptr)) return -1;
    return now() - start;
}
typedef int (*Launch)(void*, void*, void**, void**);
static Launch driver;
static long closed, launches;
extern "C" void litz_gate_to(Launch launch) { driver = launch; }
extern "C" long litz_gate_close(long now) {
    closed = now;
    long before = launches;
    launches = 0;
    return before;
}
extern "C" int litz_gate(void* config, void* function, void** params, void** extra) {
    ++launches;
    return closed ? 0 : driver(config, function, params, extra);
}
"""


def loops(cache: Cache) -> ctypes.CDLL:
    """``LOOP``, built."""
    (path,) = build([SourceUnit("a loop", LOOP)], find_toolchain(cache=cache), cache)
    return ctypes.CDLL(str(path))


class Gate:
    """Stands in front of the driver's launch: closed, it says that all went well, and launches
    nothing."""

    def __init__(self, cache: Cache, driver: Driver) -> None:
        self._library = loops(cache)
        self._library.litz_gate_to(ctypes.c_void_p(driver.launch_address))
        self.address = ctypes.cast(self._library.litz_gate, ctypes.c_void_p).value

    def built(self) -> Any:
        """A context in which the native executor's launches are bound to the gate."""
        return mock.patch.object(Driver, "launch_address", self.address)

    def close(self, closed: bool) -> int:
        """Close or open it; how many launches came since it was last done."""
        return int(self._library.litz_gate_close(ctypes.c_long(closed)))

    def launches(self, call: Call) -> int:
        """How many launches of the native executor's a call makes."""
        self.close(False)
        call()
        return self.close(False)

    def closed(self, call: Call) -> Call:
        """``call`` without the driver's launches."""

        def run() -> None:
            self.close(True)
            call()
            self.close(False)

        return run


class Graphs:
    """Stands around the host programs of graphs, and counts the seconds that calls spend there."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._around: Any = nullcontext()

    def built(self) -> Any:
        """A context in which graphs are bound so that they are counted."""

        def bound(*args: Any) -> Call:
            run = bind_host(*args)

            def timed(given: list[Any]) -> Any:
                start = time.perf_counter()
                with self._around:
                    made = run(given)
                self.seconds += time.perf_counter() - start
                return made

            return boxed(timed)

        return mock.patch.object(litz.binding, "bind_host", bound)

    def share(self, call: Call, turns: int) -> float:
        """Of the seconds until a call is issued those inside, the median of turns."""
        found = []
        for _ in range(turns):
            self.seconds = 0.0
            issued(call)
            found.append(self.seconds)
        return statistics.median(found)

    def calls(self, call: Call) -> list[Made]:
        """The calls of ATen that graphs make which Python runs."""
        self._around = recorder = Recorder()
        call()
        self._around = nullcontext()
        return recorder.calls


@dataclass(frozen=True)
class Bare:
    """A launch of a small kernel by the driver alone."""

    seconds: Callable[[int], float]

    @classmethod
    def make(cls, cache: Cache) -> Bare:
        device = cuda_driver().device(0)
        pointers = [(name, "*fp32") for name in ("a", "b", "out")]
        job = KernelJob(
            KERNEL,
            "add",
            (*pointers, ("n", "i32"), ("XBLOCK", "constexpr")),
            (("XBLOCK", 128),),
            ("a", "b", "out"),
            (("num_warps", 4),),
            device.properties.target,
        )
        (binary,) = build_triton([job], cache)
        function = device.load(binary)
        loop = loops(cache).litz_bare
        loop.restype = ctypes.c_double
        x = torch.zeros(128, device="cuda")
        cells = (ctypes.c_uint64 * 6)(*[x.data_ptr()] * 3, 128, 0, 0)
        base = ctypes.addressof(cells)
        params = (ctypes.c_void_p * 6)(*(base + 8 * i for i in range(6)))
        stream = torch.cuda.current_stream().cuda_stream
        threads = binary.num_warps * binary.warp_size
        layout = struct.pack("=7I4xQQI4x", 1, 1, 1, threads, 1, 1, binary.shared, stream, 0, 0)
        config = ctypes.create_string_buffer(layout, len(layout))
        handle, launch = ctypes.c_void_p(function.handle), device.driver.launch_address

        def seconds(n: int) -> float:
            spent: float = loop(ctypes.c_void_p(launch), config, handle, params, n)
            assert spent >= 0 and x is not None and cells is not None
            return spent

        return cls(seconds)


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Twenty kernels, each of which needs all of the one before."""
    for i in range(20):
        x = x / (x.abs().sum(i % 2, keepdim=True) + w)
    return x


def issued(call: Call, times: int = 1) -> float:
    """Seconds a call until it returns, where the GPU has nothing else to do."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    spent = (time.perf_counter() - start) / times
    torch.cuda.synchronize()
    return spent


def medians(calls: dict[str, Call], turns: int, times: int = 1) -> dict[str, float]:
    """Of ``issued``, the calls in turn."""
    for call in calls.values():
        issued(call, 3)
    found = [[issued(c, times) for c in calls.values()] for _ in range(turns)]
    return dict(zip(calls, map(statistics.median, zip(*found, strict=True)), strict=True))


def launches(fn: Call, *args: Any) -> int:
    """How many kernels the graph of a function launches."""
    (report,) = litz.explain(fn, *args).graphs
    assert report.stages.host is not None
    count = {k.name: len(k.triton.launches) for k in report.stages.kernels if k.triton is not None}
    return sum(count[call.kernel] for call in report.stages.host.kernel_calls())


def run_chain(turns: int, times: int) -> None:
    args = torch.rand(64, 64, device="cuda") + 1, torch.rand(64, 64, device="cuda") + 1
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        bare, gate = Bare.make(Cache(folder)), Gate(Cache(folder), cuda_driver())
        count = launches(chain, *args)
        sides = {host: torch.compile(own(chain), **compiled(host)) for host in HOSTS}
        with gate.built():
            check("chain", *([[side(*args)]] for side in sides.values()))
        none = aot_autograd(fw_compiler=lambda *_: boxed(lambda _: [args[0]]))
        sides["common"] = torch.compile(own(chain), backend=none)
        sides["peer"] = torch.compile(own(chain))
        calls: dict[str, Call] = {k: lambda f=f: f(*args) for k, f in sides.items()}
        calls["closed"] = gate.closed(calls["native"])
        direct = gate.launches(calls["native"])
        found = medians(calls, turns, times)
        rounds = []
        for _ in range(turns):
            torch.cuda.synchronize()
            rounds.append(bare.seconds(count * times) / (count * times))
        driver = statistics.median(rounds)
    within = (found["native"] - found["closed"]) / count
    print(f"chain: {count} launches of Litz's, {direct} by the executor; microseconds a launch")
    print(f"  driver   {1e6 * driver:6.2f}   in a loop, {1e6 * within:.2f} within the chain")
    for side in (*HOSTS, "peer"):
        each = (found[side] - found["common"]) / count
        shares = f"{each / driver:5.2f} and {each / within:5.2f} times the driver's"
        print(f"  {side:8} {1e6 * each:6.2f}   {shares}")
    print(f"  a call of it: {', '.join(f'{k} {1e6 * v:.1f} us' for k, v in found.items())}")


def run_step(name: str, turns: int, quick: bool) -> None:
    traffic = build_on("cuda", name, quick)
    fn = traffic.workload.fn
    steps = {host: Step(traffic.workload, torch.compile(fn, **compiled(host))) for host in HOSTS}
    outcomes: dict[str, list[list[Tensor]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        gate, graphs = Gate(Cache(folder), cuda_driver()), Graphs()
        with gate.built(), graphs.built():
            for host, step in steps.items():
                for _ in range(RUNS + 1):  # the first measures ways, with copies of what is written
                    torch.manual_seed(0)
                    found = [x.clone() for group in step.outcome().values() for x in group]
                    outcomes.setdefault(host, []).append(found)
        check(name, *(found[1:] for found in outcomes.values()))
        calls = graphs.calls(steps["python"])
        steps["peer"] = Step(traffic.workload, torch.compile(fn))
        count, closed = gate.launches(steps["native"]), gate.closed(steps["native"])
        bare = {"closed": closed, "aten": alone(calls)}
        found_ms = {k: 1e3 * v for k, v in medians({**steps, **bare}, turns).items()}
        within = 1e3 * graphs.share(closed, turns)
    cells = "  ".join(f"{k} {v:7.3f}" for k, v in found_ms.items())
    print(f"{name}: milliseconds until a step is issued: {cells}")
    share, driver = found_ms["native"] / found_ms["peer"], found_ms["native"] - found_ms["closed"]
    own, aten = within - found_ms["aten"], found_ms["aten"]
    print(f"  native, of the peer's: {share:.2f}; outside graphs {found_ms['closed'] - within:.3f}")
    print(f"  the driver {driver:.3f} for {count} launches, ATen {aten:.3f} for {len(calls)} calls")
    each = 1e3 * own / max(1, count + len(calls))
    print(f"  the executor {own:.3f}: {each:.2f} microseconds a launch or call", flush=True)


def check(name: str, python: list[list[Tensor]], native: list[list[Tensor]]) -> None:
    """Say whether both hosts gave the same bits, and where runs of one host do not.

    python, native: the results of each of its runs.
    """
    restless = set(apart(python)) | set(apart(native))
    wrong = apart([python[0], native[0]])
    said = f"{len(wrong.keys() - restless)} of {len(python[0])} differ" if wrong else "equal"
    if restless:
        most = max([*apart(python).values(), *apart(native).values()])
        said += f", beside {len(restless)} that differ from run to run of one host, by {most:.1g}"
        said += f" (of both hosts by {max(wrong.values(), default=0):.1g})"
    print(f"{name}: results of both hosts: {said}", flush=True)


def apart(runs: list[list[Tensor]]) -> dict[int, float]:
    """Of results that are not the same bits in all runs, how much they differ at most."""
    found: dict[int, float] = {}
    first, *others = runs
    for run in others:
        for k, (a, b) in enumerate(zip(first, run, strict=True)):
            if not torch.equal(bits(a), bits(b)):
                found[k] = max(found.get(k, 0.0), float((a.double() - b.double()).abs().max()))
    return found


def bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().flatten().view(torch.uint8)


def own(fn: Any) -> Call:
    """A function of its own, which Dynamo compiles by itself."""
    return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)


def compiled(host: str) -> dict[str, Any]:
    return {"backend": "litz", "options": {"host": host}}


def main(turns: int, times: int, only: str | None, quick: bool) -> None:
    if only in (None, "chain"):
        run_chain(turns, times)
    for name in STEPS:
        if only in (None, name):
            torch._dynamo.reset()
            run_step(name, turns, quick)
