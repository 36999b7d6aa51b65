"""KernelPlans to Triton kernels."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Expr, divides
from litz.ir.body import Load, Reduce, walk
from litz.kernel.moments import simplify
from litz.kernel.nodes import extent, int_value, roots
from litz.kernel.plan import KernelPlan
from litz.targets.triton import nest, split
from litz.targets.triton.axes import Axes, choose_axes
from litz.targets.triton.blocks import choose_configs, is_persistent, narrowest, widened
from litz.targets.triton.layout import Shape, row_start
from litz.targets.triton.passes import PassPrinter
from litz.targets.triton.reach import index_ints, is_wide, reaches
from litz.targets.triton.rectangles import RectanglePrinter
from litz.targets.triton.signature import int_type
from litz.targets.triton.source import (
    Config,
    Launch,
    Pointer,
    Scalar,
    Style,
    TritonKernel,
)

GRID = 65535  # programs along the second and third axis of a grid


def render(
    plan: KernelPlan, name: str, comment: str = "", *, style: Style | None = None
) -> TritonKernel:
    """The kernels of a plan: one, several where few rows are long, none where no point is.

    comment: lines for the head of each source.
    """
    style = style or Style()
    params = tuple(p.name for p in plan.params)
    sizes = [extent(v) for v in plan.parallel]
    if any(s.is_const and int_value(s) == 0 for s in sizes):
        return TritonKernel(params, ())
    several = split.divide(plan)
    if several is None:
        return TritonKernel(params, (launch(plan, name, comment, style),))
    launches = tuple(launch(p, f"{name}_{i}", comment, style) for i, p in enumerate(several.plans))
    return TritonKernel(params, launches, several.temps)


def launch(plan: KernelPlan, name: str, comment: str, style: Style) -> Launch:
    """One plan as one kernel; for open sizes also in 32 bits."""
    wide = is_wide(plan)
    made = _launch(plan, name, comment, wide, style)
    ends = reaches(plan) if wide and plan.ints else None
    if ends is None:
        return made
    narrow = _launch(plan, f"{name}_narrow", comment, False, style)
    return replace(made, narrow=narrow, reaches=ends)


def _launch(plan: KernelPlan, name: str, comment: str, wide: bool, style: Style) -> Launch:
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    memory = [p for p in plan.params if not p.by_value]
    pointers = tuple(Pointer(p.name, p.dtype, p.mode != "in") for p in memory)
    if nest.suits(plan):
        source, checks, shape = nest.print_nest(plan, name, wide)
        configs: tuple[Config, ...] = (shape.config,)
    else:
        source, checks, shape, configs = _print(plan, name, wide, style)
    return Launch(
        name,
        head + source,
        pointers,
        plan.ints,
        _int_types(plan, wide),
        tuple((a.name, a.size) for a in reversed(shape.axes.parallel)),
        configs,
        flat=shape.flat,
        checks=checks,
        scalars=tuple(Scalar(p.name, p.dtype) for p in plan.params if p.by_value),
        contract=style.contract,
    )


def _int_types(plan: KernelPlan, wide: bool) -> tuple[str, ...]:
    counted = index_ints(plan)
    of_indices = "i64" if wide else "i32"
    return tuple(of_indices if e in counted else int_type(e) for e in plan.ints)


def _print(
    plan: KernelPlan, name: str, wide: bool, style: Style
) -> tuple[str, bool, Shape, tuple[Config, ...]]:
    """(source, whether it checks indices, layout, configurations)."""
    axes = choose_axes(plan)
    persistent = is_persistent(plan, axes)
    plan = replace(plan, stores=simplify(plan.stores, lambda n: persistent))
    configs = choose_configs(plan, axes, persistent)
    rows = None if persistent or style.block_pointers else _odd_rows(plan)
    if rows is not None:
        single = tuple(c for c in configs if c.block("x") == 1)
        configs, rows = (single, rows) if single else (configs, None)
    if style.widely:
        even = _even(axes, configs[:1])
        configs = widened(configs, even, axes, persistent, single=rows is not None)
    shape = Shape(axes, configs[0], persistent, _even(axes, configs), wide, _flat(axes), rows)
    make = RectanglePrinter if style.block_pointers else PassPrinter
    printer = make(plan, name, shape)
    return printer.print(), printer.checks, shape, configs


def _odd_rows(plan: KernelPlan) -> tuple[Expr, int] | None:
    """Where the rows of most bytes begin, if whole accesses of 16 bytes do not divide them.

    With it, the elements of such an access.  Their first elements then come last, so that no
    search for the first place of something may run along them.
    """
    if len(plan.reduced) != 1 or plan.lane is not plan.reduced[0]:
        return None
    nodes = tuple(walk(roots(plan.stores)))
    if any(isinstance(n, Reduce) and n.row.positional for n in nodes):
        return None
    v = plan.lane
    size = {p.name: p.dtype.bytes for p in plan.params}
    whole = 16 // narrowest(plan)
    loads = [n for n in nodes if isinstance(n, Load) and not n.indirect]
    found: dict[Expr, int] = {}
    for buffer, index in [(n.buffer, n.index) for n in loads] + [
        (s.buffer, s.index) for s in plan.stores if not s.indirect
    ]:
        start = row_start(index, v)
        if v in index.free and start is not None and start.free:
            found[start] = found.get(start, 0) + size[buffer]
    if not found or not extent(v).is_const:
        return None
    start = max(found, key=lambda e: found[e])
    few = int_value(extent(v)) < whole  # a row need not hold a whole access
    return None if few or whole < 2 or divides(whole, start) else (start, whole)


def _even(axes: Axes, configs: tuple[Config, ...]) -> frozenset[str]:
    """The axes that every configuration's block divides."""
    out = []
    for a in axes.blocked:
        largest = max(c.block(a.name) for c in configs)
        if a.size.is_const and int_value(a.size) % largest == 0:
            out.append(a.name)
    return frozenset(out)


def _flat(axes: Axes) -> bool:
    """Whether the grid's second and third axis could be too long."""
    return any(
        not a.size.is_const or int_value(a.size) > GRID for a in axes.parallel if a.name != "x"
    )
