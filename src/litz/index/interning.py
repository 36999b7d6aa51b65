"""The table of interned nodes: of one structure there is one object, in whatever thread it is made.

A constructor asks ``find`` for the node of an entry, makes one where there is none, and goes on
with what ``publish`` returns: where several threads have made one at once, the first that came.
Entries name the kind of node, then what it is made of; the table holds nodes weakly.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

_N = TypeVar("_N")


class _Ref(weakref.ref[Any]):
    """A weak reference that knows the table entry to drop when its node dies."""

    __slots__ = ("entry",)
    entry: tuple[Any, ...]


_TABLE: dict[tuple[Any, ...], _Ref] = {}
# Reentrant: a collection that starts while the lock is held runs `_forget` on the same thread.
_LOCK = threading.RLock()


def _forget(ref: weakref.ref[Any]) -> None:
    assert isinstance(ref, _Ref)
    with _LOCK:
        if _TABLE.get(ref.entry) is ref:
            del _TABLE[ref.entry]


def find(entry: tuple[Any, ...]) -> Any:
    """The node of an entry, or None.

    It takes no lock: a single read of a dict is whole in any thread, without the interpreter's lock
    too, and a node that dies meanwhile gives None, as one that has died before.
    """
    ref = _TABLE.get(entry)
    return None if ref is None else ref()


def publish(entry: tuple[Any, ...], node: _N) -> _N:
    """Enter a new node, or return the one that another thread entered meanwhile."""
    with _LOCK:
        known: Any = find(entry)
        if known is not None:
            return known  # type: ignore[no-any-return]
        ref = _Ref(node, _forget)
        ref.entry = entry
        _TABLE[entry] = ref
    return node


def interned(cls: type[_N], *parts: Any) -> _N:
    """The node of a class whose ``_fields`` hold ``parts``, which are all that tells it apart."""
    entry = (cls, *parts)
    ref = _TABLE.get(entry)  # as `find`, without its call: most nodes are made here
    node: _N | None = None if ref is None else ref()
    if node is None:
        node = object.__new__(cls)
        for name, part in zip(cls._fields, parts, strict=True):  # type: ignore[attr-defined]
            setattr(node, name, part)
        node = publish(entry, node)
    return node


def _unlock() -> None:
    """In a forked child: the thread that held the lock is not there to let it go."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_unlock)
