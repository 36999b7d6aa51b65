"""Frozen dataclasses as data that JSON holds, and back by their annotations.

What comes of reading is made of the classes that the annotations name, and of nothing else: data
names no class to import and holds no code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from litz.dataclass import dataclass

KIND = "is"
"""The key under which a record's data has the name of its class: no field can be called so."""


@dataclass(frozen=True)
class Leaf:
    """How values of one type are written as data and read back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Records:
    """Writes and reads records whose fields are records, tuples, mappings by names, sets of plain
    values, plain values, and values of the types that ``leaves`` has."""

    def __init__(self, leaves: Mapping[type, Leaf]) -> None:
        self._leaves = leaves

    def write(self, value: Any) -> Any:
        """The data of a value.  Raises TypeError for one that has no form."""
        for kind, leaf in self._leaves.items():
            if isinstance(value, kind):
                return leaf.write(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if is_dataclass(value):
            parts = {f.name: self.write(getattr(value, f.name)) for f in fields(value)}
            return {KIND: type(value).__name__, **parts}
        if isinstance(value, Mapping):
            return {k: self.write(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return [self.write(v) for v in value]
        if isinstance(value, frozenset):
            return sorted(value)
        raise TypeError(f"no form of data for a {type(value).__name__}")

    def read(self, kind: Any, data: Any) -> Any:
        """The value of the type ``kind``.  Raises ValueError for data of another."""
        origin, of = get_origin(kind), get_args(kind)
        if kind in (Any, object):
            return data
        if origin in (Union, types.UnionType):
            return self.read(_chosen(of, data), data)
        if origin is Literal and data in of:
            return data
        if origin is tuple and isinstance(data, list):
            kinds = of[:1] * len(data) if of[1:] == (...,) else of
            return tuple(self.read(k, d) for k, d in zip(kinds, data, strict=True))
        if origin is frozenset and isinstance(data, list):
            return frozenset(self.read(of[0], d) for d in data)
        if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
            return {k: self.read(of[1], d) for k, d in data.items()}
        if kind in self._leaves:
            return self._leaves[kind].read(data)
        if isinstance(kind, type) and is_dataclass(kind) and isinstance(data, dict):
            return self._record(kind, data)
        if type(data) is kind or kind is type(None) and data is None:
            return data
        raise ValueError(f"{data!r} is no {kind}")

    def _record(self, kind: type, data: dict[str, Any]) -> Any:
        hints = _hints(kind)
        if data.keys() != {KIND, *hints} or data[KIND] != kind.__name__:
            raise ValueError(f"no {kind.__name__}: {', '.join(data)}")
        return kind(**{name: self.read(hint, data[name]) for name, hint in hints.items()})


def _chosen(kinds: tuple[Any, ...], data: Any) -> Any:
    """Of the members of a union the one that ``data`` is."""
    if isinstance(data, dict) and KIND in data:
        named = [k for k in kinds if getattr(k, "__name__", "") == data[KIND]]
    else:
        named = [k for k in kinds if k is type(data)] or [
            k for k in kinds if k is not type(None) and not is_dataclass(k)
        ]
    if not named:
        raise ValueError(f"{data!r} is none of {kinds}")
    return named[0]


@lru_cache(maxsize=64)
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}
