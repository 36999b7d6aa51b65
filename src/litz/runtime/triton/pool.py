"""Compile workers: processes that import Triton and not torch, one pool of them a process.

One process, the server, imports Triton and forks the workers: it has no threads and no torch, and
what it has loaded is theirs.  That takes as long as importing Triton once, so that it starts early;
workers stay until the process ends.  Each is led by a thread that hands it one job after another;
the thread sleeps in a read meanwhile and costs the process nothing.

The server ends when its connection does, which is closed however this process ends, and takes the
workers and what they have started along.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from litz.dataclass import dataclass
from litz.errors import ToolchainError
from litz.runtime.jobs import memory_bound, slots
from litz.runtime.triton.worker import END, FORK, GRACE, REQUEST

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
    # NVIDIA's is in Triton itself: no need to read the metadata of all installed packages.
    env.setdefault("TRITON_BACKENDS_IN_TREE", "1")
    return env


class WorkerDied(Exception):
    """A worker ended in the middle of a job.  ``said``: what it left on stderr."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(status, said)
        self.status = status
        self.said = said


class _Server:
    """The process that forks workers.  Safe among threads."""

    def __init__(self, triton: Triton) -> None:
        self._lock = threading.Lock()
        self._forked = False
        # A file, not a pipe: nobody needs to read it for the server to go on.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), triton.folder],
                stdin=theirs.fileno(),
                stdout=self._messages,
                stderr=self._messages,
                env=worker_environment(),
                start_new_session=True,  # an interrupt at the terminal is for this process alone
            )

    def fork(self, channel: socket.socket, messages: int, memory: int) -> int:
        """A new worker's process id.  OSError: the server is gone."""
        pid = self._ask(FORK, memory, [channel.fileno(), messages])
        self._forked = True
        return pid

    def end(self, pid: int) -> int:
        """End a worker whose connection is closed; its exit status, negative for a signal."""
        return self._ask(END, pid)

    def _ask(self, what: int, number: int, files: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._control, [REQUEST.pack(what, number)], files)
            answer = self._control.recv(REQUEST.size, socket.MSG_WAITALL)
        if len(answer) < REQUEST.size:
            raise OSError(f"the process that starts them ended\n{_read(self._messages)}")
        return int(REQUEST.unpack(answer)[1])

    def leave(self) -> None:
        """In a forked child: close its copy of the connection."""
        self._control.close()

    def close(self) -> None:
        """End the server and all workers."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # others may be reading from it
        if not self._forked:
            self._process.kill()  # it may still be loading
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.kill()


class _Worker:
    """One process; asked by one thread at a time."""

    def __init__(self, server: _Server, memory: int) -> None:
        self._server = server
        # A file, not a pipe: nobody needs to read it for the worker to go on.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, theirs = socket.socketpair()
        with theirs:
            self.pid = server.fork(theirs, self._messages.fileno(), memory)

    def ask(self, request: bytes) -> tuple[bytes, str]:
        """(the answer, what the worker said on stderr).  WorkerDied: there is no answer."""
        before = os.fstat(self._messages.fileno()).st_size
        try:
            self._channel.sendall(struct.pack("<Q", len(request)) + request)
            head = self._channel.recv(8, socket.MSG_WAITALL)
            size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            body = self._channel.recv(size, socket.MSG_WAITALL) if size else b""
            if size and len(body) == size:
                return body, _read(self._messages, before)
        except OSError:
            pass  # a closed connection: the worker is gone
        raise WorkerDied(self.close(), _read(self._messages))

    def close(self) -> int:
        """End the process; its exit status, that of being killed where nobody can say."""
        self.leave()
        try:
            return self._server.end(self.pid)
        except OSError:
            return -signal.SIGKILL

    def leave(self) -> None:
        """Close this process's end of the connection; a worker without work then ends by itself."""
        self._channel.close()


def _read(file: IO[bytes], since: int = 0) -> str:
    # A process writes by the same file offset, which must stay where it is.
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size - since, since).decode(errors="replace")


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
        self._server: _Server | None = None
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
        with suppress(OSError):  # the first job tries again, and says why it fails
            self._serving()  # here, where no thread waits its turn beside a busy one
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
            flying, threads, server = list(self._flying.values()), self._threads, self._server
        for future in flying:
            future.cancel()
        if server is not None:
            server.close()  # whoever waits for a worker reads the end of the connection
        for _ in range(threads):
            self._tasks.put(None)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's workers."""
        for worker in self._workers.values():
            worker.leave()
        if self._server is not None:
            self._server.leave()

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
            self._do(number, task)
            del task  # else the last answer stays in memory
        worker = self._workers.get(number)
        if worker is not None:
            worker.close()

    def _do(self, number: int, task: _Task) -> None:
        if not task.future.set_running_or_notify_cancel():
            return
        try:
            with slots().one(self, self._threads):
                answer = self._ask(number, task.request)
            result = task.finish(*answer)
        except BaseException as error:
            task.future.set_exception(error)
        else:
            task.future.set_result(result)

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
        """A new worker; where the server is gone, of a new one."""
        for attempt in (1, 2):
            if self._closed:
                raise ToolchainError("litz: the compile workers are closed")
            server: _Server | None = None
            try:
                server = self._serving()
                worker = _Worker(server, memory_bound(self._threads))
            except OSError as error:
                with self._lock:
                    if self._server is server:
                        self._server = None
                if attempt == 2:
                    raise ToolchainError(f"litz: cannot start a compile worker: {error}") from error
            else:
                with self._lock:
                    self._workers[number] = worker
                return worker
        raise AssertionError("unreachable")

    def _serving(self) -> _Server:
        with self._lock:
            self._server = self._server or _Server(self._triton)
            return self._server


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
