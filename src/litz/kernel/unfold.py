"""Loops are cut where that makes more bytes contiguous (see ``litz.ir.unfold``)."""

from __future__ import annotations

from collections.abc import Callable

from litz.ir.unfold import Nest, cut_loop, index_exprs, loop_cuts, loops_to_cut

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
