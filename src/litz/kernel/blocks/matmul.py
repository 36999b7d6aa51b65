"""Recipes of matrix products: a block of the result, and blocks of both factors along the sum.

Axis z counts batches, y rows, x columns, r the sum.  Where few blocks of a result have long sums,
several programs share each: they leave parts in temporary memory, which a second kernel adds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from litz.index import (
    Expr,
    FloorDiv,
    Mod,
    Substitution,
    ceildiv,
    coefficient,
    const,
    divides,
    divisions,
    floordiv,
    product,
    var,
)
from litz.ir import body, matmul
from litz.ir.body import Index, Load, Node, Op, Rewriter, Store, cost, load, loads, replaced, walk
from litz.ir.dtype import BF16, STORED
from litz.ir.matmul import elements
from litz.kernel.blocks.reach import is_wide, reaches
from litz.kernel.blocks.recipe import Axes, Axis, BlockPlan, Config, Style
from litz.kernel.blocks.sizes import PROGRAMS, WARP, hint, power_of_two
from litz.kernel.merge import merge_loops
from litz.kernel.nodes import extent, int_value
from litz.kernel.phases import Phases, Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan
from litz.kernel.tiling import accesses_of, choose_tiling
from litz.passes.choose import OWN
from litz.passes.costs import LARGE

LEAST = 16  # of a side that matrix units take
TOGETHER = 8  # blocks of rows that programs go through together
FEW = 32  # rows up to which a product waits for memory alone
MANY = 512  # rows up to which packed numbers were measured as the left factor
OPEN = 64  # rows that an open size is taken for at least: thin blocks of many would be slow
SHARED = 200 << 10  # bytes that the blocks under way may take
FLIGHT = 40 << 10  # bytes that each multiprocessor waits for, so that memory has enough to do
STAGES = 8  # at most
BUSY = PROGRAMS // 4  # programs that give each multiprocessor of a large machine one
COMPUTED = 128 * 128  # elements of a block beside which registers hold factors that are computed
BEHIND = 400  # registers that a thread has for what is behind a sum, as ``held`` counts them
STEPS = 2  # cost of a factor's element from which it counts as computed: casts do not
RESIDENT = 16  # warps of a multiprocessor that hide each other's steps where factors are computed
SIDE = 16  # columns of a block for each warp then, so that what they compute stays in registers
TEAM = 4  # warps then that wait for each other: others of the multiprocessor run meanwhile
IDLE = 9 / 8  # blocks along a sum that programs have time for, of those that there are
PART = 512  # elements of a sum that are worth a program of their own
WIDEN = 3  # operations that it takes to bring a factor's element to matrix units, beside its own

# Blocks of rows, columns and sum, warps and stages, for 16-bit factors; the likeliest first.  Thin
# ones have as many stages as memory needs bytes under way.
Block = tuple[int, int, int, int, int]
THIN: Final[tuple[Block, ...]] = (
    (16, 64, 256, 4, 0), (16, 32, 256, 4, 0), (16, 64, 128, 4, 0), (16, 128, 128, 4, 0),
    (16, 32, 512, 4, 0), (16, 64, 256, 8, 0), (32, 64, 128, 4, 0), (32, 32, 256, 4, 0),
    (16, 64, 128, 2, 0), (32, 128, 128, 4, 0),
)  # fmt: skip
WIDE: Final[tuple[Block, ...]] = (
    (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
    (64, 64, 64, 4, 4), (128, 128, 64, 4, 3), (256, 128, 64, 8, 3), (64, 256, 64, 8, 3),
    (64, 64, 128, 4, 3), (64, 32, 128, 4, 4), (32, 128, 64, 4, 4),
)  # fmt: skip
TURNED: Final[tuple[Block, ...]] = (
    (128, 128, 128, 8, 4), (64, 128, 128, 8, 4), (64, 64, 128, 4, 4), (128, 64, 128, 4, 3),
    (64, 128, 128, 4, 4), (64, 128, 128, 8, 3), (128, 128, 128, 8, 3),
)  # fmt: skip
SINGLE: Final[tuple[Block, ...]] = (
    (64, 64, 32, 8, 2), (64, 32, 32, 4, 2), (32, 64, 32, 4, 2), (16, 64, 32, 4, 3),
    (128, 64, 16, 8, 2),
)  # fmt: skip


def in_blocks(plan: KernelPlan, style: Style) -> BlockPlan:
    """One program for a block of one result."""
    plan, unrolled = _unrolled(_turned(plan))
    p = matmul.parts(plan.stores, plan.parallel)
    axes = _axes(p, unrolled)
    y, x, r = axes.blocked
    turns = math.prod(int_value(extent(v)) for v in unrolled)
    configs = _configs(p, axes, (1,), turns, matmul.held(plan.stores))
    if not style.widely:
        configs = configs[:1]
    even = frozenset(
        a.name
        for a in (y, x, r)
        if a.size.is_const and all(int_value(a.size) % c.block(a.name) == 0 for c in configs)
        if a is not y or p.group is None
        if a is not r or all(_ends_whole(p, unrolled, c.block("r")) for c in configs)
    )
    count = 0 if p.which is None else min(int_value(extent(p.which)), hint(y.size))
    beyond = count * max(c.block("y") for c in configs)
    counted = replace(plan, dims=())  # no index runs over all of its dims
    wide = is_wide(counted)
    several = hint(y.size) > TOGETHER * configs[0].block("y") // 2
    factors = (scaled(n, p, max(c.block("r") for c in configs)) for n in (p.left, p.right))
    made = BlockPlan(
        plan, "matmul", axes, configs, even, wide, axes.flat,
        unrolled=unrolled, beyond=beyond, together=TOGETHER if several and not count else 1,
        scale=next((found[1] for found in factors if found is not None), None),
    )  # fmt: skip
    return replace(made, reaches=reaches(counted)) if wide and plan.ints else made


def _axes(p: matmul.Parts, unrolled: tuple[Expr, ...] = ()) -> Axes:
    parallel = Axis("z", p.batch), Axis("y", p.rows), Axis("x", p.columns)
    return Axes(parallel, Axis("r", tuple(v for v in p.inner if v not in unrolled)))


def sum_end(p: matmul.Parts, unrolled: Sequence[Expr]) -> Expr | None:
    """Where the sum of a program ends, if not where its axis does.

    The place at which it does counts that axis in steps that divide all parts of a sum.
    """
    if p.end is None:
        return None
    (k,), (place, size) = (v for v in p.inner if v not in unrolled), p.end
    step = coefficient(place, k)
    assert step is not None
    return floordiv(size - Substitution(dict.fromkeys(p.inner, const(0)))(place), step)


def _ends_whole(p: matmul.Parts, unrolled: Sequence[Expr], block: int) -> bool:
    """Whether blocks along the sum end where it does."""
    if (end := sum_end(p, unrolled)) is None:
        return True
    at = Substitution(dict.fromkeys(p.batch, const(0)))(end)
    return at.is_const and int_value(at) % block == 0


def _turned(plan: KernelPlan) -> KernelPlan:
    """A plan whose factor that is computed from packed numbers is the left one.

    Matrix units take the left factor from registers, where it is computed; the right one they read
    from shared memory, into which it was copied.
    """
    p = matmul.parts(plan.stores, plan.parallel)
    packed = isinstance(p.left, Load) and _is_computed(p) and _fine(p)
    rows = hint(_axes(p).blocked[0].size)
    if not packed or p.group is not None or not FEW < rows <= MANY:
        return plan
    made = replace(plan, stores=replaced(plan.stores, {p.product: matmul.turned(p)}))
    _, unrolled = _unrolled(made)
    paired = unrolled and int_value(extent(unrolled[0])) > math.lcm(*_fine(p))
    return made if paired else plan


def _is_turned(p: matmul.Parts) -> bool:
    """Whether the left factor alone is computed, from bytes."""
    small = any(n.dtype.bytes == 1 for n in loads((p.left,)) if p.inner[0] in n.vars)
    return small and _is_computed(p) and isinstance(p.right, Load) and not isinstance(p.left, Load)


def _fine(p: matmul.Parts) -> list[int]:
    """The steps in which factors cut a sum finely, as packed numbers do."""
    return [s for s in _cuts(p, p.inner[0]) if s < LEAST]


def _unrolled(plan: KernelPlan) -> tuple[KernelPlan, tuple[Expr, ...]]:
    """A plan whose sum is cut where factors cut it finely, as packed numbers do; and the cut dim.

    What lies in one byte is then read once, and known by a constant of each product.  Bytes of the
    left factor are read in pairs: matrix units take pairs of its elements.
    """
    p = matmul.parts(plan.stores, plan.parallel)
    (k, *more) = p.inner
    steps = _fine(p)
    count = math.lcm(*steps)
    if more or not steps or not extent(k).is_const or int_value(extent(k)) % count:
        return plan, ()

    def cut(count: int) -> tuple[KernelPlan, tuple[Expr, ...]]:
        outer, inner = var("r0", int_value(extent(k)) // count), var("r1", count)
        move = Rewriter(Substitution({k: outer * count + inner}))
        dims = (*(d for d in plan.dims if d.var is not k), Dim(outer, "r"), Dim(inner, "r"))
        return replace(plan, dims=dims, stores=tuple(map(move.store, plan.stores))), (inner,)

    if int_value(extent(k)) % (2 * count) == 0:
        made, (inner,) = cut(2 * count)
        q = matmul.parts(made.stores, made.parallel)
        small = [n for n in loads((q.left,)) if n.dtype.bytes == 1 and inner in n.vars]
        if small and all(pair_of_bytes(n, inner, made.dims[-2].var) is not None for n in small):
            return made, (inner,)
    return cut(count)


def pair_of_bytes(n: Load, inner: Expr, outer: Expr) -> Expr | None:
    """The place, in pairs of bytes, of what a load takes one byte of in turns of ``inner``."""
    rest = n.index - outer * 2 - floordiv(inner, int_value(extent(inner)) // 2)
    if n.indirect or n.dtype.bytes > 1 or {inner, outer} & {*rest.free} or not divides(2, rest):
        return None
    return floordiv(rest, 2) + outer


def _configs(
    p: matmul.Parts, axes: Axes, counts: Sequence[int] = (1,), turns: int = 1, held: float = 1.0
) -> tuple[Config, ...]:
    """Blocks to choose from, the likeliest first: as large as the result fills the machine with.

    counts: how many programs may share a sum.  turns: elements of it at each place of its axis.
    held: registers that an element of the result takes behind its sum.
    """
    turned = _is_turned(p)
    turns = turns if turned else 1
    p, (z, y, x, r) = _facing(p, axes)
    if not axes.blocked[1 if turned else 0].size.is_const:
        y = max(y, OPEN)
    if p.which is not None:
        z, y = hint(extent(p.which)), -(-y // hint(extent(p.which)))
    element = p.left.dtype.bytes
    table = SINGLE if element > 2 else THIN if y <= FEW else TURNED if turned else WIDE
    most = min(groups(p), default=1 << 30)  # within a block, no scale changes
    r, most = r * turns, most * turns
    small = 2 // element or 1  # as many bytes of bytes
    # Sums of 8-bit floats have two accumulators.
    plain = p.left.dtype not in STORED and all(isinstance(n, Load) for n in (p.left, p.right))
    width = _width(p)
    computed, weighed = _is_computed(p), _is_weighed(p, y)
    found: dict[Config, bool] = {}  # whether threads have the registers
    team = SIDE * TEAM if y <= FEW and computed else 1 << 30

    def order(b: Block) -> tuple[bool, float]:
        if weighed:
            return False, min(_seconds(p, b, (z, y, x, r), n) for n in counts)
        return b[1] > team, _turns(b, z, y, x)

    for block in sorted(table, key=order):
        (m, n), (_, _, k, warps, stages) = _sides(block, y, x), block
        warps = max(1, n // SIDE) if y <= FEW and computed or turned and n < block[1] else warps
        k = max(LEAST * small, min(k * small, power_of_two(r), most))
        if not stages:
            beside = max(1, z * -(-y // m) * -(-x // n) // BUSY)  # programs on a multiprocessor
            stages = max(3, min(STAGES, 1 - -FLIGHT // (beside * n * k * width)))
        fits = m * n <= COMPUTED or plain
        if stages * (m * element + n * width) * k <= SHARED and fits:
            sides = (("y", n), ("x", m)) if turned else (("y", m), ("x", n))
            made = Config((*sides, ("r", max(LEAST, k // turns))), warps, stages)
            found[made] = m * n * held <= BEHIND * WARP * warps
    return tuple(c for c in found if found[c] or not any(found.values()))


def _facing(p: matmul.Parts, axes: Axes) -> tuple[matmul.Parts, tuple[int, ...]]:
    """A product with the factor that is read as it is on the left, and its sizes."""
    z, y, x, r = (hint(a.size) for a in axes.all)
    if _is_turned(p):
        return replace(p, left=p.right, right=p.left), (z, x, y, r)
    return p, (z, y, x, r)


def _sides(block: Block, y: int, x: int) -> tuple[int, int]:
    """Rows and columns of a block of a result of so many."""
    m, n, *_ = block
    return max(LEAST, min(m, power_of_two(y))), max(LEAST, min(n, power_of_two(x)))


def _width(p: matmul.Parts) -> int:
    """Bytes of an element in memory that the right factor is computed from."""
    return min((n.dtype.bytes for n in loads((p.right,)) if p.inner[0] in n.vars), default=2)


def _is_computed(p: matmul.Parts) -> bool:
    return max(cost(p.left), cost(p.right)) > STEPS


def _turns(block: Block, z: int, y: int, x: int) -> float:
    """How long a machine takes with blocks of a size: turns of all its processors, by their work.

    Larger blocks read less for each operation.
    """
    m, n = _sides(block, y, x)
    programs = z * -(-y // m) * -(-x // n)
    return -(-programs // BUSY) * m * n * (1 + 64 / m + 64 / n)


def _is_weighed(p: matmul.Parts, y: int) -> bool:
    """Whether rows are many, and the other factor is not read as matrix units take it."""
    computed = isinstance(p.left, Load) and not isinstance(p.right, Load)
    return y > FEW and computed and p.group is None


def _seconds(p: matmul.Parts, block: Block, sizes: tuple[int, ...], count: int) -> float:
    """How long a large machine takes with blocks of a size where ``count`` programs share a sum.

    Memory, the cache from which each block reads its rows and columns, matrix units, and the warps
    that compute factors and hide each other's steps work at a time; the slowest counts.  Beside it
    each program on a processor fills its pipeline, and begins each turn of its loop anew.
    """
    (z, y, x, r), (_, _, k, warps, _) = sizes, block
    m, n = _sides(block, y, x)
    high, wide, element, width = -(-y // m), -(-x // n), p.left.dtype.bytes, _width(p)
    programs = z * high * wide * count
    each = -(-programs // BUSY)  # one after another, or beside each other
    idle = each * BUSY / programs
    work = 2 * z * high * m * wide * n * r / (OWN * LARGE.matrix)
    hidden = math.sqrt(min(1, each * warps / RESIDENT))
    computed = z * high * x * r * (WIDEN + cost(p.right)) / (LARGE.single * hidden)
    cached = z * r * (wide * y * element + high * x * width) / LARGE.cache
    memory = z * r * (y * element + x * width) / LARGE.memory
    loops = each * (LARGE.fill + r / (k * count) * LARGE.turn)
    parts = 2 * count * z * y * x * p.product.dtype.bytes / LARGE.memory + LARGE.launch
    return max(idle * max(work, computed, cached), memory) + loops + (parts if count > 1 else 0)


def positions(p: matmul.Parts, block: int) -> dict[int, Expr]:
    """Variables for what the place in the sum is divided by, where blocks divide that in turn."""
    size = extent(p.inner[0])
    return {g: var(f"s{g}", ceildiv(size, const(g))) for g in groups(p) if g % block == 0}


def scaled(n: Node, p: matmul.Parts, block: int) -> tuple[Node, Node] | None:
    """A factor without what multiplies it that is the same all along a block of the sum, and that.

    Sums of such blocks are multiplied once, and what is summed is not rounded before it is.  The
    range of bfloat16 is that of the sums, so that nothing is finite then that was infinite.
    """
    if not (isinstance(n, Op) and n.name == "cast" and n.dtype is BF16):
        return None
    (product,) = n.args
    if not (isinstance(product, Op) and product.name == "mul"):
        return None
    if not all(
        isinstance(a, Op) and a.name == "cast" and a.args[0].dtype is BF16 for a in product.args
    ):
        return None
    (a,), (b,) = (x.args for x in product.args)
    k, *_ = p.inner
    fixed = Rewriter(Substitution({floordiv(k, g): v for g, v in positions(p, block).items()}))
    for value, scale in ((a, b), (b, a)):
        if not {*p.inner} & {*fixed(scale).vars}:
            return value, scale
    return None


def groups(p: matmul.Parts) -> tuple[int, ...]:
    """Steps of the sum in which a factor's scales change, where blocks can be as long: powers of 2.

    Such scales are read at ``k // step``.
    """
    return tuple(s for s in _cuts(p, p.inner[0], (FloorDiv,)) if s >= LEAST and s & (s - 1) == 0)


def _cuts(
    p: matmul.Parts, v: Expr, kinds: tuple[type[Expr], ...] = (FloorDiv, Mod)
) -> tuple[int, ...]:
    """The constants that a reduced dim is divided by in the factors."""
    nodes = list(walk((p.left, p.right)))
    exprs = [n.index for n in nodes if isinstance(n, Load)]
    exprs += [n.expr for n in nodes if isinstance(n, Index)]
    found = (d for d in divisions(exprs) if isinstance(d, kinds) and d.num is v and d.den.is_const)
    return tuple(dict.fromkeys(int_value(d.den) for d in found))


# --- sums that programs share ---------------------------------------------------------------------


def divide(plan: KernelPlan) -> Phases | None:
    """A product of parts of long sums, and the sum of these; None where one kernel serves."""
    plan = _turned(plan)
    p = matmul.parts(plan.stores, plan.parallel)
    if len(p.inner) != 1 or p.group is not None or not extent(p.inner[0]).is_const:
        return None
    (k,) = p.inner
    inner = int_value(extent(k))
    count, part = _parts(p, inner)
    if count < 2:
        return None
    which, within, back = var("xpart", count), var("rpart", part), var("rparts", count)
    points, at = product(extent(v) for v in plan.parallel), linear(plan.parallel)
    t = Temporary("part0", p.product.dtype, points * count)
    move = Rewriter(Substitution({k: which * part + within}))
    summed = move(p.product.args[0])
    if part * count > inner:
        summed = matmul.guarded(summed, which * part + within, const(inner))
    of_part = body.reduce("sum", (within,), summed)
    first = _phase(
        plan, t, (which, *plan.parallel), (within,),
        (Store(t.name, which * points + at, of_part),), lane=False,
    )  # fmt: skip
    whole = body.reduce("sum", (back,), load(t.dtype, t.name, back * points + at))
    last = _phase(plan, t, plan.parallel, (back,), replaced(plan.stores, {p.product: whole}))
    return Phases((replace(first, skeleton=plan.skeleton), last), (t,))


def _parts(p: matmul.Parts, inner: int) -> tuple[int, int]:
    """How many programs share a sum, and its elements in each but for the last."""
    axes = _axes(p)
    given, turned = p, _is_turned(p)
    p, sizes = _facing(given, axes)
    z, y, x, _ = sizes
    weighed = _is_weighed(p, y)
    counts = [1 << n for n in range(inner.bit_length()) if n == 0 or inner >> n >= PART]
    c = _configs(given, axes, counts if weighed else (1,))[0]
    parts = {n: part for n in counts if (part := _part(inner, c.block("r"), n))}
    if weighed:
        rows, columns = ("x", "y") if turned else ("y", "x")
        block = (c.block(rows), c.block(columns), c.block("r"), c.warps, c.stages)
        return min(parts.items(), key=lambda n: _seconds(p, block, sizes, n[0]), default=(1, inner))
    blocks = 1
    for a in axes.parallel:
        blocks *= -(-hint(a.size) // c.block(a.name))
    # Warps that compute factors wait for their own steps: others of the multiprocessor fill in.
    beside = BUSY * (RESIDENT if y <= FEW and _is_computed(p) else 0)
    through = 2 * z * y * x * p.product.dtype.bytes  # bytes that each part writes and reads again
    most = elements(p.right.vars) * _width(p) // 8
    found = 1, inner
    for n, part in parts.items():
        few = n * blocks <= BUSY
        if not few and (n * blocks * c.warps > beside or n * through > most):
            break
        found = n, part
    return found


def _part(inner: int, step: int, count: int) -> int:
    """Elements of one of ``count`` parts, in blocks of ``step``; 0 where there are too few.

    The last part may have fewer blocks, as long as that leaves little idle.
    """
    blocks = inner // step
    each = -(-blocks // count)
    whole = inner % step == 0 and (count - 1) * each < blocks
    fits = whole and each * count <= IDLE * blocks and each * step >= PART
    return each * step if fits else 0


def _phase(
    plan: KernelPlan,
    t: Temporary,
    parallel: tuple[Expr, ...],
    reduced: tuple[Expr, ...],
    stores: tuple[Store, ...],
    lane: bool = True,
) -> KernelPlan:
    if not lane:
        dims = (*(Dim(v, "p") for v in parallel), *(Dim(v, "r") for v in reduced))
        return phase(plan, (t,), dims, stores, None)
    axes, reduced, merged = merge_loops(parallel, reduced, stores)
    sizes = {x.name: x.dtype.bytes for x in plan.params} | {t.name: t.dtype.bytes}
    tiling = choose_tiling(axes, reduced, accesses_of(merged, sizes))
    dims = (*(Dim(v, "p") for v in tiling.parallel), *(Dim(v, "r") for v in reduced))
    return replace(phase(plan, (t,), dims, merged, tiling.lane), tile=tiling.tile)
