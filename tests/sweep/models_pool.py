"""Processes that work through the sweep's tasks, and the file that their rows go to.

A process that hangs is ended, one that dies is started anew; either is the fault of the task that
it was at, whose row says so.  A file of rows is a list of what need not be run again.
"""

from __future__ import annotations

import datetime
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from models_run import Row

HERE = Path(__file__).parent
# Importing everything, beside others that do so too.
STARTING = 300.0
# After the time is over: for what is under way.
GRACE = 60.0

Key = tuple[str, str, str]


def key_of(row: Row) -> Key:
    return row.family, row.variant, row.device


@dataclass
class Results:
    """Rows by task, and what each device was: a file of lines of JSON, the last one counts."""

    rows: dict[Key, Row] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        results = cls()
        for path in paths:
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    value = json.loads(line)
                except ValueError:
                    continue  # cut off in the middle
                if "about" in value:
                    results.about[value["about"]["device"]] = value["about"]
                else:
                    row = Row.from_json(value)
                    results.rows[key_of(row)] = row
        return results


@dataclass(frozen=True)
class Plan:
    """How the tasks are run."""

    device: str
    jobs: int
    draws: int
    seconds: float
    """No task is begun after so long; 0: no limit."""
    task_seconds: float
    target: str = ""


class _Lost(Exception):
    """A process that died or was ended, and why."""


class _Worker:
    """A process, and the one task that it is at.  ``about``: what it runs on."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "models_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(plan),
        )
        self._read = b""
        settings = {
            "device": plan.device, "number": number, "of": plan.jobs, "target": plan.target,
        }  # fmt: skip
        self.about: dict[str, Any] = self.ask(settings, STARTING)["about"]

    def ask(self, value: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one line."""
        pipe = self._pipe(self._process.stdin)
        try:
            pipe.write(json.dumps(value).encode() + b"\n")
            pipe.flush()
            return json.loads(self._line(seconds))
        except OSError as e:
            raise _Lost(self._last_words(str(e))) from e

    def _line(self, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        out = self._pipe(self._process.stdout).fileno()
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                self.close()
                raise _Lost(f"still running after {seconds:.0f} s")
            more = os.read(out, 1 << 16)
            if not more:
                raise _Lost(self._last_words("ended"))
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self, what: str) -> str:
        self.close()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 600))
        words = self._log.read().decode(errors="replace").strip().replace("\n", " | ")
        return f"the process {what} with status {self._process.returncode}: {words}"

    def close(self) -> None:
        # Its compile workers end by themselves as their pipes close.
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                self._pipe(pipe).close()
            except OSError:
                pass
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def environment(plan: Plan) -> dict[str, str]:
    """That of workers: this checkout before any installed package; a thread each, if many."""
    env = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    places = [str(HERE.parents[1] / "src"), str(HERE.parents[1]), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
    if plan.jobs > 1:
        env["OMP_NUM_THREADS"] = "1"
        env.setdefault("LITZ_JOBS", "1")
    env.setdefault("LITZ_REPRO_DIR", str(Path(tempfile.gettempdir()) / "litz-models"))
    if plan.target:
        env["TRITON_INTERPRET"] = "1"
    return env


class Pool:
    """Runs tasks, in order, by several processes; each is led by a thread."""

    def __init__(
        self, plan: Plan, kinds: Mapping[str, str], report: Callable[[Row], None], file: Path | None
    ) -> None:
        self._plan = plan
        self._kinds = kinds
        self._report = report
        self._file = file
        self._lock = threading.Lock()
        self._end = time.monotonic() + plan.seconds if plan.seconds else float("inf")
        self._tasks: deque[tuple[str, str]] = deque()
        self.results = Results()
        self.said: list[str] = []

    def run(self, tasks: Sequence[tuple[str, str]]) -> int:
        """Run them; how many were not begun, or had no time to end."""
        self._tasks.extend(tasks)
        jobs = min(self._plan.jobs, len(tasks))
        threads = [threading.Thread(target=self._lead, args=(n,), daemon=True) for n in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(tasks) - len(self.results.rows)

    def _next(self) -> tuple[str, str] | None:
        with self._lock:
            if time.monotonic() >= self._end or not self._tasks:
                return None
            return self._tasks.popleft()

    def _lead(self, number: int) -> None:
        worker: _Worker | None = None
        for failures in range(3):
            try:
                worker = self._work(number)
                break
            except _Lost as e:
                # Not by a task: it could not start.
                self.said.append(f"process {number}, try {failures + 1}: {e}")
        if worker is not None:
            worker.close()

    def _work(self, number: int) -> _Worker | None:
        worker: _Worker | None = None
        while (task := self._next()) is not None:
            if worker is None:
                try:
                    worker = _Worker(self._plan, number)
                except _Lost:
                    self._tasks.appendleft(task)
                    raise
                self._write({"about": {**worker.about, "date": f"{datetime.date.today()}"}})
            family, variant = task
            start = time.monotonic()
            left = self._end + GRACE - start
            request = {"family": family, "variant": variant, "draws": self._plan.draws}
            try:
                answer = worker.ask(request, min(self._plan.task_seconds, left))
            except _Lost as e:
                worker = None
                if time.monotonic() >= self._end + GRACE:
                    break  # it had no time: the next run has
                self._done(
                    Row(
                        family, variant, self._plan.device.partition(":")[0], self._kinds[family],
                        "FAILED", why=str(e), seconds=round(time.monotonic() - start, 2),
                    )
                )  # fmt: skip
                continue
            self._done(Row.from_json(answer["row"]))
            if answer["leaves"]:
                worker.close()
                worker = None
        return worker

    def _done(self, row: Row) -> None:
        self._write(row.as_json())
        with self._lock:
            self.results.rows[key_of(row)] = row
            self._report(row)

    def _write(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            if "about" in value:
                self.results.about[value["about"]["device"]] = dict(value["about"])
            if self._file is not None:
                with self._file.open("a") as f:
                    f.write(json.dumps(value) + "\n")
