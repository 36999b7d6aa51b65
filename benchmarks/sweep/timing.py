"""One case: compiled, judged and timed in turns with eager, in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.gpu.clock import EventClock, Replay, host_seconds
from benchmarks.gpu.judge import compare
from benchmarks.judge import KeepDouble, loosely, mismatch
from benchmarks.sweep.tensors import Job

Call = Callable[[], Any]
Times = dict[str, list[float]]

ROUNDS = (5, 21)
"""At least and at most; three of calls of more than half a second."""
LONG = 0.5
TURN = 5e-4
"""Seconds that a turn lasts at least: calls of less are timed several at a time."""
SMALL = 1 << 12
"""Bytes below which a case on a GPU says what a call costs the host."""
BRIEF = 2e-3
"""Seconds below which an eager call that the host issues has Dynamo's own cost beside it."""


@dataclass
class Side:
    """One way to run a job."""

    fn: Callable[..., Any]
    job: Job

    def __call__(self) -> Any:
        job = self.job
        if not job.training:
            return self.fn(*job.args, **job.kwargs)
        for t in leaves(job):
            t.grad = None
        loss = self.fn(*job.args, **job.kwargs)
        loss.backward()
        return loss

    def outcome(self) -> list[Tensor]:
        """Results; of training the gradients: the loss is one number, near by luck."""
        found = [t.detach() for t in pytree.tree_leaves(self()) if isinstance(t, Tensor)]
        if self.job.training:
            found = [t.grad for t in leaves(self.job) if t.grad is not None]
        return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in found]


def leaves(job: Job) -> list[Tensor]:
    return [t for t in job.args if isinstance(t, Tensor) and t.requires_grad]


def widened(job: Job) -> Job:
    """The same call of float64."""

    def widen(t: Any) -> Any:
        if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
            return t
        wide = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
        return wide.requires_grad_(t.requires_grad)

    args, kwargs = pytree.tree_map(widen, (job.args, job.kwargs))
    return Job(job.fn, args, kwargs, job.training)


# --- right ----------------------------------------------------------------------------------------


def verdict(
    got: list[Tensor], eager: list[Tensor], again: list[Tensor], job: Job
) -> dict[str, Any]:
    """right: ok, loose, WRONG, or random where eager itself gives other values each time.

    off, eager_off: distances from float64.
    """
    fault = mismatch(got, eager)
    if fault is not None:
        return {"right": "WRONG", "fault": fault}
    got = [e if equivalent(g, e, job) else g for g, e in zip(got, eager, strict=True)]
    if not all(map(torch.equal, again, eager)):
        pair = finite(again, eager, [t.double() for t in eager])
        if pair is None or compare(*pair)["error"] > loosely(eager):
            return {"right": "random"}
    try:
        with KeepDouble():
            truth = Side(job.fn, widened(job)).outcome()
        if [t.shape for t in truth] != [t.shape for t in eager]:
            truth = eager
    except Exception:  # no kernel for float64
        truth = eager
    sides = finite(got, eager, [t.double() for t in truth])
    if sides is None:
        return {"right": "WRONG", "fault": "other elements are not finite"}
    found = compare(*sides)
    right = "ok" if found["ok"] else "loose" if found["loose"] else "WRONG"
    return {"right": right, "off": found["error"], "eager_off": found["eager_error"]}


def equivalent(got: Tensor, eager: Tensor, job: Job) -> bool:
    """Whether indices pick the same values of an argument as eager's, and as many different ones.

    Of equal elements a sort that is not stable may give any first.
    """
    if got.dtype is not torch.int64 or torch.equal(got, eager):
        return False
    values = [
        t.detach() for t in pytree.tree_leaves((job.args, job.kwargs)) if isinstance(t, Tensor)
    ]
    found = (x for x in values if x.dim() == got.dim())
    return any(picks(x, dim, got, eager) for x in found for dim in range(got.dim()))


def picks(x: Tensor, dim: int, got: Tensor, eager: Tensor) -> bool:
    """Whether both pick the same along this dimension."""
    sides = [n for k, n in enumerate(x.shape) if k != dim]
    if sides != [n for k, n in enumerate(got.shape) if k != dim]:
        return False
    if any(bool(((i < 0) | (i >= x.shape[dim])).any()) for i in (got, eager)):
        return False
    mine, theirs = x.gather(dim, got), x.gather(dim, eager)
    same = (mine == theirs) | ((mine != mine) & (theirs != theirs))
    return bool(same.all()) and repeated(got, dim) <= repeated(eager, dim)


def repeated(indices: Tensor, dim: int) -> int:
    """How many indices occur before in their row along a dimension."""
    return int((indices.sort(dim).values.diff(dim=dim) == 0).sum())


def finite(
    got: list[Tensor], eager: list[Tensor], truth: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]] | None:
    """All three with zeros where eager's is not finite; None where they differ in what is not."""
    cleaned: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for g, e, t in zip(got, eager, truth, strict=True):
        odd = ~torch.isfinite(e)
        same = (g == e) | (torch.isnan(g) & torch.isnan(e))
        if bool((odd & ~same).any()) or bool((~odd & ~torch.isfinite(g)).any()):
            return None
        hidden = odd | ~torch.isfinite(t)
        for into, x in zip(cleaned, (g, e, t), strict=True):
            into.append(x.masked_fill(hidden, 0) if bool(hidden.any()) else x)
    return cleaned


# --- times ----------------------------------------------------------------------------------------


def alternated(sides: dict[str, Call], turn: Callable[[Call], float], rounds: int) -> Times:
    """Times of turns; each round begins with another side."""
    times: Times = {name: [] for name in sides}
    order = list(sides)
    gc.collect()
    gc.disable()
    try:
        for k in range(rounds):
            shift = k % len(order)
            for name in order[shift:] + order[:shift]:
                times[name].append(turn(sides[name]))
    finally:
        gc.enable()
    return times


def on_host(sides: dict[str, Call], seconds: float) -> Times:
    """Time of a call, several a turn where they are short.

    Short ones are called once before a turn's time: sides of ATen's share memory that they leave
    in the caches, others' own is no longer there.
    """
    each = max(timed(call, 1) for call in sides.values())
    if each < 0.1:
        each = max(min(timed(call, 1) for _ in range(3)) for call in sides.values())
    calls = max(1, int(TURN / each))
    rounds = 3 if each > LONG else bounded(seconds / (each * calls))

    def turn(call: Call) -> float:
        if each < BRIEF:
            call()
        return timed(call, calls)

    return alternated(sides, turn, rounds)


def timed(call: Call, calls: int) -> float:
    """Seconds of a call: of one thread its processor's, which other processes do not lengthen."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def on_device(sides: dict[str, Call], clock: EventClock, seconds: float) -> tuple[Times, bool]:
    """Times of replays, or of calls where one cannot be captured; whether they are replays."""
    runs: dict[str, Call] = {}
    try:
        for name, call in sides.items():
            runs[name] = Replay(call)
    except Exception:
        clock.synchronize()
        # A capture that failed leaves the generator in it: who draws next would be refused.
        own = torch.cuda.default_generators[torch.cuda.current_device()]
        own.graphsafe_set_state(own.clone_state())
        runs = sides
    start = time.perf_counter()
    for call in runs.values():
        clock.run(call, 1)
    each = (time.perf_counter() - start) / len(runs)
    rounds = bounded(seconds / (3 * each))
    times = alternated(runs, lambda call: statistics.median(clock.run(call, 3)), rounds)
    return times, runs is not sides


def bounded(rounds: float) -> int:
    least, most = ROUNDS
    return min(max(least, int(rounds)), most)


def beside(times: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How many times faster than ``other``, the median over rounds; and that median's noise.

    Noise is half the 95 % interval that the notch of a box plot shows (McGill, Tukey and Larsen,
    1978): 1.57 of the distance between quartiles over the root of the number of rounds.
    """
    ratios = [b / a for a, b in zip(times, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, 1.57 * (high - low) / len(ratios) ** 0.5


# --- a case ---------------------------------------------------------------------------------------


@dataclass
class Bench:
    """What cases are measured with.

    backend: makes Litz's callable, and says afterwards how many kernels and which calls of ATen
    it took.  quiet: held while the device is used for anything but first calls.
    """

    device: str
    peer: bool
    seconds: float
    backend: Callable[[Callable[..., Any], dict[str, Any]], Callable[..., Any]]
    quiet: Callable[[], AbstractContextManager[Any]]
    clock: EventClock | None = None

    def measure(self, make: Callable[[], Job]) -> dict[str, Any]:
        """A row of figures; times are medians in seconds."""
        torch._dynamo.reset()
        with self.quiet():
            job = make()
            torch.set_grad_enabled(job.training)
            eager = Side(job.fn, job)
            expected = eager.outcome()
            again = eager.outcome()
            brief = min(timed(eager, 1) for _ in range(3)) < BRIEF
        row: dict[str, Any] = {"bytes": moved(job, expected)}
        start = time.perf_counter()
        mine = Side(self.backend(job.fn, row), job)
        got = mine.outcome()
        row["first"] = time.perf_counter() - start
        sides: dict[str, Call] = {"eager": eager, "litz": mine}
        dynamo = Side(torch.compile(job.fn, backend="eager", dynamic=False), job)
        if brief and self.clock is None:
            sides["dynamo"] = dynamo
        if self.peer:
            self.add_peer(sides, job, row)
        with self.quiet():
            row |= verdict(got, expected, again, job)
            del got, expected, again
            self.time(sides, row, brief)
            if brief and row.get("replays") is False:
                self.time(sides | {"dynamo": dynamo}, row, brief)
        return row

    def add_peer(self, sides: dict[str, Call], job: Job, row: dict[str, Any]) -> None:
        start = time.perf_counter()
        try:
            peer = Side(torch.compile(job.fn, backend="inductor", dynamic=False), job)
            peer()
            sides["peer"] = peer
        except Exception as error:
            row["peer_failed"] = f"{type(error).__name__}: {error}"[:200]
        row["peer_first"] = time.perf_counter() - start

    def time(self, sides: dict[str, Call], row: dict[str, Any], brief: bool) -> None:
        if self.clock is not None or brief:
            for call in sides.values():
                call()
        if self.clock is None:
            times = on_host(sides, self.seconds)
        else:
            times, row["replays"] = on_device(sides, self.clock, self.seconds)
            if row["bytes"] < SMALL:
                row["host"] = {n: host_seconds(c, self.clock, 50, 3) for n, c in sides.items()}
        row |= {name: statistics.median(found) for name, found in times.items()}
        row["ratio"], row["noise"] = beside(times["litz"], times["eager"])
        for name in {"peer", "dynamo"} & times.keys():
            row[f"{name}_ratio"], row[f"{name}_noise"] = beside(times["litz"], times[name])


def moved(job: Job, results: list[Tensor]) -> int:
    """Bytes of arguments and results, each once."""
    tensors = [t for t in pytree.tree_leaves((job.args, job.kwargs)) if isinstance(t, Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors + results)
