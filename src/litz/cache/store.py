"""Artifacts in the cache folder by the keys of their graphs, and programs with all their graphs.

An entry is its parts, with their lengths before them.  Whatever ``litz.runtime.cache``, reading
the parts or ``from_bytes`` finds damaged is a miss, and so is what another version wrote.  Only
what can leave its process is written.

What a process has read or written lately is not read again: ``Cache.recent`` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from litz.artifact import Artifact, from_bytes, to_bytes
from litz.binding import versions
from litz.errors import ArtifactError, ToolchainError
from litz.logs import events
from litz.runtime.cache import Cache

if TYPE_CHECKING:  # it imports PyTorch's compiler stack
    from litz.cache.programs import Kept

GRAPH, PROGRAM = "graph", "program"
KINDS = {GRAPH: ".litz", PROGRAM: ".program"}
"""The kinds of entries, and how their names end."""


def load(cache: Cache, key: str) -> Artifact | None:
    """The artifact that is kept under a key; None where there is none that can be read."""
    found = cache.recent.get(key) or _read(cache, GRAPH, key)
    return found if isinstance(found, Artifact) else None


def load_program(cache: Cache, key: str) -> Kept | None:
    """The program that is kept under a key; None where there is none that can be read."""
    found = cache.recent.get(key) or _read(cache, PROGRAM, key)
    return found if isinstance(found, tuple) else None


def save(cache: Cache, key: str, artifact: Artifact) -> None:
    """Keep an artifact under its graph's key, where it has bytes and the folder has room."""
    if artifact.not_portable:
        events.info("the graph is not cached: %s", artifact.not_portable)
        return
    _write(cache, GRAPH, key, [to_bytes(artifact)], artifact)


def save_program(cache: Cache, key: str, kept: Kept) -> None:
    """Keep a program under its key, where the folder has room."""
    _write(cache, PROGRAM, key, _program_parts(kept), kept)


def program_bytes(kept: Kept) -> bytes:
    """A program's entry."""
    return _joined(_program_parts(kept))


def _program_parts(kept: Kept) -> list[bytes]:
    artifacts, record, known = kept
    parts = [b for k, a in artifacts.items() for b in (k.encode(), to_bytes(a))]
    return [known.encode(), record, *parts]


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join([len(p).to_bytes(8, "little") + p for p in parts])


def check(kind: str, entry: bytes) -> Artifact | Kept:
    """What an entry of a kind holds.  Raises ArtifactError unless it is one, and whole."""
    parts = _parts(entry)
    if kind == GRAPH and len(parts) == 1:
        return from_bytes(parts[0])
    if kind != PROGRAM or len(parts) < 4 or len(parts) % 2:
        raise ArtifactError("litz: an entry of another kind")
    known, record, *rest = parts
    names = [name.decode(errors="replace") for name in rest[::2]]
    artifacts = dict(zip(names, map(from_bytes, rest[1::2]), strict=True))
    return artifacts, record, known.decode(errors="replace")


def _parts(data: bytes) -> list[bytes]:
    parts = []
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        if end > len(data):
            raise ArtifactError("litz: an entry that is cut short")
        parts.append(data[at + 8 : end])
        at = end
    return parts


def _read(cache: Cache, kind: str, key: str) -> Artifact | Kept | None:
    entry = cache.get(kind, key, KINDS[kind])
    if entry is None:
        return None
    try:
        found = check(kind, entry)
    except ArtifactError as e:
        events.info("a graph in the cache is passed over: %s", e)
        return None
    artifacts = [found] if isinstance(found, Artifact) else found[0].values()
    if any(a.versions != versions() for a in artifacts):
        return None
    cache.remember(key, found)
    return found


def _write(cache: Cache, kind: str, key: str, parts: Sequence[bytes], value: object) -> None:
    cache.remember(key, value)
    try:
        cache.put(kind, key, _joined(parts), KINDS[kind])
    except ToolchainError as e:
        events.info("the graph is not cached: %s", e)
