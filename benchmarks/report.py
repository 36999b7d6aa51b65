"""Rows as text: the table, the geometric means, the list of what lags."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.measure import Cell, Row

PEER = "inductor"
SUBJECT = "litz"
# Above this many threads of others, on average, times say more about them than about a backend:
# each backend's threads wait for one another in another way.
BUSY = 0.5
# A workload below this share of the peer's speed is named at the end.
LAGS = 0.9

HEADER = (
    "workload",
    "backend",
    "first s",
    "+aot s",
    "2nd s",
    "+aot s",
    "steady ms",
    "x eager",
    "x peer",
    "peak MiB",
    "held",
    "error",
    "eager's",
    "right",
)


def table(rows: Sequence[Row]) -> str:
    """One line a workload and backend."""
    lines: list[tuple[str, ...]] = [HEADER]
    notes = []
    for row in rows:
        for backend, cell in row.cells.items():
            lines.append(line(row, backend, cell))
            if cell.failure is not None:
                notes.append(f"FAIL {row.name} on {backend}: {cell.failure}")
            elif cell.verdict and not cell.verdict["ok"]:
                what = f"{grade(cell.verdict)} {row.name} on {backend}"
                notes.append(f"{what}: {detail(cell.verdict)}")
        if row.busy > BUSY:
            notes.append(f"BUSY {row.name}: {row.busy:.1f} other threads ran; time it again")
    return "\n".join([align(lines), *notes])


def line(row: Row, backend: str, cell: Cell) -> tuple[str, ...]:
    error, eager_error, right = judgement(cell)
    steady = cell.steady
    return (
        row.name,
        backend,
        number(cell.first, 2),
        number(row.beyond(backend), 2),
        number(cell.again, 2),
        number(row.beyond(backend, again=True), 2),
        number(None if steady is None else steady * 1e3, 3),
        number(row.speed(backend, "eager"), 2),
        number(row.speed(backend, PEER), 2),
        number(cell.growth, 0),
        number(cell.held, 0),
        error,
        eager_error,
        right,
    )


def judgement(cell: Cell) -> tuple[str, str, str]:
    """Error, eager's error (the worse of outputs and gradients) and whether that is right."""
    if cell.failure is not None:
        return "-", "-", "FAIL"
    if cell.verdict is None:
        return "-", "-", "-"
    groups = list(cell.verdict["groups"].values())
    right = grade(cell.verdict)
    if not groups:
        return "-", "-", right
    worst = max(groups, key=lambda g: math.inf if math.isnan(g["error"]) else g["error"])
    return f"{worst['error']:.1e}", f"{worst['eager_error']:.1e}", right


def grade(verdict: dict[str, Any]) -> str:
    """ok; loose: not as near to the truth as it should be, but near; WRONG."""
    if verdict["ok"]:
        return "ok"
    return "loose" if verdict["loose"] else "WRONG"


def detail(verdict: dict[str, Any]) -> str:
    """What is amiss, in words."""
    if "fault" in verdict:
        return str(verdict["fault"])
    return "; ".join(
        f"{name} {g['error']:.1e} (eager {g['eager_error']:.1e}), "
        f"worst tensor {g['worst']:.1e} (eager {g['eager_worst']:.1e})"
        + (f", worst element {g['peak']:.1e} (eager {g['eager_peak']:.1e})" if "peak" in g else "")
        for name, g in verdict["groups"].items()
        if not g["ok"]
    )


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def align(lines: Sequence[tuple[str, ...]]) -> str:
    """Columns of one width, the two names to the left and the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def summary(rows: Sequence[Row]) -> str:
    """Geometric means of the speeds and the workloads on which Litz lags the peer."""
    lines = []
    for backend, beside in ((SUBJECT, PEER), (SUBJECT, "eager"), (PEER, "eager")):
        speeds = [s for s in (row.speed(backend, beside) for row in rows) if s is not None]
        mean = geometric_mean(speeds)
        if mean is not None:
            lines.append(
                f"{backend} is {mean:.3f}x as fast as {beside} (geometric mean of {len(speeds)})"
            )
    beyond = [beyond_aot(rows, backend) for backend in (PEER, SUBJECT)]
    lines.extend(text for text in beyond if text)
    speeds_by_name = [(row.speed(SUBJECT, PEER), row.name) for row in rows]
    lagging = sorted((s, name) for s, name in speeds_by_name if s is not None and s < LAGS)
    if any(s is not None for s, _ in speeds_by_name):
        named = ", ".join(f"{name} {s:.2f}" for s, name in lagging) or "none"
        lines.append(f"below {LAGS} of the peer's speed: {named}")
    busy = sum(row.busy > BUSY for row in rows)
    if busy:
        lines.append(
            f"the machine was busy during {busy} of {len(rows)}: these speeds are no result"
        )
    return "\n".join(lines)


def beyond_aot(rows: Sequence[Row], backend: str) -> str | None:
    """The mean compile time beyond the baseline's first call."""
    seconds = [row.beyond(backend) for row in rows if backend in row.cells]
    known = [s for s in seconds if s is not None]
    if not known:
        return None
    return f"{backend} compiles in {sum(known) / len(known):.2f} s (mean beyond aot_eager)"
