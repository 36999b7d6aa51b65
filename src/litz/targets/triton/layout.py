"""How a kernel is laid out, and its lines while they are printed."""

from __future__ import annotations

from dataclasses import dataclass, field

from litz.index import Expr, const, var
from litz.kernel.nodes import extent
from litz.targets.triton.axes import Axes, Axis
from litz.targets.triton.source import Config
from litz.targets.triton.values import Value


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is laid out.

    persistent: a block holds all of the reduced axis.  even: axes whose size every block divides.
    wide: indices need 64 bits.  flat: the grid has one axis, from which the others are computed.
    rows: where rows begin that whole accesses do not divide, and elements of such an access.
    """

    axes: Axes
    config: Config
    persistent: bool
    even: frozenset[str]
    wide: bool
    flat: bool
    rows: tuple[Expr, int] | None = None


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
        scope: Scope | None = self
        while scope is not None:
            found = scope.known.get(v)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)


def row_start(e: Expr, v: Expr) -> Expr | None:
    """Where a row begins, if ``e`` steps through it by ones."""
    start = e - v
    return None if v in start.free else start


def decoded(axis: Axis) -> tuple[tuple[Expr, Expr], ...]:
    """Each dim of an axis in terms of its flat position ``<axis>index``, the fastest first."""
    flat = var(f"{axis.name}index", axis.size)
    inner: Expr = const(1)
    out = []
    for v in reversed(axis.dims):
        size = extent(v) if extent(v) is not const(0) else const(1)  # of nothing, any position
        out.append((v, (flat // inner) % size))
        inner = inner * size
    return tuple(out)
