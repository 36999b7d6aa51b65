"""Recipes of attention: a thread keeps a block of queries and their results as float32.

It goes over blocks of keys, whose scores it keeps too: products in register tiles, then the body
that modifies them with vectors along keys, then weights, then what these add to the results.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.index import Expr, coefficient, const, product, size_hint
from litz.ir import attention
from litz.ir.body import Load, Op, walk
from litz.ir.dtype import F32
from litz.ir.ops import op as op_row
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.lanes.reuse import NEAREST
from litz.kernel.lanes.space import CACHED, Space, separate
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import KernelPlan

ROWS = 64  # queries of a block: what is done once a key block, to turn it, is little beside them
KEYS = 128  # of a block
TILE = 4  # rows of a register tile
MANY = 16  # lanes of machines with 32 registers of vectors, half of which hold sums


def in_lanes(plan: KernelPlan, lanes: int) -> LanePlan:
    """One kernel whose threads divide batches, heads and blocks of queries."""
    if plan.skeleton is not None and plan.skeleton.kind == attention.GRADIENT:
        return gradient_in_lanes(plan, lanes)
    p = attention.parts(plan.stores, plan.parallel)
    shared = _shared(plan, p)
    units = tuple(v for v in plan.parallel[:-1] if v not in shared)
    space = Space(units, (*shared, p.columns), plan.reduced, p.keys)
    heads = int_value(product(extent(v) for v in shared))
    inner, columns = (padded(v, lanes) for v in (p.inner, p.columns))
    sizes = plan.skeleton.sizes if plan.skeleton is not None else ()
    rows_most, keys_most = sizes or (ROWS, KEYS)
    keys = KEYS
    while keys > lanes and keys * 4 * max(inner, columns) > NEAREST // 2:
        keys //= 2
    keys = max(lanes, min(keys, keys_most, _power(p.keys)))
    rows = min(ROWS, rows_most, _power(p.rows))
    while rows > TILE and rows * heads * 4 * (inner + columns + keys) > CACHED // 2:
        rows //= 2
    kept = tuple(_kept(p, lanes, rows * heads))
    tile = min(TILE, rows * heads)
    vectors = min(8, (16 if lanes >= MANY else 8) // tile)
    ops = sum(op_row(n.name).cost for n in walk((p.score,)) if isinstance(n, Op))
    points = product(extent(v) for v in (*plan.parallel[:-1], p.keys))
    return LanePlan(
        plan,
        space,
        "attention",
        lanes,
        points * (inner + columns + ops),
        (rows, keys),
        kept=kept,
        tile=(tile, vectors),
    )


def gradient_in_lanes(plan: KernelPlan, lanes: int) -> LanePlan:
    """One kernel whose threads divide batches, heads and blocks of rows that updates tell apart."""
    p = attention.gradient_parts(plan.stores, plan.parallel)
    columns = tuple(s.column for s in p.sums)
    dims = tuple(v for v in plan.parallel if v not in columns)
    units = separate(p.updates, dims)
    widths = [padded(v, lanes) for v in (*(x.inner for x in p.products), *columns)]
    sizes = plan.skeleton.sizes if plan.skeleton is not None else ()
    rows_most, most = sizes or (ROWS, KEYS)
    met = max(lanes, min(KEYS // 2, most, _power(p.over)))
    rows = min(ROWS, rows_most, _power(p.rows))
    while rows > TILE and rows * 4 * (sum(widths) + 2 * met) > CACHED:
        rows //= 2
    tile = min(TILE, rows)
    bodies = walk([*(s.tile for s in p.sums), *(r for s in p.updates for r in s.roots()), p.score])
    ops = sum(op_row(n.name).cost for n in bodies if isinstance(n, Op))
    heads = () if p.heads is None else (p.heads,)
    points = product(extent(v) for v in (*dims, *heads, p.over))
    return LanePlan(
        plan,
        Space(units, (*(v for v in dims if v not in units), *columns), plan.reduced, p.over),
        "gradient",
        lanes,
        points * (sum(widths) + ops),
        (rows, met),
        tile=(tile, min(8, (16 if lanes >= MANY else 8) // tile)),
    )


def _shared(plan: KernelPlan, p: attention.Parts) -> tuple[Expr, ...]:
    """The dim of heads that share their keys, where a block holds the queries of them all."""
    slots = plan.skeleton.slots if plan.skeleton is not None else ()
    fixed = {v for n in walk((p.key, p.value, *slots)) for v in n.vars}
    dims = [v for v in plan.parallel[-3:-2] if v not in fixed and extent(v).is_const]
    return tuple(v for v in dims if int_value(extent(v)) * _power(p.rows) <= ROWS)


def _kept(p: attention.Parts, lanes: int, rows: int) -> Iterator[Load]:
    """Operands that are copied, block by block.

    A key is turned unless so few rows read it that they take it as it lies; a value is copied if it
    lies apart or is to be widened many times.
    """
    few = rows <= TILE
    yield p.query
    if not few or coefficient(p.key.index, p.inner) is not const(1):
        yield p.key
    width = const(padded(p.columns, lanes))
    whole = coefficient(p.value.index, p.columns) is const(1) and extent(p.columns) is width
    together = coefficient(p.value.index, p.keys) is width and p.value.dtype is F32
    if not whole or not (few or together):
        yield p.value


def padded(v: Expr, lanes: int) -> int:
    """A row's elements in whole vectors."""
    return -(-int_value(extent(v)) // lanes) * lanes


def _power(v: Expr) -> int:
    """The power of two that holds all of an axis, as far as its size is known."""
    n = max(1, size_hint(extent(v), 1 << 10))
    return 1 << (n - 1).bit_length()
