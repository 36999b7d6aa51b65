"""A host program with a probe around every call: for who checks memory, or who takes the time."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from litz.host.aliasing import touched
from litz.host.lines import CallExtern, CallKernel, CallSegment, HostProgram, Line, Probe, calls_of
from litz.index import Expr


def with_probes(host: HostProgram, native: Collection[str]) -> HostProgram:
    """``host`` with a ``Probe`` before and after each call; every kernel is a call of its own.

    native: the kernels that are called through segments.  Calls are counted from 0, in order: as
    the steps of the schedule.
    """
    return host.with_lines(tuple(_probed(host, frozenset(native))))


def _probed(host: HostProgram, native: frozenset[str]) -> Iterator[Line]:
    step = 0
    for line in host.lines:
        match line:
            case CallKernel() | CallSegment():
                for call in line.calls if isinstance(line, CallSegment) else (line,):
                    yield Probe(step, False, call.buffers)
                    yield CallSegment(f"kernel_{step}", (call,)) if call.kernel in native else call
                    yield Probe(step, True, call.buffers)
                    step += 1
            case CallExtern(extern):
                yield Probe(step, False, extern.read_buffers())
                yield line
                made = [e for _, e in extern.symbols if isinstance(e, Expr)]
                numbers = (*made, *(s for s, _, _ in extern.sizes))
                yield Probe(step, True, touched(extern), numbers)
                step += 1
            case _:
                yield line


def with_marks(host: HostProgram) -> HostProgram:
    """``host`` with an empty ``Probe`` before and after each call that ``HostProgram.calls`` has.

    Memory stays as it is planned; every kernel of a segment is a call of its own.
    """
    lines: list[Line] = []
    step = 0
    for line in host.lines:
        apart: tuple[Line, ...] = (line,)
        if isinstance(line, CallSegment):
            apart = tuple(CallSegment(f"{line.name}_{i}", (c,)) for i, c in enumerate(line.calls))
        for own in apart:
            if not calls_of(own):
                lines.append(own)
                continue
            lines += [Probe(step, False, ()), own, Probe(step, True, ())]
            step += 1
    return host.with_lines(lines)
