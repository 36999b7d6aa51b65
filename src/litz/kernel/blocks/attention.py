"""Recipes of attention: a block of queries keeps its result while it goes over blocks of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from litz.index import Expr
from litz.ir import attention
from litz.ir.dtype import DType
from litz.kernel.blocks.reach import is_wide, reaches
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config, Form, Style
from litz.kernel.blocks.sizes import hint, power_of_two
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import KernelPlan

GRID = 65535  # programs along the second axis of a grid
LEAST = 16  # of a side that matrix units take


def in_blocks(plan: KernelPlan, style: Style) -> BlockPlan:
    """One program for a block of rows of one head: z counts heads, x rows, r what these meet."""
    skeleton = plan.skeleton
    assert skeleton is not None
    form: Form = "gradient" if skeleton.kind == attention.GRADIENT else "attention"
    rows, over, widths, kind = _sides(plan, form)
    heads = tuple(v for v in plan.parallel if v is not rows and v not in widths)
    z, x, r = Axis("z", heads), Axis("x", (rows,)), Axis("r", (over,))
    axes = Axes((z, x), r)
    width = max(int_value(extent(v)) for v in widths)
    configs = _configs(_BLOCKS[form], width, kind, skeleton.sizes, x.size, r.size)
    if not style.widely:
        configs = configs[:1]
    even = frozenset(
        a.name
        for a in (x, r)
        if a.size.is_const and all(int_value(a.size) % c.block(a.name) == 0 for c in configs)
    )
    flat = not z.size.is_const or int_value(z.size) > GRID
    counted = replace(plan, dims=())  # no index runs over all of its dims
    wide = is_wide(counted)
    made = BlockPlan(plan, form, axes, configs, even, wide, flat)
    return replace(made, reaches=reaches(counted)) if wide and plan.ints else made


def _sides(plan: KernelPlan, form: Form) -> tuple[Expr, Expr, frozenset[Expr], DType]:
    """The variables of rows and of what they meet, those within rows, and the operands' type."""
    if form == "attention":
        p = attention.parts(plan.stores, plan.parallel)
        return p.rows, p.keys, frozenset((p.inner, p.columns)), p.query.dtype
    g = attention.gradient_parts(plan.stores, plan.parallel)
    within = (*(x.inner for x in g.products), *(s.column for s in g.sums))
    return g.rows, g.over, frozenset(within), g.products[0].left.dtype


# (rows, what they meet, warps, stages), the likeliest first, by the widest row that fits.
Blocks = Mapping[int, tuple[tuple[int, int, int, int], ...]]
_BLOCKS: Final[Mapping[Form, Mapping[int, Blocks]]] = {
    "attention": {
        2: {
            64: ((128, 64, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2)),
            128: ((128, 128, 8, 2), (64, 64, 4, 2)),
            256: ((64, 32, 4, 2), (64, 64, 4, 2), (32, 32, 4, 2)),
        },
        4: {128: ((64, 32, 4, 2), (64, 16, 4, 2)), 256: ((32, 16, 4, 2), (16, 16, 4, 2))},
    },
    "gradient": {
        2: {
            64: ((128, 64, 8, 2), (64, 64, 4, 2), (64, 128, 8, 2), (128, 128, 8, 2)),
            128: ((64, 64, 4, 2), (128, 64, 8, 2), (64, 128, 8, 2)),
            256: ((32, 32, 4, 1), (64, 32, 8, 1)),
        },
        4: {64: ((32, 32, 4, 2), (64, 32, 4, 1)), 128: ((32, 16, 4, 1),), 256: ((16, 16, 4, 1),)},
    },
}


def _configs(
    known: Mapping[int, Blocks],
    width: int,
    kind: DType,
    sizes: tuple[int, ...],
    rows: Expr,
    met: Expr,
) -> tuple[Config, ...]:
    """Blocks no larger than blocks of a mask.  width: elements of the widest row."""
    by_width = known[2 if kind.bytes == 2 else 4]
    first = next(blocks for most, blocks in by_width.items() if width <= most)
    limits = sizes or (1 << 30, 1 << 30)
    found: dict[Config, None] = {}
    for m, n, warps, stages in first:
        x = max(LEAST, min(m, limits[0], power_of_two(hint(rows))))
        r = max(LEAST, min(n, limits[1], power_of_two(hint(met))))
        few = warps if (x, r) == (m, n) else 4
        found[Config((("x", x), ("r", r)), few, stages)] = None
    return tuple(found)
