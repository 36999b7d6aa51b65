"""From a plan to its recipe in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from litz.index import Expr, coefficient, const, divides, size_hint
from litz.ir import matmul as product
from litz.ir.body import Load, Reduce, Scan, is_even, walk
from litz.ir.body import loads as loads_of
from litz.ir.reductions import by_update
from litz.ir.scans import sorts_of
from litz.kernel.blocks import attention, crossed, lookback, matmul, split
from litz.kernel.blocks.axes import choose_axes
from litz.kernel.blocks.draws import WORDS, odd_draws, shared_draws
from litz.kernel.blocks.narrow import flushed, narrow
from litz.kernel.blocks.nest import in_nest
from litz.kernel.blocks.places import pairs_of
from litz.kernel.blocks.reach import is_wide, reaches
from litz.kernel.blocks.recipe import GRID, Axes, BlockPlan, BlockRecipe, Config, Form, Style
from litz.kernel.blocks.sizes import (
    apart,
    choose_configs,
    is_persistent,
    narrowest,
    run_of,
    unheld,
    unlooped,
    widened,
)
from litz.kernel.blocks.turns import at_once, in_turns
from litz.kernel.moments import simplify
from litz.kernel.nodes import extent, int_value, roots, row_start
from litz.kernel.passes import choose_passes, pairs, reductions
from litz.kernel.phases import Phases
from litz.kernel.plan import KernelPlan
from litz.kernel.values import Values

BLOCKS = 256  # of fewer a GPU holds most at once, so that not their accesses take the time
LINES = 64  # nodes of a body that two copies of it may have: more compute longer than they load


def choose(plan: KernelPlan, style: Style = Style()) -> BlockRecipe:  # noqa: B008
    """One kernel, several where few rows are long, none where no point is.

    In the way of ``style.reduction`` where that is possible.
    """
    if any(extent(v).is_const and int_value(extent(v)) == 0 for v in plan.parallel):
        return BlockRecipe(plan, (), style=style)
    if style.reduction and not isinstance(made := in_way(plan, style, style.reduction), str):
        return made
    several = _divided(plan)
    return _recipe(plan, style, several or Phases((plan,), ()))


def _recipe(plan: KernelPlan, style: Style, phases: Phases) -> BlockRecipe:
    kernels = tuple(in_blocks(p, style) for p in phases.plans)
    return BlockRecipe(plan, kernels, phases.temps, style)


def in_way(plan: KernelPlan, style: Style, way: str) -> BlockRecipe | str:
    """The recipe of a plan that reduces in one of ``WAYS``, or why it cannot."""
    if plan.skeleton is not None or not plan.reduced:
        return "it is a template" if plan.skeleton is not None else "it reduces nothing"
    if is_serial(plan) or not is_even(plan.stores, plan.reduced):
        return "its reductions run in loops of their own"
    if way in ("split", "lookback"):
        several = (split if way == "split" else lookback).divide(plan, wanted=True)
        why = lookback.why_not(plan) if way == "lookback" else "its rows cannot be divided"
        return _recipe(plan, style, several) if several else why
    reason = unheld(plan) if way == "persistent" else unlooped(plan)
    held = way == "persistent"
    return reason or BlockRecipe(plan, (in_blocks(plan, style, held),), style=style)


def _divided(plan: KernelPlan) -> Phases | None:
    if plan.skeleton is None:
        return crossed.divide(plan) or split.divide(plan)
    if plan.skeleton.kind == product.KIND:
        return matmul.divide(plan)
    return attention.divide(plan)


def in_blocks(plan: KernelPlan, style: Style, held: bool | None = None) -> BlockPlan:
    """One plan as one kernel.  held: whether a block holds all of a row (None: by its size)."""
    made = _in_form(plan, style, held)
    stores = made.plan.stores
    return replace(made, narrow=narrow(stores), flushed=flushed(stores), shared=shared_draws(made))


def _in_form(plan: KernelPlan, style: Style, held: bool | None) -> BlockPlan:
    if plan.skeleton is not None:
        if plan.skeleton.kind == product.KIND:
            return matmul.in_blocks(plan, style)
        return attention.in_blocks(plan, style)
    wide = is_wide(plan)
    serial = is_serial(plan)
    if lookback.looks_back(plan):
        made = _looking_back(plan, wide, style)
    elif serial or not is_even(plan.stores, plan.reduced):
        rows = None if serial else crossed.in_blocks(plan, wide)
        made = rows or in_nest(plan, "serial" if serial else "nest", wide)
    else:
        made = _blocks(plan, wide, style, held)
    return replace(made, reaches=reaches(plan)) if wide and plan.ints else made


def is_serial(plan: KernelPlan) -> bool:
    """Whether a store updates memory in a way in which programs cannot at once."""
    return any(
        s.mode != "set" and plan.dtype(s.buffer).name not in by_update(s.mode).triton_atomic
        for s in plan.stores
    )


def _blocks(plan: KernelPlan, wide: bool, style: Style, held: bool | None) -> BlockPlan:
    plan, axes = (plan, choose_axes(plan)) if style.block_pointers else in_turns(plan)
    persistent = is_persistent(plan, axes) if held is None else held
    plan = replace(plan, stores=simplify(plan.stores, lambda n: persistent))
    configs = choose_configs(plan, axes, persistent)
    rows = None
    if not style.block_pointers:
        rows = _held_rows(plan, configs) if persistent else _odd_rows(plan)
    if rows is not None and not persistent:
        single = tuple(c for c in configs if c.block("x") == 1)
        configs, rows = (single, rows) if single else (configs, None)
    if style.widely:
        even = axes.even(configs[:1])
        configs = widened(configs, even, axes, persistent, single=bool(rows) and not persistent)
    form: Form = "once" if axes.reduced is None else "persistent" if persistent else "passes"
    values = Values(axes.of_dims)
    reduces = reductions(values, plan.stores)
    totals = pairs(reduces)
    passes = choose_passes(plan, reduces, totals, values) if form == "passes" else ()
    even = axes.even(configs)
    parts_first = form == "once" and _parts_first(plan, axes, configs)
    return BlockPlan(
        plan,
        form,
        axes,
        configs,
        even,
        wide,
        int_value(axes.parallel[-1].size) > GRID if parts_first else axes.flat,
        passes,
        tuple(totals.items()),
        _neighbours(plan, configs[0]) if totals and passes else 1,
        rows=rows,
        backward=_backward(plan, style),
        run=1 if style.block_pointers or len(axes.blocked) > 2 else run_of(plan, configs),
        at_once=at_once(plan) if axes.turns else 1,
        inside=form == "once" and not style.block_pointers and _inside(plan, axes, configs),
        pairs=form == "once" and not style.block_pointers and _in_pairs(plan, configs[0]),
        parts_first=parts_first,
    )


def _looking_back(plan: KernelPlan, wide: bool, style: Style) -> BlockPlan:
    axes = choose_axes(plan)
    configs = lookback.configs_of(plan, axes)
    words = lookback.NAME, lookback.group_of(configs)
    even = axes.even(configs)
    return BlockPlan(
        plan,
        "lookback",
        axes,
        configs,
        even,
        wide,
        flat=True,
        words=words,
        backward=_backward(plan, style),
        early=lookback.is_early(plan, configs),
        run=1 if style.block_pointers else run_of(plan, configs),
    )


def _backward(plan: KernelPlan, style: Style) -> bool:
    """Whether most of what scans go through lies in memory the other way round."""
    found = list(walk(roots(plan.stores)))
    kinds = {Scan, Reduce} & {type(n) for n in found}
    if kinds != {Scan} or plan.lane not in plan.reduced or style.block_pointers:
        return False
    if len(plan.reduced) > 1 or sorts_of(plan.stores):
        return False
    size = {p.name: p.dtype.bytes for p in plan.params}
    places = [(n.buffer, n.index) for n in found if isinstance(n, Load) and not n.indirect]
    places += [(s.buffer, s.index) for s in plan.stores]
    (v,) = plan.reduced
    steps = [(coefficient(e, v), size[b]) for b, e in dict.fromkeys(places)]
    return sum((c is const(-1)) * n - (c is const(1)) * n for c, n in steps) > 0


def _inside(plan: KernelPlan, axes: Axes, configs: Sequence[Config]) -> bool:
    """Whether masks cost more than a second copy of the lines: many blocks, no whole accesses."""
    size, block = axes.parallel[-1].size, max(c.block("x") for c in configs)
    if len(axes.parallel) > 1 or plan.lane not in axes.parallel[0].dims[-1:]:
        return False
    uneven = size_hint(size) % (16 // narrowest(plan)) != 0
    return (
        uneven and size_hint(size) >= BLOCKS * block and len(set(walk(roots(plan.stores)))) <= LINES
    )


def _parts_first(plan: KernelPlan, axes: Axes, configs: Sequence[Config]) -> bool:
    """Whether rows of several blocks are looked up, whole: some of them more than once maybe."""
    z, *others = axes.parallel
    if z.name != "z" or len(others) != 1:
        return False
    (x,) = others
    found = [n for n in loads_of(roots(plan.stores)) if n.indirect and plan.lane in n.index.free]
    where = [frozenset(v for _, data in n.indirect for v in data.vars) for n in found]
    whole = any(dims & {*z.dims} and not dims & {*x.dims} for dims in where)
    return whole and int_value(x.size) > max(c.block("x") for c in configs)


def _in_pairs(plan: KernelPlan, config: Config) -> bool:
    """Whether pairs are accesses of their own.

    Threads with several points exchange what they load so: not beside loads that lie apart anyway.
    """
    points = prod(n for _, n in config.blocks)
    return any(pairs_of(plan)) and (points <= 32 * config.warps or not apart(plan))


def _neighbours(plan: KernelPlan, config: Config) -> int:
    """Elements along the reduced axis that one thread loads at once."""
    if plan.lane not in plan.reduced:
        return 1
    return max(1, min(16 // narrowest(plan), config.block("r")))


def _any_order(plan: KernelPlan) -> bool:
    """Whether nothing searches for the first place of something along rows, or scans them."""
    found = [n for n in walk(roots(plan.stores)) if isinstance(n, Scan | Reduce)]
    return not any(isinstance(n, Scan) or n.row.positional for n in found)


def _held_rows(plan: KernelPlan, configs: Sequence[Config]) -> tuple[Expr, int] | None:
    """Where odd rows begin, if blocks should hold them from the multiple of four before that.

    So four neighbours share a call of the generator of random numbers.
    """
    start = odd_draws(plan)
    if start is None or not _any_order(plan):
        return None
    room = min(c.block("r") for c in configs) - int_value(extent(plan.reduced[0]))
    return (start, WORDS) if room >= WORDS - 1 else None


def _odd_rows(plan: KernelPlan) -> tuple[Expr, int] | None:
    """Where the rows of most bytes begin, if whole accesses of 16 bytes do not divide them.

    With it, the elements of such an access.  Their first elements then come last, so that neither a
    search for the first place of something nor a scan may run along them.
    """
    if len(plan.reduced) != 1 or plan.lane is not plan.reduced[0]:
        return None
    if not _any_order(plan):
        return None
    v = plan.lane
    size = {p.name: p.dtype.bytes for p in plan.params}
    whole = 16 // narrowest(plan)
    loads = [n for n in loads_of(roots(plan.stores)) if not n.indirect]
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
