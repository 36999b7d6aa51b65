"""Which operators communicate among processes, and which wait until that is done."""

from __future__ import annotations

from typing import Final

NAMESPACES: Final = ("_c10d_functional", "c10d", "c10d_functional", "_dtensor")


def is_collective(target: object) -> bool:
    """Whether an operator communicates: its order among processes is theirs to keep."""
    return getattr(target, "namespace", "") in NAMESPACES


def is_wait(target: object) -> bool:
    """Whether an operator waits for collectives, which use their arguments until then."""
    packet = getattr(target, "overloadpacket", None)
    return is_collective(target) and getattr(packet, "__name__", "") == "wait_tensor"
