"""What the calls of a graph are given."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

__all__ = ["argument"]


def argument(n: Node, position: int, name: str, default: Any = None) -> Any:
    """What a call is given for one parameter, by position or by name."""
    return n.args[position] if position < len(n.args) else n.kwargs.get(name, default)
