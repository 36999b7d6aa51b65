"""PyTorch's record of what AOTAutograd made of a graph, as bytes that hold data alone.

A record is written by ``pickle``, because its classes are PyTorch's and change with it; compiled
graphs in it are left out.  Reading makes the classes that are named here and nothing else: no
other name is looked up, so that no bytes can call what is not on the list.

Where Litz itself made a program's graph, its own record ``Lists`` takes the place of PyTorch's.
"""

from __future__ import annotations

import enum
import io
import json
import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Final

import torch

from litz.dataclass import dataclass

_ROOMS: Final = ("torch._functorch._aot_autograd.", "torch._C._functionalization")
_NAMES: Final = {
    "builtins": {"list", "dict", "set", "frozenset", "tuple", "complex", "slice"},
    "collections": {"defaultdict", "OrderedDict"},
    "torch": {"Size", "Tensor", "device"},
    "torch._functorch._aot_autograd.functional_utils": {"ViewMetaSequence"},
    "torch.fx.experimental.symbolic_shapes": {"SymIntEqByExpr"},
    "torch.serialization": {"_get_layout"},  # gives a layout by its name
    "torch._subclasses.functional_tensor": {"FunctionalTensor"},
    "torch.utils._ordered_set": {"OrderedSet"},
    "sympy.core.numbers": {"Integer", "One", "Zero", "NegativeOne"},
}
CODE: Final = "code"
LISTS: Final = b"lists "  # how the bytes of ``Lists`` begin, and those of no pickle
_CONSTANTS: Final = (torch.dtype, torch.memory_format, torch.layout)


@dataclass(frozen=True)
class Lists:
    """The record of a program on lists (``litz.regions.lists``): the inputs that it writes."""

    written: Sequence[int]
    compiled_bw: None = None


class _Writer(pickle.Pickler):
    def __init__(self, to: io.BytesIO, left_out: type, objects: Mapping[str, object]) -> None:
        super().__init__(to, protocol=4)
        self._left_out = left_out
        self._classes = {v: name for name, v in objects.items() if isinstance(v, type)}

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, type) and obj in self._classes:
            return self._classes[obj]
        return CODE if isinstance(obj, self._left_out) else None


class _Anything:
    """Stands for a class of another process, where records are looked at and not used."""

    def __new__(cls, *args: object) -> Any:
        return super().__new__(cls)


class _Reader(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, objects: Mapping[str, object] | None) -> None:
        super().__init__(data)
        self._objects = objects

    def find_class(self, module: str, name: str) -> Any:
        # An element type is written as torch's, a memory format as what torch._utils has of torch.
        found: Any = getattr(torch, name.removeprefix("torch."), None)
        if module in ("torch", "torch._utils") and isinstance(found, _CONSTANTS):
            return found
        if "." not in name and name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        if "." not in name and module.startswith(_ROOMS):
            found = super().find_class(module, name)
            own = isinstance(found, type) and found.__module__ == module
            if own and (module == _ROOMS[1] or is_dataclass(found) or issubclass(found, enum.Enum)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: object) -> Any:
        if pid == CODE:
            return None
        return _Anything if self._objects is None else self._objects[str(pid)]


def dump(record: Any, left_out: type, objects: Mapping[str, object]) -> bytes:
    """A record's bytes.  Raises ValueError, with what stands against it, if it has none.

    objects: whoever reads it has them too; the classes among them are written by their names.
    """
    if isinstance(record, Lists):
        return LISTS + json.dumps([*record.written]).encode()
    to = io.BytesIO()
    try:
        config = replace(record.sanitized_aot_config, aot_autograd_arg_pos_to_source=None, aot_id=0)
        texts = dict.fromkeys(f for f in vars(record) if f.endswith("_str"))
        times = dict.fromkeys((f for f in vars(record) if f.endswith("_taken_ns")), 0)
        slim = replace(
            record, sanitized_aot_config=config, serialized_bw_module=None, **texts, **times
        )
        _Writer(to, left_out, objects).dump(slim)
        load(to.getvalue(), objects)
    except Exception as e:  # of PyTorch's classes, any
        raise ValueError(f"what AOTAutograd made of it cannot be written: {e}") from e
    return to.getvalue()


def load(data: bytes, objects: Mapping[str, object] | None = None) -> Any:
    """The record of its bytes.  Raises ValueError for whatever they are besides.

    objects: as ``dump`` had them; None where the record is only looked at.
    """
    try:
        if data.startswith(LISTS):
            return Lists([*map(operator.index, json.loads(data.removeprefix(LISTS)))])
        return _Reader(io.BytesIO(data), objects).load()
    except Exception as e:  # of damaged bytes, any
        raise ValueError(f"a record that cannot be read: {e}") from e
