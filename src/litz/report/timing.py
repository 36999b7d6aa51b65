"""Takes the time of programs: of a compiled graph step by step, of eager mode operator by operator.

On the CPU by the clock around each call.  On a GPU by CUDA events around each call, which the
device passes one after the other: where work is queued before them (``Timer.queued``), what lies
between two is the device's own time, without what launching takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.dataclass import dataclass
from litz.graph.frames import is_own
from litz.ir.flops import call_ops
from litz.report.lines import line
from litz.report.record import Line

AHEAD = 0.01
"""Seconds for which a GPU is kept busy, so that the host gets ahead of it."""
Call = Callable[[list[Any]], Any]
Mark = tuple[float, Any]
"""The clock of the host, and the event of the device or None."""


@dataclass(frozen=True)
class Interval:
    """One call: seconds on the host's clock, and on the device's (the same on a CPU)."""

    host: float
    device: float


@dataclass
class Run:
    """One run of a graph: marks before and after each of its calls; start, end of all of it."""

    start: Mark
    marks: list[Mark] = field(default_factory=list)
    end: Mark = (0.0, None)

    def _calls(self) -> Iterator[tuple[Mark, Mark]]:
        return zip(self.marks[::2], self.marks[1::2], strict=True)

    def intervals(self) -> list[Interval]:
        """How long each call took."""
        return [Interval(b[0] - a[0], between(a, b)) for a, b in self._calls()]

    @property
    def whole(self) -> Interval:
        return Interval(self.end[0] - self.start[0], between(self.start, self.end))

    def spans(self, origin: Mark) -> Iterator[tuple[float, float]]:
        """When each call began, in seconds after ``origin``, and how long it took."""
        for a, b in self._calls():
            yield between(origin, a), between(a, b)


def between(a: Mark, b: Mark) -> float:
    """Seconds from one mark to the other, on the device's clock where there is one."""
    return b[0] - a[0] if a[1] is None else float(a[1].elapsed_time(b[1])) * 1e-3


def mark(cuda: bool) -> Mark:
    """Now."""
    event: Any = None
    if cuda:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
    return perf_counter(), event


class Timer:
    """Takes the time of one graph's runs (a ``litz.stages.Watcher``).

    runs: those since ``clear``.  The first run of a graph, which may build and measure kernels, is
    for its user to leave out.
    """

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.runs: list[Run] = []

    def wrap(self, call: Call) -> Call:
        def timed(args: list[Any]) -> Any:
            run = Run(mark(self.cuda))
            self.runs.append(run)
            result = call(args)
            run.end = mark(self.cuda)
            return result

        return timed

    def probe(
        self, step: int, after: bool, places: Sequence[tuple[Any, int]], numbers: Sequence[int]
    ) -> None:
        self.runs[-1].marks.append(mark(self.cuda))

    def clear(self) -> None:
        """Forget all runs."""
        self.runs.clear()

    def medians(self) -> tuple[Interval, ...]:
        """The median time of each step over the whole runs; empty without one."""
        times = [r.intervals() for r in self.runs if r.end[0]]
        if not times:
            return ()
        return tuple(
            Interval(median(x.host for x in some), median(x.device for x in some))
            for some in zip(*times, strict=True)
        )


@dataclass
class Operator:
    """One call of ATen in eager mode.  line: the user's, None in a backward pass."""

    name: str
    line: Line | None
    start: Mark
    end: Mark
    bytes: int
    ops: int


class EagerTimer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes the time of each operator that a program calls, as a context."""

    def __init__(self, cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cuda = cuda
        self.calls: list[Operator] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        where = None if torch._C._current_autograd_node() is not None else _caller()
        start = mark(self.cuda)
        out = func(*args, **(kwargs or {}))
        end = mark(self.cuda)
        moved = 0 if func.is_view else _nbytes([args, kwargs, out])
        ops = call_ops(func, args, kwargs or {}, out)
        self.calls.append(Operator(str(func), where, start, end, moved, ops))
        return out


def _nbytes(tree: Any) -> int:
    tensors = (x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def _caller() -> Line | None:
    """The innermost line of the user's that runs now."""
    frame = sys._getframe(2)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def queued(seconds: float, cuda: bool) -> Iterator[None]:
    """The device is busy for so long, meanwhile the host gets ahead of it; nothing on a CPU."""
    if cuda:
        device: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        rate = 1e3 * getattr(device, "clock_rate", 1.5e6)
        torch.cuda._sleep(int(seconds * rate))  # type: ignore[no-untyped-call]
    yield
    if cuda:
        torch.cuda.synchronize()


def in_turns(
    calls: Sequence[Callable[[], Any]], seconds: float, cuda: bool, least: int = 3, most: int = 100
) -> list[float]:
    """Median seconds of each call with all it takes, measured in turns, for so long altogether."""
    found: list[list[float]] = [[] for _ in calls]
    end = perf_counter() + seconds
    while len(found[0]) < least or (perf_counter() < end and len(found[0]) < most):
        for call, own in zip(calls, found, strict=True):
            if cuda:
                torch.cuda.synchronize()
            start = perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            own.append(perf_counter() - start)
    return [median(x) for x in found]
