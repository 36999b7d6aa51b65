"""A host program that has chosen tensors looked at (``litz.runtime.looking``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from torch.fx import Graph

from litz.graph.frames import own_places
from litz.host.aliasing import holder
from litz.host.lines import (
    Allocate,
    Free,
    HostProgram,
    Line,
    Look,
    Place,
    Probe,
    Reuse,
    View,
    Workspace,
)
from litz.index import as_expr
from litz.ir.program import Buffer, Extern, TensorRef
from litz.options import Options
from litz.schedule.groups import Step

_MEMORY = (Allocate, Free, Place, Reuse, View, Workspace)


def looked_at(
    host: HostProgram, options: Options, steps: Sequence[Step], graph: Graph
) -> tuple[HostProgram, tuple[str, ...]]:
    """``host``, which has probes around all calls, with looks in the place of those wanted.

    What a step reads is looked at before it, before its results may take over the memory; what it
    writes, behind it.  And what is to be said where nothing is.
    """
    traces = {n.name: n.meta.get("stack_trace") or "" for n in graph.nodes}
    places = [_places(step.origins, traces) for step in steps]
    wanted = [p.strip() for p in options.inspect.split(",")]
    how, folder = options.inspect_how, options.inspect_dir
    kernels = _kernels(host, steps)
    labels: dict[int, Look] = {}
    known: set[str] = set()
    for k, (kernel, step, lines) in enumerate(zip(kernels, steps, places, strict=True)):
        names = kernel, *step.origins, *step.write_buffers(), *lines
        known.update(names)
        if any(fnmatchcase(n, p) or fnmatchcase(n, f"*/{p}") for n in names for p in wanted):
            line = lines[-1] if lines else ""
            labels[k] = Look(k, False, kernel, tuple(step.origins), line, how, folder)
    none = f"inspect={options.inspect} names nothing in this graph of {sorted(known)}"
    found = _Looks(host, steps)
    seen = replace(host, lines=tuple(found.lines(labels)), buffers=found.buffers)
    return seen, () if labels else (none,)


def _places(nodes: Sequence[str], traces: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(p for n in nodes for p in own_places(traces.get(n, "")))


def _kernels(host: HostProgram, steps: Sequence[Step]) -> list[str]:
    """What each step calls: the kernel's name, or the operator's."""
    calls = host.kernel_calls()
    return [s.target_name if isinstance(s, Extern) else next(calls).kernel for s in steps]


class _Looks:
    def __init__(self, host: HostProgram, steps: Sequence[Step]) -> None:
        self.host, self.steps = host, steps
        self.buffers = dict(host.buffers)
        self.owner: dict[str, tuple[str, int]] = {}

    def lines(self, labels: Mapping[int, Look]) -> Iterator[Line]:
        held: list[Line] = []  # memory of the next call, which may be what the call reads
        for line in self.host.lines:
            if isinstance(line, _MEMORY):
                held.append(line)
                continue
            if isinstance(line, Probe) and not line.after:
                if line.step in labels:
                    yield from self.look(labels[line.step], line)
                yield from self.passed(held)
                continue
            yield from self.passed(held)
            if not isinstance(line, Probe):
                yield line
            elif line.step in labels:
                yield from self.look(replace(labels[line.step], after=True), line)

    def passed(self, held: list[Line]) -> Iterator[Line]:
        for line in held:
            if isinstance(line, Place):
                self.owner[line.buffer] = (line.owner, line.offset)
        yield from held
        held.clear()

    def look(self, look: Look, probe: Probe) -> Iterator[Line]:
        step = self.steps[look.step]
        wanted = step.write_buffers() if look.after else step.read_buffers()
        names = [b for b in probe.buffers if b in wanted and self._is_shown(self.buffers.get(b))]
        shown, made = [], []
        for name in names:
            owner, offset = holder(name, self.owner)
            b = self.buffers[name]
            if owner != name:  # nobody else has it as a tensor
                b = replace(b, name=f"look{len(self.buffers)}")
                self.buffers[b.name] = b
                made.append(b.name)
                yield View(b.name, owner, offset)
            shown.append(TensorRef(b.name, b.dtype, b.shape, b.strides, as_expr(0)))
        yield replace(look, names=tuple(names), refs=tuple(shown))
        yield from map(Free, made)

    @staticmethod
    def _is_shown(b: Buffer | None) -> bool:
        return b is not None and b.kind != "opaque"
