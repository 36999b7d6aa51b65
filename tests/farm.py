"""Worker processes that take pieces of work one by one, none of which can keep the whole waiting.

Work, and what a worker says of it, are lines of JSON; ``serve`` is the worker's side.  The parent
alone decides when a piece has taken too long, ends its worker with all that it started, and puts
another one in its place.  A results file has a line for each piece, for a later run to go on from.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

ROOT = Path(__file__).resolve().parents[1]
START = 300.0  # seconds until a worker has to be ready: many import everything side by side
BAD_STARTS = 3  # after so many a worker in a row that never were, nothing will come of it
PARTING = 5.0  # seconds that the kernel has to let go of what was killed
MEMORY = 6 << 20  # KiB after which a worker makes room for a fresh one

# What a worker's lines mean; all else in them is for whoever runs the farm.
READY = "ready"  # it takes work
STAGE = "stage"  # what it is about to do
DONE = "done"  # its piece is
LAST = "last"  # and it takes no other one
MORE = "more"  # what is left of its piece, to be done later

Row = dict[str, Any]
W = TypeVar("W")


# --- in a worker ---------------------------------------------------------------------------------


def speaker() -> Callable[[Row], None]:
    """What tells the parent.  All that is printed from now on goes to the messages instead."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(row: Row) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    return say


def serve(say: Callable[[Row], None], answer: Callable[[Any], Row]) -> None:
    """Answer pieces of work until the input ends, or too much memory is held."""
    say({READY: True})
    for line in sys.stdin:
        row = answer(json.loads(line))
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY
        say({**row, DONE: True, LAST: full})
        if full:
            os._exit(0)  # an orderly end may wait for a GPU that answers no more


# --- results -------------------------------------------------------------------------------------


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One line more; written at once, so that an end at any time loses nothing."""
    if path.suffix == ".gz":
        raise ValueError(f"{path} is packed: unpack it first, to add to it")
    with path.open("ab+") as f:
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":  # that end came in the middle of a line
                f.write(b"\n")
        f.write(json.dumps(row).encode() + b"\n")


def lines(path: Path) -> list[Row]:
    """The rows of a file of JSON lines, packed if named .gz; one that was cut off is left out."""
    read = gzip.open if path.suffix == ".gz" else open
    text = read(path, "rt").read() if path.exists() else ""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# --- where they are led --------------------------------------------------------------------------


@dataclass(frozen=True)
class Lost(Generic[W]):
    """Work whose worker ended or hung.  stage: what it last said that it did.

    status: the worker's; None where it hung.  seconds: since it got the work.
    """

    work: W
    why: str
    stage: str
    status: int | None
    seconds: float


@dataclass
class Worker(Generic[W]):
    process: subprocess.Popen[bytes]
    messages: IO[bytes]
    slot: int
    since: float
    first: W | None = None
    ready: bool = False
    work: W | None = None
    stage: str = ""
    buffer: bytes = b""
    said: int = 0  # bytes of its messages before its work

    def last_words(self) -> str:
        size = os.fstat(self.messages.fileno()).st_size
        # Read without a seek, which would move where the worker writes.
        start = max(self.said, size - (1 << 16))
        text = os.pread(self.messages.fileno(), 1 << 16, start).decode(errors="replace")
        found = [x.strip() for x in text.split("\n") if x.strip()]
        # A CUDA error ends with advice; what it is about stands above.
        telling = [x for x in found if "rror" in x and not x.startswith("CUDA kernel errors")]
        return (telling or found or [""])[-1][:300]


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they did (on Linux)."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started; one that the kernel does not let go of is left alone."""
    for pid in [*descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # children of one that had ended before
    except OSError:
        pass
    try:
        process.wait(timeout=PARTING)
    except subprocess.TimeoutExpired:
        pass


def visible_gpus(device: str) -> list[str]:
    """The GPUs that workers take in turn, as CUDA_VISIBLE_DEVICES names them."""
    if not device.startswith("cuda"):
        return []
    if given := os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        return [x for x in given.split(",") if x]
    import torch

    return [str(k) for k in range(max(torch.cuda.device_count(), 1))]


def stop_in_order() -> None:
    """Let SIGTERM end a run as an interrupt does: with its workers."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)


class Farm(Generic[W]):
    """``jobs`` workers on the pieces of ``work``, which JSON has to know.

    command: starts one.  device: each worker has one of its GPUs.  environment: a worker's, besides
    this process's.  threads: of a worker, and of its compiler; 0: as many as it has cores.
    limit: seconds for a piece.  seconds: after so many no work is given out; what is under way has
    ``grace`` seconds more.
    heard: is given what a worker says of its piece, with the ``seconds`` since that began.
    lost: is given every piece that ended or hung its worker, and gives pieces to do instead, the
    first of which a fresh worker does.
    """

    def __init__(
        self,
        command: Sequence[str],
        work: Iterable[W],
        jobs: int,
        heard: Callable[[W, Row], None],
        lost: Callable[[Lost[W]], Sequence[W]],
        *,
        device: str = "cpu",
        environment: Mapping[str, str] | None = None,
        threads: int = 0,
        limit: float = 120.0,
        seconds: float = float("inf"),
        grace: float = 30.0,
    ) -> None:
        self.command, self.work, self.jobs = list(command), iter(work), jobs
        self.heard, self.lost = heard, lost
        self.environment, self.threads = environment or {}, threads
        self.gpus = visible_gpus(device)
        self.limit, self.grace = limit, grace
        self.until = time.monotonic() + seconds
        self.again: deque[W] = deque()  # before the rest of the work
        self.workers: list[Worker[W]] = []
        self.selector = selectors.DefaultSelector()
        self.bad_starts = 0
        self.broken = False  # no worker starts
        self.unfinished: list[W] = []  # what was under way when time was up

    def run(self) -> bool:
        """Do all of it; whether it was done, and not stopped by the clock or by bad starts."""
        try:
            self.again.extend(islice(self.work, self.jobs))
            self.jobs = len(self.again)
            for slot in range(self.jobs):
                self._hire(slot)
            while self.workers and not self.broken and time.monotonic() <= self.until + self.grace:
                self._listen()
                self._watch()
        finally:
            self.unfinished = [w.work for w in self.workers if w.work is not None]
            for w in list(self.workers):
                self._dismiss(w)
            self.selector.close()
        return not self.unfinished and not self._more()

    # --- work ---

    def _more(self) -> bool:
        """Whether there is work that nobody has."""
        if not self.again:
            self.again.extend(islice(self.work, 1))
        return bool(self.again)

    def _give(self, w: Worker[W]) -> None:
        """The next piece to a worker; without one it may go."""
        if w.process.poll() is not None:
            return  # it is gone: see _watch
        if time.monotonic() > self.until or (w.first is None and not self._more()):
            self._dismiss(w)
            return
        w.work = self.again.popleft() if w.first is None else w.first
        w.first, w.stage, w.since = None, "", time.monotonic()
        w.said = os.fstat(w.messages.fileno()).st_size
        assert w.process.stdin is not None
        try:
            w.process.stdin.write(json.dumps(w.work).encode() + b"\n")
            w.process.stdin.flush()
        except OSError:
            pass  # it has just gone

    def _listen(self) -> None:
        for key, _ in self.selector.select(timeout=0.2):
            if not self._read(key.data):
                self.selector.unregister(key.fileobj)

    def _read(self, w: Worker[W]) -> bool:
        """What a worker has said; whether it may say more."""
        assert w.process.stdout is not None
        try:
            data = os.read(w.process.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return True
        *found, w.buffer = (w.buffer + data).split(b"\n")
        for raw in found:
            try:
                row = json.loads(raw)
            except ValueError:
                continue  # printed by something else
            if isinstance(row, dict) and w in self.workers:
                self._hear(w, row)
        return bool(data)

    def _hear(self, w: Worker[W], row: Row) -> None:
        if READY in row:
            w.ready, self.bad_starts = True, 0
            self._give(w)
            return
        if STAGE in row:
            w.stage = row[STAGE]
            return
        done, last = row.pop(DONE, False), row.pop(LAST, False)
        if MORE in row:
            self.again.append(row[MORE])
        elif w.work is not None:
            self.heard(w.work, {"seconds": time.monotonic() - w.since, **row})
        if done:
            w.work = None
            if last:
                self._replace(w)
            else:
                self._give(w)

    # --- workers ---

    def _hire(self, slot: int, first: W | None = None) -> None:
        messages = tempfile.TemporaryFile()  # noqa: SIM115
        every = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        share = min(max(2, len(every) // self.jobs), len(every))
        mine = [every[(slot * share + k) % len(every)] for k in range(share)]
        threads = str(self.threads or share or 1)
        env = {"LITZ_JOBS": threads, "OMP_NUM_THREADS": threads, **os.environ, **self.environment}
        # This checkout before any installed package.
        places = [str(ROOT / "src"), str(ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
        if self.gpus:
            env["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        try:
            if mine:  # inherited: libraries count cores as they are loaded
                os.sched_setaffinity(0, mine)
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env=env,
                start_new_session=True,  # an interrupt at the terminal is for the parent alone
            )
        finally:
            if mine:
                os.sched_setaffinity(0, every)
        w = Worker(process, messages, slot, time.monotonic(), first)
        self.workers.append(w)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, w)

    def _watch(self) -> None:
        """Replace workers that ended, and end those that hang."""
        now = time.monotonic()
        for w in list(self.workers):
            status = w.process.poll()
            spent = now - w.since
            if status is None and spent <= (self.limit if w.ready else START):
                if not w.ready and now > self.until:
                    self._replace(w)
                continue
            if status is not None and w.process.stdout in self.selector.get_map():
                self._read(w)  # its last words on its work
            if w not in self.workers:
                continue
            why = f"no end after {spent:.0f} s" if status is None else f"status {status}"
            why = f"{why}: {w.last_words()}"
            if not w.ready:
                self.bad_starts += 1
                if self.bad_starts == BAD_STARTS * self.jobs:
                    self.broken = True
                    print(f"workers do not start: {why}", flush=True)
                    return
            instead = [] if w.work is None else self.lost(Lost(w.work, why, w.stage, status, spent))
            w.work = None
            self._replace(w, instead)

    def _replace(self, w: Worker[W], instead: Sequence[W] = ()) -> None:
        """Another worker in its place, if there is work: the first of ``instead``."""
        self._dismiss(w)
        given = [*instead] if w.first is None else [w.first]
        fresh = given.pop(0) if given and time.monotonic() <= self.until else None
        self.again.extend(given)
        if fresh is not None or (time.monotonic() <= self.until and self._more()):
            self._hire(w.slot, fresh)

    def _dismiss(self, w: Worker[W]) -> None:
        """Let a worker go: at once, for it has nothing left to do."""
        self.workers.remove(w)
        assert w.process.stdout is not None and w.process.stdin is not None
        if w.process.stdout in self.selector.get_map():
            self.selector.unregister(w.process.stdout)
        end(w.process)
        for pipe in (w.process.stdin, w.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        w.messages.close()
