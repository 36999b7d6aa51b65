"""KernelPlans to C++ source: one kernel, and translation units of several."""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir.body import Op, Reduce, Scan, walk
from litz.ir.ops import cpp_header
from litz.ir.scans import widened
from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.kernel.nodes import roots
from litz.kernel.plan import KernelPlan
from litz.targets.cpp import attention, columns, gradient, split, streams, sums, tiles
from litz.targets.cpp.functions import print_kernel
from litz.targets.cpp.loops import TreeBuilder
from litz.targets.cpp.tree import Kernel
from litz.targets.cpp.units import ALWAYS, joined


def build(made: LanePlan, name: str) -> Kernel:
    """The loop tree of a plan."""
    if made.form == "attention":
        return attention.AttentionBuilder(made, name).build()
    if made.form == "gradient":
        return gradient.GradientBuilder(made, name).build()
    if made.divided is not None:
        return split.build(made, name, made.divided)
    if made.rows > 1:
        return streams.Rows(made, name).build()
    builders: dict[str, type[TreeBuilder]] = {
        "rows": TreeBuilder,
        "columns": columns.ColumnBuilder,
        "tiles": tiles.TileBuilder,
        "room": sums.RoomBuilder,
        "sorted": sums.SumBuilder,
    }
    return builders[made.form](made, name).build()


def render(recipe: LaneRecipe, name: str, comment: str = "") -> str:
    """The C++ source of one kernel: ``extern "C" int NAME(void** ptrs, const int64_t* ints)``.

    comment: lines for the kernel's head.
    """
    head = "".join(f"// {line}".rstrip() + "\n" for line in comment.splitlines())
    if len(recipe.kernels) == 1:
        (made,) = recipe.kernels
        return head + print_kernel(build(made, name), recipe.grain)
    kernels = [build(k, f"{name}_{i}") for i, k in enumerate(recipe.kernels)]
    return head + _phases(recipe, name, kernels)


def _phases(recipe: LaneRecipe, name: str, kernels: Sequence[Kernel]) -> str:
    """The functions of a kernel in phases: each a kernel of its own, called in turn.

    Behind the plan's parameters it takes its temporaries.
    """
    names = [p.name for p in recipe.plan.params]
    lines = [f"// behind them {t.name}: {t.dtype}[{t.size}]" for t in recipe.temporaries]
    names += [t.name for t in recipe.temporaries]
    lines.append(f'extern "C" int {name}(void* const* ptrs, const int64_t* ints) {{')
    lines.append("  int bad = 0;")
    for k in kernels:
        ptrs = ", ".join(f"ptrs[{names.index(p.name)}]" for p in k.plan.params)
        lines.append(f"  void* {k.name}_ptrs[] = {{{ptrs}}};")
        lines.append(f"  bad |= {k.name}({k.name}_ptrs, ints);")
    lines += ["  return bad;", "}"]
    return (
        "".join(print_kernel(k, recipe.grain, "static") for k in kernels) + "\n".join(lines) + "\n"
    )


# Headers of functions that come from the form of a loop or an access, not from an op.
_BY_NAME = (
    ("litz::block_", "litz/attention.h"),
    ("litz::turn_", "litz/tiles.h"),
    ("litz::scan_", "litz/scan.h"),
    ("litz::sort_places(", "litz/places.h"),
    ("litz::update_each<", "litz/places.h"),
    ("litz::sort_", "litz/sort.h"),
    ("litz::take_last<", "litz/scan.h"),
    ("log_add_exp(", "litz/logsum.h"),
    ("litz::gather", "litz/memory.h"),
    ("litz::load_repeated<", "litz/strides.h"),
    ("litz::load_near<", "litz/strides.h"),
    ("litz::load_strided", "litz/memory.h"),
    ("litz::load_evens<", "litz/strides.h"),
    ("litz::load_firsts<", "litz/strides.h"),
    ("litz::load_alone<", "litz/strides.h"),
    ("litz::load_back<", "litz/strides.h"),
    ("litz::store_back(", "litz/strides.h"),
    ("litz::store_pairs(", "litz/strides.h"),
    ("litz::store_stream(", "litz/memory.h"),
)


def headers(plan: KernelPlan, text: str) -> tuple[str, ...]:
    """The headers that a kernel needs beside those of all, given as a plan and its source."""
    found = set()
    for n in walk(roots(plan.stores)):
        if isinstance(n, Op):
            found.add(cpp_header(n.name, n.args[-1].dtype))
        elif isinstance(n, Reduce) and n.row.op:
            found.update(cpp_header(n.row.op, t) for t in (n.dtype, n.row.total(n.dtype)))
        elif isinstance(n, Scan) and n.combine:
            own = (v for v in walk(widened(n.combine)) if isinstance(v, Op))
            found.update(cpp_header(v.name, v.args[-1].dtype) for v in own)
        elif isinstance(n, Scan) and n.row.op:
            found.add(cpp_header(n.row.op, n.row.carried(n.dtype)))
    found.update(h for name, h in _BY_NAME if name in text)
    return tuple(sorted(found.difference(ALWAYS)))


def unit(kernels: Sequence[tuple[KernelPlan, str]]) -> str:
    """A translation unit of kernels, given as plans and their rendered sources."""
    return joined([(headers(plan, text), text) for plan, text in kernels])
