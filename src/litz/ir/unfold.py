"""Axes that accesses take apart become several loops.

A loop ``v`` that memory knows as ``v // c`` and ``v % c`` hides what is contiguous: over a
transposed matrix whose rows were cut into pieces, neighbours along ``v`` lie a row apart, while
neighbours along ``v // c`` are neighbours in memory.
"""

from __future__ import annotations

from functools import lru_cache

from litz.index import (
    Expr,
    FloorDiv,
    Mod,
    Substitution,
    Var,
    const,
    divisions,
    floordiv,
    mod,
    size_hint,
    var,
)
from litz.ir.body import Index, Load, Rewriter, Store, walk
from litz.ir.scans import scans_of

Axes = tuple[Expr, ...]
Nest = tuple[Axes, Axes, tuple[Store, ...]]
"""Parallel loops, reduced loops, and the stores inside."""


def unfold(nest: Nest) -> Nest:
    """A nest with every loop cut where its expressions cut it."""
    exprs = index_exprs(nest[2])
    for v in loops_to_cut(nest):
        cuts = loop_cuts(v, exprs)
        if cuts:
            nest = cut_loop(nest, v, cuts)
    return nest


def loops_to_cut(nest: Nest) -> Axes:
    """The loops that may become several: a scan runs along one."""
    along = {n.axis for n in scans_of(nest[2])}
    return tuple(v for v in (*nest[0], *nest[1]) if v not in along)


def index_exprs(stores: tuple[Store, ...]) -> tuple[Expr, ...]:
    out: dict[Expr, None] = {}
    for n in walk(r for s in stores for r in s.roots()):
        if isinstance(n, Load):
            out[n.index] = None
        elif isinstance(n, Index):
            out[n.expr] = None
    out.update(dict.fromkeys(s.index for s in stores))
    return tuple(out)


@lru_cache(maxsize=1024)
def loop_cuts(v: Expr, exprs: tuple[Expr, ...]) -> Axes:
    """Where expressions cut ``v``: divisors of its extent, each of which divides the next."""
    extent = v.extent  # type: ignore[attr-defined]
    found: dict[Expr, None] = {}
    for d in divisions(exprs):
        place = _place(d, v)
        if place is not None and not any(isinstance(u, Var) for u in d.den.free):
            found[place * d.den] = None
    whole = size_hint(extent)
    cuts = sorted((c for c in found if 1 < size_hint(c) < whole), key=size_hint)
    chain = [*cuts, extent]
    if any(mod(b, a) is not const(0) for a, b in zip(chain, chain[1:], strict=False)):
        return ()
    return tuple(cuts)


def _place(part: FloorDiv | Mod, v: Expr) -> Expr | None:
    """What a step of ``part.num`` is worth in steps of ``v``; None where it is something else."""
    num = part.num
    if num is v:
        return const(1)
    return num.den if isinstance(num, FloorDiv) and num.num is v else None


def cut_loop(nest: Nest, v: Expr, cuts: Axes) -> Nest:
    """``v`` as several loops, the last of them the fastest."""
    axes, reduced, stores = nest
    extent = v.extent  # type: ignore[attr-defined]
    steps = (const(1), *cuts)
    ends = (*cuts, extent)
    parts = [var(f"{v}_{i}", size) for i, size in enumerate(map(floordiv, ends, steps))]
    whole: Expr = const(0)
    for part, step in zip(parts, steps, strict=True):
        whole = whole + part * step
    inner = tuple(reversed(parts))

    def replaced(loops: Axes) -> Axes:
        return tuple(p for w in loops for p in (inner if w is v else (w,)))

    rewrite = Rewriter(Substitution({v: whole}))
    return replaced(axes), replaced(reduced), tuple(rewrite.store(s) for s in stores)
