"""Timing calls on a device: events around single calls on a cold cache, and replays of a graph."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

# Several times any last-level cache; reading it takes longer than the host takes for a call, so
# that a call of a few kernels is queued by the time the device gets to it.
FLUSH_BYTES = 512 << 20
WARM_CALLS = 3


class Clock(Protocol):
    """Times of single calls in seconds."""

    def synchronize(self) -> None: ...

    def measure(self, call: Call, seconds: float, least: int = 5, most: int = 200) -> list[float]:
        """Times of single calls: so many as last about ``seconds``, from ``least`` to ``most``."""
        ...


class HostClock:
    """Wall time, for a device that the host waits for."""

    def synchronize(self) -> None:
        pass

    def measure(self, call: Call, seconds: float, least: int = 5, most: int = 200) -> list[float]:
        times: list[float] = []
        until = time.perf_counter() + seconds
        while len(times) < least or (len(times) < most and time.perf_counter() < until):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times


def event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class EventClock:
    """Times between CUDA events on the current stream, each call on a cold last-level cache."""

    def __init__(self, device: str = "cuda") -> None:
        # Read, not written: no dirty lines are left for the call to write back.
        self._flush = torch.ones(FLUSH_BYTES // 4, device=device)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def measure(self, call: Call, seconds: float, least: int = 5, most: int = 200) -> list[float]:
        self.run(call, 1)
        start = time.perf_counter()
        self.run(call, 2)
        each = (time.perf_counter() - start) / 2
        gc.collect()
        gc.disable()
        try:
            return self.run(call, min(max(least, int(seconds / each)), most))
        finally:
            gc.enable()

    def run(self, call: Call, calls: int) -> list[float]:
        """Times of so many calls, all queued before the first is waited for."""
        pairs = [(event(), event()) for _ in range(calls)]
        torch.cuda.synchronize()
        for before, after in pairs:
            self._flush.sum()
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


def clock_of(device: str) -> Clock:
    """The clock for a device: "cuda" or "cpu"."""
    return EventClock() if device == "cuda" else HostClock()


class Replay:
    """A call captured as a CUDA graph; calling this replays it."""

    def __init__(self, call: Call) -> None:
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_CALLS):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # Compilers' threads may call CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = call()

    def __call__(self) -> None:
        self._graph.replay()


def replay_us(call: Call, clock: Clock, seconds: float, least: int = 10) -> float:
    """Microseconds of a replay of a call, the median of at least so many."""
    return 1e6 * statistics.median(clock.measure(Replay(call), seconds, least))


def host_seconds(call: Call, clock: Clock, calls: int = 200, turns: int = 10) -> float:
    """What a call costs the host, the device not waited for: the best mean of ``turns``."""
    best = float("inf")
    for _ in range(turns):
        clock.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    clock.synchronize()
    return best


def copy_rate(device: str, clock: Clock, nbytes: int, seconds: float) -> float:
    """Bytes a second, read and written, of a plain copy of so many bytes."""
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    times = sorted(clock.measure(lambda: target.copy_(source), seconds))
    return 2 * nbytes / times[len(times) // 2]
