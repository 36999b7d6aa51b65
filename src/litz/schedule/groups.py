"""The values of the schedule: fused groups and extern calls in the order they run."""

from __future__ import annotations

from litz.dataclass import dataclass
from litz.ir.program import Extern, Nest, Program, Template


@dataclass(frozen=True, slots=True)
class Group(Nest):
    """Loop nests that run as one kernel, over one common iteration space.

    axes: parallel variables; reduce_axes: variables that the group's reductions run over; a store
    that depends on a reduced variable runs for each point of both.
    nodes: names of the program's loop nests in it, in program order; origins: graph nodes likewise.
    """

    nodes: tuple[str, ...]
    origins: tuple[str, ...] = ()


Step = Group | Template | Extern


@dataclass(frozen=True)
class Schedule:
    """Steps in order.  Buffers of the program that no step stores any more are never allocated.

    refused: pairs of groups that touch one buffer and stay apart, by name, and why.
    """

    program: Program
    steps: tuple[Step, ...]
    refused: tuple[tuple[str, str, str], ...] = ()
