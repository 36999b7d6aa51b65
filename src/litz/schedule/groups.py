"""The values of the schedule: fused groups and extern calls in the order they run."""

from __future__ import annotations

from dataclasses import dataclass

from litz.index import Expr
from litz.ir.body import Load, Store, loads
from litz.ir.program import Extern, Program


@dataclass(frozen=True, slots=True)
class Group:
    """Loop nests that run as one kernel, over one common iteration space.

    axes: parallel variables; reduce_axes: variables that the group's reductions run over; a store
    that depends on a reduced variable runs for each point of both.
    nodes: names of the program's loop nests in it, in program order; origins: graph nodes likewise.
    """

    name: str
    axes: tuple[Expr, ...]
    reduce_axes: tuple[Expr, ...]
    stores: tuple[Store, ...]
    device: str
    nodes: tuple[str, ...]
    origins: tuple[str, ...] = ()

    def loads(self) -> tuple[Load, ...]:
        return loads(r for s in self.stores for r in s.roots())

    def read_buffers(self) -> tuple[str, ...]:
        names = {n.buffer: None for n in self.loads()}
        for s in self.stores:
            if s.mode != "set":
                names[s.buffer] = None
        return tuple(names)

    def write_buffers(self) -> tuple[str, ...]:
        return tuple({s.buffer: None for s in self.stores})


Step = Group | Extern


@dataclass(frozen=True)
class Schedule:
    """Steps in order.  Buffers of the program that no step stores any more are never allocated."""

    program: Program
    steps: tuple[Step, ...]
