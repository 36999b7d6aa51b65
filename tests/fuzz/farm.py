"""Worker processes that take pieces of work one by one, none of which can keep the whole waiting.

A worker says what it does as lines of JSON; the parent alone decides when it has taken too long,
ends it with all that it started, and puts another one in its place.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

START = 180.0  # seconds until a worker has to be ready
BAD_STARTS = 3  # after so many in a row that never were, nothing will come of it
PARTING = 5.0  # seconds that idle workers have to end by themselves


@dataclass(frozen=True)
class Work:
    """A graph of a run, or one program of it by itself."""

    number: int
    only: int | None = None


@dataclass(frozen=True)
class Lost:
    """Work whose worker ended or hung.  stage: what it last said that it did."""

    work: Work
    why: str
    stage: str


@dataclass
class Worker:
    process: subprocess.Popen[bytes]
    messages: IO[bytes]
    slot: int
    since: float
    ready: bool = False
    work: Work | None = None
    stage: str = ""
    buffer: bytes = b""

    def last_words(self) -> str:
        self.messages.seek(0)
        text = self.messages.read().decode(errors="replace").strip()
        lines = [x for x in text.split("\n") if x.strip()]
        # A CUDA error ends with advice; what it is about stands above.
        telling = [x for x in lines if "rror" in x and not x.startswith("CUDA kernel errors")]
        return (telling or lines or [""])[-1][:300]


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
        process.wait(timeout=PARTING)
    except subprocess.TimeoutExpired:
        pass


class Farm:
    """``jobs`` workers on the pieces of ``work``.

    command: starts one.  environment: what a worker of a place has besides this process's.
    limit: seconds for a piece.  seconds: after so many no work is given out; what is under way has
    ``grace`` seconds more.
    heard: is given every line of a worker on its piece, and the ``seconds`` since that began.
    lost: is given every piece that ended or hung its worker, and gives pieces to do instead.
    """

    def __init__(
        self,
        command: Sequence[str],
        work: Iterator[Work],
        jobs: int,
        heard: Callable[[Work, dict[str, Any]], None],
        lost: Callable[[Lost], Sequence[Work]],
        *,
        environment: Callable[[int], dict[str, str]] = lambda slot: {},
        limit: float = 120.0,
        seconds: float = float("inf"),
        grace: float = 30.0,
    ) -> None:
        self.command, self.work, self.jobs = list(command), work, jobs
        self.heard, self.lost, self.environment = heard, lost, environment
        self.limit, self.grace = limit, grace
        self.until = time.monotonic() + seconds
        self.again: deque[Work] = deque()
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        self.bad_starts = 0
        self.exhausted = False
        self.unfinished: list[Work] = []  # what was under way when time was up

    def run(self) -> bool:
        """Do all of it; whether it was done, and not stopped by the clock or by bad starts."""
        try:
            for slot in range(self.jobs):
                self._hire(slot)
            while self.workers and self.bad_starts < BAD_STARTS:
                self._listen()
                self._watch()
                if time.monotonic() > self.until + self.grace:
                    break
            self.unfinished = [w.work for w in self.workers if w.work is not None]
            return self.exhausted and not self.again and not self.unfinished
        finally:
            self._close()

    # --- work ---

    def _next(self) -> Work | None:
        if time.monotonic() > self.until:
            return None
        if self.again:
            return self.again.popleft()
        found = next(self.work, None)
        self.exhausted = found is None
        return found

    def _give(self, w: Worker) -> None:
        """The next piece to a worker; without one it may go."""
        found = self._next()
        if found is None:
            self._dismiss(w)
            return
        w.work, w.stage, w.since = found, "", time.monotonic()
        assert w.process.stdin is not None
        try:
            w.process.stdin.write(json.dumps([found.number, found.only]).encode() + b"\n")
            w.process.stdin.flush()
        except OSError:
            pass  # it is gone: see _watch

    def _listen(self) -> None:
        for key, _ in self.selector.select(timeout=0.2):
            if not self._read(key.data):
                self.selector.unregister(key.fileobj)

    def _read(self, w: Worker) -> bool:
        """What a worker has said; whether it may say more."""
        assert w.process.stdout is not None
        try:
            data = os.read(w.process.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return True
        *lines, w.buffer = (w.buffer + data).split(b"\n")
        for raw in lines:
            if raw.startswith(b"{"):
                self._hear(w, json.loads(raw))
        return bool(data)

    def _hear(self, w: Worker, row: dict[str, Any]) -> None:
        if "stage" in row:
            w.stage = row["stage"]
            return
        if w.work is not None:
            self.heard(w.work, {**row, "seconds": time.monotonic() - w.since})
        if "ready" in row:
            w.ready, self.bad_starts = True, 0
        if "ready" in row or "count" in row:
            w.work = None
            self._give(w)

    # --- workers ---

    def _hire(self, slot: int) -> None:
        messages = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            env={**os.environ, **self.environment(slot)},
            start_new_session=True,  # an interrupt at the terminal is for the parent alone
        )
        w = Worker(process, messages, slot, time.monotonic())
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
            late = spent > (self.limit if w.ready else START)
            if status is None and not late:
                continue
            if status is not None and w.process.stdout in self.selector.get_map():
                self._read(w)  # its last words on its work
            if w not in self.workers:
                continue
            why = f"no end after {spent:.0f} s" if status is None else f"status {status}"
            words = w.last_words()
            self._dismiss(w)
            if not w.ready:
                self.bad_starts += 1
                if self.bad_starts == BAD_STARTS:
                    print(f"workers do not start: {why}: {words}", flush=True)
            if w.work is not None:
                self.again.extend(self.lost(Lost(w.work, f"{why}: {words}", w.stage)))
            if now < self.until and (self.again or not self.exhausted):
                self._hire(w.slot)

    def _dismiss(self, w: Worker) -> None:
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

    def _close(self) -> None:
        for w in list(self.workers):
            self._dismiss(w)
        self.selector.close()
