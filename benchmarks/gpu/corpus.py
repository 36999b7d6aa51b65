"""The Triton tests' cases on a device, in several worker processes at once.

A case that fails, hangs or takes its process along is one bad result; its worker is replaced.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Say
from benchmarks.session import Session, WorkerError, WorkerLost

WORKER = "benchmarks.gpu.cases"
READY, ALIVE = 90.0, 20.0
# Cases that time launches run alone.
ALONE = "runtime "
# A worker that fails to start so often ends its share of the work.
STARTS = 3


@dataclass(frozen=True)
class Result:
    """A case's outcome.

    why: what is wrong, None where nothing is.  said: what the case printed.  ran: False where it
    was skipped or time was out.
    """

    name: str
    why: str | None
    said: str = ""
    seconds: float = 0.0
    ran: bool = True

    @property
    def ok(self) -> bool:
        return self.ran and self.why is None


class Hand:
    """One worker process, replaced when it is lost."""

    def __init__(self, device: str, folder: Path, until: float, case: float) -> None:
        self.device, self.folder, self.until, self.case = device, folder, until, case
        self.session: Session | None = None
        self.failures = 0

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def ready(self) -> Session:
        if self.session is None:
            self.failures += 1
            within = max(min(READY, self.left), 0.1)
            self.session = Session(self.device, "litz", False, self.folder, WORKER, within)
            self.failures = 0
        return self.session

    def names(self) -> list[str]:
        """All cases.  Raises ``WorkerError``."""
        return list(self.ready().ask("names", within=READY)["names"])

    def run(self, name: str) -> Result:
        if self.left <= 0 or self.failures >= STARTS:
            return Result(name, None, ran=False)
        try:
            within = max(min(self.case, self.left), 0.1)
            reply = self.ready().ask("run", within=within, name=name)
        except WorkerError as error:
            lost = isinstance(error, WorkerLost)
            if lost or self.session is None or not self.works():
                self.close()
            if lost and self.left <= 0:
                return Result(name, None, ran=False)
            return Result(name, str(error))
        if reply["why"] is not None and not self.works():
            self.close()
        ran = reply["skipped"] is None
        return Result(name, reply["why"], reply["said"], reply["seconds"], ran)

    def works(self) -> bool:
        """Whether the worker's device still answers: a fault of a kernel ends it for a process."""
        try:
            self.ready().ask("alive", within=ALIVE)
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        if self.session is not None:
            self.session.kill()
            self.session = None


def run_cases(
    device: str,
    only: Sequence[str],
    folder: Path,
    jobs: int,
    until: float,
    case: float,
    say: Say,
) -> list[Result]:
    """Run cases until ``time.monotonic()`` is ``until``; results in the cases' order.

    only: words, one of which a case's name must contain (none: all cases).  folder: of caches and
    logs; case: seconds that a case may take.  Raises ``WorkerError`` where no worker starts.
    """
    first = Hand(device, folder, until, case)
    try:
        names = [n for n in first.names() if not only or any(word in n for word in only)]
    except BaseException:
        first.close()
        raise
    together = [n for n in names if not n.startswith(ALONE)]
    hands = [first, *(Hand(device, folder, until, case) for _ in range(jobs - 1))]
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in together:
        waiting.put(name)
    say(f"{len(names)} cases, {jobs} at once")
    done: dict[str, Result] = {}

    def work(hand: Hand) -> None:
        while hand.failures < STARTS:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            done[name] = hand.run(name)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, hands))
        for name in names:
            if name.startswith(ALONE):
                done[name] = first.run(name)
    finally:
        for hand in hands:
            hand.close()
    return [done.get(name) or Result(name, None, ran=False) for name in names]


def cases_text(results: Sequence[Result]) -> str:
    """How many were right, what is wrong with the others, and what cases printed."""
    ok = sum(r.ok for r in results)
    bad = [r for r in results if r.why is not None]
    idle = [r.name for r in results if not r.ran]
    lines = [f"{ok} of {len(results)} cases right, {len(bad)} wrong, {len(idle)} not run"]
    lines += [f"WRONG {r.name}: {r.why}" for r in bad]
    if idle:
        lines.append(f"not run: {', '.join(idle)}")
    lines += [f"{r.name}: {r.said}" for r in results if r.said]
    return "\n".join(lines)
