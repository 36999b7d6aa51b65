"""Which operators communicate among processes, and which wait until that is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from litz.runtime.torch_private import gpu_backend

RECORDED: Final = ("nccl",)
"""Backends of process groups whose transfers are calls on a stream, which a CUDA graph holds."""
NAMESPACES: Final = ("_c10d_functional", "c10d", "c10d_functional", "_dtensor")


def is_collective(target: object) -> bool:
    """Whether an operator communicates: its order among processes is theirs to keep."""
    return getattr(target, "namespace", "") in NAMESPACES


def is_wait(target: object) -> bool:
    """Whether an operator waits for collectives, which use their arguments until then."""
    packet = getattr(target, "overloadpacket", None)
    return is_collective(target) and getattr(packet, "__name__", "") == "wait_tensor"


def is_start(target: object) -> bool:
    """Whether an operator begins to communicate."""
    return is_collective(target) and not is_wait(target)


def group_name(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name of the process group of a call of a collective; "" where it names none."""
    names = [a.name for a in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = given.get("group_name", "")
    return str(getattr(found, "group_name", found))


def why_not_recorded(name: str) -> str:
    """Why a CUDA graph cannot hold what a process group transfers; "" where it can."""
    backend = gpu_backend(name)
    if backend in RECORDED:
        return ""
    return f"process group {name} communicates by {backend or 'a backend that is not known'}"
