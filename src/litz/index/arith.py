"""Polynomial arithmetic: sums of integer coefficient times monomial, always expanded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd

from litz.index.expr import ONE, ZERO, Const, Expr, Product, Rules, Sum, as_expr, const, sort_key

CACHE = 1 << 15

Terms = tuple[tuple[Expr, int], ...]
Monomial = tuple[int, tuple[Expr, ...]]
"""A coefficient and sorted factors, none of them a constant."""


def parts(e: Expr) -> tuple[int, Terms]:
    """``e`` as (constant, ((monomial, coefficient), ...)), monomials sorted."""
    if isinstance(e, Sum):
        return e.const, e.terms
    if isinstance(e, Const):
        return e.value, ()
    return 0, ((e, 1),)


def factors(mono: Expr) -> tuple[Expr, ...]:
    """The factors of a monomial."""
    return mono.factors if isinstance(mono, Product) else (mono,)


def monomial(fs: tuple[Expr, ...]) -> Expr:
    """The monomial of sorted factors; ONE for none."""
    if len(fs) == 1:
        return fs[0]
    return Product(fs) if fs else ONE


def from_terms(k: int, acc: dict[Expr, int]) -> Expr:
    """The canonical sum of ``k`` and coefficient times monomial; takes ``acc`` over."""
    divs = False
    zeros = False
    for t, c in acc.items():
        if c == 0:
            zeros = True
        elif t.has_div:
            divs = True
    if zeros:
        acc = {t: c for t, c in acc.items() if c}
    if divs and len(acc) > 1:
        k, acc = Rules.recombine(k, acc)
    if not acc:
        return const(k)
    if len(acc) == 1:
        ((t, c),) = acc.items()
        if c == 1 and k == 0:
            return t
        return Sum(k, ((t, c),))
    return Sum(k, tuple(sorted(acc.items(), key=_term_key)))


def _term_key(term: tuple[Expr, int]) -> tuple[object, ...]:
    return term[0].key


@lru_cache(maxsize=CACHE)
def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    if isinstance(b, Const):
        a, b = b, a
    if isinstance(a, Const):
        k = a.value
        if k == 0:
            return b
        if isinstance(b, Const):
            return const(k + b.value)
        if not isinstance(b, Sum):
            return Sum(k, ((b, 1),))
        if not any(t.has_div for t, _ in b.terms):
            k += b.const
            if k == 0 and len(b.terms) == 1 and b.terms[0][1] == 1:
                return b.terms[0][0]
            return Sum(k, b.terms)
    ka, ta = parts(a)
    kb, tb = parts(b)
    acc = dict(ta)
    for t, c in tb:
        acc[t] = acc.get(t, 0) + c
    return from_terms(ka + kb, acc)


def sub(a: Expr, b: Expr) -> Expr:
    """a - b."""
    if a is b:
        return ZERO
    return add(a, scale(b, -1))


@lru_cache(maxsize=CACHE)
def scale(a: Expr, k: int) -> Expr:
    """k * a for an integer k."""
    if k == 1:
        return a
    if k == 0:
        return ZERO
    ka, ta = parts(a)
    if not ta:
        return const(ka * k)
    if ka == 0 and len(ta) == 1 and ta[0][1] * k == 1:
        return ta[0][0]
    return Sum(ka * k, tuple([(t, c * k) for t, c in ta]))


@lru_cache(maxsize=CACHE)
def mul(a: Expr, b: Expr) -> Expr:
    """a * b, distributed over sums."""
    if isinstance(a, Const):
        return scale(b, a.value)
    if isinstance(b, Const):
        return scale(a, b.value)
    ka, ta = parts(a)
    kb, tb = parts(b)
    acc: dict[Expr, int] = {}
    if kb:
        for t, c in ta:
            acc[t] = c * kb
    if ka:
        for t, c in tb:
            acc[t] = acc.get(t, 0) + c * ka
    for s, c in ta:
        for t, d in tb:
            m = _mul_monomials(s, t)
            acc[m] = acc.get(m, 0) + c * d
    return from_terms(ka * kb, acc)


@lru_cache(maxsize=CACHE)
def _mul_monomials(a: Expr, b: Expr) -> Expr:
    return Product(tuple(sorted(factors(a) + factors(b), key=sort_key)))


def sum_(items: Iterable[Expr | int]) -> Expr:
    """The sum of the items; 0 for none."""
    k = 0
    acc: dict[Expr, int] = {}
    for x in items:
        kx, tx = parts(as_expr(x))
        k += kx
        for t, c in tx:
            acc[t] = acc.get(t, 0) + c
    return from_terms(k, acc)


def product(items: Iterable[Expr | int]) -> Expr:
    """The product of the items; 1 for none."""
    k = 1
    out: Expr = ONE
    for x in items:
        e = as_expr(x)
        if isinstance(e, Const):
            k *= e.value
        else:
            out = mul(out, e)
    return scale(out, k)


def exact_power(base: Expr, n: int) -> Expr:
    """base to the power of a natural number."""
    return product([base] * n)


def times(terms: Iterable[tuple[Expr, int]], k: int, mono: tuple[Expr, ...]) -> dict[Expr, int]:
    """The terms multiplied by k and a monomial, which is not empty."""
    m = monomial(mono)
    return {_mul_monomials(t, m): c * k for t, c in terms}


def divide_factors(fs: tuple[Expr, ...], by: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """Sorted factors less the factors ``by``; None if one of them is missing."""
    if not by:
        return fs
    rest = list(fs)
    for f in by:
        if f not in rest:
            return None
        rest.remove(f)
    return tuple(rest)


def common_factors(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The multiset intersection, in the order of ``a``."""
    rest = list(b)
    out = []
    for f in a:
        if f in rest:
            rest.remove(f)
            out.append(f)
    return tuple(out)


def content(e: Expr) -> Monomial:
    """The greatest monomial that divides every term of ``e`` (coefficient positive; 0 for 0)."""
    k, terms = parts(e)
    coef = abs(k)
    common: tuple[Expr, ...] | None = () if k else None
    for t, c in terms:
        coef = gcd(coef, c)
        if common is None:
            common = factors(t)
        elif common:
            common = common_factors(common, factors(t))
    return coef, common or ()


def divide_monomial(e: Expr, by: Monomial) -> Expr | None:
    """``e`` divided by a monomial term for term, or None where a term is not a multiple."""
    bc, bm = by
    k, terms = parts(e)
    if k % bc or (k and bm):
        return None
    acc: dict[Expr, int] = {}
    for t, c in terms:
        rest = divide_factors(factors(t), bm)
        if rest is None or c % bc:
            return None
        if rest:
            acc[monomial(rest)] = c // bc
        else:
            k = c // bc
    return from_terms(k // bc if not bm else k, acc)
