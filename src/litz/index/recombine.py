"""Putting quotient and remainder back together inside sums.

For x = m*q + r with q = x // m and r = x % m:

* ``C*m*q + C*r`` becomes ``C*x`` (on exact match of coefficients only, so that a padded layout
  such as ``16*(x//8) + x%8`` keeps its mixed-radix form);
* ``C*x`` next to a multiple of ``C*m*q`` becomes ``C*m*q + C*r``: ``x - m*(x//m)`` is ``x%m``.

Both hold for every sign, as they are the definition of floor division. Neither fires on k*e without
firing on e, so that scaling a sum keeps its form and (k*e)//k is e.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.index.arith import divide_factors, factors, monomial, mul, parts, scale, times
from litz.index.division import exact_quotient, floordiv, mod
from litz.index.expr import Const, Expr, FloorDiv, Mod

_Acc = dict[Expr, int]
_MAX_STEPS = 16


def recombine(k: int, acc: _Acc) -> tuple[int, _Acc]:
    """Apply the rules until none fits. ``acc`` holds no zero coefficients."""
    for _ in range(_MAX_STEPS):
        step = _merge(acc) or _split(acc)
        if step is None:
            break
        dk, delta = step
        k += dk
        acc = dict(acc)
        for t, c in delta.items():
            acc[t] = acc.get(t, 0) + c
        acc = {t: c for t, c in acc.items() if c}
        if len(acc) < 2:
            break
    return k, acc


def _occurrences(acc: _Acc, cls: type[Expr]) -> Iterator[tuple[Expr, int, tuple[Expr, ...]]]:
    """(node, coefficient, other factors) for every factor of class ``cls``, in canonical order."""
    found = []
    for t, c in acc.items():
        fs = factors(t)
        for i, f in enumerate(fs):
            if isinstance(f, cls) and (i == 0 or fs[i - 1] is not f):
                found.append((f, c, fs[:i] + fs[i + 1 :]))
    found.sort(key=lambda x: (x[0].key, tuple(f.key for f in x[2])))
    return iter(found)


def _spread(e: Expr, k: int, mono: tuple[Expr, ...]) -> tuple[int, _Acc]:
    """k * mono * e as (constant, terms)."""
    const, terms = parts(e)
    if not mono:
        return const * k, {t: c * k for t, c in terms}
    acc = times(terms, k, mono)
    if const:
        acc[monomial(mono)] = const * k
    return 0, acc


def _merge(acc: _Acc) -> tuple[int, _Acc] | None:
    for r, coef, mono in _occurrences(acc, Mod):
        assert isinstance(r, Mod)
        q = floordiv(r.num, r.den)
        if isinstance(q, Const):
            continue
        kq, whole = _spread(mul(q, r.den), coef, mono)
        if kq or any(acc.get(t) != c for t, c in whole.items()):
            continue
        dk, delta = _spread(r.num, coef, mono)
        _subtract(delta, whole)
        _subtract(delta, _spread(r, coef, mono)[1])
        return dk, delta
    return None


def _split(acc: _Acc) -> tuple[int, _Acc] | None:
    quotients = list(_occurrences(acc, FloorDiv))
    for q, coef, mono in quotients:
        assert isinstance(q, FloorDiv)
        for x, m in _numerators(q, quotients):
            found = _split_one(acc, x, m, coef, mono)
            if found is not None:
                return found
    return None


def _numerators(
    q: FloorDiv, quotients: list[tuple[Expr, int, tuple[Expr, ...]]]
) -> Iterator[tuple[Expr, Expr]]:
    """Pairs (x, m) with q == x // m: its own, and x = y//m1 for q = y//(m1*m)."""
    yield q.num, q.den
    for other, _, _ in quotients:
        if isinstance(other, FloorDiv) and other is not q and other.num is q.num:
            m = exact_quotient(q.den, other.den)
            if m is not None and m.lo is not None and m.lo >= 0:
                yield other, m


def _split_one(
    acc: _Acc, x: Expr, m: Expr, coef: int, mono: tuple[Expr, ...]
) -> tuple[int, _Acc] | None:
    # coef*mono*q is a multiple of C*m*q where C = alpha * mono/mm for a one-term divisor m.
    mc, mm = _single_term(m)
    if mc == 0:
        return None
    rest = divide_factors(mono, mm)
    if rest is None:
        return None
    _, unit = _spread(x, 1, rest)
    if not unit:
        return None
    first, c0 = next(iter(unit.items()))
    alpha, odd = divmod(acc.get(first, 0), c0)
    if alpha == 0 or odd or coef % (alpha * mc):
        return None
    if any(acc.get(t, 0) != alpha * c for t, c in unit.items()):
        return None
    q = floordiv(x, m)
    r = mod(x, m)
    dk, delta = _spread(mul(q, m), alpha, rest)
    rk, less = _spread(scale(r, -1), alpha, rest)
    _subtract(delta, less)
    xk, less = _spread(x, alpha, rest)
    _subtract(delta, less)
    if not any(delta.values()):
        return None
    return dk - rk - xk, delta


def _single_term(m: Expr) -> tuple[int, tuple[Expr, ...]]:
    k, terms = parts(m)
    if not terms:
        return k, ()
    if k or len(terms) > 1:
        return 0, ()
    return terms[0][1], factors(terms[0][0])


def _subtract(acc: _Acc, other: _Acc) -> None:
    for t, c in other.items():
        acc[t] = acc.get(t, 0) - c
