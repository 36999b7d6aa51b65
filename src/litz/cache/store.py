"""Artifacts in the cache folder, by the keys of their graphs.

An entry is the key, a line's end, and the artifact's bytes.  The key stands in it, so that a file
under another's name is a miss; so is whatever ``litz.runtime.cache`` or ``from_bytes`` finds
damaged, and what another version wrote.  Only what can leave its process is written.
"""

from __future__ import annotations

from litz.artifact import Artifact, from_bytes, to_bytes
from litz.binding import versions
from litz.errors import ArtifactError, ToolchainError
from litz.logs import events
from litz.runtime.cache import Cache

__all__ = ["load", "save"]

KIND = "graph"
SUFFIX = ".litz"


def load(cache: Cache, key: str) -> Artifact | None:
    """The artifact that is kept under a key; None where there is none that can be read."""
    entry = cache.get(KIND, key, SUFFIX)
    if entry is None:
        return None
    own, _, data = entry.partition(b"\n")
    try:
        found = from_bytes(data) if own == key.encode() else None
    except ArtifactError as e:
        events.info("a graph in the cache is passed over: %s", e)
        return None
    return found if found is not None and found.versions == versions() else None


def save(cache: Cache, key: str, artifact: Artifact) -> None:
    """Keep an artifact under its graph's key, where it has bytes and the folder has room."""
    if artifact.not_portable:
        events.info("the graph is not cached: %s", artifact.not_portable)
        return
    try:
        cache.put(KIND, key, key.encode() + b"\n" + to_bytes(artifact), SUFFIX)
    except ToolchainError as e:
        events.info("the graph is not cached: %s", e)
