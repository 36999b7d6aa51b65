"""The lines of a kernel while they are printed."""

from __future__ import annotations

from dataclasses import field

from litz.dataclass import dataclass
from litz.index import Expr, const, var
from litz.kernel.blocks.recipe import Axis
from litz.kernel.nodes import extent
from litz.kernel.values import Value


@dataclass
class Scope:
    """Lines at one depth; what is known there is known in the scopes below too.

    binds: the dim or axis that its loop counts.
    """

    depth: int
    parent: Scope | None = None
    binds: str = ""
    lines: list[str] = field(default_factory=list)
    known: dict[Value, str] = field(default_factory=dict)

    def find(self, v: Value) -> str | None:
        """What has been computed of it, within the innermost loops over its axes."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.known.get(v)
            if found is not None or scope.binds in v.axes:
                return found
            scope = scope.parent
        return None

    def bound(self, name: str) -> bool:
        """Whether a loop around counts it."""
        scope: Scope | None = self
        while scope is not None and scope.binds != name:
            scope = scope.parent
        return scope is not None

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)


def decoded(axis: Axis, backward: bool = False) -> tuple[tuple[Expr, Expr], ...]:
    """Each dim of an axis in terms of its flat position ``<axis>index``, the fastest first.

    backward: ``<axis>back`` instead, which counts from the other end.
    """
    flat: Expr = var(f"{axis.name}index", axis.size)
    if backward:
        flat = axis.size - 1 - var(f"{axis.name}back", axis.size)
    inner: Expr = const(1)
    out = []
    for v in reversed(axis.dims):
        size = extent(v) if extent(v) is not const(0) else const(1)  # of nothing, any position
        out.append((v, (flat // inner) % size))
        inner = inner * size
    return tuple(out)
