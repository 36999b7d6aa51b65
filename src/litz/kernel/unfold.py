"""Loops are cut where that makes more bytes contiguous, or tells apart what is computed.

See ``litz.ir.unfold``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from litz.index import Const as Number
from litz.index import Expr, Mod, Substitution, const
from litz.ir import body
from litz.ir.body import Const, Index, Masked, Node, Op, Rewriter, walk
from litz.ir.dtype import BOOL
from litz.ir.unfold import Nest, cut_loop, index_exprs, loop_cuts, loops_to_cut
from litz.kernel.nodes import extent

_COMPARED = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}

GAIN = 1.05  # less is not worth the shorter loops


def unfold_where_better(nest: Nest, score: Callable[[Nest], float]) -> Nest:
    """The nest with loops cut where that raises ``score``."""
    exprs = index_exprs(nest[2])
    best: float | None = None
    for v in loops_to_cut(nest):
        cuts = loop_cuts(v, exprs)
        if not cuts:
            continue
        best = score(nest) if best is None else best
        made = cut_loop(nest, v, cuts)
        new = score(made)
        if new > GAIN * best:
            nest, best = made, new
    return nest


def halves_apart(nest: Nest) -> Nest:
    """The nest whose odd and even places are stores of their own, where masks tell them apart.

    So the parts of ``stack([x, y], -1)`` are each computed once, and not for either place.
    """
    axes, reduced, stores = nest
    if reduced or any(s.mode != "set" for s in stores):
        return nest
    for n in walk([n.args[0] for n in walk(r for s in stores for r in s.roots()) if _chooses(n)]):
        v = _parity(n.expr) if isinstance(n, Index) else None
        if v not in axes:
            continue
        nest = cut_loop(nest, v, (2,))
        (bit,) = (u for u in nest[0] if u not in axes and extent(u) is const(2))
        found = [Rewriter(Substitution({bit: const(k)}), _settled) for k in range(2)]
        stores = tuple(place.store(s) for s in nest[2] for place in found)
        return tuple(u for u in nest[0] if u is not bit), reduced, stores
    return nest


def _settled(_: Node, n: Node) -> Node:
    """Comparisons of numbers, and what they choose."""
    if isinstance(n, Op) and n.name in _COMPARED and all(isinstance(a, Const) for a in n.args):
        a, b = (x.value for x in n.args if isinstance(x, Const))
        return body.const(BOOL, _COMPARED[n.name](a, b))
    if isinstance(n, Op) and n.name == "where" and isinstance(n.args[0], Const):
        return n.args[1 if n.args[0].value else 2]
    return n


def _chooses(n: Node) -> bool:
    return isinstance(n, Masked) or isinstance(n, Op) and n.name == "where"


def _parity(e: Expr) -> Expr | None:
    """A loop of an even number of steps (more than two) whose last bit an index is."""
    if not isinstance(e, Mod) or e.den is not const(2):
        return None
    size = getattr(e.num, "extent", None)
    even = isinstance(size, Number) and size.value > 2 and size.value % 2 == 0
    return e.num if even else None
