"""A run: the workers, the roof, the workloads in order, and what was found."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.measure import Crew, GpuRow, OutOfTime, Plan, Start, measure, measure_again
from benchmarks.gpu.report import right, starts_text, summary, table
from benchmarks.measure import Say
from benchmarks.session import WorkerError

# A workload is not begun with less than this left of the run, in seconds.
LAST_START = 12.0
ROOF_SECONDS = 0.3
LOG_TAIL = 100_000
REPROS = 20


@dataclass
class Run:
    """What a run found.

    failed: why a backend's first worker did not start.  roof: bytes a second of a plain copy.
    missed: workloads not begun.  seconds: what it took.
    """

    facts: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    roof: float | None = None
    rows: list[GpuRow] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether Litz ran every workload rightly."""
        cells = [row.cells["litz"] for row in self.rows if "litz" in row.cells]
        return bool(cells) and all(map(right, cells)) and not self.missed

    def text(self) -> str:
        parts = [", ".join(f"{key} {value}" for key, value in self.facts.items())]
        parts += [f"FAIL start of {b}: {why}" for b, why in self.failed.items()]
        parts.append(starts_text(self.starts))
        if self.roof is not None:
            parts.append(f"a plain copy moves {self.roof / 1e9:.0f} GB/s, read and written")
        parts += [table(self.rows, self.roof), summary(self.rows)]
        if self.missed:
            parts.append(f"not reached within the limit: {', '.join(self.missed)}")
        parts.append(f"{len(self.rows)} workloads in {self.seconds:.0f} s")
        return "\n".join(filter(None, parts))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    plan: Plan,
    chosen: Sequence[str],
    say: Say,
    again: bool = False,
    each: Callable[[Run], None] = lambda _: None,
    log_to: Path | None = None,
) -> Run:
    """Measure the chosen workloads within the plan's limit.

    again: second processes' first calls too.  each: told what was found after each workload.
    log_to: a file for what workers said.
    """
    found, start = Run(missed=list(chosen)), time.monotonic()

    def tell() -> None:
        found.seconds = time.monotonic() - start
        each(found)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="litz-bench-")))
        if log_to:
            stack.callback(gather_logs, folder, log_to)
        crew = Crew(plan, folder)
        stack.callback(crew.close)
        say(f"starting {', '.join(plan.backends)}")
        crew.open_all()
        found.facts, found.starts, found.failed = crew.facts, crew.starts, crew.failed
        found.roof = roof(crew)
        for name in chosen:
            if plan.left < LAST_START:
                break
            found.rows.append(measure(name, crew, say))
            found.missed.remove(name)
            print(table(found.rows[-1:], found.roof), file=sys.stderr, flush=True)
            tell()
        if again:
            crew.close()
            second = Crew(plan, folder)
            stack.callback(second.close)
            measure_again(found.rows, second, say)
        tell()
    return found


def roof(crew: Crew) -> float | None:
    """Bytes a second of a plain copy, on the first backend's worker."""
    backend = crew.plan.backends[0]
    try:
        crew.begin(backend)
        return float(crew.ask(backend, "roof", seconds=ROOF_SECONDS)["rate"])
    except (WorkerError, OutOfTime):
        return None


def gather_logs(folder: Path, to: Path) -> None:
    """One file of the ends of all logs below a folder, and of repros of what did not compile."""
    with to.open("w") as out:
        for log in (
            *sorted(folder.rglob("*.log")),
            *sorted(folder.rglob("repros/*/*.py"))[:REPROS],
        ):
            text = log.read_text(errors="replace")
            if text.strip():
                out.write(f"=== {log.parent.name}/{log.name}\n{text[-LOG_TAIL:]}\n")
