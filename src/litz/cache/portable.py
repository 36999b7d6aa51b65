"""Entries on their way to other machines: their names, what is wrong with one, PyTorch's bundles.

``torch.compiler.save_cache_artifacts`` bundles what caches say that a process used, and
``load_cache_artifacts`` hands it out elsewhere: there each entry is looked at as if anybody had
written it, and put into the cache folder that the environment names.  Reading runs nothing; what
the code in an entry does cannot be seen so: load what you would run.
"""

from __future__ import annotations

import re
from typing import Final

from litz.cache import records, store
from litz.errors import ArtifactError, ToolchainError
from litz.logs import events
from litz.options import make_options
from litz.runtime.cache import Cache, unsealed
from litz.targets.tools import Tools

NAME: Final = re.compile(r"([a-z]+)/([0-9a-f]{2})/(\2[0-9a-f]{38})(\.[a-z]+)?")


def fault(name: str, data: bytes) -> str:
    """What is wrong with an entry; "" for nothing.

    name: kind, first two digits, key and suffix, as in the cache folder.  data: with its seal.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return "it has no name of an entry"
    kind, _, key, suffix = found.groups()
    body = unsealed(key + (suffix or ""), data)
    if body is None:
        return "it is damaged"
    if kind in store.KINDS:
        try:
            kept = store.check(kind, body)
            if isinstance(kept, tuple) and kept[1]:  # an operator by itself has no record
                records.load(kept[1])
        except (ArtifactError, ValueError) as e:
            return str(e)
    return ""


def put(cache: Cache, name: str, data: bytes) -> str:
    """Put an entry into a cache; what is wrong with it, and then it is not there, or "".

    Raises ToolchainError where nothing can be written.
    """
    if reason := fault(name, data):
        return reason
    found = NAME.fullmatch(name)
    assert found is not None
    kind, _, key, suffix = found.groups("")
    body = unsealed(key + suffix, data)
    assert body is not None
    cache.put(kind, key, body, suffix)
    return ""


def arrived(name: str, data: bytes) -> None:
    """Take in an entry of a bundle; what is not whole, or has no room, is passed over."""
    try:
        reason = put(Tools(make_options()).cache, name, data)
    except ToolchainError as e:
        reason = str(e)
    if reason:
        events.warning("an entry of a bundle is passed over: %r: %s", name, reason)
