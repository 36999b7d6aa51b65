"""From a schedule to distinct kernels, each printed by the target of its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from litz.dataclass import dataclass
from litz.host.lines import CallKernel
from litz.index import Expr, const, substitute
from litz.ir.program import Buffer, Extern, Template
from litz.kernel.build import BoundKernel, KernelBuilder
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs
from litz.schedule.groups import Group, Schedule, Step

if TYPE_CHECKING:
    from litz.kernel.blocks.recipe import BlockRecipe
    from litz.kernel.blocks.ways import Ways
    from litz.kernel.lanes.recipe import LaneRecipe
    from litz.targets.triton.source import TritonKernel


class Target(Protocol):
    """Spells kernels in one language."""

    @property
    def language(self) -> str:
        """Its name in artifacts."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether kernels run as many programs over blocks, and are fused for that."""
        ...

    @property
    def segments(self) -> bool:
        """Whether kernels that follow each other can be called as one, and watched one by one."""
        ...

    def costs(self, device: str) -> Costs | None:
        """What a device can do; None where no template is weighed against a library."""
        ...

    def kernel(self, plan: KernelPlan, device: str, origins: str) -> Kernel:
        """A plan as a kernel, named by its content.  origins: for a comment in its source."""
        ...

    def joins(self, plan: KernelPlan) -> Joins | None:
        """How calls of a plan's kernel can share a launch with others; None if they cannot."""
        ...

    def size(self, sizes: Sequence[int]) -> int:
        """The size for which to choose how the kernel runs that a launch calls on all of these."""
        ...

    def joined(self, bodies: Sequence[Body], device: str, origins: str) -> Kernel:
        """One kernel that does all calls of some bodies.

        It takes the buffers and integers of the first body's calls, one call after the other, then
        the next's.
        """
        ...

    def in_step(self, rows: BoundKernel, columns: BoundKernel) -> int:
        """The rows of a block for a kernel that runs both block by block; 0 where none should."""
        ...

    def stepped(self, rows: Kernel, columns: Kernel, block: int, origins: str) -> Kernel:
        """That kernel.  It takes the buffers of the first, then those of the second."""
        ...


@dataclass(frozen=True)
class Joins:
    """How calls of a kernel share a launch.

    kind: kernels of different kinds never do.  most: calls in one launch, which has room for
    multiples of ``step``.  body: the part of a launch's source that the kernel takes, of which
    there is a whole; large: points of all calls together from which they share none with calls of
    another kernel that has as many.
    """

    kind: str
    most: int
    body: float
    large: int
    step: int = 1

    def part(self, calls: int) -> float:
        """The part of a launch's room that so many calls take."""
        return -(-calls // self.step) * self.step / self.most


@dataclass(frozen=True)
class Kernel:
    """One distinct kernel: its name, plan, source, and the groups of the schedule that call it.

    target: whose it is.  device: where it runs.  recipe: what was chosen of how it runs.
    headers: what C++ includes.  triton: its launches, unless it is C++.
    ways: of a kernel in blocks, the recipes to choose from at the first run, ``recipe`` the first.
    bodies: of one that does calls of several groups in one launch, the kernels that do them, of
    which plan and recipe are the first's; members: the plan of each call, in the order of buffers.
    """

    name: str
    plan: KernelPlan
    source: str
    groups: tuple[str, ...]
    target: Target
    recipe: BlockRecipe | LaneRecipe
    device: str = "cpu"
    triton: TritonKernel | None = None
    headers: tuple[str, ...] = ()
    bodies: tuple[Kernel, ...] = ()
    members: tuple[KernelPlan, ...] = ()
    ways: Ways | None = None

    @property
    def recipes(self) -> tuple[BlockRecipe | LaneRecipe, ...]:
        """What was chosen of how each of its bodies runs, or of each way in which it can."""
        if self.ways is not None:
            return tuple(w.recipe for w in self.ways.candidates)
        return tuple(b.recipe for b in self.bodies) or (self.recipe,)

    @property
    def text(self) -> str:
        """Its recipes; above them the choice among ways, where there is one."""
        table = "" if self.ways is None else "\n".join(f"# {x}" for x in self.ways.lines())
        return "\n\n".join(filter(None, [table, *(r.text for r in self.recipes)]))


@dataclass(frozen=True)
class Body:
    """A kernel and the calls of it in one launch: the integers that each takes.

    known: so many of the last are numbers, which the launch knows and does not take.
    """

    kernel: Kernel
    rows: tuple[tuple[Expr, ...], ...]
    known: int


def bind_plans(schedule: Schedule) -> dict[str, BoundKernel]:
    """The plan of each group and template, by name."""
    build = KernelBuilder(schedule.program.buffers)
    return {g.name: build(g) for g in schedule.steps if not isinstance(g, Extern)}


def make_kernels(
    schedule: Schedule, target_of: Callable[[str], Target]
) -> tuple[dict[str, CallKernel], tuple[Kernel, ...]]:
    """The kernel call of each group, and the distinct kernels: equal plans are one kernel.

    target_of: the target of a device.
    """
    return kernels_of(schedule.steps, bind_plans(schedule), target_of)


def kernels_of(
    steps: Iterable[Step], plans: Mapping[str, BoundKernel], target_of: Callable[[str], Target]
) -> tuple[dict[str, CallKernel], tuple[Kernel, ...]]:
    """The same of some steps, whose plans are known."""
    calls: dict[str, CallKernel] = {}
    known: dict[tuple[KernelPlan, str], Kernel] = {}
    named: dict[str, Kernel] = {}
    groups: dict[str, list[str]] = {}
    for g in steps:
        if isinstance(g, Extern):
            continue
        bound = plans[g.name]
        found = known.get((bound.plan, g.device))
        if found is None:
            made = target_of(g.device).kernel(bound.plan, g.device, " ".join(g.origins))
            # Plans that differ in what their sizes may be can still have one source.
            found = known[bound.plan, g.device] = named.setdefault(made.name, made)
        groups.setdefault(found.name, []).append(g.name)
        between = temporaries(found, bound.ints, g)
        buffers = (*bound.buffers, *(b.name for b in between))
        calls[g.name] = CallKernel(found.name, buffers, bound.ints, g.name, between)
    return calls, tuple(replace(k, groups=tuple(groups[k.name])) for k in named.values())


def temporaries(kernel: Kernel, ints: Sequence[Expr], g: Group | Template) -> tuple[Buffer, ...]:
    """The memory between the parts of a kernel, of the sizes that it has in one call.

    No name of a program has a point.
    """
    first, *others = kernel.recipes if kernel.ways is not None else (kernel.recipe,)
    known = dict(zip(first.plan.ints, ints, strict=True))
    named = [(f"{g.name}.{t.name}", t) for t in first.temporaries]
    for i, recipe in enumerate(others, 1):  # of other ways to do the same
        named += [(f"{g.name}.way{i}_{t.name}", t) for t in recipe.temporaries]
    return tuple(
        Buffer(name, t.dtype, (substitute(t.size, known),), (const(1),), g.device)
        for name, t in named
    )
