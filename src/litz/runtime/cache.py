"""The cache folder: content-addressed entries that many processes share.

Layout, below a root that carries a version so that formats may change::

    <root>/v1/<kind>/<first two of key>/<key><suffix>     entries
    <root>/v1/tmp/                                        entries being written

Every entry ends in a seal (a marker and a digest of what stands before it) and is put in place by
an atomic rename: a reader sees a whole entry or none, and an entry that was cut short or altered is
a miss.  The seal stands at the end so that a shared object can be loaded from where it lies.

A root that cannot be written (read-only, full) is still read; new entries then go to a temporary
folder that lives as long as the process, and one warning says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from pathlib import Path

__all__ = ["Cache", "content_key", "default_root"]

LAYOUT = "v1"
_MARK = b"\nlitz-seal:"
_DIGEST_BYTES = 16
_SEAL_BYTES = len(_MARK) + 2 * _DIGEST_BYTES


def content_key(*parts: str | bytes) -> str:
    """The key of some content: 40 hex digits of a SHA-256 over the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:40]


def default_root() -> Path:
    """`LITZ_CACHE_DIR` where set, else the user's cache folder by the platform's custom."""
    named = os.environ.get("LITZ_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "litz/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/litz"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "litz"


def _seal(data: bytes) -> bytes:
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    return _MARK + digest.encode()


def _unseal(data: bytes) -> bytes | None:
    """The content of a sealed entry, or None where the seal does not fit."""
    if len(data) < _SEAL_BYTES:
        return None
    body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return body if seal == _seal(body) else None


class Cache:
    """Entries on disk by kind and key.  Safe among threads and processes.

    `root` is the folder (default: `default_root()`); nothing is created before the first write.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._overlay: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where entries are looked for, in order."""
        own = self.root / LAYOUT
        return (own,) if self._overlay is None else (own, self._overlay / LAYOUT)

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content stored under a key; None on a miss or where the entry is damaged."""
        for folder in self.folders:
            try:
                data = _place(folder, kind, key, suffix).read_bytes()
            except OSError:
                continue
            body = _unseal(data)
            if body is not None:
                return body
        return None

    def get_text(self, kind: str, key: str, suffix: str = "") -> str | None:
        """Like `get`, for text."""
        body = self.get(kind, key, suffix)
        return None if body is None else body.decode()

    def get_file(self, kind: str, key: str, suffix: str = "") -> Path | None:
        """The path of an entry whose seal fits, for what must be a file (a shared object)."""
        for folder in self.folders:
            path = _place(folder, kind, key, suffix)
            try:
                if _unseal(path.read_bytes()) is not None:
                    return path
            except OSError:
                continue
        return None

    def put(self, kind: str, key: str, content: bytes | str, suffix: str = "") -> Path:
        """Store content under a key, replacing what was there; returns the entry's path."""
        body = content.encode() if isinstance(content, str) else content
        folder = self._writable()
        try:
            return self._write(folder, kind, key, suffix, body)
        except OSError as error:
            return self._write(self._fall_back(folder, error), kind, key, suffix, body)

    def put_source(self, kind: str, key: str, text: str, suffix: str) -> Path:
        """Store a text without a seal, for people and compilers; it is never read back."""
        folder = self._writable()
        try:
            return self._write(folder, kind, key, suffix, text.encode(), sealed=False)
        except OSError as error:
            folder = self._fall_back(folder, error)
            return self._write(folder, kind, key, suffix, text.encode(), sealed=False)

    def put_file(self, kind: str, key: str, finished: Path, suffix: str = "") -> Path:
        """Seal a finished file from `scratch()` and put it in place; returns the entry's path."""
        path = self.put(kind, key, finished.read_bytes(), suffix)
        finished.unlink(missing_ok=True)
        return path

    def scratch(self) -> Path:
        """A new private folder for files being made; the caller removes it."""
        folder = self._writable()
        try:
            return Path(tempfile.mkdtemp(dir=_made(folder / "tmp")))
        except OSError as error:
            return Path(tempfile.mkdtemp(dir=_made(self._fall_back(folder, error) / "tmp")))

    def clear(self) -> None:
        """Remove every entry of this layout version."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _writable(self) -> Path:
        return self.folders[-1]

    def _fall_back(self, tried: Path, error: OSError) -> Path:
        """Turn to a temporary folder after a write to `tried` failed."""
        if tried != self.root / LAYOUT:
            raise error
        if self._overlay is None:
            self._overlay = Path(tempfile.mkdtemp(prefix="litz-"))
            weakref.finalize(self, _remove, self._overlay, os.getpid())
            warnings.warn(
                f"litz: cannot write its cache folder {self.root} ({error.strerror or error}); "
                "compiled code is kept in a temporary folder and lost when the process ends. "
                "Set LITZ_CACHE_DIR to a folder that can be written.",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._writable()

    @staticmethod
    def _write(
        folder: Path, kind: str, key: str, suffix: str, body: bytes, *, sealed: bool = True
    ) -> Path:
        place = _place(folder, kind, key, suffix)
        _made(place.parent)
        handle, name = tempfile.mkstemp(dir=_made(folder / "tmp"))
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(body)
                if sealed:
                    stream.write(_seal(body))
            os.replace(name, place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return place


def _remove(folder: Path, owner: int) -> None:
    # A forked child inherits the finaliser, but not the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _place(folder: Path, kind: str, key: str, suffix: str) -> Path:
    return folder / kind / key[:2] / (key + suffix)


def _made(folder: Path) -> Path:
    # Code is loaded from here, so that other users must not be able to write.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
