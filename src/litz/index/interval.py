"""Interval arithmetic on inclusive integer bounds, where None is unbounded."""

from __future__ import annotations

from collections.abc import Sequence

Bound = int | None
Bounds = tuple[Bound, Bound]
_INF = float("inf")


def _finite(x: float) -> Bound:
    return None if isinstance(x, float) else x


def _times(x: float, y: float) -> float:
    # 0 * inf is 0 here: an interval's end is reached or approached, never exceeded.
    return 0 if x == 0 or y == 0 else x * y


def multiply(alo: Bound, ahi: Bound, blo: Bound, bhi: Bound) -> Bounds:
    """Bounds of x*y for independent x and y."""
    if alo is not None and blo is not None and alo >= 0 and blo >= 0:
        if ahi is None or bhi is None:
            return alo * blo, 0 if ahi == 0 or bhi == 0 else None
        return alo * blo, ahi * bhi
    x = (-_INF if alo is None else alo, _INF if ahi is None else ahi)
    y = (-_INF if blo is None else blo, _INF if bhi is None else bhi)
    ends = [_times(p, q) for p in x for q in y]
    return _finite(min(ends)), _finite(max(ends))


def product(factors: Sequence[tuple[object, Bound, Bound]]) -> Bounds:
    """Bounds of a product of (identity, lo, hi) factors; equal neighbours are powers."""
    lo: Bound = 1
    hi: Bound = 1
    i = 0
    while i < len(factors):
        what, flo, fhi = factors[i]
        i += 1
        if (flo is None or flo < 0) and i < len(factors) and factors[i][0] is what:
            i += 1
            flo, fhi = _square(flo, fhi)
        lo, hi = multiply(lo, hi, flo, fhi)
    return lo, hi


def _square(lo: Bound, hi: Bound) -> Bounds:
    _, top = multiply(lo, hi, lo, hi)
    if hi is not None and hi < 0:
        return hi * hi, top
    return 0, top


def weighted_sum(const: int, terms: Sequence[tuple[object, int]]) -> Bounds:
    """Bounds of const + sum(coef * term)."""
    lo: Bound = const
    hi: Bound = const
    for t, c in terms:
        tlo: Bound = t.lo  # type: ignore[attr-defined]
        thi: Bound = t.hi  # type: ignore[attr-defined]
        if c < 0:
            tlo, thi = thi, tlo
        lo = None if lo is None or tlo is None else lo + c * tlo
        hi = None if hi is None or thi is None else hi + c * thi
    return lo, hi


def floordiv(alo: Bound, ahi: Bound, blo: Bound, bhi: Bound) -> Bounds:
    """Bounds of a // b, b being non-zero."""
    if blo is not None and blo >= 0:
        small = blo or 1
        if alo is None:
            lo: Bound = None
        elif alo < 0:
            lo = alo // small
        else:
            lo = 0 if bhi is None else alo // max(bhi, 1)
        if ahi is None:
            hi: Bound = None
        elif ahi >= 0:
            hi = ahi // small
        else:
            hi = -1 if bhi is None else ahi // max(bhi, 1)
        return lo, hi
    if alo is None or ahi is None:
        return None, None
    most = max(abs(alo), abs(ahi))
    return -most, most


def mod(alo: Bound, ahi: Bound, blo: Bound, bhi: Bound) -> Bounds:
    """Bounds of a % b, b being non-zero."""
    if blo is not None and blo >= 0:
        hi: Bound = None if bhi is None else max(bhi - 1, 0)
        if alo is not None and alo >= 0 and ahi is not None and (hi is None or ahi < hi):
            hi = ahi
        return 0, hi
    lo = None if blo is None else min(blo + 1, 0)
    return lo, None if bhi is None else max(bhi - 1, 0)


def minimum(args: Sequence[Bounds]) -> Bounds:
    """Bounds of the least of the arguments."""
    los = [lo for lo, _ in args if lo is not None]
    his = [hi for _, hi in args if hi is not None]
    return min(los) if len(los) == len(args) else None, min(his) if his else None


def maximum(args: Sequence[Bounds]) -> Bounds:
    """Bounds of the greatest of the arguments."""
    los = [lo for lo, _ in args if lo is not None]
    his = [hi for _, hi in args if hi is not None]
    return max(los) if los else None, max(his) if len(his) == len(args) else None
