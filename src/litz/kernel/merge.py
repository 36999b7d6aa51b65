"""Loops that every expression steps through as through one become one loop."""

from __future__ import annotations

from collections.abc import Container

from litz.index import Expr, Substitution, coefficient, const, floordiv, mod, var
from litz.ir import body
from litz.ir.body import Index, Load, Reduce, Rewriter, Store

Loops = tuple[Expr, ...]


class _Merger:
    """The expressions of one kernel, and the loops that have been merged so far."""

    def __init__(
        self, axes: Loops, reduced: Loops, stores: tuple[Store, ...], loose: Container[str]
    ) -> None:
        exprs: dict[Expr, None] = {}
        # Searches count positions: their loops merge only where they are neighbours.
        self.positions: list[Loops] = []
        # A reduction's value may depend on none of its loops, yet runs over just those.
        self.reductions: set[frozenset[Expr]] = set()
        for n in body.walk(r for s in stores for r in s.roots()):
            if isinstance(n, Load):
                if n.buffer not in loose:
                    exprs[n.index] = None
            elif isinstance(n, Index):
                exprs[n.expr] = None
            elif isinstance(n, Reduce):
                self.reductions.add(frozenset(n.axes))
                if n.row.positional:
                    self.positions.append(n.axes)
        exprs.update(dict.fromkeys(s.index for s in stores))
        every = (*axes, *reduced)
        self.present = {v: tuple(v in e.free for e in exprs) for v in every}
        self.coefs = {
            v: tuple(coefficient(e, v) if v in e.free else None for e in exprs) for v in every
        }
        self.names = {str(v) for v in every}
        self.mapping: dict[Expr, Expr] = {}

    def follows(self, u: Expr, v: Expr) -> bool:
        """Whether ``u`` and ``v`` only occur as ``u * extent(v) + v``, times something."""
        if any(p.index(v) != p.index(u) + 1 for p in self.positions if u in p and v in p):
            return False
        if any((u in r) is not (v in r) for r in self.reductions):
            return False
        if self.present[u] != self.present[v]:
            return False
        extent = v.extent  # type: ignore[attr-defined]
        if extent is const(0):
            return False  # nothing runs, and nothing is a multiple of it
        return all(
            not there or (cu is not None and cv is not None and cu is cv * extent)
            for cu, cv, there in zip(self.coefs[u], self.coefs[v], self.present[u], strict=True)
        )

    def merge(self, u: Expr, v: Expr) -> Expr:
        """One loop in place of ``u`` and ``v``."""
        n = 0
        while f"m{n}" in self.names:
            n += 1
        self.names.add(f"m{n}")
        inner = v.extent  # type: ignore[attr-defined]
        w = var(f"m{n}", u.extent * inner)  # type: ignore[attr-defined]
        step = {u: floordiv(w, inner), v: mod(w, inner)}
        sub = Substitution(step)
        self.mapping = {old: sub(e) for old, e in self.mapping.items()} | step
        self.coefs[w], self.present[w] = self.coefs[v], self.present[v]
        self.positions = [
            tuple(w if a is u else a for a in p if a is not v) if u in p else p
            for p in self.positions
        ]
        self.reductions = {(r - {u, v}) | {w} if u in r else r for r in self.reductions}
        return w

    def shrink(self, loops: Loops) -> Loops:
        left = list(loops)
        while pair := self._pair(left):
            u, v = pair
            left[left.index(u)] = self.merge(u, v)
            left.remove(v)
        return tuple(left)

    def _pair(self, loops: list[Expr]) -> tuple[Expr, Expr] | None:
        for u in loops:
            for v in loops:
                if v is not u and self.follows(u, v):
                    return u, v
        return None


def merge_loops(
    axes: Loops, reduced: Loops, stores: tuple[Store, ...], loose: Container[str] = ()
) -> tuple[Loops, Loops, tuple[Store, ...]]:
    """``axes`` and ``reduced`` with loops merged as far as possible, and the stores over them.

    loose: buffers so small that loads from them may step as they will.
    """
    if len(axes) < 2 and len(reduced) < 2:
        return axes, reduced, stores
    merger = _Merger(axes, reduced, stores, loose)
    axes, reduced = merger.shrink(axes), merger.shrink(reduced)
    if not merger.mapping:
        return axes, reduced, stores
    rewrite = Rewriter(Substitution(merger.mapping))
    return axes, reduced, tuple(rewrite.store(s) for s in stores)
