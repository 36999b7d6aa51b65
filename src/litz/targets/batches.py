"""Horizontal groups: calls of one small kernel that need nothing of each other become one.

Candidates follow each other without a call of ATen between them, as the steps of an optimizer do;
so nothing lives longer than it would, but for a few steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from litz.dataclass import dataclass
from litz.host.lines import CallKernel
from litz.ir.program import Program
from litz.schedule.groups import Group, Schedule, Step
from litz.targets.kernels import Kernel

Calls = dict[str, CallKernel]


@dataclass
class _Batch:
    """Calls of one kernel that have been put off so far, and the memory that they touch."""

    groups: list[Group] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def clashes(self, reads: set[str], writes: set[str]) -> bool:
        return bool(writes & (self.reads | self.writes) or reads & self.writes)


@dataclass
class _Batcher:
    program: Program
    calls: Calls
    limits: Mapping[str, int]
    steps: list[Step] = field(default_factory=list)
    open: dict[str, _Batch] = field(default_factory=dict)
    batches: list[list[Group]] = field(default_factory=list)

    def close(self, kernel: str) -> None:
        groups = self.open.pop(kernel).groups
        self.steps.append(groups[0])
        self.batches.append(groups)

    def add(self, g: Group) -> None:
        kernel = self.calls[g.name].kernel
        reads = {self.program.root(b) for b in g.read_buffers()}
        writes = {self.program.root(b) for b in g.write_buffers()}
        for other in [k for k, batch in self.open.items() if batch.clashes(reads, writes)]:
            self.close(other)
        batch = self.open.setdefault(kernel, _Batch())
        batch.groups.append(g)
        batch.reads |= reads
        batch.writes |= writes
        if len(batch.groups) >= self.limits[kernel]:
            self.close(kernel)

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Group) and self.limits[self.calls[step.name].kernel] > 1:
                self.add(step)
                continue
            self.close_all()
            self.steps.append(step)
        self.close_all()

    def close_all(self) -> None:
        for kernel in tuple(self.open):
            self.close(kernel)


def batch_calls(
    schedule: Schedule, calls: Calls, kernels: tuple[Kernel, ...]
) -> tuple[Schedule, Calls, tuple[Kernel, ...], frozenset[str]]:
    """The schedule with batches as single steps, each named by its first group.

    Returns the calls and kernels to go with it, and the names of the groups that stand for several.
    """
    by_name = {k.name: k for k in kernels}
    limits = {k.name: k.target.most_copies(k) for k in kernels}
    if all(n == 1 for n in limits.values()):
        return schedule, calls, kernels, frozenset()
    batcher = _Batcher(schedule.program, calls, limits)
    batcher.run(schedule.steps)
    calls = dict(calls)
    made: dict[str, Kernel] = {}
    several: set[str] = set()
    for groups in batcher.batches:
        old = by_name[calls[groups[0].name].kernel]
        names = tuple(g.name for g in groups)
        if len(groups) == 1:
            kernel, buffers = old, calls[names[0]].buffers
        else:
            kernel = old.target.copies(old, len(groups))
            buffers = tuple(b for name in names for b in calls[name].buffers)
            several.add(names[0])
        known = made.get(kernel.name, replace(kernel, groups=()))
        made[kernel.name] = replace(known, groups=(*known.groups, *names))
        calls[names[0]] = CallKernel(kernel.name, buffers, calls[names[0]].ints, names[0])
    rest = tuple(k for k in kernels if limits[k.name] == 1)
    found = replace(schedule, steps=tuple(batcher.steps))
    return found, calls, (*rest, *made.values()), frozenset(several)
