"""Measure one workload on several backends."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.session import Session, WorkerError

# What a compiled backend's first call is compared with: Dynamo's and AOTAutograd's own time.
BASELINE = "aot_eager"


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    rounds: turns each backend gets; seconds: about how long a turn lasts.
    """

    backends: tuple[str, ...]
    quick: bool
    rounds: int
    seconds: float


@dataclass
class Cell:
    """What was measured of one workload on one backend; None where it was not, or failed.

    first, again: seconds of the first call on empty caches, and in a second process that finds
    the first one's caches.  rounds: median seconds of a steady call, a round each.  growth, held:
    MiB, see ``Runner.memory``.  verdict: see ``Judge.judge``.  failure: one line.
    """

    first: float | None = None
    again: float | None = None
    rounds: list[float] = field(default_factory=list)
    growth: float | None = None
    held: float | None = None
    verdict: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def steady(self) -> float | None:
        """Median seconds of a steady call."""
        return statistics.median(self.rounds) if self.rounds else None


@dataclass
class Row:
    """One workload: the baseline's first call in seconds, and a cell a backend.

    others: how many other threads of the machine were running, sampled before each turn.
    """

    name: str
    baseline: float | None = None
    cells: dict[str, Cell] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)

    @property
    def busy(self) -> float:
        """Threads of others that ran while this was timed, on average."""
        return statistics.mean(self.others) if self.others else 0.0

    def speed(self, backend: str, beside: str) -> float | None:
        """How many times faster ``backend`` is than ``beside``: the median over paired rounds."""
        a, b = self.cells.get(backend), self.cells.get(beside)
        if a is None or b is None:
            return None
        return paired(a.rounds, b.rounds)

    def beyond(self, backend: str, again: bool = False) -> float | None:
        """Seconds of a first call beyond the baseline's."""
        cell = self.cells[backend]
        seconds = cell.again if again else cell.first
        if backend == "eager" or seconds is None or self.baseline is None:
            return None
        return seconds - self.baseline

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def paired(times: Sequence[float], beside: Sequence[float]) -> float | None:
    """How many times ``beside`` takes ``times``: the median over rounds; None without rounds."""
    if not times or len(times) != len(beside):
        return None
    return statistics.median(y / x for x, y in zip(times, beside, strict=True))


Say = Callable[[str], None]


def measure(name: str, plan: Plan, say: Say) -> Row:
    """Measure ``name``; failures go into the cells, never out of here."""
    row = Row(name, cells={b: Cell() for b in plan.backends})
    with tempfile.TemporaryDirectory(prefix="litz-bench-") as folder, ExitStack() as stack:
        top = Path(folder)
        if set(plan.backends) - {"eager"}:
            row.baseline = first_of_baseline(name, plan, top, say)
        sessions: dict[str, Session] = {}
        for backend, cell in row.cells.items():
            say(f"{name}: {backend}, first call")
            with failures_into(cell):
                session = Session(name, backend, plan.quick, top / backend)
                stack.callback(session.close)
                cell.first = session.ask("first")["seconds"]
                if backend != "eager":
                    cell.again = first_again(name, backend, plan, top)
                session.ask("warm", calls=2)
                sessions[backend] = session
        time_in_rounds(row, sessions, plan, say)
        finish(row, sessions, top, say)
        stack.close()
        judge(row, plan, top, say)
    return row


@contextmanager
def failures_into(cell: Cell) -> Iterator[None]:
    """Note a worker's failure in its cell and go on."""
    try:
        yield
    except WorkerError as error:
        cell.failure = str(error)


def first_of_baseline(name: str, plan: Plan, top: Path, say: Say) -> float | None:
    say(f"{name}: {BASELINE}, first call")
    try:
        with Session(name, BASELINE, plan.quick, top / BASELINE) as session:
            return float(session.ask("first")["seconds"])
    except WorkerError:
        return None


def first_again(name: str, backend: str, plan: Plan, top: Path) -> float:
    """The first call of a second process on the same caches."""
    with Session(name, backend, plan.quick, top / backend) as session:
        return float(session.ask("first")["seconds"])


SETTLE = 0.1
"""Seconds after which the threads of the backend timed before no longer spin."""


def time_in_rounds(row: Row, sessions: dict[str, Session], plan: Plan, say: Say) -> None:
    """Time the backends in turn, one at a time, so that the machine's drift meets all alike.

    Each round starts with another backend: no one always follows the same neighbour.
    """
    order = list(sessions)
    for turn in range(plan.rounds):
        say(f"{row.name}: steady state, round {turn + 1} of {plan.rounds}")
        shift = turn % max(len(order), 1)
        for backend in order[shift:] + order[:shift]:
            cell = row.cells[backend]
            if cell.failure is None:
                time.sleep(SETTLE)
                row.others.append(others_running())
                with failures_into(cell):
                    times = sessions[backend].ask("time", seconds=plan.seconds, least=3)["times"]
                    cell.rounds.append(statistics.median(times))


def others_running() -> int:
    """Threads that run or want to, this one left out; 0 where the system does not tell."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
    except OSError:
        return 0


def finish(row: Row, sessions: dict[str, Session], top: Path, say: Say) -> None:
    """Memory, then the outcome of a late call for the judge."""
    for backend, session in sessions.items():
        cell = row.cells[backend]
        if cell.failure is None:
            say(f"{row.name}: {backend}, memory and outcome")
            with failures_into(cell):
                memory = session.ask("memory", calls=3)
                cell.growth, cell.held = memory["growth"], memory["held"]
                session.ask("save", path=str(top / f"{backend}.pt"))


def judge(row: Row, plan: Plan, top: Path, say: Say) -> None:
    """Compare the saved outcomes with float64."""
    saved: Sequence[str] = [b for b in row.cells if (top / f"{b}.pt").exists()]
    if not saved:
        return
    say(f"{row.name}: judging against float64")
    try:
        with Session(row.name, "judge", plan.quick, top / "judge") as session:
            for backend in saved:
                path = str(top / f"{backend}.pt")
                with failures_into(row.cells[backend]):
                    row.cells[backend].verdict = session.ask("judge", path=path)
    except WorkerError as error:
        for backend in saved:
            row.cells[backend].failure = f"the judge failed: {error}"
