"""PyTorch's record of what AOTAutograd made of a graph, as bytes that hold data alone.

A record is written by ``pickle``, because its classes are PyTorch's and change with it; compiled
graphs in it are left out.  Reading makes the classes that are named here and nothing else: no
other name is looked up, so that no bytes can call what is not on the list.
"""

from __future__ import annotations

import enum
import io
import pickle
from dataclasses import is_dataclass, replace
from typing import Any, Final

import torch

__all__ = ["dump", "load"]

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
_CONSTANTS: Final = (torch.dtype, torch.memory_format, torch.layout)


class _Writer(pickle.Pickler):
    def __init__(self, to: io.BytesIO, left_out: type) -> None:
        super().__init__(to, protocol=4)
        self._left_out = left_out

    def persistent_id(self, obj: object) -> str | None:
        return "code" if isinstance(obj, self._left_out) else None


class _Reader(pickle.Unpickler):
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

    def persistent_load(self, pid: object) -> None:
        return None


def dump(record: Any, left_out: type) -> bytes:
    """A record's bytes.  Raises ValueError, with what stands against it, if it has none."""
    to = io.BytesIO()
    try:
        config = replace(record.sanitized_aot_config, aot_autograd_arg_pos_to_source=None, aot_id=0)
        texts = dict.fromkeys(f for f in vars(record) if f.endswith("_str"))
        times = dict.fromkeys((f for f in vars(record) if f.endswith("_taken_ns")), 0)
        slim = replace(
            record, sanitized_aot_config=config, serialized_bw_module=None, **texts, **times
        )
        _Writer(to, left_out).dump(slim)
        load(to.getvalue())
    except Exception as e:  # of PyTorch's classes, any
        raise ValueError(f"what AOTAutograd made of it cannot be written: {e}") from e
    return to.getvalue()


def load(data: bytes) -> Any:
    """The record of its bytes.  Raises ValueError for whatever they are besides."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except Exception as e:  # of damaged bytes, any
        raise ValueError(f"a record that cannot be read: {e}") from e
