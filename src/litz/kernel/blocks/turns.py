"""Rows that look up the same places: a program goes through several of them in turns.

Channels of an image that is sampled, say: where to look, and what to weigh what is there with, is
computed once for all of them, and addresses of one are so many elements behind those of another.
"""

from __future__ import annotations

from dataclasses import replace

from litz.index import Expr, Substitution, const, var
from litz.ir.body import Load, Op, Rewriter, loads, walk
from litz.ir.ops import op
from litz.kernel.blocks.axes import SHARED, choose_axes
from litz.kernel.blocks.recipe import Axes, Axis
from litz.kernel.nodes import extent, int_value, is_draw, roots
from litz.kernel.plan import Dim, KernelPlan

TURNS = 8
LOOKUPS = 64  # of a thread in all turns
AT_ONCE = 16  # of a thread under way: where places are far apart, caches serve few rows at a time
WORTH = 2 * SHARED  # cost of what rows share, from which turns are worth it


def in_turns(plan: KernelPlan) -> tuple[KernelPlan, Axes]:
    """The plan and its axes: t among them, with a loop of its own, where there are such rows."""
    whole, rows = choose_axes(plan), _rows(plan)
    if rows is None:
        return plan, whole
    count = int_value(extent(rows))
    most = max(2, min(TURNS, LOOKUPS // _looked(plan)))
    turns = next(n for n in range(min(most, count), 0, -1) if count % n == 0)
    if turns == 1:
        return plan, whole
    turn, parted = rows, plan
    if turns < count:
        part: Expr = var("xpart", extent(rows) // turns)
        turn = var("xturn", const(turns))
        move = Rewriter(Substitution({rows: part * turns + turn}))
        dims = [Dim(part if d.var is rows else d.var, d.role) for d in plan.dims]
        stores = tuple(move.store(s) for s in plan.stores)
        parted = replace(plan, dims=(*dims[:-1], Dim(turn, "p"), dims[-1]), stores=stores)
    others = tuple(d for d in parted.dims if d.var is not turn)
    axes = choose_axes(replace(parted, dims=others))
    *outer, x = axes.parallel
    if x.name != "x" or any(a.name == "y" for a in outer):
        return plan, whole
    return parted, Axes((*outer, Axis("t", (turn,)), x), None)


def at_once(plan: KernelPlan) -> int:
    """Turns whose loads are under way at once."""
    return max(1, AT_ONCE // max(1, _looked(plan)))


def _looked(plan: KernelPlan) -> int:
    return sum(1 for n in loads(roots(plan.stores)) if n.indirect)


def _rows(plan: KernelPlan) -> Expr | None:
    """The dim that what is looked up depends on least: all places are the same along it."""
    dims = plan.parallel
    if plan.reduced or plan.tile is not None or len(dims) < 2 or dims[-1] is not plan.lane:
        return None
    nodes = list(walk(roots(plan.stores)))
    if any(s.mode != "set" or s.indirect for s in plan.stores) or any(map(is_draw, nodes)):
        return None
    looked = [n for n in nodes if isinstance(n, Load) and n.indirect]
    along = [n for n in nodes if plan.lane in n.vars]

    def shared(v: Expr) -> int:
        if not extent(v).is_const or any(v in data.vars for n in looked for _, data in n.indirect):
            return 0
        return sum(op(n.name).cost for n in along if isinstance(n, Op) and v not in n.vars)

    best = max(dims[:-1], key=shared)
    return best if any(plan.lane in n.vars for n in looked) and shared(best) >= WORTH else None
