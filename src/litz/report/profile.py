"""A profile: where the time of a program goes, step by step, and beside other ways to run it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from litz.dataclass import dataclass
from litz.report.findings import count, roof_seconds, size, time
from litz.report.record import Report, Roofline
from litz.report.text import place, table

BACKWARD = "(backward)"
MOST = 20


@dataclass(frozen=True)
class Row:
    """One step of a call of the program.

    name: kernel or operator.  lines: ids of the user's; of a backward pass ``BACKWARD`` alone.
    times: how often it runs in one call.  seconds: all of them together, without what launching
    takes; host: with it, on the host's clock.  bytes, ops: all of them together.
    """

    id: str
    kind: str
    name: str
    lines: tuple[str, ...]
    times: int
    seconds: float
    host: float
    bytes: int
    ops: int = 0
    launches: int = 1
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """A span of one call, for a trace: seconds since the call's start, and how long."""

    name: str
    start: float
    seconds: float
    row: str


@dataclass(frozen=True)
class Timing:
    """One way to run the program.

    seconds: of a whole call, not watched; 0 where only watched calls were seen.  watched: of one in
    which each step is; rows: its steps, the longest first.
    """

    name: str
    seconds: float
    watched: float
    rows: tuple[Row, ...]
    events: tuple[Event, ...]

    @property
    def inside(self) -> float:
        """Seconds in kernels and calls of ATen."""
        return sum(r.seconds for r in self.rows)

    @property
    def between(self) -> float:
        """Seconds of a call that no step has: launching, Python, waiting."""
        return max((self.seconds or self.watched) - self.inside, 0.0)


@dataclass(frozen=True)
class Where:
    """Lines of the user's that some step computes together, and each way's seconds there."""

    lines: tuple[str, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Profile:
    """Where the time goes.  ``str`` is a table; timings: Litz first."""

    report: Report
    timings: tuple[Timing, ...]
    roofline: Roofline

    def where(self) -> tuple[Where, ...]:
        """Time by the user's lines in all ways that know them; largest differences first."""
        known = [t for t in self.timings if t.rows]
        groups = _joined([r.lines or ("",) for t in known for r in t.rows])
        found: dict[tuple[str, ...], list[float]] = {}
        for i, t in enumerate(known):
            for r in t.rows:
                found.setdefault(groups[(r.lines or ("",))[0]], [0.0] * len(known))[i] += r.seconds
        rows = [Where(lines, tuple(x)) for lines, x in found.items()]
        return tuple(sorted(rows, key=lambda w: (-abs(w.seconds[0] - w.seconds[-1]), w.lines)))

    def to_csv(self) -> str:
        """A line for each step of each way."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        head = ("way", "id", "kind", "name", "lines", "times", "launches", "seconds")
        writer.writerow((*head, "host_seconds", "bytes", "bytes_per_second", "ops", "of_roofline"))
        for t in self.timings:
            for r in t.rows:
                figures = (r.times, r.launches, r.seconds, r.host, r.bytes, _rate(r.bytes, r))
                share = f"{self.share(r):.4f}"
                lines = " ".join(r.lines)
                writer.writerow((t.name, r.id, r.kind, r.name, lines, *figures, r.ops, share))
        return out.getvalue()

    def to_trace(self) -> str:
        """One call of each way as JSON that Perfetto and chrome://tracing show."""
        events: list[dict[str, Any]] = []
        for pid, t in enumerate(self.timings):
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": t.name}})
            rows = {r.id: r for r in t.rows}
            for e in t.events:
                event: dict[str, Any] = {"ph": "X", "name": e.name, "pid": pid, "tid": 0}
                event |= {"ts": e.start * 1e6, "dur": e.seconds * 1e6, "cat": "call"}
                if e.row in rows:
                    r = rows[e.row]
                    event |= {"cat": r.kind, "args": {"lines": list(r.lines), "bytes": r.bytes}}
                events.append(event)
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def share(self, r: Row) -> float:
        """The least time that this machine could take, by the time that a row takes."""
        best = roof_seconds(r.kind, r.bytes, r.ops, self.roofline)
        return best / r.seconds if r.seconds else 0.0

    def __str__(self) -> str:
        return "\n".join((*_whole(self), "", *_steps(self), *_compared(self)))


def _rate(n: float, r: Row) -> float:
    return n / r.seconds if r.seconds else 0.0


def _joined(groups: Sequence[tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Each line's set of lines that some row, or a chain of rows, computes together."""
    leader: dict[str, str] = {}

    def root(x: str) -> str:
        while leader.setdefault(x, x) != x:
            x = leader[x]
        return x

    for group in groups:
        for x in group:
            leader[root(x)] = root(group[0])
    members: dict[str, list[str]] = {}
    for x in leader:
        members.setdefault(root(x), []).append(x)
    return {x: tuple(sorted(members[root(x)], key=_by_number)) for x in leader}


def _by_number(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdigit() else 0


# --- text -----------------------------------------------------------------------------------------


def _whole(p: Profile) -> Iterator[str]:
    first, r = p.timings[0], p.roofline
    yield (
        f"{p.report.title}: {r.device} copies {size(r.bytes_per_second)}/s, multiplies "
        f"{count(r.ops_per_second)}FLOP/s"
    )
    rows = [("which", "a call", "in steps", "between", "steps", f"by {first.name}'s")]
    base = first.seconds or first.watched
    for t in p.timings:
        whole = t.seconds or t.watched
        own = (time(t.inside), time(t.between), str(sum(x.times for x in t.rows)))
        rows.append((t.name, time(whole), *(own if t.rows else ("",) * 3), f"{whole / base:.2f}"))
    yield from table(rows)


def _steps(p: Profile) -> Iterator[str]:
    for t in (t for t in p.timings[:1] if t.rows):
        head = (
            "step",
            "runs",
            "time",
            "part",
            "host",
            "bytes",
            "bytes/s",
            "FLOP/s",
            "roof",
            "line",
        )
        rows = [head]
        for r in t.rows[:MOST]:
            line = place(p.report, r.lines[-1]) or r.lines[-1] if r.lines else ""
            rows.append(
                (
                    r.id.partition(".")[2] + (f" x{r.times}" if r.times > 1 else ""),
                    r.name,
                    time(r.seconds),
                    f"{r.seconds / (t.inside or 1):.0%}",
                    time(r.host),
                    size(r.bytes),
                    f"{size(_rate(r.bytes, r))}/s" if r.seconds else "",
                    count(_rate(r.ops, r)).rstrip() if r.ops and r.seconds else "",
                    f"{p.share(r):.0%}" if r.seconds else "",
                    line,
                )
            )
        yield from table(rows)
        if len(t.rows) > MOST:
            yield f"  ... and {len(t.rows) - MOST} more"


def _compared(p: Profile) -> Iterator[str]:
    known = [t for t in p.timings if t.rows]
    if len(known) < 2:
        return
    yield ""
    yield "where the difference lies"
    rows = [("line", *(t.name for t in known), "difference", "")]
    for w in p.where()[:MOST]:
        names = [place(p.report, x) or x.rpartition("/")[2] or "(unknown)" for x in w.lines]
        named = names[0] if len(names) == 1 else f"{names[0]} to {names[-1].rpartition(':')[2]}"
        lost = w.seconds[0] - w.seconds[-1]
        sign = "+" if lost > 0 else "-"
        text = p.report.by_line[w.lines[0]].text if w.lines[0] in p.report.by_line else ""
        rows.append((named, *map(time, w.seconds), f"{sign}{time(abs(lost))}", text))
    yield from table(rows)
