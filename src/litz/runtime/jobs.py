"""How many compilers may run at once, of C++ and of Triton alike."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_jobs"]

EACH = 512 << 20
"""Bytes of memory to have free for each compiler; most take less than half of that."""


def default_jobs() -> int:
    """One for each CPU that this process may use, fewer where memory is short; at least 1."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count() or 1
    free = free_memory()
    return cpus if free is None else max(1, min(cpus, free // EACH))


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that processes may still take, by the system and by this one's group of processes.

    None where neither says.
    """
    system = _fields(root / "proc/meminfo").get("MemAvailable:")
    found = [] if system is None else [system << 10]
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None:
        # What files are cached in gives way.
        found.append(limit - used + _fields(group / "memory.stat").get("inactive_file", 0))
    return min(found, default=None)


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or another word."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of names and numbers."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
