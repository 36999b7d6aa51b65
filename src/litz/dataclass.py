"""Dataclasses whose methods are compiled when they are used first.

Python compiles six functions for each frozen dataclass where it is defined, which takes half a
millisecond.  Litz has some two hundred, of which a process makes many, compares few and prints
none: most of what importing them took.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_MISSING = dataclasses.MISSING
_Maker = Callable[[type, bool], tuple[str, dict[str, Any]]]


def _init(cls: type, frozen: bool) -> tuple[str, dict[str, Any]]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_made": object()}
    parameters, body = ["self"], []
    for f in dataclasses.fields(cls):
        value = f.name
        if f.default is not _MISSING:
            names[f"_default_{f.name}"] = f.default
            default = f"_default_{f.name}"
        elif f.default_factory is not _MISSING:
            names[f"_factory_{f.name}"] = f.default_factory
            value = default = f"_factory_{f.name}()"
            if f.init:
                value, default = f"{value} if {f.name} is _made else {f.name}", "_made"
        elif f.init:
            default = ""
        else:
            continue
        if f.init:
            parameters.append(f"{f.name}={default}" if default else f.name)
        elif default:
            value = default
        body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n    ".join(body or ["pass"])
    return f"def __init__({', '.join(parameters)}):\n    {lines}", names


def _tuple(of: str, names: list[str]) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in names) + ")"


def _compared(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls) if f.compare]


def _eq(cls: type, frozen: bool) -> tuple[str, dict[str, Any]]:
    mine, others = (_tuple(of, _compared(cls)) for of in ("self", "other"))
    return (
        "def __eq__(self, other):\n"
        "    same = other.__class__ is self.__class__\n"
        f"    return {mine} == {others} if same else NotImplemented"
    ), {}


def _hash(cls: type, frozen: bool) -> tuple[str, dict[str, Any]]:
    return f"def __hash__(self):\n    return hash({_tuple('self', _compared(cls))})", {}


def _repr(cls: type, frozen: bool) -> tuple[str, dict[str, Any]]:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in dataclasses.fields(cls) if f.repr)
    name = "{self.__class__.__qualname__}"
    return (
        f"@_once\ndef __repr__(self):\n    return f'{name}({shown})'",
        {"_once": reprlib.recursive_repr()},
    )


_MAKERS: dict[str, _Maker] = {"__init__": _init, "__repr__": _repr}
_COMPARING: dict[str, _Maker] = {"__eq__": _eq}
_HASHING: dict[str, _Maker] = {"__hash__": _hash}


def _lazily(cls: type, name: str, maker: _Maker, frozen: bool) -> None:
    """Give a class a method that is compiled when it is called first."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if vars(cls)[name] is method:
            text, names = maker(cls, frozen)
            exec(text, names)
            function = names[name]
            function.__qualname__, function.__module__ = (
                f"{cls.__qualname__}.{name}",
                cls.__module__,
            )
            setattr(cls, name, function)
        return vars(cls)[name](self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, method)


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


_FROZEN = {
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """``dataclasses.dataclass``; its fields and functions (``replace``, ...) are the same."""

        def made(cls: type) -> type:
            own = vars(cls)
            hashes = own.get("__hash__") is not None
            plain = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)
            cls = plain(cls)
            makers = {**_MAKERS, **(_COMPARING if eq else {})}
            if eq and not hashes:
                if frozen:
                    makers |= _HASHING
                else:
                    cls.__hash__ = None
            for name, maker in makers.items():
                if name == "__hash__" or name not in own:
                    _lazily(cls, name, maker, frozen)
            if frozen:
                for name, function in _FROZEN.items():
                    setattr(cls, name, function)
            return cls

        return made if cls is None else made(cls)
