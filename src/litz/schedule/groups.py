"""The values of the schedule: fused groups and extern calls in the order they run."""

from __future__ import annotations

from litz.dataclass import dataclass
from litz.index import product, size_hint
from litz.ir.program import Buffer, Extern, Nest, Program, Template


def bytes_hint(b: Buffer) -> int:
    """How many bytes a buffer likely takes; each size without a hint counts as 64."""
    return b.dtype.bytes * size_hint(product(b.shape), default=64)


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
class HorizontalGroup:
    """A horizontal group: groups of the schedule that one launch runs, and why it may and should.

    See ``litz.schedule.horizontal``.
    """

    groups: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Transfer:
    """A collective that runs beside other steps, and how long they would wait for it.

    name: of the step that starts it.  bytes: that it moves; seconds: that it takes, by estimate;
    idle, left: the seconds in which steps wait for it in the order of the program, and as ordered.
    See ``litz.schedule.overlap``.
    """

    name: str
    bytes: int
    seconds: float
    idle: float
    left: float


@dataclass(frozen=True)
class Schedule:
    """Steps in order.  Buffers of the program that no step stores any more are never allocated.

    refused: pairs of groups that touch one buffer and stay apart, by name, and why.
    horizontal: the horizontal groups; their members follow each other.
    transfers: the collectives, in the order in which they start.
    """

    program: Program
    steps: tuple[Step, ...]
    refused: tuple[tuple[str, str, str], ...] = ()
    horizontal: tuple[HorizontalGroup, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @property
    def started(self) -> tuple[Step, ...]:
        """The steps of which each starts something: a launch is named by its first group."""
        inside = {name for x in self.horizontal for name in x.groups[1:]}
        return tuple(s for s in self.steps if s.name not in inside)
