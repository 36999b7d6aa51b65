"""Script objects (TorchBind): PyTorch's objects of C++ classes, as data and back.

An object's class says by its own ``__getstate__`` and ``__setstate__`` (``def_pickle``) what has to
be kept.  Here that is numbers, texts, tensors and containers of these, and nothing that would have
to be unpickled; making an object runs the code of its class, which this process has loaded.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch

from litz.dataclass import dataclass
from litz.runtime.strided import copy_as_it_is, why_not_told

__all__ = ["Items", "Stored", "class_of", "made", "stored"]


@dataclass(frozen=True)
class Items:
    """A container.  items: of a dict its keys and values in turn."""

    kind: Literal["tuple", "list", "dict"]
    items: tuple[State, ...]


@dataclass(frozen=True, eq=False)
class Stored:
    """An object as data.  name: of its class, as TorchScript has it."""

    name: str
    state: State


State = torch.Tensor | None | bool | int | float | str | Items


def class_of(x: object) -> str:
    """The class of a script object, as TorchScript has it; "" for what is none."""
    return str(cast(Any, x)._type().qualified_name()) if isinstance(x, torch.ScriptObject) else ""


def stored(x: torch.ScriptObject) -> Stored:
    """An object as data.  Raises ValueError with the reason where its class does not say so."""
    try:
        state, name = cast(Any, x).__getstate__()
    except RuntimeError as e:
        raise ValueError(str(e).partition("\n")[0]) from e
    return Stored(name, _written(state))


def _written(value: Any) -> State:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return Items("dict", tuple(_written(v) for pair in value.items() for v in pair))
    if kind in (tuple, list):
        return Items(kind.__name__, tuple(map(_written, value)))  # type: ignore[arg-type]
    reason = f"a {kind.__name__}"
    if isinstance(value, torch.Tensor):
        reason = why_not_told(value) or ("a tensor of a GPU" if value.device.type != "cpu" else "")
    if reason:
        raise ValueError(f"its state holds what is no plain data: {reason}")
    return value.detach()  # type: ignore[no-any-return]


def made(data: Stored) -> torch.ScriptObject:
    """A new object of a copy of that state.  RuntimeError: the process has not loaded its class."""
    new: Any = torch.ScriptObject.__new__(torch.ScriptObject)
    new.__setstate__((_read(data.state), data.name))
    return new  # type: ignore[no-any-return]


def _read(value: State) -> Any:
    if isinstance(value, torch.Tensor):
        return copy_as_it_is(value)
    if not isinstance(value, Items):
        return value
    items = list(map(_read, value.items))
    if value.kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    return tuple(items) if value.kind == "tuple" else items
