"""Recipes to Triton kernels."""

from __future__ import annotations

from dataclasses import replace

from litz.kernel.blocks.reach import index_ints
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe, Style
from litz.kernel.blocks.ways import Ways
from litz.kernel.plan import KernelPlan, Param
from litz.targets.triton.attention import AttentionPrinter
from litz.targets.triton.crossed import CrossedPrinter
from litz.targets.triton.extents import extents
from litz.targets.triton.gradient import GradientPrinter
from litz.targets.triton.matmul import MatmulPrinter
from litz.targets.triton.nest import NestPrinter
from litz.targets.triton.passes import PassPrinter
from litz.targets.triton.printer import Printer
from litz.targets.triton.rectangles import RectanglePrinter
from litz.targets.triton.signature import int_type
from litz.targets.triton.source import Launch, TritonKernel
from litz.targets.triton.turns import TurnPrinter

NAME = "LITZ_KERNEL_NAME"
"""Stands for a kernel's name until its text is known, by which it is named."""


def named(kernel: TritonKernel, name: str, comment: str) -> TritonKernel:
    """A kernel that was printed under ``NAME``.  comment: lines for the head of each source."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())

    def of(launch: Launch) -> Launch:
        return replace(
            launch,
            name=launch.name.replace(NAME, name),
            source=head + launch.source.replace(NAME, name),
            narrow=None if launch.narrow is None else of(launch.narrow),
        )

    others = tuple(named(k, name, comment) for k in kernel.others)
    return replace(kernel, launches=tuple(map(of, kernel.launches)), others=others)


def render(recipe: BlockRecipe, name: str) -> TritonKernel:
    """The kernels of a recipe."""
    several = len(recipe.kernels) > 1
    launches: list[Launch] = []
    front: frozenset[str] | None = None
    for i, k in enumerate(recipe.kernels):
        leads = i + 1 < len(recipe.kernels)
        launches.append(launch(k, f"{name}_{i}" if several else name, recipe.style, leads, front))
        front = (front or frozenset()).union(s.buffer for s in k.plan.stores)
    plan, own = recipe.plan, (Param(t.name, t.dtype, "out") for t in recipe.temporaries)
    choice = any(len(x.configs) > 1 for x in launches)
    known = extents(plan, recipe.temporaries) if choice else None
    return TritonKernel((*plan.params, *own), plan.ints, tuple(launches), known)


def render_ways(ways: Ways, name: str) -> TritonKernel:
    """The kernels of all candidates: each has its own memory between its launches."""
    first, *others = ways.candidates
    made = replace(render(first.recipe, name), way=first.name, estimate=first.estimate.bounds)
    if not others:
        return made
    plan, count = first.recipe.plan, len(first.recipe.plan.params)
    memory = [t for w in ways.candidates for t in w.recipe.temporaries]
    unused = [Param(f"unused{i}", t.dtype, "out") for i, t in enumerate(memory)]
    found, start = [], 0
    for w in ways.candidates:
        kernel = made if w is first else render(w.recipe, f"{name}_{w.name}")
        own = kernel.params[count:]
        params = (*plan.params, *unused[:start], *own, *unused[start + len(own) :])
        start += len(own)
        found.append(replace(kernel, params=params, way=w.name, estimate=w.estimate.bounds))
    known = extents(plan, memory)
    made, *rest = (replace(k, extents=known) for k in found)
    return replace(made, others=tuple(rest))


def launch(
    made: BlockPlan,
    name: str,
    style: Style,
    leads: bool = False,
    front: frozenset[str] | None = None,
) -> Launch:
    """One plan as one kernel; for open sizes also in 32 bits.

    leads: whether another kernel of the recipe is behind it.  front: what those in front of it
    write, None where there are none.
    """
    whole = _launch(made, name, style, leads, front)
    if made.reaches is None:
        return whole
    narrow = _launch(replace(made, wide=False), f"{name}_narrow", style, leads, front)
    return replace(whole, narrow=narrow, reaches=made.reaches)


def _launch(
    made: BlockPlan, name: str, style: Style, leads: bool, front: frozenset[str] | None
) -> Launch:
    plan = made.plan
    printer = _printer(made, name, style)
    printer.leads, printer.front = leads, front
    return Launch(
        name,
        printer.print(),
        tuple(p for p in plan.params if not p.by_value),
        plan.ints,
        _int_types(plan, made.wide),
        tuple((a.name, made.reach(a)) for a in reversed(made.gridded)),
        made.configs,
        flat=made.flat,
        checks=printer.checks,
        asks_alignment=printer.asks_alignment,
        leads=leads,
        follows=front is not None,
        scalars=tuple(p for p in plan.params if p.by_value),
        # Sums along blocks are in no order of eager mode's: nothing is kept by roundings there.
        contract=style.contract or made.form in ("attention", "gradient"),
    )


def _printer(made: BlockPlan, name: str, style: Style) -> Printer:
    if made.form == "attention":
        return AttentionPrinter(made, name)
    if made.form == "matmul":
        return MatmulPrinter(made, name)
    if made.form == "gradient":
        return GradientPrinter(made, name)
    if made.form == "crossed":
        return CrossedPrinter(made, name)
    if made.form in ("nest", "serial"):
        return NestPrinter(made, name)
    if made.axes.turns is not None:
        return TurnPrinter(made, name)
    return (RectanglePrinter if style.block_pointers else PassPrinter)(made, name)


def _int_types(plan: KernelPlan, wide: bool) -> tuple[str, ...]:
    counted = index_ints(plan)
    of_indices = "i64" if wide else "i32"
    return tuple(of_indices if e in counted else int_type(e) for e in plan.ints)
