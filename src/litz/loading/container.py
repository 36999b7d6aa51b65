"""Packages as files: a zip archive of entries stored as they are, each at a multiple of 64 bytes.

What reads a package needs nothing of zip's own tables (tools that list archives do)::

    PK...                      zip's headers and the entries, the first one named "litz-package"
    ...
    table.json                 {"entries": {name: [offset, size, SHA-256]}}, the last entry
    ...                        zip's directory
    litz-package 1 OFFSET SIZE SHA-256      zip's comment, at the end: where the table lies

Offsets and sizes are in bytes, from where the file begins.  Bytes that the table does not name are
never read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from litz.dataclass import dataclass
from litz.errors import PackageError

__all__ = ["Container", "Entry", "Writer"]

NAME = "litz-package"
VERSION = 1
ALIGN = 64
_ABOUT = b"A package of Litz: litz.load(path) runs it.\n"
_END = re.compile(rb"litz-package (\d{1,9}) (\d{1,18}) (\d{1,18}) ([0-9a-f]{64})\Z")
_END_BYTES = 160
_ZIP_HEADER, _ZIP64 = 30, 20  # bytes of an entry's header beside its name, and of its sizes
_EXTRA = 0x4C5A  # the number of the field that fills the header up
_DATE = (1980, 1, 1, 0, 0, 0)  # equal packages have equal bytes
_MANY = 1 << 26
"""Bytes from which digests are computed by several threads."""


@dataclass(frozen=True)
class Entry:
    """Where an entry lies, in bytes, and the SHA-256 of what it holds, in hexadecimal."""

    offset: int
    size: int
    digest: str


class Writer:
    """Writes a package; as a context it puts the file in its place at the end, whole or not at all.

    Raises PackageError where the file cannot be written.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self.entries: dict[str, Entry] = {}

    def __enter__(self) -> Writer:
        try:
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        except OSError as e:
            raise PackageError(f"litz: {self._path} cannot be written: {e.strerror or e}") from e
        self._temporary = name
        self._stream = os.fdopen(handle, "w+b")
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED)
        self.add(NAME, _ABOUT)
        return self

    def add(self, name: str, data: bytes | memoryview) -> None:
        """Add an entry."""
        info = zipfile.ZipInfo(name, _DATE)
        head = self._stream.tell() + _ZIP_HEADER + len(name.encode()) + _ZIP64 + 4
        fill = -head % ALIGN
        info.extra = struct.pack("<HH", _EXTRA, fill) + bytes(fill)
        with self._zip.open(info, "w", force_zip64=True) as out:
            offset = self._stream.tell()
            assert offset % ALIGN == 0 and name not in self.entries, name
            out.write(data)
        self.entries[name] = Entry(offset, len(data), hashlib.sha256(data).hexdigest())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                rows = {n: [e.offset, e.size, e.digest] for n, e in self.entries.items()}
                self.add("table.json", json.dumps({"entries": rows}).encode())
                t = self.entries["table.json"]
                end = f"{NAME} {VERSION} {t.offset} {t.size} {t.digest}"
                self._zip.comment = end.encode()
            self._zip.close()
            self._stream.close()
            if kind is None:
                os.chmod(self._temporary, 0o666 & ~_mask())
                os.replace(self._temporary, self._path)
        except OSError as e:
            raise PackageError(f"litz: {self._path} cannot be written: {e.strerror or e}") from e
        finally:
            Path(self._temporary).unlink(missing_ok=True)


def _mask() -> int:
    """The process's mask for new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class Container:
    """A package's entries, mapped into memory: who writes into a mapping has a copy of his own.

    check: read all entries and compare their digests.  Those that ``read`` gives are compared in
    any case.
    Raises PackageError for what is no package of this version or damaged.
    """

    def __init__(self, path: Path | str, *, check: bool = True) -> None:
        self.path = Path(path)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else None
        except (OSError, ValueError) as e:
            said = getattr(e, "strerror", None) or e
            raise PackageError(f"litz: the package {path} cannot be read: {said}") from e
        self.entries = self._table()
        if check:
            self._check_all()

    def _table(self) -> Mapping[str, Entry]:
        data = self.map or b""
        end = _END.search(data[-_END_BYTES:])
        if end is None:
            if data[:2] == b"PK" and NAME.encode() in data[:64]:
                raise self._damaged("its end is missing or altered")
            raise PackageError(f"litz: {self.path} is no package of Litz")
        version, offset, size = (int(n) for n in end.groups()[:3])
        if version != VERSION:
            raise PackageError(
                f"litz: {self.path} is a package of version {version}; this Litz reads version "
                f"{VERSION}: make it again"
            )
        table = bytes(data[offset : offset + size])
        if hashlib.sha256(table).hexdigest().encode() != end[4]:
            raise self._damaged("its table of contents is altered")
        found: dict[str, Entry] = {}
        try:
            for name, (at, length, digest) in json.loads(table)["entries"].items():
                if type(at) is not int or type(length) is not int or type(digest) is not str:
                    raise ValueError(f"{name} is described by other things")
                if at < 0 or length < 0 or at + length > len(data):
                    raise ValueError(f"{name} lies outside of the file")
                found[name] = Entry(at, length, digest)
        except (ValueError, TypeError, LookupError, AttributeError) as e:
            raise self._damaged(f"its table of contents cannot be read: {e}") from e
        return found

    def _damaged(self, why: str) -> PackageError:
        return PackageError(
            f"litz: the package {self.path} is damaged: {why}. Copy it anew, or make it again"
        )

    def _check_all(self) -> None:
        names = list(self.entries)
        total = sum(e.size for e in self.entries.values())
        if total < _MANY:
            good = list(map(self._fits, names))
        else:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                good = list(pool.map(self._fits, names))
        for name, fits in zip(names, good, strict=True):
            if not fits:
                raise self._damaged(f"the entry {name} is altered")

    def _fits(self, name: str) -> bool:
        return hashlib.sha256(self.view(name)).hexdigest() == self.entries[name].digest

    def entry(self, name: str) -> Entry:
        """Where an entry lies; PackageError where there is none."""
        found = self.entries.get(name)
        if found is None:
            raise self._damaged(f"it has no entry {name}")
        return found

    def view(self, name: str) -> memoryview:
        """An entry's memory, which is the file's until it is written to."""
        e = self.entry(name)
        return memoryview(self.map or b"")[e.offset : e.offset + e.size]

    def read(self, name: str) -> bytes:
        """A copy of an entry, whose digest has been compared."""
        data = bytes(self.view(name))
        if hashlib.sha256(data).hexdigest() != self.entry(name).digest:
            raise self._damaged(f"the entry {name} is altered")
        return data
