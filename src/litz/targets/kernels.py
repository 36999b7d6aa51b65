"""From a schedule to distinct kernels, each printed for the target of its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from litz.host.lines import CallKernel
from litz.kernel.build import KernelBuilder
from litz.kernel.lanes.choose import choose as choose_lanes
from litz.kernel.plan import KernelPlan
from litz.runtime.cache import content_key
from litz.schedule.groups import Group, Schedule
from litz.targets.cpp.render import headers, render

if TYPE_CHECKING:
    from litz.kernel.blocks.recipe import BlockRecipe, Style
    from litz.kernel.lanes.recipe import LaneRecipe
    from litz.targets.triton.source import TritonKernel

PLACEHOLDER = "LITZ_KERNEL_NAME"


@dataclass(frozen=True)
class Kernel:
    """One distinct kernel: its name, plan, source, and the groups of the schedule that call it.

    device: where it runs.  recipe: what was chosen of how it runs.
    triton: its launches, unless it is C++; then headers: what it includes.
    """

    name: str
    plan: KernelPlan
    source: str
    groups: tuple[str, ...]
    device: str = "cpu"
    triton: TritonKernel | None = None
    headers: tuple[str, ...] = ()
    recipe: BlockRecipe | LaneRecipe | None = None


def make_kernels(
    schedule: Schedule, lanes: Callable[[], int], target: str = "", style: Style | None = None
) -> tuple[dict[str, CallKernel], tuple[Kernel, ...]]:
    """The kernel call of each group, and the distinct kernels: equal plans are one kernel.

    lanes: f32 lanes of the CPU's vectors, asked for where there are C++ kernels.
    target: "triton": Triton kernels on every device.  style: of Triton kernels.
    """
    calls: dict[str, CallKernel] = {}
    known: dict[tuple[KernelPlan, str], Kernel] = {}
    named: dict[str, Kernel] = {}
    groups: dict[str, list[str]] = {}
    build = KernelBuilder(schedule.program.buffers)
    for g in schedule.steps:
        if not isinstance(g, Group):
            continue
        bound = build(g)
        found = known.get((bound.plan, g.device))
        if found is None:
            origins = " ".join(g.origins)
            if target == "triton" or not g.device.startswith("cpu"):
                made = triton_kernel(bound.plan, g.device, origins, style)
            else:
                made = cpp_kernel(bound.plan, lanes(), origins)
            # Plans that differ in what their sizes may be can still have one source.
            found = known[bound.plan, g.device] = named.setdefault(made.name, made)
        groups.setdefault(found.name, []).append(g.name)
        calls[g.name] = CallKernel(found.name, bound.buffers, bound.ints, g.name)
    return calls, tuple(replace(k, groups=tuple(groups[k.name])) for k in named.values())


def cpp_kernel(plan: KernelPlan, lanes: int, origins: str) -> Kernel:
    """A plan in C++, named by its content."""
    recipe = choose_lanes(plan, lanes)
    text = render(recipe, PLACEHOLDER)
    name = f"k{content_key(text)[:16]}"
    source = f"// {origins}\n{text.replace(PLACEHOLDER, name)}"
    return Kernel(name, plan, source, (), headers=headers(plan, source), recipe=recipe)


def triton_kernel(
    plan: KernelPlan, device: str, origins: str, style: Style | None = None
) -> Kernel:
    """A plan in Triton, named by its content and, beyond the first, by its device."""
    # The CPU does without these.
    from litz.kernel.blocks.choose import choose
    from litz.kernel.blocks.recipe import Style
    from litz.targets.triton.render import render as render_triton

    recipe = choose(plan, style or Style())
    draft = render_triton(recipe, PLACEHOLDER)
    # Sizes that every block divides are in no source, only in the grid.
    parts = [part for x in draft.launches for part in (*x.sources(), x.layout())]
    signature = [*draft.params, *map(str, plan.ints)]  # all there is where nothing is launched
    text = f"{[str(t.size) for t in draft.temporaries]}\n" + "\n".join(parts or signature)
    index = device.partition(":")[2] or "0"
    name = f"k{content_key(text)[:16]}" + (f"_{index}" if index != "0" else "")
    made = render_triton(recipe, name, origins)
    source = "\n\n".join(source for x in made.launches for source in x.sources())
    return Kernel(name, plan, source, (), device, made, recipe=recipe)
