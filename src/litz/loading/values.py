"""What an artifact's host program names, as the process that binds it has it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from litz.artifact import (
    BoundBody,
    Constant,
    Host,
    Live,
    Named,
    Number,
    Scripted,
    UsersKernel,
    Value,
)
from litz.errors import ArtifactError, ToolchainError
from litz.logs import events
from litz.runtime.arguments import BoxedCall
from litz.runtime.launchers import in_python
from litz.runtime.plan import Plan
from litz.runtime.script_objects import Stored, made
from litz.runtime.strided import memory_of
from litz.runtime.user_kernels import UserKernel, configurations

PROBE = "probe"
"""The name under which a host program calls the checker of its runs (``litz.host.probes``)."""

# Modules that every process has which can bind an artifact; Triton's, where it has such kernels.
_MODULES = ("builtins", "math", "operator", "torch", "litz.runtime", "triton.language")


def is_known(module: str) -> bool:
    """Whether what a module has may be named."""
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
        case Scripted(thing):
            return made(thing) if isinstance(thing, Stored) else thing
        case Named(module, path):
            found = walk(_imported(module), path) if is_known(module) else None
            if found is None:
                raise ArtifactError(f"litz: an artifact wants {module}.{path}, which is not there")
            return found


def _imported(module: str) -> object:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


class Runner(Protocol):
    """What runs plans: the native executor, or what stands in for it."""

    def program(
        self, plan: Plan, values: Mapping[str, object], natives: Mapping[str, Any], /
    ) -> BoxedCall:
        """A callable of a plan (``Executor.program``)."""
        ...


def load_host(source: str, namespace: Mapping[str, object]) -> BoxedCall:
    """Run a host module's text and return its ``call``.

    namespace: the segments and kernels by name, and what the text names besides.
    """
    module: dict[str, Any] = {"__name__": "litz_host_program", **namespace}
    exec(compile(source, "<litz host program>", "exec"), module)
    call: BoxedCall = module["call"]
    return call


def bind_host(
    host: Host,
    values: Mapping[str, object],
    natives: Mapping[str, Any],
    executor: Callable[[], Runner],
) -> BoxedCall:
    """The call of a host program: by the native executor, else by Python, and the log says why.

    values: what the program names.  natives: its segments and kernels.  executor: asked for only
    where there is a plan; raises ToolchainError where there is none.
    """
    reason = host.plan
    if not isinstance(reason, str):
        try:
            return executor().program(reason, values, natives)
        except ToolchainError as e:
            reason = str(e)
    if reason:
        events.info("Python runs the host program: %s", reason)
    return load_host(host.source, {**values, **in_python(natives)})
