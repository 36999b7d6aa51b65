"""Rows as text: the table, the geometric means, the list of what lags."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.gpu.measure import GpuCell, GpuRow, Start
from benchmarks.report import PEER, SUBJECT, align, detail, geometric_mean, grade, judgement, number

# A workload below this share of the peer's speed is named at the end.
LAGS = 0.97

HEADER = (
    "workload",
    "backend",
    "first s",
    "2nd s",
    "ms",
    "replay ms",
    "GB/s",
    "% roof",
    "x eager",
    "x peer",
    "rx eager",
    "rx peer",
    "error",
    "eager's",
    "right",
)
# A reduction over the transposed dimension beside the contiguous one.
PAIR = ("block32_transposed", "block32")


def table(rows: Sequence[GpuRow], roof: float | None) -> str:
    """One line a workload and backend.  roof: bytes a second of a plain copy."""
    lines: list[tuple[str, ...]] = [HEADER]
    notes = []
    for row in rows:
        for backend, cell in row.cells.items():
            lines.append(line(row, backend, cell, roof))
            if cell.failure is not None:
                notes.append(f"FAIL {row.name} on {backend}: {cell.failure}")
            elif cell.verdict and not cell.verdict["ok"]:
                notes.append(
                    f"{grade(cell.verdict)} {row.name} on {backend}: {detail(cell.verdict)}"
                )
            if cell.refused is not None:
                notes.append(f"no replay of {row.name} on {backend}: {cell.refused}")
    return "\n".join([align(lines), *notes])


def line(row: GpuRow, backend: str, cell: GpuCell, roof: float | None) -> tuple[str, ...]:
    rate = rate_of(row, cell)
    return (
        row.name,
        backend,
        number(cell.first, 2),
        number(cell.again, 2),
        milliseconds(cell.rounds),
        milliseconds(cell.replays),
        number(None if rate is None else rate / 1e9, 0),
        number(None if rate is None or roof is None else 100 * rate / roof, 0),
        number(row.speed(backend, "eager"), 2),
        number(row.speed(backend, PEER), 2),
        number(row.speed(backend, "eager", replayed=True), 2),
        number(row.speed(backend, PEER, replayed=True), 2),
        *judgement(cell),
    )


def milliseconds(times: Sequence[float]) -> str:
    return number(1e3 * statistics.median(times) if times else None, 4)


def rate_of(row: GpuRow, cell: GpuCell) -> float | None:
    """Bytes a second of what must move at least, in replays where there are some."""
    times = cell.replays or cell.rounds
    return row.least / statistics.median(times) if row.least and times else None


def starts_text(starts: Mapping[str, Start]) -> str:
    """What a process's start and a small call cost."""
    return "\n".join(
        f"{backend}: first compile of a process {s.seconds:.2f} s, a small call {s.call_us:.1f} us"
        for backend, s in starts.items()
    )


def summary(rows: Sequence[GpuRow]) -> str:
    """Geometric means of the speeds, and the workloads on which Litz lags or is wrong."""
    lines = []
    for backend, beside in ((SUBJECT, PEER), (SUBJECT, "eager"), (PEER, "eager")):
        for replayed, of in ((False, "calls"), (True, "replays")):
            speeds = known(rows, backend, beside, replayed)
            mean = geometric_mean(speeds.values())
            if mean is not None:
                lines.append(
                    f"{of}: {backend} is {mean:.3f}x as fast as {beside} "
                    f"(geometric mean of {len(speeds)})"
                )
    for backend in (PEER, SUBJECT):
        lines.extend(first_calls(rows, backend))
    for beside, least in ((PEER, LAGS), ("eager", 1.0)):
        for replayed, of in ((False, "calls"), (True, "replays")):
            speeds = known(rows, SUBJECT, beside, replayed)
            if speeds:
                slow = sorted((s, name) for name, s in speeds.items() if s < least)
                named = ", ".join(f"{name} {s:.2f}" for s, name in slow) or "none"
                lines.append(f"{of}: below {least} of {beside}'s speed: {named}")
    lines.extend(transposition(rows))
    bad = [row.name for row in rows if SUBJECT in row.cells and not right(row.cells[SUBJECT])]
    if bad:
        lines.append(f"{SUBJECT} failed or was not right: {', '.join(bad)}")
    return "\n".join(lines)


def known(rows: Sequence[GpuRow], backend: str, beside: str, replayed: bool) -> dict[str, float]:
    """Speeds by workload, where both were measured."""
    speeds = ((row.name, row.speed(backend, beside, replayed)) for row in rows)
    return {name: s for name, s in speeds if s is not None}


def first_calls(rows: Sequence[GpuRow], backend: str) -> list[str]:
    """How long first calls took in all, where both compilers were through."""
    both = [row.cells for row in rows if backend in row.cells]
    through = [c for c in both if all(c[b].first is not None for b in (PEER, SUBJECT) if b in c)]
    first = sum(c[backend].first or 0.0 for c in through)
    again = [c[backend].again for c in through]
    second = [s for s in again if s is not None]
    if not through:
        return []
    text = f"{backend}: first calls {first:.1f} s ({len(through)})"
    if second:
        text += f", of second processes {sum(second):.1f} s ({len(second)})"
    return [text]


def transposition(rows: Sequence[GpuRow]) -> list[str]:
    """How much longer the transposed reduction takes than the contiguous one, a backend a part."""
    named = {row.name: row for row in rows}
    if not all(name in named for name in PAIR):
        return []
    slow, fast = (named[name].cells for name in PAIR)
    parts = []
    for backend in slow:
        a, b = (c[backend].replays or c[backend].rounds for c in (slow, fast))
        if a and b:
            parts.append(f"{backend} {statistics.median(a) / statistics.median(b):.2f}")
    return [f"{PAIR[0]} / {PAIR[1]}: {', '.join(parts)}"] if parts else []


def right(cell: GpuCell) -> bool:
    return cell.failure is None and bool((cell.verdict or {}).get("ok"))
