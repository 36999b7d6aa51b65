"""Recipes of attention: a block of queries keeps its result while it goes over blocks of keys."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Expr
from litz.ir import attention
from litz.kernel.blocks.reach import is_wide, reaches
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config, Style
from litz.kernel.blocks.sizes import hint, power_of_two
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import KernelPlan

GRID = 65535  # programs along the second axis of a grid
LEAST = 16  # of a side that matrix units take


def in_blocks(plan: KernelPlan, style: Style) -> BlockPlan:
    """One program for a block of queries of one head: axis z counts heads, x queries, r keys."""
    p = attention.parts(plan.stores, plan.parallel)
    z, x, r = Axis("z", plan.parallel[:-2]), Axis("x", (p.rows,)), Axis("r", (p.keys,))
    axes = Axes((z, x), r)
    configs = _configs(plan, p, x.size, r.size)
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
    made = BlockPlan(plan, "attention", axes, configs, even, wide, flat)
    return replace(made, reaches=reaches(counted)) if wide and plan.ints else made


def _configs(plan: KernelPlan, p: attention.Parts, rows: Expr, keys: Expr) -> tuple[Config, ...]:
    """Blocks of queries and keys, the likeliest first, no larger than blocks of a mask."""
    width = max(int_value(extent(v)) for v in (p.inner, p.columns))
    single = p.query.dtype.bytes > 2
    if single:
        first = ((64, 32), (64, 16)) if width <= 128 else ((32, 16), (16, 16))
    elif width <= 64:
        first = ((128, 64), (64, 64), (128, 128))
    else:
        first = ((128, 128), (64, 64)) if width <= 128 else ((64, 32), (64, 64), (32, 32))
    skeleton = plan.skeleton
    limits = skeleton.sizes if skeleton is not None and skeleton.sizes else (1 << 30, 1 << 30)
    found: dict[Config, None] = {}
    for m, n in first:
        x = max(LEAST, min(m, limits[0], power_of_two(hint(rows))))
        r = max(LEAST, min(n, limits[1], power_of_two(hint(keys))))
        warps = 8 if x * max(r, width) >= 128 * 128 else 4
        stages = 2 if single or width > 64 else 3
        found[Config((("x", x), ("r", r)), warps, stages)] = None
    return tuple(found)
