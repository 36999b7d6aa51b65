"""How many compilers may run at once, of C++ and of Triton alike."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["default_jobs"]

EACH = 512 << 20
"""Bytes of memory to have free for each compiler; most take less than half of that."""
FILES = "inactive_file"  # bytes of files in memory that give way


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
