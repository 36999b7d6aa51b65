"""Random numbers of which four neighbours in a block are one block of the generator's words.

Philox makes four words at a time, of the counter that is a position divided by four.  Where
positions run on by one along a block's axis, from multiples of four, a thread computes the words of
each four once.
"""

from __future__ import annotations

from litz.index import Expr, Symbol, coefficient, const, divides
from litz.ir.body import Index, Node, Op, walk
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import extent, is_draw, roots

WORDS = 4  # of a call


def shared_draws(made: BlockPlan) -> tuple[tuple[Node, str], ...]:
    """The draws whose words four neighbours share, and the axis of a block that these lie along.

    Blocks begin at multiples of their size, but for the ends of odd rows and rows from their ends.
    """
    if made.form not in ("once", "persistent", "passes"):
        return ()
    uneven = made.rows is not None or made.backward
    names = made.axes.of_dims
    found: list[tuple[Node, str]] = []
    for n in walk(roots(made.plan.stores)):
        if not is_draw(n):
            continue
        along = {names[v] for v in n.args[1].vars if v in names}
        own = [a for a in made.axes.blocked if a.name in along]
        fours = [a.name for a in own if _in_fours(n.args[1], a) and not (uneven and a.name == "r")]
        # Those along another axis than a block's last are turned, of which there may be two.
        if fours and (fours[-1] == own[-1].name or len(made.axes.blocked) == 2):
            found.append((n, fours[-1]))
    return tuple(found)


def _in_fours(at: Node, axis: Axis) -> bool:
    """Whether a position is that along an axis, and multiples of four."""
    # Where a call's numbers begin, which is an argument, is a multiple of four: see ``drawn_at``.
    if isinstance(at, Op) and at.name == "add":
        at, start = at.args
        if not (isinstance(start, Index) and isinstance(start.expr, Symbol)):
            return False
    if not isinstance(at, Index):
        return False
    left: Expr = at.expr
    step: Expr = const(1)
    for v in reversed(axis.dims):
        if coefficient(left, v) is not step:
            break
        left, step = left - step * v, step * extent(v)
    else:
        return divides(WORDS, left)
    return step is not const(1) and divides(WORDS, step) and divides(WORDS, left)
