"""The border to sympy, which PyTorch's shape environment speaks.

PyTorch's own sympy functions are known by class name, so that this room needs no torch. Sympy
objects come in and go out here and are never held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Any

from litz.index.arith import exact_power, product, sum_
from litz.index.division import ceildiv, exact_quotient, floordiv, mod
from litz.index.expr import ONE, ZERO, Const, Expr, const
from litz.index.logic import and_, eq, ge, gt, le, lt, max_, min_, ne, not_, or_, where

_EXACT_FLOAT = 1 << 52
"""Up to here a float quotient of integers rounds to an integer only where it is one."""


class NotRepresentable(ValueError):
    """The sympy expression is no integer expression that Litz can hold exactly."""


def from_sympy(
    expr: Any, scope: Mapping[str, Expr], part: Callable[[Any], Expr] | None = None
) -> Expr:
    """A sympy expression as one of ours, symbols by name from ``scope``.

    part: gives what stands for a smallest integer subexpression that cannot be held exactly.
    Raises NotRepresentable for what is not an exact integer expression (true division, floats,
    infinities, unknown functions), KeyError for a name that ``scope`` lacks.
    """
    return _Importer(scope, part).get(expr)


class _Importer:
    def __init__(
        self, scope: Mapping[str, Expr], part: Callable[[Any], Expr] | None = None
    ) -> None:
        self._scope = scope
        self._part = part
        self._memo: dict[Any, Expr] = {}

    def get(self, e: Any) -> Expr:
        if isinstance(e, int):
            return const(int(e))
        known = self._memo.get(e)
        if known is None:
            try:
                known = self._convert(e)
            except NotRepresentable:
                if self._part is None or not getattr(e, "is_integer", False):
                    raise
                known = self._part(e)
            self._memo[e] = known
        return known

    def _convert(self, e: Any) -> Expr:
        name = type(e).__name__
        if getattr(e, "is_Integer", False):
            return const(int(e))
        if getattr(e, "is_Symbol", False):
            if self._part is not None and e.name not in self._scope:
                raise NotRepresentable(f"{e} is no integer")
            return self._scope[e.name]
        if name == "Add":
            return self._whole(e) if _has_fraction(e) else sum_(map(self.get, e.args))
        if name == "Mul":
            return self._whole(e) if _has_fraction(e) else product(map(self.get, e.args))
        if name in ("Pow", "PowByNatural"):
            return self._power(e)
        if name in _ROUNDING:
            return self._rounded(e)
        if name == "Piecewise":
            return self._piecewise(e)
        rule = _RULES.get(name)
        if rule is None:
            raise NotRepresentable(f"{name} has no integer form: {e}")
        return rule(*map(self.get, e.args))

    def _power(self, e: Any) -> Expr:
        base, exponent = e.args
        if not getattr(exponent, "is_Integer", False) or exponent < 0:
            raise NotRepresentable(f"not a power by a natural number: {e}")
        return exact_power(self.get(base), int(exponent))

    def _whole(self, e: Any) -> Expr:
        """An expression with fractions in it that is an integer all the same."""
        num, den = self._ratio(e)
        q = exact_quotient(num, den)
        if q is None:
            raise NotRepresentable(f"not provably an integer: {e}")
        return q

    def _rounded(self, e: Any) -> Expr:
        num, den = self._ratio(e.args[0])
        how = _ROUNDING[type(e).__name__]
        if how == "ceil":
            return ceildiv(num, den)
        down = floordiv(num, den)
        if how == "floor" or (down.lo is not None and down.lo >= 0):
            return down
        raise NotRepresentable(f"truncation of what may be negative: {e}")

    def _ratio(self, e: Any) -> tuple[Expr, Expr]:
        """``e`` as numerator and denominator."""
        name = type(e).__name__
        if getattr(e, "is_Rational", False):
            return const(int(e.p)), const(int(e.q))
        if name == "Add":
            return _add_ratios([self._ratio(a) for a in e.args])
        if name == "Mul":
            pairs = [self._ratio(a) for a in e.args]
            return product(n for n, _ in pairs), product(d for _, d in pairs)
        if name == "Pow" and getattr(e.args[1], "is_Integer", False) and e.args[1] < 0:
            return ONE, exact_power(self.get(e.args[0]), -int(e.args[1]))
        if name == "IntTrueDiv":
            num, den = self.get(e.args[0]), self.get(e.args[1])
            if num.lo is None or num.hi is None or max(-num.lo, num.hi) > _EXACT_FLOAT:
                raise NotRepresentable(f"the float quotient may round: {e}")
            return num, den
        return self.get(e), ONE

    def _piecewise(self, e: Any) -> Expr:
        *cases, (last, always) = e.args
        if always is not True and str(always) != "True":
            raise NotRepresentable(f"no last case: {e}")
        out = self.get(last)
        for value, cond in reversed(cases):
            out = where(self.get(cond), self.get(value), out)
        return out


def _has_fraction(e: Any) -> bool:
    """Whether a term or factor of ``e``, not looking into functions, is a fraction."""
    name = type(e).__name__
    if name in ("Add", "Mul"):
        return any(_has_fraction(a) for a in e.args)
    if name == "Pow":
        return bool(getattr(e.args[1], "is_negative", False)) or _has_fraction(e.args[0])
    return bool(getattr(e, "is_Rational", False)) and not e.is_Integer


def _add_ratios(pairs: list[tuple[Expr, Expr]]) -> tuple[Expr, Expr]:
    dens = [d for _, d in pairs]
    if all(isinstance(d, Const) for d in dens):
        den: Expr = const(lcm(*(d.value for d in dens if isinstance(d, Const))))
        return sum_(n * (den // d) for n, d in pairs), den
    den = product(dict.fromkeys(dens))
    scaled = []
    for n, d in pairs:
        q = exact_quotient(den, d)
        assert q is not None
        scaled.append(n * q)
    return sum_(scaled), den


def _shift_left(a: Expr, by: Expr) -> Expr:
    return a * const(1 << _natural(by))


def _shift_right(a: Expr, by: Expr) -> Expr:
    return a // const(1 << _natural(by))


def _natural(by: Expr) -> int:
    if isinstance(by, Const) and 0 <= by.value < 64:
        return by.value
    raise NotRepresentable(f"not a constant shift: {by}")


_ROUNDING = {
    "CeilToInt": "ceil",
    "FloorToInt": "floor",
    "TruncToInt": "trunc",
    "ceiling": "ceil",
    "floor": "floor",
}
_RULES: dict[str, Callable[..., Expr]] = {
    "Abs": lambda a: max_(a, -a),
    "And": and_,
    "BooleanFalse": lambda: ZERO,
    "BooleanTrue": lambda: ONE,
    "CeilDiv": ceildiv,
    "CleanDiv": floordiv,
    "Equality": eq,
    "FloorDiv": floordiv,
    "GreaterThan": ge,
    "Identity": lambda a: a,
    "LShift": _shift_left,
    "LessThan": le,
    "Max": max_,
    "Min": min_,
    "Mod": mod,
    "ModularIndexing": lambda a, d, m: mod(floordiv(a, d), m),
    "Not": not_,
    "Or": or_,
    "PythonMod": mod,
    "RShift": _shift_right,
    "StrictGreaterThan": gt,
    "StrictLessThan": lt,
    "Unequality": ne,
    "Where": where,
}
