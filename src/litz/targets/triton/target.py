"""Triton as a target: on GPUs, or under its interpreter on the CPU."""

from __future__ import annotations

from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import product, size_hint
from litz.kernel.blocks.choose import choose
from litz.kernel.blocks.recipe import Style
from litz.kernel.nodes import extent
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs
from litz.runtime.cache import content_key
from litz.targets.kernels import Kernel
from litz.targets.triton.copies import copied, most_copies
from litz.targets.triton.costs import costs_of
from litz.targets.triton.render import render

LARGE = 1 << 23  # points of a kernel that keeps a machine busy by itself


@dataclass(frozen=True)
class Triton:
    """style: what the user chose of how kernels are written."""

    style: Style = Style()
    language: str = "triton"
    blocks: bool = True
    segments: bool = False

    def costs(self, device: str) -> Costs | None:
        return costs_of(device)

    def kernel(self, plan: KernelPlan, device: str, origins: str) -> Kernel:
        """Beyond the first device, the name says which it is."""
        recipe = choose(plan, self.style)
        draft = render(recipe, "LITZ_KERNEL_NAME")
        # Sizes that every block divides are in no source, only in the grid.
        parts = [part for x in draft.launches for part in (*x.sources(), x.layout())]
        # All there is where nothing is launched:
        signature = [*(p.name for p in draft.params), *map(str, plan.ints)]
        text = f"{[str(t.size) for t in recipe.temporaries]}\n" + "\n".join(parts or signature)
        index = device.partition(":")[2] or "0"
        name = f"k{content_key(text)[:16]}" + (f"_{index}" if index != "0" else "")
        made = render(recipe, name, origins)
        source = "\n\n".join(source for x in made.launches for source in x.sources())
        return Kernel(name, plan, source, (), self, recipe, device, made)

    def most_copies(self, kernel: Kernel) -> int:
        assert kernel.triton is not None
        if kernel.plan.skeleton is not None:
            return 1
        points = size_hint(product(extent(d.var) for d in kernel.plan.dims))
        return most_copies(kernel.triton, points) if points < LARGE else 1

    def copies(self, kernel: Kernel, count: int) -> Kernel:
        assert kernel.triton is not None
        base, _, index = kernel.name.partition("_")
        name = f"k{content_key(base, str(count))[:16]}" + (f"_{index}" if index else "")
        made = copied(kernel.triton, name, count)
        return replace(kernel, name=name, source=made.launches[0].source, triton=made)
