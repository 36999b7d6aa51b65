"""A process that runs one workload on one backend and answers requests, a JSON object a line.

``python -m benchmarks.worker NAME BACKEND QUICK``; BACKEND "judge" holds the float64 reference.
Requests are ``{"do": method, "with": {argument: value}}``; a reply with the key "error" means
that the request failed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.judge import Judge
from benchmarks.step import Step
from benchmarks.workloads import build


class Runner:
    """One workload on one backend."""

    def __init__(self, name: str, backend: str, quick: bool) -> None:
        self.workload = build(name, quick)
        self.backend = backend
        self.step = Step(self.workload, self.workload.fn)

    def first(self) -> dict[str, float]:
        """Compile and call for the first time; seconds."""
        start = time.perf_counter()
        if self.backend != "eager":
            self.step.fn = torch.compile(self.workload.fn, backend=self.backend)
        self.step()
        return {"seconds": time.perf_counter() - start}

    def warm(self, calls: int) -> dict[str, Any]:
        """Untimed calls: lazily compiled parts, tuning and the allocator settle."""
        for _ in range(calls):
            self.step()
        return {}

    def time(self, seconds: float, least: int) -> dict[str, list[float]]:
        """Times of single calls for about ``seconds``, ``least`` of them or more.

        A result is freed inside the timed region: what a call allocates, somebody has to free.
        """
        self.step()
        times: list[float] = []
        until = time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < until:
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return {"times": times}

    def memory(self, calls: int) -> dict[str, float | None]:
        """MiB by which steady calls make the process grow at most, and what it keeps of that.

        Before, whatever earlier calls left in the C library's heap or in a backend's pool is given
        back, so that handing it out again counts as growth for every backend alike.  ``held`` is
        what a pool keeps afterwards, results and gradients dropped.
        """
        self.drop_gradients()
        empty_pools()
        trim_heap()
        before = status_mib("VmRSS")
        if not reset_peak():
            return {"growth": None, "held": None}
        for _ in range(calls):
            self.step()
        growth = status_mib("VmHWM") - before
        self.drop_gradients()
        trim_heap()
        return {"growth": growth, "held": status_mib("VmRSS") - before}

    def drop_gradients(self) -> None:
        for leaf in self.step.leaves:
            leaf.grad = None
        gc.collect()

    def save(self, path: str) -> dict[str, Any]:
        """Write one step's outcome for the judge."""
        torch.save(self.step.outcome(), path)
        return {}


def empty_pools() -> None:
    """Have Litz's allocator, where it is loaded, give back its cached blocks."""
    memory = sys.modules.get("litz.runtime.memory")
    if memory is not None:
        memory.default_allocator().trim()


def trim_heap() -> None:
    """Give free heap pages back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> bool:
    """Set the kernel's mark of peak resident memory back to the present; False if it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def status_mib(key: str) -> float:
    """A field of /proc/self/status in MiB."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")


def take_stdout() -> TextIO:
    """The reply channel; whatever else prints goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def reason(error: BaseException) -> str:
    """One line that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def answer(target: object, line: str) -> dict[str, Any]:
    """Carry out one request."""
    request = json.loads(line)
    try:
        reply: dict[str, Any] = getattr(target, request["do"])(**request.get("with", {}))
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return {"error": reason(error)}
    return reply


def serve(make: Callable[[], object]) -> None:
    """Make the target of requests, say so, and answer requests until there are no more."""
    channel = take_stdout()

    def send(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=channel, flush=True)

    try:
        target = make()
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        send({"error": reason(error)})
        return
    send({"threads": torch.get_num_threads(), "torch": torch.__version__})
    for line in sys.stdin:
        send(answer(target, line))


def main() -> None:
    name, backend, quick = sys.argv[1:4]
    serve(
        partial(Judge, name, quick == "1")
        if backend == "judge"
        else partial(Runner, name, backend, quick == "1")
    )


if __name__ == "__main__":
    main()
