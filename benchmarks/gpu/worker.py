"""A process that runs workloads one after another on one backend and answers requests.

``python -m benchmarks.gpu.worker DEVICE BACKEND QUICK``; see ``benchmarks.worker`` for requests.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import Replay, clock_of, copy_rate, host_seconds
from benchmarks.gpu.judge import exact, faulty, judged, outcome, overwritten
from benchmarks.gpu.workloads import Traffic, build_on, least_bytes
from benchmarks.step import Step
from benchmarks.worker import reason, serve
from benchmarks.workloads import Workload


def small(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y) * 2


class GpuRunner:
    """One backend on a device; one workload at a time."""

    def __init__(self, device: str, backend: str, quick: bool) -> None:
        self.device, self.backend, self.quick = device, backend, quick
        self.clock = clock_of(device)
        self.name = ""
        self.traffic: Traffic | None = None
        self.step: Step | None = None
        self.graph: Replay | None = None

    def compiled(self, fn: Any) -> Any:
        return fn if self.backend == "eager" else torch.compile(fn, backend=self.backend)

    def start(self) -> dict[str, Any]:
        """The first compile of the process (imports, pools) and what a call costs the host."""
        x = torch.ones(1024, device=self.device)
        start = time.perf_counter()
        if self.backend != "eager":
            backend_called(self.backend)
        fn = self.compiled(small)
        fn(x, x)
        self.clock.synchronize()
        seconds = time.perf_counter() - start
        fn(x, x)
        call = host_seconds(lambda: fn(x, x), self.clock)
        return {"seconds": seconds, "call_us": 1e6 * call}

    def facts(self) -> dict[str, str]:
        """What figures depend on."""
        return facts(self.device)

    def roof(self, seconds: float) -> dict[str, float]:
        """Bytes a second of a plain copy."""
        nbytes = 1 << (20 if self.quick else 30)
        return {"rate": copy_rate(self.device, self.clock, nbytes, seconds)}

    def first(self, name: str) -> dict[str, float]:
        """Build a workload, compile it and call it for the first time; seconds but of building."""
        self.drop()
        self.name, self.traffic = name, build_on(self.device, name, self.quick)
        workload = self.traffic.workload
        self.step = Step(workload, workload.fn)
        self.clock.synchronize()
        start = time.perf_counter()
        self.step.fn = self.compiled(workload.fn)
        self.step()
        self.clock.synchronize()
        return {"seconds": time.perf_counter() - start}

    def drop(self) -> dict[str, Any]:
        """Forget the workload and what was compiled for it."""
        self.step = self.traffic = self.graph = None
        torch._dynamo.reset()
        self.release()
        return {}

    def release(self) -> None:
        """Give memory back that nothing holds: other backends' processes want it."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def held(self) -> tuple[Traffic, Step]:
        if self.traffic is None or self.step is None:
            raise RuntimeError("no workload was built")
        return self.traffic, self.step

    def warm(self, calls: int) -> dict[str, Any]:
        """Untimed calls: lazily compiled parts, tuning and the allocator settle."""
        _, step = self.held()
        for _ in range(calls):
            step()
        self.clock.synchronize()
        return {}

    def time(self, seconds: float) -> dict[str, float]:
        """The median time of a call."""
        _, step = self.held()
        return {"seconds": statistics.median(self.clock.measure(step, seconds))}

    def capture(self) -> dict[str, str | None]:
        """Capture a call as a graph; why that cannot be done, if so."""
        _, step = self.held()
        try:
            self.graph = Replay(step)
        except Exception as error:
            self.clock.synchronize()
            return {"refused": reason(error)}
        return {"refused": None}

    def replay(self, seconds: float) -> dict[str, float]:
        """The median time of a replay."""
        if self.graph is None:
            raise RuntimeError("no call was captured")
        return {"seconds": statistics.median(self.clock.measure(self.graph, seconds))}

    def alive(self) -> dict[str, Any]:
        """Fails where the device no longer works for this process."""
        torch.ones(2, device=self.device).sum().item()
        return {}

    def judge(self) -> dict[str, Any]:
        """See ``found``; its memory is given back."""
        try:
            return self.found()
        finally:
            self.release()

    def found(self) -> dict[str, Any]:
        """The verdict on a step with inputs that no call has seen; and the bytes it must move.

        The reference has inputs of its own: what a kernel wrote where it should not is not part
        of it.
        """
        traffic, step = self.held()
        fresh = build_on(self.device, self.name, self.quick)
        if not traffic.mutates:
            fault = overwritten(traffic.workload, fresh.workload)
            if fault is not None:
                return {"verdict": faulty(fault), "bytes": 0}
        mine = Workload(traffic.workload.fn, fresh.workload.inputs, traffic.workload.training)
        got = outcome(traffic, Step(mine, step.fn))
        eager = got
        if self.backend != "eager":
            other = build_on(self.device, self.name, self.quick)
            eager = outcome(other, Step(other.workload, other.workload.fn))
        truth = exact(build_on(self.device, self.name, self.quick))
        verdict = judged(got, eager, truth)
        return {"verdict": verdict, "bytes": least_bytes(traffic, eager["out"])}


def facts(device: str) -> dict[str, str]:
    found = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if device == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": f"{properties.name}, {properties.multi_processor_count} multiprocessors",
            "cuda": str(torch.version.cuda),
            "triton": triton.__version__,
        }
    return found


def main() -> None:
    device, backend, quick = sys.argv[1:4]
    serve(partial(GpuRunner, device, backend, quick == "1"))


if __name__ == "__main__":
    main()
