"""Compile workers: processes that import Triton and not torch, one pool of them a process.

A worker takes a fraction of a second to start, so that workers start early and stay until the
process ends.  Each is led by a thread that hands it one job after another; the thread sleeps in a
read meanwhile and costs the process nothing.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import queue
import re
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from litz.errors import ToolchainError

__all__ = ["Pool", "Triton", "WorkerDied", "find_triton", "pool"]

WORKER = Path(__file__).parent / "worker.py"


@dataclass(frozen=True)
class Triton:
    """Triton as installed: its folder, its version, and what tells one build from another."""

    folder: str
    version: str
    build: str


@lru_cache(maxsize=1)
def find_triton() -> Triton:
    """The installed Triton, found without importing it.  ToolchainError: there is none."""
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ToolchainError("litz: GPU kernels need the package triton: pip install triton")
    folder = Path(spec.origin).parent
    found = re.search(r"__version__\s*=\s*['\"](.+?)['\"]", Path(spec.origin).read_text())
    libraries = sorted(p for p in (folder / "_C").glob("libtriton*") if p.is_file())
    stats = [p.stat() for p in libraries]
    build = " ".join(f"{s.st_size}:{s.st_mtime_ns}" for s in stats)
    return Triton(str(folder), found[1] if found else "", build)


@lru_cache(maxsize=1)
def worker_environment() -> dict[str, str]:
    """The environment of workers: this process's when it first compiled.

    Workers compile even where this process interprets kernels.
    """
    env = dict(os.environ)
    env.pop("TRITON_INTERPRET", None)
    return env


class WorkerDied(Exception):
    """A worker ended in the middle of a job.  ``said``: what it left on stderr."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(status, said)
        self.status = status
        self.said = said


class _Worker:
    """One process; asked by one thread at a time."""

    def __init__(self, triton: Triton) -> None:
        # A file, not a pipe: nobody needs to read it for the worker to go on.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), triton.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env=worker_environment(),
            start_new_session=True,  # an interrupt at the terminal is for this process alone
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: bytes) -> tuple[bytes, str]:
        """(the answer, what the worker said on stderr).  WorkerDied: there is no answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        before = os.fstat(self._messages.fileno()).st_size
        try:
            stdin.write(struct.pack("<Q", len(request)) + request)
            stdin.flush()
            head = stdout.read(8)
            body = stdout.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
            if len(head) == 8 and len(body) == struct.unpack("<Q", head)[0]:
                return body, self._said(before)
        except OSError:
            pass  # a closed pipe: the worker is gone
        self.close()
        raise WorkerDied(self._process.wait(), self._said(0))

    def _said(self, since: int) -> str:
        # The worker writes by the same file offset, which must stay where it is.
        size = os.fstat(self._messages.fileno()).st_size
        data = os.pread(self._messages.fileno(), size - since, since)
        return data.decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self.leave()

    def leave(self) -> None:
        """Close this process's ends of the pipes; a worker without work then ends by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass  # what was still to be written went nowhere


Finish = Callable[[bytes, str], Any]


@dataclass
class _Task:
    request: bytes
    finish: Finish
    future: Future[Any]


class Pool:
    """Workers and the jobs that wait for them.  Safe among threads."""

    def __init__(self, triton: Triton | None = None) -> None:
        self._triton = triton or find_triton()
        self._owner = os.getpid()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._flying: dict[Hashable, Future[Any]] = {}
        self._workers: dict[int, _Worker] = {}
        self._threads = 0
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run."""
        with self._lock:
            return tuple(w.pid for w in self._workers.values())

    @property
    def flying(self) -> int:
        """How many jobs wait or run."""
        with self._lock:
            return len(self._flying)

    def grow(self, count: int) -> None:
        """Have at least ``count`` workers; they start at once."""
        if not sys.executable:
            raise ToolchainError("litz: cannot start compile workers: sys.executable is empty")
        with self._lock:
            while self._threads < count and not self._closed:
                name = f"litz-compile-{self._threads}"
                threading.Thread(
                    target=self._lead, args=(self._threads,), name=name, daemon=True
                ).start()
                self._threads += 1

    def submit(self, key: Hashable, request: bytes, finish: Finish) -> Future[Any]:
        """The result of ``finish(answer, messages)``, called in a thread of the pool.

        What is asked for under a key that is under way is not asked for again.
        """
        with self._lock:
            if self._closed:
                raise ToolchainError("litz: the compile workers are closed")
            found = self._flying.get(key)
            if found is not None and not found.cancelled():
                return found
            future = self._flying[key] = Future()
        future.add_done_callback(lambda f: self._landed(key, f))
        self._tasks.put(_Task(request, finish, future))
        return future

    def _landed(self, key: Hashable, future: Future[Any]) -> None:
        with self._lock:
            if self._flying.get(key) is future:
                del self._flying[key]

    def close(self) -> None:
        """End all workers; jobs that wait are cancelled."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            flying, workers = list(self._flying.values()), list(self._workers.values())
            threads = self._threads
        for future in flying:
            future.cancel()
        for worker in workers:
            worker._process.kill()  # its thread reads the end of the pipe
        for _ in range(threads):
            self._tasks.put(None)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's workers."""
        for worker in self._workers.values():
            worker.leave()

    # --- in the threads ---

    def _lead(self, number: int) -> None:
        try:
            self._hire(number)
        except Exception:
            pass  # the first job tries again, and says why it fails
        while True:
            task = self._tasks.get()
            if task is None:
                break
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                result = task.finish(*self._ask(number, task.request))
            except BaseException as error:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)
            del task  # else the last answer stays in memory
        worker = self._workers.get(number)
        if worker is not None:
            worker.close()

    def _ask(self, number: int, request: bytes) -> tuple[bytes, str]:
        """A job's answer; a worker that dies of it is replaced once."""
        for attempt in (1, 2):
            worker = self._workers.get(number) or self._hire(number)
            try:
                return worker.ask(request)
            except WorkerDied:
                with self._lock:
                    self._workers.pop(number, None)
                if attempt == 2 or self._closed:
                    raise
        raise AssertionError("unreachable")

    def _hire(self, number: int) -> _Worker:
        if self._closed:
            raise ToolchainError("litz: the compile workers are closed")
        try:
            worker = _Worker(self._triton)
        except OSError as error:
            raise ToolchainError(f"litz: cannot start a compile worker: {error}") from error
        with self._lock:
            self._workers[number] = worker
        return worker


@lru_cache(maxsize=1)
def _pool_of(pid: int) -> Pool:
    made = Pool()
    atexit.register(made.close)
    reference = weakref.ref(made)

    def abandon() -> None:
        kept = reference()
        if kept is not None:
            kept.abandon()

    os.register_at_fork(after_in_child=abandon)
    return made


def pool() -> Pool:
    """The pool of this process; a forked child has its own."""
    return _pool_of(os.getpid())
