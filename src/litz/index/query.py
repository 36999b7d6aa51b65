"""Questions about expressions, and substitution."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from litz.index.arith import factors, from_terms, monomial, mul, parts, product, sum_
from litz.index.division import exact_quotient, floordiv, mod
from litz.index.expr import (
    ZERO,
    And,
    Cmp,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Not,
    Or,
    Product,
    Sum,
    Symbol,
    Var,
    as_expr,
    const,
)
from litz.index.logic import and_, eq, le, lt, max_, min_, ne, not_, or_
from litz.index.prove import lower, upper

_K = TypeVar("_K", bound=Expr)
DEFAULT_HINT = 8192
_COMPARE = {"eq": eq, "ne": ne, "lt": lt, "le": le}
_MAKE: Mapping[type[Expr], Callable[..., Expr]] = {
    Product: lambda *xs: product(xs),
    FloorDiv: floordiv,
    Mod: mod,
    Min: min_,
    Max: max_,
    And: and_,
    Or: or_,
    Not: not_,
}
_VALUE: Mapping[type[Expr], Callable[..., int]] = {
    Product: lambda *xs: math.prod(xs),
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    Min: min,
    Max: max,
    And: lambda *xs: all(xs),
    Or: lambda *xs: any(xs),
    Not: operator.not_,
}


def rebuild(e: Expr, new: Sequence[Expr]) -> Expr:
    """``e`` with other children, brought to canonical form."""
    if isinstance(e, Sum):
        return sum_(
            [mul(n, const(c)) for n, (_, c) in zip(new, e.terms, strict=True)] + [const(e.const)]
        )
    if isinstance(e, Cmp):
        return _COMPARE[e.op](new[0], new[1])
    make = _MAKE.get(type(e))
    return e if make is None else make(*new)


class Substitution:
    """A simultaneous substitution that remembers what it has rewritten.

    A replacement must lie within the range of what it replaces: simplifications have used it.
    Extents of loop variables are not rewritten; replace the variable itself.
    """

    __slots__ = ("_memo", "_only_leaves", "mapping")

    def __init__(self, mapping: Mapping[_K, Expr]) -> None:
        self.mapping: Mapping[Any, Expr] = mapping
        self._memo: dict[Any, Expr] = dict(mapping)
        self._only_leaves = all(isinstance(k, (Symbol, Var)) for k in mapping)

    def __call__(self, e: Expr) -> Expr:
        """``e`` with every key of the mapping replaced."""
        done = self._memo.get(e)
        if done is not None:
            return done
        kids = e.children()
        if not kids:
            return e
        if self._only_leaves:
            mapping = self.mapping
            if not any(leaf in mapping for leaf in e.free):
                return e
        new = [self(k) for k in kids]
        out = e if all(n is k for n, k in zip(new, kids, strict=True)) else rebuild(e, new)
        self._memo[e] = out
        return out


@lru_cache(maxsize=256)
def _substitution(pairs: tuple[tuple[Expr, Expr], ...]) -> Substitution:
    return Substitution(dict(pairs))


def substitution(mapping: Mapping[_K, Expr]) -> Substitution:
    """One that may remember what it has rewritten for others who replace the same."""
    return _substitution(tuple(mapping.items()))


def substitute(e: Expr, mapping: Mapping[_K, Expr]) -> Expr:
    """``e`` with every key of ``mapping`` replaced by its value, all at once."""
    return substitution(mapping)(e)


def divisions(exprs: Iterable[Expr]) -> Iterator[FloorDiv | Mod]:
    """All divisions and remainders in expressions, those inside of others too."""
    stack = [*exprs]
    while stack:
        part = stack.pop()
        stack.extend(part.children())
        if isinstance(part, FloorDiv | Mod):
            yield part


def coefficient(e: Expr, v: Expr) -> Expr | None:
    """The stride of ``e`` in ``v``: c with e == c*v + rest, neither containing v, else None."""
    split = split_linear(e, (v,))
    return None if split is None else split[0][v]


def split_linear(e: Expr, vars: Sequence[Expr]) -> tuple[dict[Expr, Expr], Expr] | None:
    """(coefficients, rest) with e == sum(coef[v] * v) + rest, all free of ``vars``; else None."""
    k, terms = parts(e)
    wanted = dict.fromkeys(vars)
    coefs: dict[Expr, tuple[int, dict[Expr, int]]] = {}
    rest: dict[Expr, int] = {}
    for t, c in terms:
        hits = [x for x in t.free if x in wanted]
        if not hits:
            rest[t] = c
            continue
        fs = factors(t)
        v = hits[0]
        if len(hits) > 1 or v not in fs:
            return None
        at = fs.index(v)
        others = fs[:at] + fs[at + 1 :]
        if any(v in f.free for f in others):
            return None
        ck, cterms = coefs.get(v, (0, {}))
        if others:
            cterms[monomial(others)] = c
        else:
            ck = c
        coefs[v] = (ck, cterms)
    found = {v: from_terms(*coefs[v]) if v in coefs else ZERO for v in wanted}
    return found, from_terms(k, rest)


def divides(k: Expr | int, e: Expr | int) -> bool:
    """Whether ``e`` is provably a multiple of ``k``."""
    k, e = as_expr(k), as_expr(e)
    if e is ZERO:
        return True
    if k is ZERO:
        return False
    return exact_quotient(e, k) is not None or mod(e, k) is ZERO


def bounds(e: Expr) -> tuple[int | None, int | None]:
    """The tightest proven inclusive bounds of ``e``; None where it is unbounded."""
    return lower(e), upper(e)


def size_hint(e: Expr | int, default: int = DEFAULT_HINT) -> int:
    """A likely value: symbols by their hints (``default`` in range where unbacked), Vars by 0."""
    e = as_expr(e)
    if isinstance(e, Const):
        return e.value
    env: dict[Expr, int] = {}
    for leaf in e.free:
        if isinstance(leaf, Var):
            env[leaf] = 0
        else:
            assert isinstance(leaf, Symbol)
            env[leaf] = _clamp(default, leaf) if leaf.hint is None else leaf.hint
    return evaluate(e, env)


def _clamp(x: int, leaf: Expr) -> int:
    if leaf.lo is not None:
        x = max(x, leaf.lo)
    return x if leaf.hi is None else min(x, leaf.hi)


def evaluate(e: Expr, env: Mapping[_K, int]) -> int:
    """The value of ``e`` with leaves from ``env``. KeyError for a missing leaf."""
    return _evaluate(e, env, {})


def _evaluate(e: Expr, env: Mapping[Any, int], memo: dict[Expr, int]) -> int:
    if isinstance(e, Const):
        return e.value
    if isinstance(e, (Symbol, Var)):
        return int(env[e])
    known = memo.get(e)
    if known is None:
        known = memo[e] = _apply(e, [_evaluate(c, env, memo) for c in e.children()])
    return known


def _apply(e: Expr, xs: list[int]) -> int:
    if isinstance(e, Sum):
        return e.const + sum(c * x for x, (_, c) in zip(xs, e.terms, strict=True))
    apply = getattr(operator, e.op) if isinstance(e, Cmp) else _VALUE[type(e)]
    return int(apply(*xs))
