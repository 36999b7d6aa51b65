"""Communication behind compute: what does not need a transfer runs between its start and its wait.

A functional collective is two steps: the call that starts it, and the wait for its result.  The
order of a schedule changes where a wait would be idle: what stands before the start and is not
needed by it moves behind it, what stands behind the wait and does not need it moves before it, as
much as hides the transfer and no more.  Collectives keep their order, which all processes have to
share; the new order depends on the graph, on sizes' hints and on rates alone, so that processes
that compile one graph agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from litz.index import Expr, size_hint
from litz.ir.flops import Rates, call_ops
from litz.ir.program import Extern, Program, Template, TensorRef
from litz.runtime.collectives import is_start, is_wait
from litz.schedule.dependencies import Numbers, effects_of, hazards, peak
from litz.schedule.groups import Schedule, Step, Transfer, bytes_hint

SLACK: Final = 1 << 20  # bytes of temporaries that more may live at once for the sake of overlap
PART: Final = 8  # or this part of all memory
SHARES: Final = (1.0, 0.5, 0.25)  # of a transfer to hide, where memory does not bear all of it


HOST: Final = Rates(1e-4, 1e9, 1e10, 2e11, 5e-6)
"""A CPU, and processes that talk by way of its sockets."""
BETWEEN_GPUS: Final = 2e-5, 1e11
"""Latency and bandwidth of transfers between GPUs of a host."""


LATENCIES: Final = 5  # that a transfer lasts which is worth a call of its own


def between(kind: str, megabytes: int) -> tuple[float, float]:
    """Latency and bandwidth between devices of a kind, as measured in MB a second, or 0."""
    latency, usual = BETWEEN_GPUS if kind == "cuda" else (HOST.latency, HOST.bandwidth)
    return latency, 1e6 * megabytes if megabytes else usual


def worth_a_call(kind: str, megabytes: int) -> int:
    """Bytes of the smallest transfer that is worth a call of its own."""
    latency, bandwidth = between(kind, megabytes)
    return int(LATENCIES * latency * bandwidth)


def overlap(schedule: Schedule, rates: Rates) -> Schedule:
    """The schedule with transfers behind other steps, and each of them with its times.

    What would take much more memory stays where it is.
    """
    steps = _Steps(schedule, rates)
    order = before = list(range(len(schedule.steps)))
    most = steps.peak(before)
    bound = most + max(SLACK, (steps.given + most) // PART)
    for k in steps.waits:
        order = _moved(steps, order, k, bound, _sooner)
    for k in steps.waits:
        order = _moved(steps, order, k, bound, _later)
    old, new = (steps.run(o)[1] for o in (before, order))
    transfers = (
        Transfer(schedule.steps[k].name, steps.sent[k], steps.seconds[k], old[k], new[k])
        for k in steps.waits
    )
    found = tuple(schedule.steps[k] for k in order)
    return replace(schedule, steps=found, transfers=tuple(transfers))


def seconds(schedule: Schedule, rates: Rates) -> float:
    """How long all steps take in their order, by estimate, with the time in which some wait."""
    return _Steps(schedule, rates).run(range(len(schedule.steps)))[0]


class _Steps:
    """The steps of a schedule by number: what they need of each other, and how long they take.

    waits: those of each collective that somebody waits for, by its start.  sent: its bytes.
    needs: the steps that each has to follow.  seconds: of each step; of a start, of its transfer.
    """

    def __init__(self, schedule: Schedule, rates: Rates) -> None:
        self.program, self.steps = schedule.program, schedule.steps
        self.waits: dict[int, list[int]] = {}
        self.start: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.same: dict[str, str] = {}  # memory by the results of waits, which hand it on
        self._pair()
        self.touched = [self._touched(k) for k in range(len(self.steps))]
        self.needs = list(self._needs())
        self.seconds = [self._seconds(k, rates) for k in range(len(self.steps))]
        self.launch = rates.launch
        self.bytes = {n: bytes_hint(b) for n, b in self.program.buffers.items() if not b.alias}
        held = {n for n in self.bytes if self.program.buffers[n].kind in ("input", "constant")}
        self.given = sum(self.bytes.pop(n) for n in sorted(held))
        self.own = [tuple(self.bytes.keys() & (r | w)) for r, w in self.touched]
        self.stays = {self._memory(r.buffer) for r in self.program.output_refs()}

    def _memory(self, name: str) -> str:
        root = self.program.root(name)
        return self.same.get(root, root)

    def _pair(self) -> None:
        """Find the waits of each start, and what memory their results lie in."""
        under_way: dict[str, int] = {}
        for k, step in enumerate(self.steps):
            if not isinstance(step, Extern):
                continue
            if is_start(step.target):
                under_way.update((self._memory(b), k) for b in step.write_buffers())
            for b in map(self._memory, step.read_buffers()) if is_wait(step.target) else ():
                self.same.update((self.program.root(o), b) for o in step.outputs if o is not None)
                if b in under_way:
                    self.start[k] = under_way.pop(b)
                    self.waits.setdefault(self.start[k], []).append(k)

    def _touched(self, k: int) -> tuple[set[str], set[str]]:
        """The memory that a step reads and that it writes; a wait also what its start does."""
        step, start = self.steps[k], self.steps[self.start.get(k, k)]
        reads = {self._memory(b) for s in (step, start) for b in s.read_buffers()}
        return reads, {self._memory(b) for s in (step, start) for b in s.write_buffers()}

    def _needs(self) -> Iterator[set[int]]:
        numbers = Numbers(self.program)
        last: dict[str, int] = {}  # of each kind of effect
        for k, (step, before) in enumerate(zip(self.steps, hazards(self.touched), strict=True)):
            found = {*before, *numbers.before(k, step)}
            for kind in effects_of(step, self.program):
                found.add(last.get(kind, k))
                last[kind] = k
            yield found - {k}

    def _seconds(self, k: int, rates: Rates) -> float:
        step, (reads, writes) = self.steps[k], self.touched[k]
        if k in self.start:
            return 0.0
        moved = [sum(bytes_hint(self.program.buffers[b]) for b in some) for some in (reads, writes)]
        if k in self.waits:
            # What is reduced everywhere goes to where it is reduced and back.
            self.sent[k] = max(moved) * (2 if _reduces_everywhere(step) else 1)
            return rates.latency + self.sent[k] / rates.bandwidth
        return rates.launch + max(
            sum(moved) / rates.memory, _operations(step, self.program) / rates.operations
        )

    def run(self, order: Sequence[int]) -> tuple[float, dict[int, float]]:
        """(seconds of all, for each start those in which its waits are idle)."""
        now = free = 0.0
        ends: dict[int, float] = {}
        idle = dict.fromkeys(self.waits, 0.0)
        for k in order:
            if k in self.waits:
                now += self.launch
                free = ends[k] = max(now, free) + self.seconds[k]
            elif k in self.start:
                start = self.start[k]
                idle[start] += max(0.0, ends[start] - now)
                now = max(now, ends[start])
            else:
                now += self.seconds[k]
        return now, idle

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes that live at once of what the steps make."""
        return peak([self.own[k] for k in order], self.bytes, self.stays)


def _moved(
    steps: _Steps, order: list[int], k: int, bound: int, move: Callable[..., list[int]]
) -> list[int]:
    """The order in which a move hides as much of a transfer as memory bears; else as it was."""
    total, idle = steps.run(order)
    for share in SHARES if idle[k] > 0 else ():
        found = move(steps, order, k, share * idle[k])
        if found == order or steps.run(found)[0] >= total:
            return order
        if steps.peak(found) <= bound:
            return found
    return order


def _sooner(steps: _Steps, order: list[int], k: int, seconds: float) -> list[int]:
    """Start a transfer, and what it needs, so much time earlier, but not before another start."""
    place = order.index(k)
    needed, along, behind = set(steps.needs[k]), [k], []
    at = place
    while at > 0 and seconds > 0:
        i = order[at - 1]
        if i in needed:
            if i in steps.waits:
                break
            along.append(i)
            needed |= steps.needs[i]
        elif i in steps.waits:
            break
        else:
            behind.append(i)
            seconds -= steps.seconds[i]
        at -= 1
    return [*order[:at], *along[::-1], *behind[::-1], *order[place + 1 :]]


def _later(steps: _Steps, order: list[int], k: int, seconds: float) -> list[int]:
    """Run so much of what does not need a transfer before the first wait for it."""
    place = min(order.index(w) for w in steps.waits[k])
    before: list[int] = []
    behind: list[int] = []
    at = place
    stay: set[int] = set()
    while at < len(order) and seconds > 0:
        i = order[at]
        if i in steps.start or i in steps.waits or steps.needs[i] & stay:
            behind.append(i)
            stay.add(i)
        else:
            before.append(i)
            seconds -= steps.seconds[i]
        at += 1
    return [*order[:place], *before, *behind, *order[at:]]


def _reduces_everywhere(step: Step) -> bool:
    return isinstance(step, Extern) and "all_reduce" in step.target_name


def _operations(step: Step, program: Program) -> int:
    """The operations of a product, at the sizes' hints; 0 of what moves data alone."""
    if isinstance(step, Template):
        axes = (*step.axes, *step.reduce_axes)
        extents: list[Expr] = [v.extent for v in axes]  # type: ignore[attr-defined]
        return 2 * math.prod(map(_size, extents))
    if not isinstance(step, Extern):
        return 0
    shapes = [() if o is None else program.buffers[o].shape for o in step.outputs]
    made = [torch.Size(map(_size, shape)) for shape in shapes]
    named = {name: _plain(value) for name, value in step.kwargs if name != "out"}
    out = made[0] if len(made) == 1 else made
    return call_ops(step.target, [*map(_plain, step.args)], named, out)


def _plain(value: object) -> object:
    """An argument as counts of operations take it: of a tensor, its sizes."""
    if isinstance(value, TensorRef):
        return torch.Size(map(_size, value.shape))
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def _size(n: Expr) -> int:
    return size_hint(n, default=64)
