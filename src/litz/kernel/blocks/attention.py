"""Recipes of attention: a block of queries keeps its result while it goes over blocks of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from litz.dataclass import dataclass
from litz.index import Expr, const, product, size_hint, var
from litz.ir import attention
from litz.ir.body import Load, Node, Store, cast, cost, load, walk
from litz.ir.dtype import F32, DType
from litz.kernel.blocks.reach import is_wide, reaches
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config, Form, Style
from litz.kernel.blocks.sizes import BUSY, PROGRAMS, hint, power_of_two
from litz.kernel.nodes import extent, int_value
from litz.kernel.phases import Phases, Temporary, linear, normalised, phase
from litz.kernel.plan import Dim, KernelPlan

LEAST = 16  # of a side that matrix units take
SMALL = 16  # rows of a block for few queries
SHORT = 256  # keys that are worth a program of their own
ROOMY = 96  # registers of a thread for tiles and results that leave others enough
SHARE = "share"  # the dim that counts shares of keys


def in_blocks(plan: KernelPlan, style: Style) -> BlockPlan:
    """One program for a block of rows of one head: z counts heads, x rows, r what these meet.

    Where rows are few, those of the heads that meet the same are rows of one block.
    """
    skeleton = plan.skeleton
    assert skeleton is not None
    form: Form = "gradient" if skeleton.kind == attention.GRADIENT else "attention"
    sides = _sides(plan, form)
    together = _together(plan) if form == "attention" else ()
    within = (sides.rows, *together, *sides.widths)
    heads = tuple(v for v in plan.parallel if v not in within)
    z, x, r = Axis("z", heads), Axis("x", (*together, sides.rows)), Axis("r", (sides.over,))
    axes = Axes((z, x), r)
    width = max(int_value(extent(v)) for v in sides.widths)
    configs = _configs(sides.table, width, sides.dtype, skeleton.sizes, x.size, r.size)
    if sides.work >= BUSY:
        configs = _roomy(configs, width, sides.tiles)
    configs = _busy(configs, hint(z.size), hint(x.size))
    if not style.widely:
        configs = configs[:1]
    even = axes.even(configs)
    if skeleton.slots and (not r.size.is_const or int_value(r.size) % skeleton.sizes[1]):
        even -= {"r"}  # a mask's last block goes beyond the end, whatever divides the size
    counted = replace(plan, dims=())  # no index runs over all of its dims
    wide = is_wide(counted)
    share = next((v for v in heads if v.name == SHARE), None)  # type: ignore[attr-defined]
    made = BlockPlan(
        plan, form, axes, configs, even, wide, axes.flat, share=share,
        together=_heads_together(z, x, configs), downward=sides.by_queries and hint(x.size) > SMALL,
    )  # fmt: skip
    return replace(made, reaches=reaches(counted)) if wide and plan.ints else made


def _roomy(configs: tuple[Config, ...], width: int, tiles: int) -> tuple[Config, ...]:
    """First those that leave a function of scores registers beside tiles and results."""

    def is_full(c: Config) -> bool:
        return c.block("x") * (tiles * c.block("r") + width) > ROOMY * 32 * c.warps

    return tuple(sorted(configs, key=is_full))


def _busy(configs: tuple[Config, ...], heads: int, rows: int) -> tuple[Config, ...]:
    """First one of which there are programs for a large machine; else one of the smallest."""
    counts = {c: heads * -(-rows // c.block("x")) for c in configs}
    enough = (c for c in configs if counts[c] >= PROGRAMS)
    first = next(enough, max(configs, key=counts.__getitem__))
    return (first, *(c for c in configs if c != first))


def _heads_together(z: Axis, x: Axis, configs: Sequence[Config]) -> int:
    """Heads of which programs take a block each in turn: those with most to do come first.

    Masks give the blocks of a head unequal work.  Of as many heads as keep a machine busy a few
    times over, caches still hold what the blocks of each meet.
    """
    blocks = -(-hint(x.size) // configs[0].block("x"))
    return min(-(-2 * PROGRAMS // blocks), hint(z.size)) if blocks > 1 else 1


def _together(plan: KernelPlan) -> tuple[Expr, ...]:
    """The dims of heads that share keys and values, where all rows of a head fit a small block."""
    p, skeleton = attention.parts(plan.stores, plan.parallel), plan.skeleton
    assert skeleton is not None
    few = extent(p.rows).hi
    if few is None or few > SMALL or (skeleton.slots and few > skeleton.sizes[0]):
        return ()
    met = {v for n in (p.key, p.value, *skeleton.slots) for v in n.vars}
    return tuple(v for v in plan.parallel[:-2] if v not in met and v.name != SHARE)  # type: ignore[attr-defined]


def divide(plan: KernelPlan) -> Phases | None:
    """Attention of few rows: programs go over shares of the keys, and a second kernel merges."""
    skeleton = plan.skeleton
    if skeleton is None or skeleton.kind != attention.KIND:
        return None
    p = attention.parts(plan.stores, plan.parallel)
    together = _together(plan)
    rows = size_hint(product(extent(v) for v in (*together, p.rows)), default=1 << 10)
    heads = [v for v in plan.parallel[:-2] if v not in together]
    programs = size_hint(product(extent(v) for v in heads), default=1 << 10) * -(-rows // SMALL)
    count = min(PROGRAMS // max(programs, 1), size_hint(extent(p.keys)) // SHORT)
    if count < 2 or rows > SMALL:
        return None
    share, each = var(SHARE, const(count)), var("shares", const(count))
    points, cells = plan.parallel[:-1], plan.parallel
    stores: list[Store] = []
    temps: list[Temporary] = []

    def left(value: Node, dims: tuple[Expr, ...]) -> Node:
        """A value of every share, in memory; as the second kernel reads it."""
        size = product(extent(v) for v in dims)
        t = Temporary(f"part{len(temps)}", F32, size * count)
        temps.append(t)
        stores.append(Store(t.name, share * size + linear(dims), value))
        return load(F32, t.name, each * size + linear(dims))

    out = left(attention.out_value(p.score, p.value, p.keys, F32), cells)
    total = left(attention.total_value(p.score, p.keys), points)
    best = left(attention.best_value(p.score, p.keys), points)
    merged = attention.merged(out, total, best, each, guarded=p.guarded)
    dims = (Dim(share, "p"), *plan.dims)
    first = replace(phase(plan, temps, dims, tuple(stores), None), skeleton=skeleton)
    read = {n.buffer: None for n in walk(skeleton.slots) if isinstance(n, Load)}
    params = (*first.params, *(q for q in plan.params if q.name in read and q not in first.params))
    plans = [replace(first, params=params)]
    for s, value in ((p.out, merged.out), (p.lse, merged.lse), (p.top, merged.top)):
        if s is not None:
            done = replace(s, value=cast(value, s.value.dtype))
            over = cells if s is p.out else points
            plans.append(normalised(plan, temps, over, (each,), (done,)))
    return Phases(tuple(plans), tuple(temps))


Tables = Mapping[int, Mapping[int, tuple[tuple[int, int, int, int], ...]]]


@dataclass(frozen=True, slots=True)
class _Sides:
    """What blocks are chosen by.

    rows, over, widths: the variables of rows, of what they meet, and within rows.  table: known
    blocks.  by_queries: whether rows are queries.  tiles: products of a step that are held at once.
    work: cost of what is computed of each score besides.
    """

    rows: Expr
    over: Expr
    widths: frozenset[Expr]
    dtype: DType
    table: Tables
    by_queries: bool
    tiles: int
    work: int


def _sides(plan: KernelPlan, form: Form) -> _Sides:
    if form == "attention":
        p = attention.parts(plan.stores, plan.parallel)
        widths, work = frozenset((p.inner, p.columns)), cost(attention.unmasked(p.score))
        return _Sides(p.rows, p.keys, widths, p.query.dtype, _ATTENTION, True, 1, work)
    g = attention.gradient_parts(plan.stores, plan.parallel)
    widths = frozenset((*(x.inner for x in g.products), *(s.column for s in g.sums)))
    by_queries = g.rows in g.shift.vars
    table = _OF_QUERIES if by_queries else _OF_KEYS
    work = BUSY if g.updates else 0
    return _Sides(
        g.rows, g.over, widths, g.products[0].left.dtype, table, by_queries, len(g.products), work
    )


# (rows, what they meet, warps, stages), the likeliest first, by an element's bytes and by the
# widest row that fits.
_ATTENTION: Final[Tables] = {
    2: {
        64: ((64, 128, 4, 2), (128, 64, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2)),
        128: ((128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 8, 3)),
        256: ((64, 32, 8, 2), (64, 64, 8, 2), (32, 32, 4, 2)),
    },
    4: {128: ((64, 32, 4, 2), (64, 16, 4, 2)), 256: ((32, 16, 4, 2), (16, 16, 4, 2))},
}
_OF_QUERIES: Final[Tables] = {
    2: {
        64: ((64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2)),
        128: ((128, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 2)),
        256: ((32, 32, 4, 1), (64, 32, 8, 1)),
    },
    4: {64: ((32, 32, 4, 2), (64, 32, 4, 1)), 128: ((32, 16, 4, 1),), 256: ((16, 16, 4, 1),)},
}
_OF_KEYS: Final[Tables] = {
    2: {
        64: ((64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2)),
        128: ((128, 64, 8, 3), (64, 64, 4, 2), (128, 64, 8, 2), (128, 32, 8, 3)),
        256: _OF_QUERIES[2][256],
    },
    4: _OF_QUERIES[4],
}


def _configs(
    known: Tables,
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
