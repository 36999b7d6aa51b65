"""What the text of a host program names and cannot spell, described as data."""

from __future__ import annotations

import sys

import torch

from litz.artifact import BoundBody, Constant, Live, Named, Number, Scripted, UsersKernel, Value
from litz.loading.values import is_known, walk
from litz.runtime.script_objects import stored
from litz.runtime.strided import why_not_told
from litz.runtime.user_kernels import UserKernel, kernel_name


def describe(value: object) -> Value:
    """A value as data, as far as it can be told."""
    from litz.ir.program import Subgraph  # a process that only binds needs no room of the IR

    if isinstance(value, complex):
        return Number(value)
    if isinstance(value, torch.Tensor):
        reason = why_not_told(value)
        return Live(value, reason) if reason else Constant(value, value.device)
    if isinstance(value, torch.ScriptObject):
        try:
            stored(value)
        except ValueError as e:
            return Live(value, f"a script object of it cannot be kept: {e}")
        return Scripted(value)
    if isinstance(value, UserKernel):
        try:
            return UsersKernel(kernel_name(value.kernel), value.written)
        except ValueError as e:
            return Live(value, str(e))
    if isinstance(value, Subgraph):
        return BoundBody(value.name)
    return _named(value) or Live(value, f"it holds an object of the type {type(value).__name__}")


def _named(value: object) -> Named | None:
    """Where a module has the value."""
    module = str(getattr(value, "__module__", "") or "")
    path = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
    if type(value).__module__ == "triton.language.core":  # an element type, for a user's kernel
        module = "triton.language"
        path = next((k for k, v in vars(sys.modules[module]).items() if v is value), "")
    # C functions say "_operator"; the module for everybody is the other.
    for place in (module, module.lstrip("_")):
        if is_known(place) and walk(sys.modules.get(place), path) is value:
            return Named(place, path)
    return None
