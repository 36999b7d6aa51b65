"""Tasks by several worker processes, spread over the GPUs, until they are done or the time is over.

A worker is a process that answers each line of JSON on its input by a line of JSON (``serve``).
One that dies, hangs, or says that its GPU context is lost is replaced; its task is reported with
what befell it, and the others go on.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
LAST = "last"  # in the last answer of a process
MORE = "more"  # an answer that is no result: the task to go on with
READY = {"ready": True}
STARTS = 3  # workers that die before their first answer, one after another, end it all
START_SECONDS = 240.0
GRACE = 15.0  # a worker stops a task that takes too long itself; one that hangs is killed after it
MEMORY = 6 << 20  # KiB after which a worker makes room for a fresh one

Task = dict[str, Any]
Answer = dict[str, Any]


# --- in a worker ---------------------------------------------------------------------------------


class Late(BaseException):
    """A task takes too long."""


def _late(*_: Any) -> None:
    raise Late


def within(seconds: int, work: Callable[[], Any]) -> Any:
    """What ``work`` returns; Late where that takes longer and Python is asked in between."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(seconds)
    try:
        return work()
    finally:
        signal.alarm(0)


def serve(answer: Callable[[Task], Answer]) -> None:
    """Answer tasks until the input ends.  What the program prints goes to the log."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _say(out, READY)
    for line in sys.stdin:
        said = answer(json.loads(line))
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY:
            said[LAST] = True
        _say(out, said)
        if said.get(LAST):
            os._exit(0)  # an orderly end may wait for a GPU that answers no more


def _say(out: TextIO, what: Answer) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def lost_context() -> str:
    """What CUDA says where the GPU serves this process no longer; empty where it does."""
    import torch

    if not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > 2 << 30:
            torch.cuda.empty_cache()  # the others need it too
    except RuntimeError as e:
        return str(e).strip()[:200]
    return ""


def where(device: str, target: str = "") -> dict[str, str]:
    """What a result is of: kind of device, its name, the versions and the date."""
    import torch

    from litz.runtime.triton.pool import find_triton

    kind = device.split(":")[0]
    name = torch.cuda.get_device_name() if kind == "cuda" else _processor()
    versions = [f"torch {torch.__version__}"]
    if kind == "cuda" or target:
        versions.append(f"Triton {find_triton().version}")
    return {
        "device": kind if not target else f"{kind}-{target}",
        "machine": name,
        "versions": ", ".join(versions),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.machine()


# --- where they are led --------------------------------------------------------------------------


@dataclass
class Worker:
    number: int
    process: subprocess.Popen[bytes]
    log: Path
    task: Task | None = None
    ready: bool = False
    since: float = field(default_factory=time.monotonic)
    text: bytes = b""

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(x.strip() for x in lines[-6:])[-300:]


@dataclass
class Pool:
    """Workers for one list of tasks.

    words: the command of a worker.  jobs: how many.  gpus: their numbers, taken in turn.
    limit: seconds that a task may take.
    """

    words: list[str]
    jobs: int
    gpus: list[str]
    logs: Path
    limit: float
    interpret: bool = False
    live: dict[int, Worker] = field(default_factory=dict)
    failed_starts: int = 0
    waiting: list[Task] = field(default_factory=list)

    def environment(self, number: int) -> dict[str, str]:
        """That of a worker: one thread each, this checkout before any installed package."""
        env = dict(os.environ, OMP_NUM_THREADS="1", TRITON_INTERPRET="1" if self.interpret else "0")
        places = [str(ROOT / "src"), str(ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
        env.setdefault("LITZ_JOBS", "1" if self.jobs > 1 else "0")
        if self.gpus:
            env["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        return env

    def start(self, number: int) -> None:
        log = self.logs / f"{number}.log"
        cores = sorted(os.sched_getaffinity(0))
        # Litz starts a compile worker for each core that a process may use: two here, which two
        # processes share, so that one may compile while the other computes.
        at = {cores[number % len(cores)], cores[(number + len(cores) // 2) % len(cores)]}
        with log.open("wb") as to:
            process = subprocess.Popen(
                self.words,
                env=self.environment(number),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=to,
                preexec_fn=lambda: os.sched_setaffinity(0, at) if self.jobs > 1 else None,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.live[number] = Worker(number, process, log)

    def run(
        self, tasks: Iterable[Task], until: float, closing: float
    ) -> Iterator[tuple[Task, Answer | None, str]]:
        """(task, its answer, or None and what befell the worker) as they end.

        until: no task starts after this monotonic time; ``closing`` seconds later all workers end,
        and what they were at is not reported.
        """
        left = iter(tasks)
        first = next(left, None)
        if first is not None:
            self.waiting.append(first)
            for number in range(self.jobs):
                self.start(number)

        def take() -> Task | None:
            if time.monotonic() > until:
                return None
            return self.waiting.pop() if self.waiting else next(left, None)

        try:
            while self.live and time.monotonic() < until + closing:
                self._wait()
                for worker in list(self.live.values()):
                    yield from self._attend(worker, take, until)
        finally:
            for worker in self.live.values():
                _end(worker)
            self.live.clear()

    def _wait(self) -> None:
        """Until a worker has said something, or a second is over."""
        with selectors.DefaultSelector() as selector:
            for worker in self.live.values():
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ)
            selector.select(1.0)

    def _attend(
        self, worker: Worker, take: Callable[[], Task | None], until: float
    ) -> Iterator[tuple[Task, Answer | None, str]]:
        """Read what a worker has said; report, replace, hand out."""
        assert worker.process.stdout is not None
        ended = False
        while chunk := worker.process.stdout.read(1 << 16) or b"":
            worker.text += chunk
        if worker.process.poll() is not None:
            worker.text += worker.process.stdout.read() or b""
            ended = True
        while b"\n" in worker.text:
            line, _, worker.text = worker.text.partition(b"\n")
            said = json.loads(line)
            if said == READY:
                worker.ready, self.failed_starts = True, 0
                continue
            task, worker.task = worker.task, None
            assert task is not None
            ended = bool(said.pop(LAST, False)) or ended
            if MORE in said:
                self.waiting.append(said[MORE])
            else:
                yield task, said, ""
        spent = time.monotonic() - worker.since
        if not ended and worker.task is not None and spent > self.limit + GRACE:
            _end(worker)
            task, worker.task = worker.task, None
            ended = True
            yield task, None, f"not done in {self.limit:.0f} s, and the process was killed"
        elif not ended and not worker.ready and spent > START_SECONDS:
            ended = True
        if ended:
            yield from self._replace(worker, until)
        elif worker.ready and worker.task is None:
            worker.task = take()
            worker.since = time.monotonic()
            if worker.task is None:
                _end(worker)
                del self.live[worker.number]
            else:
                _hand(worker, worker.task)

    def _replace(self, worker: Worker, until: float) -> Iterator[tuple[Task, Answer | None, str]]:
        _end(worker)
        status = worker.process.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        if worker.task is not None:
            yield worker.task, None, f"the process ended with {how}: {worker.last_words()}"
        del self.live[worker.number]
        if not worker.ready:
            self.failed_starts += 1
            if self.failed_starts >= STARTS:
                raise RuntimeError(f"no worker starts ({how}): {worker.last_words()}")
        if time.monotonic() < until:
            self.start(worker.number)


def _hand(worker: Worker, task: Task) -> None:
    assert worker.process.stdin is not None
    try:
        worker.process.stdin.write(json.dumps(task).encode() + b"\n")
        worker.process.stdin.flush()
    except OSError:
        pass  # it has just died: the next look says so


def _end(worker: Worker) -> None:
    """End a worker, whatever it does; its compile workers end with its pipes."""
    worker.process.kill()
    worker.process.wait()
    for pipe in (worker.process.stdin, worker.process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass  # what was still to be handed over went nowhere


def visible_gpus(device: str) -> list[str]:
    """The GPUs that workers take in turn, as CUDA_VISIBLE_DEVICES names them."""
    if not device.startswith("cuda"):
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return [x for x in named.split(",") if x]
    import torch

    return [str(k) for k in range(torch.cuda.device_count())]


def append(path: Path, row: dict[str, Any]) -> None:
    """One line more; written at once, so that an end at any time loses nothing."""
    with path.open("a") as f:
        f.write(json.dumps(row) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; a last one that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
