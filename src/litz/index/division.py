"""Floor division and modulo in canonical form.

Every rule is exact for Python's floor semantics and fires only when the ranges prove its premises;
a divisor is taken to be non-zero, so that one with a non-negative range is positive.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from litz.index.arith import (
    CACHE,
    Monomial,
    add,
    common_factors,
    content,
    divide_factors,
    divide_monomial,
    factors,
    from_terms,
    monomial,
    mul,
    parts,
    scale,
    sub,
)
from litz.index.expr import ZERO, Const, Expr, FloorDiv, Mod, as_expr, const
from litz.index.prove import in_range

FAR = 1 << 30  # a bound that numbers of 32 bits cannot make up for


def floordiv(a: Expr | int, b: Expr | int) -> Expr:
    """a // b, rounding towards minus infinity. ZeroDivisionError for a constant zero divisor."""
    return _floordiv(as_expr(a), as_expr(b))


def mod(a: Expr | int, b: Expr | int) -> Expr:
    """a % b with the sign of b. ZeroDivisionError for a constant zero divisor."""
    return _mod(as_expr(a), as_expr(b))


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """a / b rounded towards plus infinity."""
    a, b = as_expr(a), as_expr(b)
    if _positive(b):
        return _floordiv(add(a, sub(b, const(1))), b)
    return scale(_floordiv(scale(a, -1), b), -1)


def exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """q with a == q*b, where that is provable term by term."""
    if isinstance(b, Const) and b.value == 0:
        return None
    q, r = _reduce(a, b)
    return q if r is ZERO else None


def _positive(b: Expr) -> bool:
    return b.lo is not None and b.lo >= 0


def _negative(b: Expr) -> bool:
    return b.hi is not None and b.hi <= 0 and (b.lo is None or b.lo < 0)


@lru_cache(maxsize=CACHE)
def _floordiv(a: Expr, b: Expr) -> Expr:
    if isinstance(b, Const):
        if b.value == 0:
            raise ZeroDivisionError(f"{a} // 0")
        if b.value == 1:
            return a
        if isinstance(a, Const):
            return const(a.value // b.value)
    if _negative(b):
        return _floordiv(scale(a, -1), scale(b, -1))
    q, r = _reduce(a, b)
    rest = _div_rest(r, b)
    return rest if q is ZERO else add(q, rest)


@lru_cache(maxsize=CACHE)
def _mod(a: Expr, b: Expr) -> Expr:
    if isinstance(b, Const):
        if b.value == 0:
            raise ZeroDivisionError(f"{a} % 0")
        if isinstance(a, Const):
            return const(a.value % b.value)
        if b.value == 1:
            return ZERO
    if _negative(b):
        return scale(_mod(scale(a, -1), scale(b, -1)), -1)
    return _mod_rest(_reduce(a, b)[1], b)


def _reduce(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a == q*b + r: every multiple of b that shows in a's terms moves to q."""
    q, r = _reduce_once(a, b)
    # Quotients and remainders that met in r may have formed new multiples of b.
    for _ in range(3):
        if not any(t.has_div for t, _ in parts(r)[1]):
            break
        more, r = _reduce_once(r, b)
        if more is ZERO:
            break
        q = add(q, more)
    return q, r


def _reduce_once(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    if isinstance(b, Const):
        return _reduce_const(a, b.value)
    kb, tb = parts(b)
    if kb == 0 and len(tb) == 1:
        return _reduce_monomial(a, (tb[0][1], factors(tb[0][0])))
    return _reduce_polynomial(a, b)


def _truncate(c: int, n: int) -> int:
    # Towards zero, so that -i stays -i and its range stays tight.
    return c // n if c >= 0 else -(-c // n)


@lru_cache(maxsize=CACHE)
def _reduce_const(a: Expr, n: int) -> tuple[Expr, Expr]:
    """As `_reduce` for an integer n; the remainder is made non-negative by a multiple of n.

    Its constant is the least one that does so (where no lower bound is known, or one that no size
    reaches: the one in [0, n)), which makes the form unique; non-negative numerators are what
    targets divide fastest.
    """
    k, terms = parts(a)
    if n < 0:
        q, r = _reduce_const(a, -n)
        return scale(q, -1), r
    quot: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    low: int | None = 0
    for t, c in terms:
        cq = _truncate(c, n)
        if cq:
            quot[t] = cq
            c -= cq * n
            if not c:
                continue
        rest[t] = c
        if low is not None:
            end = t.lo if c > 0 else t.hi
            low = None if end is None else low + c * end
    kr = k % n
    if low is not None and -FAR < low + kr < 0:
        kr -= (low + kr) // n * n
    kq = (k - kr) // n
    if not quot and not kq:
        return ZERO, a
    return from_terms(kq, quot), from_terms(kr, rest)


def _reduce_monomial(a: Expr, b: Monomial) -> tuple[Expr, Expr]:
    bc, bm = b
    k, terms = parts(a)
    quot: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    kq = 0
    for t, c in terms:
        left = divide_factors(factors(t), bm)
        cq = _truncate(c, bc) if bc > 0 else -_truncate(c, -bc)
        if left is None or cq == 0:
            rest[t] = c
            continue
        if left:
            quot[monomial(left)] = cq
        else:
            kq = cq
        if c != cq * bc:
            rest[t] = c - cq * bc
    if not quot and not kq:
        return ZERO, a
    return from_terms(kq, quot), from_terms(k, rest)


def _reduce_polynomial(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Long division by the leading monomial of b, as long as each step shortens the remainder."""
    _, tb = parts(b)
    lead, lead_coef = max(tb, key=lambda tc: (len(factors(tc[0])), tc[0].key))
    q: Expr = ZERO
    r = a
    progress = True
    while progress:
        progress = False
        for t, c in parts(r)[1]:
            left = divide_factors(factors(t), factors(lead))
            if left is None or c % lead_coef:
                continue
            step = scale(monomial(left), c // lead_coef)
            after = sub(r, mul(step, b))
            if _length(after) < _length(r):
                q, r = add(q, step), after
                progress = True
                break
    return q, r


def _length(e: Expr) -> int:
    k, terms = parts(e)
    return len(terms) + (k != 0)


def _quotient_by_range(r: Expr, b: Expr) -> int | None:
    """r // b where the ranges of r and b prove it to be one integer."""
    if r is ZERO:
        return 0
    lo, hi = r.lo, r.hi
    if isinstance(b, Const) and lo is not None and hi is not None:
        k = lo // b.value
        return k if k == hi // b.value else None
    if not _positive(b):
        return None
    if in_range(r, b):
        return 0
    if hi is not None and hi < 0 and in_range(add(r, b), b):
        return -1
    return None


def _split_candidates(r: Expr, b: Monomial) -> list[Monomial]:
    """Divisors g of b under which r may split into g*A + R with 0 <= R < g, greatest first."""
    bc, bm = b
    found: dict[Monomial, None] = {}
    for t, c in parts(r)[1]:
        found[(gcd(c, bc), common_factors(bm, factors(t)) if bm else ())] = None
    base = list(found)
    for i, (c1, m1) in enumerate(base):
        for c2, m2 in base[i + 1 :]:
            found[(gcd(c1, c2), common_factors(m1, m2))] = None
    out = [g for g in found if g != (1, ())]
    out.sort(key=lambda g: (-len(g[1]), -g[0], tuple(f.key for f in g[1])))
    return out


def _partition(r: Expr, g: Monomial) -> tuple[Expr, Expr]:
    """(A, R) with r == g*A + R, R holding the terms that g does not divide."""
    gc, gm = g
    k, terms = parts(r)
    whole: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    ka, kr = (0, k) if gm else divmod(k, gc)
    for t, c in terms:
        left = divide_factors(factors(t), gm)
        if left is None or c % gc:
            rest[t] = c
        elif left:
            whole[monomial(left)] = c // gc
        else:
            ka += c // gc
    return from_terms(ka, whole), from_terms(kr, rest)


@lru_cache(maxsize=CACHE)
def _split(r: Expr, b: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(A, R, g, m) with r == g*A + R, b == g*m, and (0 <= R < g, m > 0) or R == 0."""
    bcont = content(b)
    for g in _split_candidates(r, bcont):
        a, rest = _partition(r, g)
        if rest is not ZERO and not _positive(b):
            continue
        ge = scale(monomial(g[1]), g[0])
        k = 0 if rest is ZERO else _quotient_by_range(rest, ge)
        if k is None:
            continue
        m = divide_monomial(b, g)
        assert m is not None
        if k:
            a, rest = add(a, const(k)), sub(rest, scale(ge, k))
        return a, rest, ge, m
    return None


def _div_rest(r: Expr, b: Expr) -> Expr:
    """r // b for a reduced r and a b that is not known to be negative."""
    k = _quotient_by_range(r, b)
    if k is not None:
        return const(k)
    split = _split(r, b)
    if split is not None:
        a, _, _, m = split
        return _floordiv(a, m)
    if _positive(b):
        nested = _div_nested(r, b)
        if nested is not None:
            return nested
        if isinstance(b, Const) and r.lo is None and r.hi is not None:
            # Mirror towards a numerator that is bounded below: (-s)//4 == -((s + 3)//4).
            return scale(_floordiv(add(scale(r, -1), const(b.value - 1)), b), -1)
    return FloorDiv(r, b)


def _div_nested(r: Expr, b: Expr) -> Expr | None:
    """(x//y + c)//b == (x + c*y)//(y*b), and (x % (b*k))//b == (x//b) % k, for b > 0."""
    k, terms = parts(r)
    if len(terms) != 1 or terms[0][1] != 1:
        return None
    inner = terms[0][0]
    if isinstance(inner, FloorDiv):
        return _floordiv(add(inner.num, scale(inner.den, k)), mul(inner.den, b))
    if isinstance(inner, Mod) and k == 0 and _positive(inner.den):
        m = exact_quotient(inner.den, b)
        if m is not None and _positive(m):
            return _mod(_floordiv(inner.num, b), m)
    return None


def _mod_rest(r: Expr, b: Expr) -> Expr:
    """r % b for a reduced r and a b that is not known to be negative."""
    k = _quotient_by_range(r, b)
    if k is not None:
        return sub(r, scale(b, k))
    split = _split(r, b)
    if split is not None:
        a, rest, g, m = split
        return add(mul(g, _mod(a, m)), rest)
    absorbed = _absorb_mods(r, b)
    if absorbed is not r:
        return _mod(absorbed, b)
    return Mod(r, b)


def _absorb_mods(r: Expr, b: Expr) -> Expr:
    """c*(x % m) inside r becomes c*x where b divides c*m: they differ by a multiple of b."""
    for t, c in parts(r)[1]:
        for i, f in enumerate(factors(t)):
            if isinstance(f, Mod):
                others = factors(t)[:i] + factors(t)[i + 1 :]
                coef = scale(monomial(others), c)
                if exact_quotient(mul(coef, f.den), b) is not None:
                    r = add(r, mul(coef, sub(f.num, f)))
                    break
    return r
