"""The cache folder: content-addressed entries that many processes share.

Layout, below a root that carries a version so that formats may change::

    <root>/v1/<kind>/<first two of key>/<key><suffix>     entries
    <root>/v1/tmp/                                        entries being written

Every entry ends in a seal (a marker and a digest of its name and of what stands before it) and is
put in place by an atomic rename: a reader sees a whole entry or none, and an entry that was cut
short or altered, or lies under another's name, is a miss.  The seal stands at the end so that a
shared object can be loaded from where it lies.

A root that cannot be written (read-only, full) is still read; new entries then go to a temporary
folder that lives as long as the process, and one warning says so.  The folder may be removed at any
time, whole or in part: what is missing is made again.

The folder of a version has to be its owner's alone, who is the user or root: otherwise nothing is
read or written there, because what lies there is run.

With a limit, entries that were not used for longest go when the folder outgrows it (see
`litz.runtime.eviction`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from litz.errors import ToolchainError
from litz.runtime.eviction import keep_within, swept_lately

LAYOUT = "v1"
RECENT = 64
WAIT = 120.0
"""Seconds for which a process waits for another one that compiles the same."""
_MARK = b"\nlitz-seal:"
_DIGEST_BYTES = 16
_SEAL_BYTES = len(_MARK) + 2 * _DIGEST_BYTES
# The folder may outgrow its limit by so much before a process looks through it again.
_SLACK = 16
_T = TypeVar("_T")
_told: list[Callable[[str, bytes], None]] = []


def told_of_entries(listener: Callable[[str, bytes], None]) -> None:
    """Call ``listener`` with each entry that is read or put from now on, in whichever cache.

    It gets the entry's name (kind, first two digits, key and suffix) and its sealed bytes, in the
    thread that uses the entry.  An entry that is used again is told again.
    """
    _told.append(listener)


def content_key(*parts: str | bytes) -> str:
    """The key of some content: 40 hex digits of a SHA-256 over the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:40]


def default_root() -> Path | None:
    """`LITZ_CACHE_DIR` where set, else the user's cache folder by the platform's custom.

    None: the user has no home folder.
    """
    named = os.environ.get("LITZ_CACHE_DIR")
    if named:
        return Path(os.path.expanduser(named))
    try:
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return Path(local or Path.home() / "AppData/Local") / "litz/Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library/Caches/litz"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "litz"
    except RuntimeError:
        return None


def _seal(name: str, data: bytes) -> bytes:
    digest = hashlib.blake2b(f"{name}\n".encode(), digest_size=_DIGEST_BYTES)
    digest.update(data)
    return _MARK + digest.hexdigest().encode()


def unsealed(name: str, data: bytes) -> bytes | None:
    """The content of the sealed entry of that file name; None where the seal does not fit."""
    if len(data) < _SEAL_BYTES:
        return None
    body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return body if seal == _seal(name, body) else None


class Cache:
    """Entries on disk by kind and key.  Safe among threads and processes.

    `root` is the folder (default: `default_root()`); nothing is created before the first write.
    `limit` is how many bytes it may hold; 0 for no limit.
    """

    def __init__(self, root: Path | str | None = None, limit: int = 0) -> None:
        self._limit = limit
        self._unseen: int | None = None
        self._lock = threading.Lock()
        self._overlay: Path | None = None
        self.recent: OrderedDict[str, object] = OrderedDict()
        found = Path(os.path.expanduser(root)) if root is not None else default_root()
        # Absolute, so that it stays where it is when the process changes its folder.
        self.root = found.absolute() if found else self._temporary("there is no home folder")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where entries are looked for, in order."""
        own = self.root / LAYOUT
        return (own,) if self._overlay is None else (own, self._overlay / LAYOUT)

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content stored under a key; None on a miss or where the entry is damaged."""
        found = self._found(kind, key, suffix)
        return None if found is None else found[1]

    def get_text(self, kind: str, key: str, suffix: str = "") -> str | None:
        """Like `get`, for text."""
        body = self.get(kind, key, suffix)
        return None if body is None else body.decode()

    def get_file(self, kind: str, key: str, suffix: str = "") -> Path | None:
        """The path of an entry whose seal fits, for what must be a file (a shared object)."""
        found = self._found(kind, key, suffix)
        return None if found is None else found[0]

    def remember(self, key: str, value: object) -> None:
        """Have a value in `recent`, from which those that were put there first go."""
        with self._lock:
            self.recent[key] = value
            while len(self.recent) > RECENT:
                self.recent.popitem(last=False)

    def _found(self, kind: str, key: str, suffix: str) -> tuple[Path, bytes] | None:
        """The path and the content of an entry whose seal fits; it has been used then."""
        for folder in self.folders:
            path = _place(folder, kind, key, suffix)
            with contextlib.suppress(OSError):
                _check_owner(folder)
                data = path.read_bytes()
                body = unsealed(path.name, data)
                if body is not None:
                    _touch(path)
                    _tell(kind, key, suffix, data)
                    return path, body
        return None

    def put(self, kind: str, key: str, content: bytes | str, suffix: str = "") -> Path:
        """Store content under a key, replacing what was there; returns the entry's path.

        ToolchainError: neither the cache folder nor a temporary one can be written.
        """
        body = content.encode() if isinstance(content, str) else content
        seal = _seal(key + suffix, body)
        path = self._put(kind, key, suffix, body, seal)
        if _told:
            _tell(kind, key, suffix, body + seal)
        return path

    def put_source(self, kind: str, key: str, text: str, suffix: str) -> Path:
        """Store a text without a seal, for people and compilers; it is never read back."""
        return self._put(kind, key, suffix, text.encode(), b"")

    def _put(self, kind: str, key: str, suffix: str, body: bytes, seal: bytes) -> Path:
        path = self._somewhere(lambda folder: _write(folder, kind, key, suffix, body, seal))
        self._make_room(len(body))
        return path

    def put_file(self, kind: str, key: str, finished: Path, suffix: str = "") -> Path:
        """Seal a finished file from `scratch()` and put it in place; returns the entry's path."""
        path = self.put(kind, key, finished.read_bytes(), suffix)
        finished.unlink(missing_ok=True)
        return path

    def scratch(self) -> Path:
        """A new private folder for files being made; the caller removes it."""
        return self._somewhere(lambda folder: Path(tempfile.mkdtemp(dir=_made(folder / "tmp"))))

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Where one process at a time is: others wait for it, but not longer than ``WAIT``.

        Where no file can be locked, nobody waits.
        """
        from filelock import FileLock  # PyTorch wants it too

        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, NotImplementedError):
                folder = _made(self.folders[-1] / "tmp")
                stack.enter_context(FileLock(folder / f"{key}.lock", timeout=WAIT, mode=0o600))
            yield

    def clear(self) -> None:
        """Remove every entry of this layout version."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def leave(self, error: OSError) -> None:
        """Write to a temporary folder from now on: someone found that the root has no room."""
        self._fall_back(self.root / LAYOUT, error)

    def _somewhere(self, write: Callable[[Path], _T]) -> _T:
        """Write to the cache folder, or where that cannot be to a temporary one."""
        folder = self.folders[-1]
        try:
            try:
                return write(folder)
            except FileNotFoundError:
                # Removed by someone just now.
                return write(folder)
        except OSError as error:
            other = self._fall_back(folder, error)
        try:
            return write(other)
        except OSError as error:
            raise _nowhere(self.root, other, error) from error

    def _fall_back(self, tried: Path, error: OSError) -> Path:
        """Turn to a temporary folder after a write to `tried` failed."""
        if tried != self.root / LAYOUT:
            raise _nowhere(self.root, tried, error) from error
        with self._lock:
            if self._overlay is None:
                self._overlay = self._temporary(
                    f"cannot write its cache folder {self.root} ({error.strerror or error})"
                )
        return self._overlay / LAYOUT

    def _temporary(self, why: str) -> Path:
        try:
            folder = Path(tempfile.mkdtemp(prefix="litz-"))
        except OSError as error:
            raise _nowhere("", tempfile.gettempprefix(), error) from error
        weakref.finalize(self, _remove, folder, os.getpid())
        warnings.warn(
            f"litz: {why}; "
            "compiled code is kept in a temporary folder and lost when the process ends. "
            "Set LITZ_CACHE_DIR to a folder that can be written.",
            RuntimeWarning,
            stacklevel=4,
        )
        return folder

    def _make_room(self, written: int) -> None:
        """Look for entries to evict: once so much was written, and in the first write of a day."""
        folder = self.root / LAYOUT
        if self._limit <= 0 or self._overlay is not None:
            return
        with self._lock:
            first = self._unseen is None
            self._unseen = written + (self._unseen or 0)
            if self._unseen * _SLACK < self._limit and not (first and not swept_lately(folder)):
                return
            self._unseen = 0
        keep_within(folder, self._limit)


def _nowhere(root: Path | str, other: Path | str, error: OSError) -> ToolchainError:
    return ToolchainError(
        f"litz: can write compiled kernels neither to its cache folder {root} nor to {other} "
        f"({error.strerror or error}). Set LITZ_CACHE_DIR to a folder with room."
    )


def _write(folder: Path, kind: str, key: str, suffix: str, body: bytes, seal: bytes) -> Path:
    place = _place(folder, kind, key, suffix)
    _made(place.parent)
    _check_owner(folder)
    handle, name = tempfile.mkstemp(dir=_made(folder / "tmp"))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(body)
            stream.write(seal)
        os.replace(name, place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return place


def _touch(path: Path) -> None:
    """Note that an entry was used."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove(folder: Path, owner: int) -> None:
    # A forked child inherits the finaliser, but not the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(kind: str, key: str, suffix: str, data: bytes) -> None:
    for listener in _told:
        listener(f"{kind}/{key[:2]}/{key}{suffix}", data)


def _place(folder: Path, kind: str, key: str, suffix: str) -> Path:
    return folder / kind / key[:2] / (key + suffix)


def _check_owner(folder: Path) -> None:
    """Raise PermissionError for a folder in which another user could have put code."""
    if hasattr(os, "geteuid"):
        found = folder.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EACCES, "it is another user's")
        if found.st_mode & 0o022:
            raise PermissionError(errno.EACCES, "others can write there")


def _made(folder: Path) -> Path:
    # Code is loaded from here, so that other users must not be able to write, nor above it.
    if not folder.is_dir():
        _made(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
