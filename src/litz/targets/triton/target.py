"""Triton as a target: on GPUs, or under its interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from litz.dataclass import dataclass
from litz.kernel.blocks.choose import choose
from litz.kernel.blocks.recipe import Style
from litz.kernel.blocks.sizes import FLAT_WARPS
from litz.kernel.blocks.ways import ways
from litz.kernel.build import BoundKernel
from litz.kernel.plan import KernelPlan
from litz.passes.costs import LARGE as LARGE_GPU
from litz.passes.costs import Costs
from litz.runtime.cache import content_key
from litz.runtime.triton.driver import PARAMETERS
from litz.targets.kernels import Body, Joins, Kernel
from litz.targets.triton.costs import costs_of
from litz.targets.triton.joined import LARGE, ROWS, calls_in, joined, part_of_source
from litz.targets.triton.render import NAME, named, render_ways


@dataclass(frozen=True)
class Triton:
    """style: what the user chose of how kernels are written.

    room: bytes that the arguments of a launch may take.
    """

    style: Style = Style()
    room: int = PARAMETERS
    language: str = "triton"
    blocks: bool = True
    segments: bool = False

    def costs(self, device: str) -> Costs | None:
        return costs_of(device)

    def kernel(self, plan: KernelPlan, device: str, origins: str) -> Kernel:
        """Beyond the first device, the name says which it is."""
        found = ways(plan, self.style, self.costs(device) or LARGE_GPU)
        draft = render_ways(found, NAME)
        # Sizes that every block divides are in no source, only in the grid.
        parts = [part for x in draft.all_launches for part in (*x.sources(), x.layout())]
        # All there is where nothing is launched:
        signature = [*(p.name for p in draft.params), *map(str, plan.ints)]
        sizes = [str(t.size) for w in found.candidates for t in w.recipe.temporaries]
        text = f"{sizes}\n" + "\n".join(parts or signature)
        index = device.partition(":")[2] or "0"
        name = f"k{content_key(text)[:16]}" + (f"_{index}" if index != "0" else "")
        made = named(draft, name, origins)
        source = "\n\n".join(made.sources())
        return Kernel(name, plan, source, (), self, found.first, device, made, ways=found)

    def joins(self, plan: KernelPlan) -> Joins | None:
        recipe = choose(plan, self.style)
        if not (most := calls_in(self.room, recipe)):
            return None
        # Blocks of few elements run on as many threads as their neighbours have.
        least = [1 if made.axes.reduced else FLAT_WARPS for made in recipe.kernels]
        kinds = [
            f"{max(1, len(made.axes.blocked))} axes, {max(warps, made.configs[0].warps)} warps"
            for warps, made in zip(least, recipe.kernels, strict=True)
        ]
        return Joins(", then ".join(kinds), most, part_of_source(plan), LARGE, ROWS)

    def in_step(self, rows: BoundKernel, columns: BoundKernel) -> int:
        return 0

    def stepped(self, rows: Kernel, columns: Kernel, block: int, origins: str) -> Kernel:
        raise NotImplementedError

    def size(self, sizes: Sequence[int]) -> int:
        return sum(sizes)  # blocks are as wide as the launch as a whole allows

    def joined(self, bodies: Sequence[Body], device: str, origins: str) -> Kernel:
        made = joined(bodies, origins)
        index = device.partition(":")[2] or "0"
        base = content_key(*(part for x in made.launches for part in (*x.sources(), x.layout())))[
            :16
        ]
        name = f"k{base}" + (f"_{index}" if index != "0" else "")
        first, kernels = bodies[0].kernel, tuple(b.kernel for b in bodies)
        source = "\n\n".join(made.sources())
        return Kernel(
            name, first.plan, source, (), self, first.recipe, device, made, bodies=kernels
        )
