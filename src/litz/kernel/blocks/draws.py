"""Random numbers of which four neighbours in a block are one block of the generator's words.

Philox makes four words at a time, of the counter that is a position divided by four.  Where
positions run on by one along a block's axis, from multiples of four, a thread computes the words of
each four once.  Blocks that hold odd rows whole begin at the multiple of four before these.
"""

from __future__ import annotations

from litz.index import Expr, Symbol, coefficient, const, divides
from litz.ir.body import Index, Node, Op, walk
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import extent, is_draw, roots, row_start
from litz.kernel.plan import KernelPlan

WORDS = 4  # of a call


def shared_draws(made: BlockPlan) -> tuple[tuple[Node, str], ...]:
    """The draws whose words four neighbours share, and the axis of a block that these lie along.

    Blocks begin at multiples of their size, or where ``rows`` say, but for the ends of odd rows and
    rows from their ends.
    """
    if made.form not in ("once", "persistent", "passes"):
        return ()
    uneven = made.backward or made.heads_apart
    start = const(0) if made.rows is None else made.rows[0]
    names = made.axes.of_dims
    found: list[tuple[Node, str]] = []
    for n in walk(roots(made.plan.stores)):
        if not is_draw(n):
            continue
        along = {names[v] for v in n.args[1].vars if v in names}
        own = [a for a in made.axes.blocked if a.name in along]
        fours = [
            a.name for a in own if _in_fours(n.args[1], a, start) and not (uneven and a.name == "r")
        ]
        # Those along another axis than a block's last are turned, of which there may be two.
        if fours and (fours[-1] == own[-1].name or len(made.axes.blocked) == 2):
            found.append((n, fours[-1]))
    return tuple(found)


def odd_draws(plan: KernelPlan) -> Expr | None:
    """Where rows begin whose numbers do not begin at multiples of four."""
    if plan.lane is None or plan.reduced != (plan.lane,):
        return None
    places = {_place(n.args[1]) for n in walk(roots(plan.stores)) if is_draw(n)}
    found = [None if e is None else row_start(e, plan.lane) for e in places]
    starts = [e for e in found if e is not None and e.free and not divides(WORDS, e)]
    agree = starts and all(divides(WORDS, e - starts[0]) for e in starts)
    return starts[0] if agree and len(starts) == len(found) else None


def _place(at: Node) -> Expr | None:
    """A position but for where the call's numbers begin, which is a multiple of four."""
    # That is an argument: see ``drawn_at``.
    if isinstance(at, Op) and at.name == "add":
        at, start = at.args
        if not (isinstance(start, Index) and isinstance(start.expr, Symbol)):
            return None
    return at.expr if isinstance(at, Index) else None


def _in_fours(at: Node, axis: Axis, start: Expr) -> bool:
    """Whether a position is that along an axis, and multiples of four.

    start: where blocks of the axis begin, but for multiples of four.
    """
    left = _place(at)
    if left is None:
        return False
    step: Expr = const(1)
    for v in reversed(axis.dims):
        if coefficient(left, v) is not step:
            break
        left, step = left - step * v, step * extent(v)
    else:
        return divides(WORDS, left) or divides(WORDS, left - start)
    return step is not const(1) and divides(WORDS, step) and divides(WORDS, left)
