"""C++ as a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.dataclass import dataclass
from litz.kernel.build import BoundKernel
from litz.kernel.lanes.choose import choose
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs
from litz.runtime.cache import content_key
from litz.targets.cpp.joined import BODIES, MOST, joined, may_join
from litz.targets.cpp.render import headers, render
from litz.targets.cpp.steps import block_of, stepped
from litz.targets.kernels import Body, Joins, Kernel

PLACEHOLDER = "LITZ_KERNEL_NAME"


@dataclass(frozen=True)
class Cpp:
    """lanes: f32 lanes of the CPU's vectors, asked for once there are kernels."""

    lanes: Callable[[], int]
    language: str = "c++"
    blocks: bool = False
    segments: bool = True

    def costs(self, device: str) -> Costs | None:
        return None

    def kernel(self, plan: KernelPlan, device: str, origins: str) -> Kernel:
        recipe = choose(plan, self.lanes())
        text = render(recipe, PLACEHOLDER)
        name = f"k{content_key(text)[:16]}"
        source = f"// {origins}\n{text.replace(PLACEHOLDER, name)}"
        return Kernel(name, plan, source, (), self, recipe, headers=headers(plan, source))

    def joins(self, plan: KernelPlan) -> Joins | None:
        recipe = choose(plan, self.lanes())
        return Joins("", MOST, 1 / BODIES, 16 * recipe.grain) if may_join(recipe) else None

    def size(self, sizes: Sequence[int]) -> int:
        return max(sizes)

    def joined(self, bodies: Sequence[Body], device: str, origins: str) -> Kernel:
        text = joined(bodies, PLACEHOLDER)
        return self._several(text, [b.kernel for b in bodies], origins)

    def in_step(self, rows: BoundKernel, columns: BoundKernel) -> int:
        return block_of(rows, columns, self.lanes())

    def stepped(self, rows: Kernel, columns: Kernel, block: int, origins: str) -> Kernel:
        text = stepped(rows, columns, block, PLACEHOLDER)
        return self._several(text, (rows, columns), origins)

    def _several(self, text: str, bodies: Sequence[Kernel], origins: str) -> Kernel:
        name = f"k{content_key(text)[:16]}"
        source = f"// {origins}\n{text.replace(PLACEHOLDER, name)}"
        needed = tuple(sorted({h for k in bodies for h in k.headers}))
        first = bodies[0]
        return Kernel(
            name, first.plan, source, (), self, first.recipe, headers=needed, bodies=tuple(bodies)
        )
