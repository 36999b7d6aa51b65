"""Arguments of operators in the forms that PyTorch's stable dispatcher takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from litz.index import Expr
from litz.ir.program import TensorRef
from litz.runtime.plan import DIRECT, TYPES
from litz.runtime.shipped import LIST, OPTIONAL, OPTIONAL_LIST

_TYPE: Final = re.compile(
    r"(?P<many>Optional\[)?(?P<list>List\[)?(?P<one>Optional\[)?(?P<base>\w+)\]*"
)
_NAMES: Final = {code: name for name, code in TYPES.items()}
_TENSOR: Final = TYPES["Tensor"]
_ELSE: Final = OPTIONAL
"""Of optional arguments of other types: they may be None."""
_NOTHING: Final = object()
"""The default of an argument without one."""


class Argument(NamedTuple):
    """One argument.  name: of one that is passed by keyword.  type: see ``litz.runtime.plan``."""

    name: str | None
    type: int
    value: object


def stable_arguments(
    overload: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Argument, ...] | None:
    """All arguments of an operator of ATen in its schema's order; None if some have no such form.

    (Other operators may run Python, which is better called from Python.)
    """
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        return None
    parameters = _parameters(overload)
    if parameters is None:
        return None
    direct = direct_number(overload, args) >= 0
    found = []
    for i, (name, by_keyword, kind, default) in enumerate(parameters):
        value = args[i] if i < len(args) else kwargs.get(name, default)
        if kind == _TENSOR and isinstance(value, TensorRef):
            found.append(Argument(name if by_keyword else None, kind, value))
            continue
        if value is _NOTHING or kind is None or not _is(value, kind):
            return None
        if kind & ~OPTIONAL == TYPES["number"] and not direct:
            return None
        found.append(Argument(name if by_keyword else None, kind, _as(value, kind)))
    return tuple(found)


@lru_cache(maxsize=1024)
def _parameters(
    overload: torch._ops.OpOverload,
) -> tuple[tuple[str, bool, int | None, object], ...] | None:
    """Of each: its name, whether it goes by that, its type and its default.

    None for an operator that returns more than tensors: PyTorch's C function (2.11 to 2.13)
    takes results from the last on and their types from the first on, and refuses what differs.
    """
    schema = overload._schema
    if any(str(r.type) != "Tensor" for r in schema.returns):
        return None
    return tuple(
        (
            a.name,
            a.kwarg_only,
            _type(str(a.real_type)),
            a.default_value if a.has_default_value() else _NOTHING,
        )
        for a in schema.arguments
    )


def _type(text: str) -> int | None:
    """The code of a schema's type; None for one without."""
    parts = _TYPE.fullmatch(text)
    if parts is None:
        return None
    optional = bool(parts["many"] or parts["one"])
    if parts["base"] not in TYPES:
        return _ELSE if optional and not parts["list"] else None
    many = bool(parts["list"])
    bits = (OPTIONAL_LIST if many else OPTIONAL) if parts["many"] else 0
    bits |= (LIST if many else 0) | (OPTIONAL if parts["one"] else 0)
    return TYPES[parts["base"]] | bits


def _is(value: Any, kind: int) -> bool:
    """Whether a value has the form that its type asks for."""
    if kind & LIST:
        if value is None:
            return bool(kind & OPTIONAL_LIST)
        element = kind & ~(LIST | OPTIONAL_LIST)
        return isinstance(value, (list, tuple)) and all(_is(v, element) for v in value)
    if value is None:  # for a tensor, PyTorch takes one that is not defined
        return bool(kind & OPTIONAL) or kind == TYPES["Tensor"]
    match _NAMES[kind & ~OPTIONAL]:
        case "Tensor":
            return isinstance(value, TensorRef)
        case "int":
            return isinstance(value, Expr) or type(value) in (int, bool)
        case "float" | "number":
            return type(value) in (int, float)
        case "bool":
            return type(value) is bool
    return isinstance(value, torch.dtype)


def _as(value: Any, kind: int) -> object:
    floats = TYPES["float"], TYPES["number"]
    return float(value) if kind & ~OPTIONAL in floats and value is not None else value


def direct_number(overload: object, args: Sequence[object], device: str = "cpu") -> int:
    """The C function that computes an operator, as a plan says it (``DIRECT``); -1 for none."""
    number = _direct(overload)
    floats = number >= 0 and all(r.dtype.is_float for r in args if isinstance(r, TensorRef))
    return 2 * number + (device != "cpu") if floats else -1


@lru_cache(maxsize=1024)
def _direct(overload: object) -> int:
    """Its place among the operators that have such a function; -1 for others."""
    name = str(overload)
    return DIRECT.index(name) if name in DIRECT else -1
