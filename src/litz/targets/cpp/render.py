"""KernelPlans to C++ source: one kernel, and translation units of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from litz.ir.body import Op, walk
from litz.ir.ops import cpp_header
from litz.kernel.plan import KernelPlan
from litz.targets.cpp.loops import build
from litz.targets.cpp.prepare import roots
from litz.targets.cpp.printer import print_kernel


def width(plan: KernelPlan, lanes: int) -> int:
    """Lanes of a plan's vectors: ``lanes`` f32 ones fill a register, half as many 8-byte ones do."""
    narrow = any(p.dtype.bits < 64 for p in plan.params) or any(
        n.dtype.bits in (16, 32) for n in walk(roots(plan.stores))
    )
    return lanes if narrow else lanes // 2


def render(plan: KernelPlan, name: str, lanes: int, comment: str = "") -> str:
    """The C++ source of one kernel: ``extern "C" int NAME(void** ptrs, const int64_t* ints)``.

    lanes: f32 elements in a vector register.  comment: lines for the kernel's head.
    """
    head = "".join(f"// {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + print_kernel(build(plan, name, width(plan, lanes)))


def headers(plans: Iterable[KernelPlan]) -> tuple[str, ...]:
    """The headers that the kernels of ``plans`` need."""
    found: dict[str, None] = {}
    for plan in plans:
        for n in walk(roots(plan.stores)):
            if isinstance(n, Op) and n.name != "check_index":
                found[cpp_header(n.name, n.args[-1].dtype)] = None
    return ("litz/loops.h", *sorted(h for h in found if h != "litz/vec.h"))


def unit(kernels: Sequence[tuple[KernelPlan, str]]) -> str:
    """A translation unit of kernels, given as plans and their rendered sources."""
    lines = [f"#include <{h}>" for h in headers(p for p, _ in kernels)]
    return "\n".join([*lines, "using namespace litz;", "", *(text for _, text in kernels)])
