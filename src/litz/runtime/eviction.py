"""Keeping the cache folder within its limit: entries that were not used for longest go first.

An entry's modification time is when it was last used.  Nothing is locked: a file that goes while
another process wants it is a miss there, and is made again; two processes that look at once choose
the same files.  What was used within the last minutes stays whatever the limit says, because
somebody may be about to load it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

GRACE = 20 * 60.0
"""Seconds for which an entry stays after its last use."""
_DAY = 24 * 3600.0
# What is kept, in parts of the limit: not every write shall have to look for room again.
_KEPT = 0.8
_STAMP = "swept"
_UNFINISHED = "tmp"


def swept_lately(folder: Path) -> bool:
    """Whether some process looked through the folder within the last day."""
    try:
        return time.time() - (folder / _STAMP).stat().st_mtime < _DAY
    except OSError:
        return False


def keep_within(folder: Path, limit: int) -> int:
    """Remove old entries where those below `folder` take more than `limit` bytes.

    Also removes what processes that were killed have left half done.  Returns the bytes that are
    left.  Never fails: a file that cannot be removed stays.
    """
    now = time.time()
    with contextlib.suppress(OSError):
        (folder / _STAMP).touch()
    _drop_unfinished(folder / _UNFINISHED, now - _DAY)
    found = sorted(entries(folder))
    total = sum(size for _, _, size in found)
    if total <= limit:
        return total
    for used, path, size in found:
        if total <= limit * _KEPT or used > now - GRACE:
            break
        if _removed(path, now - GRACE):
            total -= size
    return total


def entries(folder: Path) -> Iterator[tuple[float, str, int]]:
    """When each entry was used last, its path, and its size in bytes."""
    for kind in _listed(folder):
        if kind.name == _UNFINISHED or not kind.is_dir(follow_symlinks=False):
            continue
        for shelf in _listed(kind.path):
            if not shelf.is_dir(follow_symlinks=False):
                continue
            for entry in _listed(shelf.path):
                with contextlib.suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    yield stat.st_mtime, entry.path, stat.st_size


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _removed(path: str, unused_since: float) -> bool:
    """Remove an entry unless another process has used it in the meantime."""
    try:
        if os.stat(path, follow_symlinks=False).st_mtime > unused_since:
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _drop_unfinished(folder: Path, before: float) -> None:
    for entry in _listed(folder):
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
