"""Measure workloads on several backends, a process each that goes from workload to workload.

Backends take turns on a workload, so that the machine's drift meets all alike.  Whatever fails or
hangs is one bad cell: a worker that is lost, or whose device no longer works, is replaced for the
next workload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Cell, Say, paired
from benchmarks.session import Session, WorkerError, WorkerLate, WorkerLost

WORKER = "benchmarks.gpu.worker"
WARM_CALLS = 3
# Seconds within which a worker is ready, and within which a device that works answers.
READY, ALIVE = 90.0, 20.0
# A cell's allowance halves each time its backend is late, down to this.
LEAST_CELL = 10.0
# A backend whose workers failed to start so often gets no more.
STARTS = 2


class OutOfTime(Exception):
    """The run's limit is reached."""


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    rounds: turns each backend gets; seconds: about how long a turn lasts; cell: seconds that one
    workload may take one backend; until: the ``time.monotonic()`` at which the run ends.
    """

    device: str
    backends: tuple[str, ...]
    quick: bool
    rounds: int
    seconds: float
    cell: float
    until: float

    @property
    def left(self) -> float:
        return self.until - time.monotonic()


@dataclass
class GpuCell(Cell):
    """Beside what a ``Cell`` holds: median seconds of a graph's replay, a round each.

    refused: why there are none.
    """

    replays: list[float] = field(default_factory=list)
    refused: str | None = None


@dataclass
class GpuRow:
    """One workload: the bytes that it must move, and a cell a backend."""

    name: str
    least: int = 0
    cells: dict[str, GpuCell] = field(default_factory=dict)

    def speed(self, backend: str, beside: str, replayed: bool = False) -> float | None:
        """How many times faster ``backend`` is than ``beside``: the median over paired rounds."""
        a, b = self.cells.get(backend), self.cells.get(beside)
        if a is None or b is None:
            return None
        return paired(a.replays, b.replays) if replayed else paired(a.rounds, b.rounds)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Start:
    """A process's start on a backend.

    seconds: its first compile, of a few operators, imports included.  call_us: what a call of that
    costs the host.
    """

    seconds: float
    call_us: float


Open = Callable[[str, float], Session]


class Crew:
    """A worker a backend, replaced when it is lost.

    facts: what figures depend on; starts: see ``Start``; failed: why a backend did not start.
    """

    def __init__(self, plan: Plan, folder: Path, open_one: Open | None = None) -> None:
        self.plan = plan
        self.facts: dict[str, str] = {}
        self.starts: dict[str, Start] = {}
        self.failed: dict[str, str] = {}
        self._open = open_one or self.open_worker
        self._folder = folder
        self._sessions: dict[str, Session] = {}
        self._allowed = dict.fromkeys(plan.backends, plan.cell)
        self._left = dict(self._allowed)
        self._failures = dict.fromkeys(plan.backends, 0)

    def open_worker(self, backend: str, within: float) -> Session:
        plan = self.plan
        folder = self._folder / backend
        return Session(plan.device, backend, plan.quick, folder, WORKER, within)

    def open_all(self) -> None:
        """Start all workers at once, then let each compile something."""

        def noting(do: Callable[[str], None], backend: str) -> None:
            try:
                do(backend)
            except (WorkerError, OutOfTime) as error:
                self.failed[backend] = str(error) or "the run's limit was reached"

        with ThreadPoolExecutor(len(self.plan.backends)) as pool:
            list(pool.map(partial(noting, self.open), self.plan.backends))
        for backend in self.plan.backends:
            if backend in self._sessions:
                noting(self.rehearse, backend)

    def open(self, backend: str) -> None:
        """Start a worker, unless that failed too often."""
        if self._failures[backend] >= STARTS:
            raise WorkerLost("workers of this backend do not start")
        self._failures[backend] += 1
        self._sessions[backend] = self._open(backend, self.within(READY))

    def rehearse(self, backend: str) -> None:
        """The first compile of a process: imports and pools are no part of a workload's.

        Where that fails and leaves the worker alive, workloads may still work.
        """
        session = self._sessions[backend]
        try:
            with self.losing(backend):
                self.facts = session.ask("facts", within=self.within(READY))
                reply = session.ask("start", within=self.within(READY))
            self.starts.setdefault(backend, Start(reply["seconds"], reply["call_us"]))
        except WorkerError as error:
            self.failed[backend] = str(error)
            if backend not in self._sessions:
                raise
        self._failures[backend] = 0

    def begin(self, backend: str) -> None:
        """Allow a backend a new cell; see to it that it has a worker."""
        if backend not in self._sessions:
            self.open(backend)
            self.rehearse(backend)
        self._left[backend] = self._allowed[backend]

    def ask(self, backend: str, do: str, **arguments: Any) -> dict[str, Any]:
        """Have a backend's worker do something within what is left of its cell and the run."""
        session = self._sessions.get(backend)
        if session is None:
            raise WorkerLost("the worker is gone")
        start = time.monotonic()
        with self.losing(backend):
            try:
                return session.ask(do, within=self.within(self._left[backend]), **arguments)
            finally:
                self._left[backend] -= time.monotonic() - start

    def within(self, seconds: float) -> float:
        """Seconds to wait, the run's limit kept."""
        if self.plan.left <= 0:
            raise OutOfTime
        return max(min(seconds, self.plan.left), 0.1)

    @contextmanager
    def losing(self, backend: str) -> Iterator[None]:
        """Give a worker up that is lost, is late, or has no device any more."""
        try:
            yield
        except WorkerError as error:
            if isinstance(error, WorkerLate):
                if self.plan.left <= 0:
                    self.lose(backend)
                    raise OutOfTime from error
                self._allowed[backend] = max(self._allowed[backend] / 2, LEAST_CELL)
            if isinstance(error, WorkerLost) or not self.works(backend):
                self.lose(backend)
            raise

    def works(self, backend: str) -> bool:
        session = self._sessions.get(backend)
        if session is None:
            return False
        try:
            session.ask("alive", within=min(ALIVE, max(self.plan.left, 1.0)))
        except WorkerError:
            return False
        return True

    def lose(self, backend: str) -> None:
        session = self._sessions.pop(backend, None)
        if session is not None:
            session.kill()

    def drop(self, backend: str) -> None:
        """Have a worker forget its workload, or it has to go: its memory is for the next one."""
        session = self._sessions.get(backend)
        if session is not None:
            try:
                session.ask("drop", within=ALIVE)
            except WorkerError:
                self.lose(backend)

    def close(self) -> None:
        for backend in list(self._sessions):
            self.lose(backend)


def measure(name: str, crew: Crew, say: Say) -> GpuRow:
    """Measure ``name``; failures go into the cells, never out of here."""
    plan = crew.plan
    row = GpuRow(name, cells={b: GpuCell() for b in plan.backends})
    try:
        for backend, cell in row.cells.items():
            say(f"{name}: {backend}, first call")
            with noted(cell):
                crew.begin(backend)
                cell.first = crew.ask(backend, "first", name=name)["seconds"]
                crew.ask(backend, "warm", calls=WARM_CALLS)
        rounds(row, crew, "time", lambda cell: cell.rounds)
        for backend, cell in working(row):
            with noted(cell):
                reply = crew.ask(backend, "judge")
                cell.verdict, row.least = reply["verdict"], reply["bytes"] or row.least
        if plan.device == "cuda":
            replay(row, crew)
    except OutOfTime:
        for _, cell in working(row):
            if len(cell.rounds) < plan.rounds or cell.verdict is None:
                cell.failure = "the run's limit was reached"
    for backend in plan.backends:
        crew.drop(backend)
    return row


@contextmanager
def noted(cell: GpuCell) -> Iterator[None]:
    """Note a worker's failure in its cell and go on."""
    try:
        yield
    except WorkerError as error:
        cell.failure = str(error)


def working(row: GpuRow) -> list[tuple[str, GpuCell]]:
    return [(b, cell) for b, cell in row.cells.items() if cell.failure is None]


def rounds(row: GpuRow, crew: Crew, do: str, times: Callable[[GpuCell], list[float]]) -> None:
    """Time the backends in turn; each round starts with another."""
    for turn in range(crew.plan.rounds):
        cells = working(row)
        shift = turn % max(len(cells), 1)
        for backend, cell in cells[shift:] + cells[:shift]:
            if do != "replay" or cell.refused is None:
                with noted(cell):
                    reply = crew.ask(backend, do, seconds=crew.plan.seconds)
                    times(cell).append(reply["seconds"])


def replay(row: GpuRow, crew: Crew) -> None:
    """Time graphs' replays, where calls can be captured."""
    for backend, cell in working(row):
        with noted(cell):
            cell.refused = crew.ask(backend, "capture")["refused"]
    rounds(row, crew, "replay", lambda cell: cell.replays)


def measure_again(rows: Sequence[GpuRow], crew: Crew, say: Say) -> None:
    """First calls in second processes, which find the caches that the first ones left.

    A failure here is none of the row's: what was measured stays.  Ends with the time there is.
    """
    for row in rows:
        for backend, cell in working(row):
            if backend == "eager":
                continue
            say(f"{row.name}: {backend}, first call of a second process")
            try:
                crew.begin(backend)
                cell.again = crew.ask(backend, "first", name=row.name)["seconds"]
            except OutOfTime:
                return
            except WorkerError as error:
                say(f"{row.name}: {backend}: {error}")
