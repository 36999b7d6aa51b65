"""Min, max, comparisons and truth values in canonical form."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from litz.index.arith import CACHE, add, from_terms, parts, sub
from litz.index.expr import (
    ONE,
    ZERO,
    And,
    Cmp,
    Const,
    Expr,
    Max,
    Min,
    Not,
    Or,
    as_expr,
    const,
    sort_key,
)
from litz.index.prove import lower, provably_le, upper


def min_(*args: Expr | int) -> Expr:
    """The least of one or more arguments."""
    return _extremum(Min, args)


def max_(*args: Expr | int) -> Expr:
    """The greatest of one or more arguments."""
    return _extremum(Max, args)


def _extremum(cls: type[Min] | type[Max], args: tuple[Expr | int, ...]) -> Expr:
    if not args:
        raise TypeError(f"{cls.__name__} of no arguments")
    flat: dict[Expr, None] = {}
    for x in args:
        e = as_expr(x)
        flat.update(dict.fromkeys(e.args if isinstance(e, cls) else (e,)))
    ordered = sorted(flat, key=sort_key)
    kept: list[Expr] = []
    for i, e in enumerate(ordered):
        others = kept + ordered[i + 1 :]
        if not any(_dominated(cls, e, o) for o in others):
            kept.append(e)
    return kept[0] if len(kept) == 1 else cls(tuple(kept))


def _dominated(cls: type[Min] | type[Max], e: Expr, other: Expr) -> bool:
    """Whether ``other`` always decides against ``e``."""
    return provably_le(other, e) if cls is Min else provably_le(e, other)


def lt(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a < b else 0."""
    return _at_least_zero(sub(sub(as_expr(b), as_expr(a)), ONE))


def le(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a <= b else 0."""
    return _at_least_zero(sub(as_expr(b), as_expr(a)))


def gt(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a > b else 0."""
    return lt(b, a)


def ge(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a >= b else 0."""
    return le(b, a)


def eq(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a == b else 0."""
    return _equal(sub(as_expr(a), as_expr(b)), "eq")


def ne(a: Expr | int, b: Expr | int) -> Expr:
    """1 if a != b else 0."""
    return _equal(sub(as_expr(a), as_expr(b)), "ne")


def _sides(k: int, terms: dict[Expr, int]) -> tuple[Expr, Expr]:
    """(N, P) with sum(terms) + k == P - N and no negative terms; a constant stands by itself."""
    pos = {t: c for t, c in terms.items() if c > 0}
    neg = {t: -c for t, c in terms.items() if c < 0}
    if not neg:
        return const(-k), from_terms(0, pos)
    if not pos:
        return from_terms(0, neg), const(k)
    return from_terms(max(-k, 0), neg), from_terms(max(k, 0), pos)


@lru_cache(maxsize=CACHE)
def _at_least_zero(d: Expr) -> Expr:
    """The comparison d >= 0: divided by the common factor, negative terms moved to the left."""
    lo = lower(d)
    if lo is not None and lo >= 0:
        return ONE
    hi = upper(d)
    if hi is not None and hi < 0:
        return ZERO
    k, terms = parts(d)
    g = gcd(*(c for _, c in terms))
    k //= g  # g*T + k >= 0 exactly where T + floor(k/g) >= 0
    scaled = {t: c // g for t, c in terms}
    if not any(c > 0 for c in scaled.values()) or (k < 0 and any(c < 0 for c in scaled.values())):
        left, right = _sides(k + 1, scaled)
        return Cmp("lt", left, right)
    left, right = _sides(k, scaled)
    return Cmp("le", left, right)


@lru_cache(maxsize=CACHE)
def _equal(d: Expr, op: str) -> Expr:
    """The comparison d == 0 (or d != 0)."""
    same, differ = (ONE, ZERO) if op == "eq" else (ZERO, ONE)
    if isinstance(d, Const):
        return same if d.value == 0 else differ
    lo, hi = lower(d), upper(d)
    if (lo is not None and lo > 0) or (hi is not None and hi < 0):
        return differ
    if lo == 0 and hi == 0:
        return same
    k, terms = parts(d)
    g = gcd(*(c for _, c in terms))
    if k % g:
        return differ
    if terms[0][1] < 0:
        g = -g
    if len(terms) == 1 and terms[0][0].is_bool:
        # b == 1 or b == 0: every other constant has been decided by the range.
        b = terms[0][0]
        return b if (-k // g == 1) == (op == "eq") else not_(b)
    right, left = _sides(k // g, {t: c // g for t, c in terms})
    return Cmp(op, left, right)


def truth(x: Expr | int) -> Expr:
    """``x != 0`` as a truth value; ``x`` itself where it is one by construction."""
    e = as_expr(x)
    return e if e.is_bool else ne(e, ZERO)


def not_(x: Expr | int) -> Expr:
    """1 if x is 0 else 0; comparisons flip, conjunctions follow De Morgan."""
    e = as_expr(x)
    if isinstance(e, Cmp):
        if e.op == "eq":
            return Cmp("ne", e.a, e.b)
        if e.op == "ne":
            return Cmp("eq", e.a, e.b)
        return lt(e.b, e.a) if e.op == "le" else le(e.b, e.a)
    if isinstance(e, And):
        return or_(*(not_(a) for a in e.args))
    if isinstance(e, Or):
        return and_(*(not_(a) for a in e.args))
    if isinstance(e, Not):
        return e.arg
    return Not(e) if e.is_bool else eq(e, ZERO)


def and_(*args: Expr | int) -> Expr:
    """1 if every argument is non-zero else 0; 1 for none."""
    return _junction(And, ONE, ZERO, args)


def or_(*args: Expr | int) -> Expr:
    """1 if some argument is non-zero else 0; 0 for none."""
    return _junction(Or, ZERO, ONE, args)


def _junction(
    cls: type[And] | type[Or], neutral: Expr, absorbing: Expr, args: tuple[Expr | int, ...]
) -> Expr:
    flat: dict[Expr, None] = {}
    for x in args:
        e = truth(x)
        if e is absorbing:
            return absorbing
        if e is not neutral:
            flat.update(dict.fromkeys(e.args if isinstance(e, cls) else (e,)))
    if not flat:
        return neutral
    if len(flat) == 1:
        return next(iter(flat))
    if any(not_(e) in flat for e in flat if not isinstance(e, (And, Or))):
        return absorbing
    return cls(tuple(sorted(flat, key=sort_key)))


def where(cond: Expr | int, a: Expr | int, b: Expr | int) -> Expr:
    """``a`` if cond is non-zero else ``b``, as ``b + cond*(a - b)``: both must be defined."""
    c, x, y = truth(cond), as_expr(a), as_expr(b)
    return add(y, c * sub(x, y))
