"""Proofs about ranges that need more than interval arithmetic.

A lower bound of an expression is found by relaxing it step by step: an atom whose range is itself
an expression (a loop variable under a symbolic extent, x % m, (...)//d, min, max) is replaced by
the end of its range that makes the expression least, until interval arithmetic on the polynomial
that is left, written relative to the least value of each atom, gives a number.
"""

from __future__ import annotations

from functools import lru_cache

from litz.index.arith import CACHE, add, factors, from_terms, monomial, mul, parts, scale, sub
from litz.index.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Product,
    Sum,
    Symbol,
    Var,
    const,
    sort_key,
)

_Atoms = tuple[Expr, ...]
_STEPS = 12
"""Relaxations in one proof: more than real indices need; some would run in circles without end."""
_FORKS = 4
"""The first so many may go on from each argument of a min or max, later ones from the first."""


@lru_cache(maxsize=CACHE)
def _is_symbolic(e: Expr) -> bool:
    """Whether a range in ``e`` is known as an expression only."""
    return any(isinstance(x, Symbol) or not x.extent.is_const for x in e.free)  # type: ignore[attr-defined]


def lower(e: Expr, nonzero: Expr | None = None) -> int | None:
    """A proven lower bound of ``e``, or None. ``nonzero``: an expression known not to be zero."""
    if not _is_symbolic(e) and not _has_ranges(e):
        return e.lo
    return _lower(e, _positive_atoms(e, nonzero))


def _has_ranges(e: Expr) -> bool:
    """Whether ``e`` is a sum with atoms whose values depend on other atoms'."""
    return isinstance(e, Sum) and any(isinstance(a, (FloorDiv, Mod, Min, Max)) for a in _atoms(e))


def upper(e: Expr, nonzero: Expr | None = None) -> int | None:
    """A proven upper bound of ``e``, or None."""
    lo = lower(scale(e, -1), nonzero)
    return None if lo is None else -lo


def in_range(r: Expr, b: Expr) -> bool:
    """Whether 0 <= r < b is proven, b being a divisor (so it is not zero)."""
    rlo = r.lo
    if rlo is not None and rlo >= 0 and r.hi is not None and b.lo is not None and r.hi < b.lo:
        return True
    if b.is_const and not _is_symbolic(r):
        return rlo is not None and rlo >= 0 and r.hi is not None and r.hi < b.lo  # type: ignore[operator]
    if rlo is None or rlo < 0:
        rlo = lower(r, b)
        if rlo is None or rlo < 0:
            return False
    gap = lower(sub(b, r), b)
    return gap is not None and gap > 0


def _positive_atoms(e: Expr, nonzero: Expr | None) -> _Atoms:
    """Atoms that are at least one wherever ``e`` is evaluated: factors of extents and divisors."""
    sizes = [v.extent for v in e.free if isinstance(v, Var)]
    if nonzero is not None:
        sizes.append(nonzero)
    found: dict[Expr, None] = {}
    for size in sizes:
        k, terms = parts(size)
        if k == 0 and len(terms) == 1:
            fs = factors(terms[0][0])
            if all(f.lo is not None and f.lo >= 0 for f in fs):
                found.update(dict.fromkeys(f for f in fs if f.lo == 0))
    return tuple(sorted(found, key=sort_key))


def _lower(e: Expr, positive: _Atoms) -> int | None:
    # Each strategy takes one way at every step: trying both ways at each would be exponential.
    best = _descend(e, positive, False, _STEPS)
    if any(isinstance(a, FloorDiv) for a in _atoms(e)):
        best = _best(best, _descend(e, positive, True, _STEPS))
    return best


@lru_cache(maxsize=CACHE)
def _descend(e: Expr, positive: _Atoms, clear: bool, steps: int) -> int | None:
    """A lower bound by relaxing atom after atom; ``clear``: floor divisions first."""
    best = _best(e.lo, _shifted(e, positive).lo)
    if steps == 0:
        return best
    # From max and min down to loop variables, which the former may hold.
    atoms = _atoms(e)[::-1]
    ways = (_clear_division, _relax) if clear else (_relax, _clear_division)
    for way in ways:
        found = next((f for f in (way(e, a, positive) for a in atoms) if f is not None), None)
        if found is not None:
            scaled, bounds = found
            if steps <= _STEPS - _FORKS:
                bounds = bounds[:1]
            los = [_descend(x, positive, clear, steps - 1) for x in bounds]
            return max(
                [best, *(None if lo is None else -(-lo // scaled) for lo in los)], key=_order
            )
    return best


def _order(lo: int | None) -> float:
    return float("-inf") if lo is None else lo


def _relax(e: Expr, atom: Expr, positive: _Atoms) -> tuple[int, list[Expr]] | None:
    """(1, lower bounds of e) by putting an end of the atom's range in its place."""
    found = _relaxed(e, atom, positive)
    return (1, found) if found else None


def _clear_division(e: Expr, q: Expr, positive: _Atoms) -> tuple[int, list[Expr]] | None:
    """(den, lower bounds of den*e) for an atom q = num // den: den*q >= num - den + 1, <= num."""
    if not isinstance(q, FloorDiv):
        return None
    coef = _coefficient(e, q)
    if coef is None or not isinstance(q.den, Const):
        return None
    d = q.den.value
    if _at_least_zero(coef, positive):
        end = add(q.num, const(1 - d))
    elif _at_least_zero(scale(coef, -1), positive):
        end = q.num
    else:
        return None
    return d, [add(scale(sub(e, mul(coef, q)), d), mul(coef, end))]


def _best(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)


@lru_cache(maxsize=CACHE)
def _atoms(e: Expr) -> _Atoms:
    """The distinct factors of e's monomials, sorted."""
    found = dict.fromkeys(f for t, _ in parts(e)[1] for f in factors(t))
    return tuple(sorted(found, key=sort_key))


def _coefficient(e: Expr, atom: Expr) -> Expr | None:
    """The polynomial coefficient of an atom, which is not looked into; None beyond degree one."""
    acc: dict[Expr, int] = {}
    k = 0
    for t, c in parts(e)[1]:
        fs = factors(t)
        if atom in fs:
            rest = list(fs)
            rest.remove(atom)
            if atom in rest:
                return None
            if rest:
                acc[monomial(tuple(rest))] = c
            else:
                k = c
    return from_terms(k, acc)


def _relaxed(e: Expr, atom: Expr, positive: _Atoms) -> list[Expr]:
    """Expressions nowhere greater than ``e``, with the atom replaced by an end of its range."""
    if not isinstance(atom, (Var, Mod, FloorDiv, Min, Max)):
        return []
    coef = _coefficient(e, atom)
    if coef is None:
        return []
    if _at_least_zero(coef, positive):
        ends = _ends(atom, positive, False)
    elif _at_least_zero(scale(coef, -1), positive):
        ends = _ends(atom, positive, True)
    else:
        return []
    return [add(e, mul(coef, sub(end, atom))) for end in ends]


def _at_least_zero(e: Expr, positive: _Atoms) -> bool:
    if e.lo is not None and e.lo >= 0:
        return True
    if e.is_const or not _is_symbolic(e):
        return False
    lo = _lower(e, positive)
    return lo is not None and lo >= 0


def _ends(atom: Expr, positive: _Atoms, up: bool) -> list[Expr]:
    """Upper (lower) bounds of an atom that are expressions in simpler atoms."""
    if isinstance(atom, Var):
        if not up:
            return [ZERO]
        return [] if atom.extent.is_const else [sub(atom.extent, ONE)]
    if isinstance(atom, Mod):
        if atom.den.lo is None or atom.den.lo < 0:
            return []
        if not up:
            return [ZERO]
        if not atom.den.is_const:
            return [sub(atom.den, ONE)]
        return [atom.num] if atom.num.lo is not None and atom.num.lo >= 0 else []
    if isinstance(atom, FloorDiv):
        if atom.den.lo is None or atom.den.lo < 0:
            return []
        return [end // atom.den for end in _end_of(atom.num, positive, up)]
    if isinstance(atom, Min):
        return list(atom.args) if up else []
    if isinstance(atom, Max):
        return [] if up else list(atom.args)
    return []


def _end_of(e: Expr, positive: _Atoms, up: bool) -> list[Expr]:
    """``e`` with one atom relaxed upwards (downwards)."""
    flipped = scale(e, -1) if up else e
    for atom in reversed(_atoms(flipped)):
        found = _relaxed(flipped, atom, positive)
        if found:
            return [scale(x, -1) if up else x for x in found]
    return []


def _shifted(e: Expr, positive: _Atoms) -> Expr:
    """``e`` with each atom written as its least value plus a fresh non-negative symbol."""
    atoms = _atoms(e)
    linear = not any(isinstance(t, Product) for t, _ in parts(e)[1])
    if linear and not any(a in positive for a in atoms):
        return e  # linear: interval arithmetic finds the same
    fresh: dict[Expr, Expr] = {}
    for i, a in enumerate(atoms):
        lo = a.lo
        if lo is not None:
            lo = max(lo, 1) if a in positive else lo
            width = None if a.hi is None else max(a.hi - lo, 0)
            fresh[a] = add(Symbol(f"~{i}", 0, width), const(lo))
    k, terms = parts(e)
    out: Expr = const(k)
    for t, c in terms:
        m: Expr = const(c)
        for f in factors(t):
            m = mul(m, fresh.get(f, f))
        out = add(out, m)
    return out


def provably_le(a: Expr, b: Expr) -> bool:
    """Whether a <= b is proven for every value of the leaves in their ranges."""
    lo = lower(sub(b, a))
    return lo is not None and lo >= 0


def provably_lt(a: Expr, b: Expr) -> bool:
    """Whether a < b is proven for every value of the leaves in their ranges."""
    lo = lower(sub(b, a))
    return lo is not None and lo >= 1
