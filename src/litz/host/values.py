"""What the text of a host program names and cannot spell, described as data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from litz.artifact import BoundBody, Constant, Live, Named, Number, UsersKernel, Value
from litz.errors import ArtifactError
from litz.runtime.strided import memory_of
from litz.runtime.user_kernels import UserKernel, configurations, kernel_name

PROBE = "probe"
"""The name under which a host program calls the checker of its runs (``litz.host.probes``)."""

# Modules that every process has which can bind an artifact; Triton's, where it has such kernels.
_MODULES = ("builtins", "math", "operator", "torch", "litz.runtime", "triton.language")


def describe(value: object) -> Value:
    """A value as data, as far as it can be told."""
    from litz.ir.program import Subgraph  # a process that only binds needs no room of the IR

    if isinstance(value, complex):
        return Number(value)
    if isinstance(value, torch.Tensor):
        reason = _why_not_told(value)
        return Live(value, reason) if reason else Constant(value, value.device)
    if isinstance(value, UserKernel):
        try:
            return UsersKernel(kernel_name(value.kernel), value.written)
        except ValueError as e:
            return Live(value, str(e))
    if isinstance(value, Subgraph):
        return BoundBody(value.name)
    return _named(value) or Live(value, f"it holds an object of the type {type(value).__name__}")


def _why_not_told(x: torch.Tensor) -> str:
    """Why a tensor is more than elements in memory; "" if it is not."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return f"a constant of it is a {type(x).__name__}"
    if x.layout is not torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
        return "a constant of it is no plain tensor"
    if x.device.type not in ("cpu", "cuda"):
        return f"a constant of it is on {x.device}"
    return ""


def _named(value: object) -> Named | None:
    """Where a module has the value."""
    module = str(getattr(value, "__module__", "") or "")
    path = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
    if type(value).__module__ == "triton.language.core":  # an element type, for a user's kernel
        module = "triton.language"
        path = next((k for k, v in vars(sys.modules[module]).items() if v is value), "")
    # C functions say "_operator"; the module for everybody is the other.
    for place in (module, module.lstrip("_")):
        if _known(place) and walk(sys.modules.get(place), path) is value:
            return Named(place, path)
    return None


def _known(module: str) -> bool:
    return any(module == m or module.startswith(f"{m}.") for m in _MODULES)


def walk(place: object, path: str) -> object:
    """What a path of names leads to from a module; None where it leads nowhere."""
    for part in path.split("."):
        place = getattr(place, part, None)
    return place


def namespace(
    values: Mapping[str, Value],
    bodies: Mapping[str, object] | None = None,
    kernels: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """The values themselves: tensors are moved to their devices, names are looked up.

    bodies: the callables of bodies.  kernels: the user's, by their names.

    Raises ArtifactError for a name that its module has not, and for a kernel that is not there.
    """
    return {name: _live(value, bodies or {}, kernels or {}) for name, value in values.items()}


def _live(value: Value, bodies: Mapping[str, object], kernels: Mapping[str, object]) -> object:
    match value:
        case Number(number):
            return number
        case Live(thing):
            return thing
        case BoundBody(name):
            if name not in bodies:
                raise ArtifactError(f"litz: an artifact wants a body {name}, which is not there")
            return bodies[name]
        case UsersKernel(name, written):
            if name not in kernels:
                raise ArtifactError("litz: an artifact wants a user's kernel that is not there")
            return UserKernel(kernels[name], configurations(kernels[name]), written)
        case Constant(tensor, device):
            if tensor.device == device:
                return tensor
            return memory_of(tensor).to(device).as_strided(tensor.shape, tensor.stride())
        case Named(module, path):
            found = walk(_imported(module), path) if _known(module) else None
            if found is None:
                raise ArtifactError(f"litz: an artifact wants {module}.{path}, which is not there")
            return found


def _imported(module: str) -> object:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        return None


HostCall = Callable[[list[Any]], "tuple[Any, ...]"]


def load_host(source: str, namespace: Mapping[str, object]) -> HostCall:
    """Run a host module's text and return its ``call``.

    namespace: the segments and kernels by name, and what the text names besides.
    """
    module: dict[str, Any] = {"__name__": "litz_host_program", **namespace}
    exec(compile(source, "<litz host program>", "exec"), module)
    call: HostCall = module["call"]
    return call
