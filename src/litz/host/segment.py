"""Segments, consecutive kernel calls as one native call, in the runtime's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from litz.artifact import SegmentTable
from litz.runtime.native import Fault, Function, Runtime, Segment, Step

if TYPE_CHECKING:
    from litz.host.lines import HostProgram
    from litz.index import Expr


def segment_tables(host: HostProgram) -> tuple[SegmentTable, ...]:
    """The table of each segment of a host program."""
    tables = []
    for line in host.segments():
        buffers, ints = line.buffers(), line.ints()
        at: Mapping[str, int] = {b: i for i, b in enumerate(buffers)}
        int_at: Mapping[Expr, int] = {e: i for i, e in enumerate(ints)}
        steps = tuple(
            (c.kernel, tuple(at[b] for b in c.buffers), tuple(int_at[e] for e in c.ints))
            for c in line.calls
        )
        tables.append(SegmentTable(line.name, len(buffers), len(ints), steps))
    return tuple(tables)


def bind_segments(
    tables: Sequence[SegmentTable],
    runtime: Runtime,
    functions: Mapping[str, Function],
    faults: Mapping[str, tuple[Fault, ...]],
) -> dict[str, Segment]:
    """The runtime's segment of each table.  faults: messages of a kernel's faults, by its name."""
    bound = {}
    for t in tables:
        steps = [Step(functions[k], p, i, faults.get(k, ())) for k, p, i in t.steps]
        bound[t.name] = Segment(runtime, steps, t.n_ptrs, t.n_ints)
    return bound
