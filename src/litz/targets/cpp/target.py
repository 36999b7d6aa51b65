"""C++ as a target."""

from __future__ import annotations

from collections.abc import Callable

from litz.dataclass import dataclass
from litz.kernel.lanes.choose import choose
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs
from litz.runtime.cache import content_key
from litz.targets.cpp.render import headers, render
from litz.targets.kernels import Kernel

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

    def most_copies(self, kernel: Kernel) -> int:
        return 1

    def copies(self, kernel: Kernel, count: int) -> Kernel:
        raise ValueError(f"{kernel.name}: segments call kernels, no launch does several")
