"""Loops are cut where that makes more bytes contiguous, or tells apart what is computed.

See ``litz.ir.unfold``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from litz.index import Const as Number
from litz.index import Expr, FloorDiv, Mod, Substitution, Sum, const, divisions, size_hint
from litz.ir import body
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Rewriter, walk
from litz.ir.dtype import BOOL
from litz.ir.unfold import Nest, cut_loop, index_exprs, loop_cuts, loops_to_cut
from litz.kernel.nodes import COMPARISONS, as_index, checks, extent, is_comparison

GAIN = 1.05  # less is not worth the shorter loops
SHORT = 8  # places of a loop whose halves are not worth a vector each


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
    """The nest whose odd and even places are stores of their own, where that tells more of them.

    So the parts of ``stack([x, y], -1)`` are each computed once, and not for either place; and
    what is read at ``(i + 1) // 2`` is contiguous.
    """
    axes, reduced, stores = nest
    if reduced or any(s.mode != "set" for s in stores):
        return nest
    nodes = list(walk(r for s in stores for r in s.roots()))
    masks = walk([n.args[0] for n in nodes if _chooses(n)])
    exprs = [n.expr for n in masks if isinstance(n, Index)]
    found = [e.num for e in exprs if isinstance(e, Mod) and e.den is const(2)]
    halves = (v for n in nodes if isinstance(n, Load) for v in _shifted_halves(n.index))
    found += [v for v in halves if v in axes and size_hint(extent(v)) > SHORT]
    for v in found:
        if v not in axes or not _is_even(extent(v)):
            continue
        axes, _, cut = cut_loop(nest, v, (const(2),))
        *_, bit = (u for u in axes if u not in nest[0])
        each = [Rewriter(Substitution({bit: const(k)}), settled) for k in range(2)]
        stores = tuple(place.store(s) for s in cut for place in each)
        return tuple(u for u in axes if u is not bit), reduced, stores
    return nest


def _shifted_halves(e: Expr) -> Iterator[Expr]:
    """The loops of which an index has the half behind a shift."""
    for part in divisions((e,)):
        if isinstance(part, FloorDiv) and part.den is const(2) and isinstance(part.num, Sum):
            yield from (v for v, c in part.num.terms if c == 1)


def _is_even(size: Expr) -> bool:
    return isinstance(size, Number) and size.value > 2 and size.value % 2 == 0


def settled(_: Node, n: Node) -> Node:
    """Comparisons of indices that ranges decide, and what they choose.

    What is not chosen stays if it checks an index: every point makes these checks.
    """
    if not isinstance(n, Op):
        return n
    if is_comparison(n):
        found = COMPARISONS[n.name](*map(as_index, n.args))
        return body.const(BOOL, bool(found.value)) if isinstance(found, Number) else n
    if n.name in ("and_", "or_") and n.dtype is BOOL:
        for a, b in (n.args, n.args[::-1]):
            if isinstance(a, Const):
                kept, left = (b, a) if bool(a.value) == (n.name == "and_") else (a, b)
                return n if checks(left) else kept
    if n.name == "where" and isinstance(n.args[0], Const):
        kept, left = n.args[1:] if n.args[0].value else n.args[:0:-1]
        return n if checks(left) else kept
    return n


def _chooses(n: Node) -> bool:
    return isinstance(n, Masked) or isinstance(n, Op) and n.name == "where"
