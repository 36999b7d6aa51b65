"""``litz cache``: what compiled code a machine keeps, and how it goes to others.

``list`` says what is there, ``verify`` reads all of it, ``clear`` removes it.  ``export FILE``
writes all entries to one file, a tar archive, and ``import FILE`` takes in what such a file has;
every entry of it is looked at as if anybody had written it: its name, its seal, its form.  What the
code does cannot be seen so: import what you would run.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from litz.cache import store
from litz.cache.portable import fault, put
from litz.errors import LitzError
from litz.options import make_options
from litz.runtime.cache import Cache
from litz.runtime.eviction import entries
from litz.targets.tools import Tools

SOURCES: Final = (".cpp",)
"""Files beside the entries, for people: nothing reads them, and they are not exported."""
LARGEST: Final = 1 << 30  # bytes of one entry


def entries_of(cache: Cache) -> Iterator[tuple[str, Path, int, float]]:
    """Name, path, size in bytes and time of the last use of each entry, by name."""
    root = cache.folders[0]
    for used, path, size in sorted(entries(root), key=lambda e: e[1]):
        yield Path(path).relative_to(root).as_posix(), Path(path), size, used


def show(cache: Cache) -> int:
    """Print what there is of each kind, and each graph and program."""
    total: dict[str, tuple[int, int]] = {}
    for name, path, size, used in entries_of(cache):
        kind = name.partition("/")[0]
        count, so_far = total.get(kind, (0, 0))
        total[kind] = count + 1, so_far + size
        if kind in store.KINDS:
            at = time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
            print(f"{kind:8} {path.stem}  {size:>10,} bytes, used {at}")
    for kind, (count, size) in total.items():
        print(f"{kind:10} {count:6} files, {size:>14,} bytes")
    print(cache.folders[0])
    return 0


def verify(cache: Cache) -> int:
    """Read every entry; the exit status says whether all are whole."""
    bad = count = 0
    for name, path, *_ in entries_of(cache):
        if path.suffix in SOURCES:
            continue
        count += 1
        try:
            found = fault(name, path.read_bytes())
        except OSError as e:
            found = e.strerror or str(e)
        if found:
            bad += 1
            print(f"{name}: {found}")
    print(f"{count} entries, {bad} of them not whole: such are made anew when they are wanted")
    return bool(bad)


def write_out(cache: Cache, file: str) -> int:
    """Write every whole entry to one file."""
    count = 0
    with tarfile.open(file, "w:gz") as archive:
        for name, path, *_ in entries_of(cache):
            data = path.read_bytes()
            if path.suffix in SOURCES or fault(name, data):
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            count += 1
    print(f"{count} entries in {file}")
    return 0


def take_in(cache: Cache, file: str) -> int:
    """Put what a file has into the cache; the exit status says whether it was all right."""
    count = bad = 0
    with tarfile.open(file) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isreg() else None
            if source is None or member.size > LARGEST:
                found = "it is no entry"
            elif not (found := put(cache, member.name, source.read())):
                count += 1
                continue
            bad += 1
            print(f"{member.name!r} is passed over: {found}")
    print(f"{count} entries in {cache.folders[0]}")
    return bool(bad)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz cache", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    for name, about in (
        ("list", "what is there"),
        ("verify", "read every entry"),
        ("clear", "remove all of it"),
    ):
        commands.add_parser(name, help=about)
    for name, about in (("export", "write it to a file"), ("import", "take in such a file")):
        commands.add_parser(name, help=about).add_argument("file")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    cache = Tools(make_options()).cache
    try:
        if asked.command == "clear":
            cache.clear()
            return 0
        if asked.command in ("export", "import"):
            return (write_out if asked.command == "export" else take_in)(cache, asked.file)
        return (show if asked.command == "list" else verify)(cache)
    except (OSError, EOFError, tarfile.TarError, LitzError) as e:
        print(f"litz cache: {e}", file=sys.stderr)
        return 2
