"""How many compilers may run at once, of C++ and of Triton alike, and what memory each may take."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

EACH = 512 << 20
"""Bytes of memory to have free for each compiler; most take less than half of that."""
_LOOK = 0.1
FILES = "inactive_file"  # bytes of files in memory that give way


def default_jobs() -> int:
    """One for each CPU that this process may use, fewer where memory is short; at least 1."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count() or 1
    free = free_memory()
    return cpus if free is None else max(1, min(cpus, free // EACH))


def memory_bound(jobs: int) -> int:
    """Bytes that each of so many compilers may take, so that none takes others' memory; 0: any.

    What is free now is shared, down to what the largest kernels need.
    """
    free = free_memory()
    return 0 if free is None else max(2 * EACH, free // max(jobs, 1))


class Slots:
    """Compilers that run at once in a process.  Safe among threads.

    Whoever builds may always have one, so that nobody waits for another's end.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[int] = Counter()

    def take(self, owner: object, most: int) -> bool:
        """Whether ``owner`` may start a compiler, of ``most`` at a time, with memory for it."""
        with self._changed:
            if self._running[id(owner)]:
                free = free_memory()
                if self._running.total() >= most or (free is not None and free < EACH):
                    return False
            self._running[id(owner)] += 1
            return True

    def give(self, owner: object) -> None:
        """A compiler that ``owner`` had has ended."""
        with self._changed:
            self._running -= Counter([id(owner)])
            self._changed.notify_all()

    @contextmanager
    def one(self, owner: object, most: int) -> Iterator[None]:
        """Wait for a slot and hold it."""
        with self._changed:
            while not self.take(owner, most):
                self._changed.wait(_LOOK)  # memory comes back without a word
        try:
            yield
        finally:
            self.give(owner)


@lru_cache(maxsize=1)
def _slots_of(pid: int) -> Slots:
    return Slots()


def slots() -> Slots:
    """The slots of this process; a forked child has its own."""
    return _slots_of(os.getpid())


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that processes may still take, by the system and by this one's group of processes.

    None where neither says.
    """
    system = _numbers(root / "proc/meminfo").get("MemAvailable")
    found = [] if system is None else [system << 10]
    limit, used, files = (
        _numbers(root / "sys/fs/cgroup" / name).get(key)
        for name, key in (("memory.max", ""), ("memory.current", ""), ("memory.stat", FILES))
    )
    if limit is not None and used is not None:
        found.append(limit - used + (files or 0))
    return min(found, default=None)


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file by the names before them, the first of each line."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {m[1]: int(m[2]) for m in map(re.compile(r"(.*?):?\s*(\d+)").match, lines) if m}
