"""Segments, consecutive kernel calls as one native call, in the runtime's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from litz.artifact import SegmentTable

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
