"""How far an index moves from one iteration to the next, where no coefficient says it."""

from __future__ import annotations

from litz.index import Const, Expr, FloorDiv, Max, Min, Mod, Sum

Steps = tuple[int, int]


def steps(e: Expr, v: Expr) -> Steps | None:
    """The least and the most that ``e`` can grow by as ``v`` grows by one; None where unknown."""
    if v not in e.free:
        return 0, 0
    if e is v:
        return 1, 1
    if isinstance(e, Sum):
        low = high = 0
        for term, c in e.terms:
            found = steps(term, v)
            if found is None:
                return None
            ends = [c * s for s in found]
            low, high = low + min(ends), high + max(ends)
        return low, high
    if isinstance(e, Max | Min):
        each = [steps(a, v) for a in e.args]
        known = [s for s in each if s is not None]
        if len(known) < len(each):
            return None
        return min(s[0] for s in known), max(s[1] for s in known)
    if isinstance(e, FloorDiv | Mod) and isinstance(e.den, Const) and e.den.value > 0:
        found = steps(e.num, v)
        return None if found is None else _divided(found, e.den.value, isinstance(e, Mod))
    return None


def _divided(found: Steps, by: int, remainder: bool) -> Steps:
    low, high = found
    if not remainder:
        return low // by, -(-high // by)
    # What only grows wraps around downwards, and the other way round.
    wraps = by - 1
    return (low if high <= 0 else -wraps), (high if low >= 0 else wraps)
