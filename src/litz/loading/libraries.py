"""Loading shared objects that lie in memory, each once in a process."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from litz.errors import PackageError

__all__ = ["Libraries", "libraries"]


class Libraries:
    """Shared objects by their content; they stay loaded, as code of theirs may run at any time."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()

    def load(self, data: bytes, make: Callable[[Path], Any]) -> Any:
        """What ``make`` makes of a file with the content, which it loads; kept by the content.

        Raises PackageError where no file can be written from which code may be loaded.
        """
        key = hashlib.sha256(data).hexdigest()
        with self._lock:
            if key not in self._known:
                self._known[key] = _from_file(key, data, make)
            return self._known[key]


def _from_file(key: str, data: bytes, make: Callable[[Path], Any]) -> Any:
    try:
        # A folder of this user's alone, and a name that no library had: loaders compare names.
        with tempfile.TemporaryDirectory(prefix="litz-") as folder:
            path = Path(folder) / f"{key[:16]}.so"
            path.write_bytes(data)
            return make(path)
    except OSError as e:
        raise PackageError(
            f"litz: no file for a package's kernels could be written ({e.strerror or e}): name a "
            "folder with room, from which code may run, in TMPDIR"
        ) from e


@lru_cache(maxsize=1)
def libraries() -> Libraries:
    """Those of this process."""
    return Libraries()
