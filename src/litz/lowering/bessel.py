"""Bessel functions, the scaled error function, normal quantiles: polynomials on a few intervals.

The smooth parts are fitted in high precision (``bessel_tables``); what is singular or oscillates is
put together from elementary functions, by the same formulas as ATen, so that overflow and special
values are eager's.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from litz.ir.body import Node, op
from litz.lowering import bessel_tables as tables
from litz.lowering.activations import add, div, mul, sub, where
from litz.lowering.pointwise import formula, k

aten = torch.ops.aten

INV_SQRT_PI: Final = 1 / math.sqrt(math.pi)
ERFCX_MIDDLE: Final = 4  # of the fit's variable


def neg(a: Node) -> Node:
    return op("neg", a)


def poly(name: str, t: Node) -> Node:
    """A polynomial of the tables, in Horner's form."""
    numbers = (tables.F64 if t.dtype.bits == 64 else tables.F32)[name]
    value = k(t, numbers[-1])
    for c in reversed(numbers[:-1]):
        value = op("fma", value, t, k(t, c))
    return value


def linear(a: Node, by: float, less: float = 1.0) -> Node:
    return op("fma", a, k(a, by), k(a, -less))


# --- modified, of the first kind: exp(|x|) or its like times what is below -----------------------


def _times_exp(a: Node, small: Node, large: Node, scaled: bool) -> Node:
    """``small`` up to 8, ``large`` exp(a) / sqrt(a) beyond; scaled: without exp(a)."""
    root = op("sqrt", a)
    near = mul(small, op("exp", neg(a))) if scaled else small
    far = div(large if scaled else mul(op("exp", a), large), root)
    return where(op("le", a, k(a, 8)), near, far)


def i0(x: Node, scaled: bool = False) -> Node:
    a = op("abs", x)
    small = poly("i0_small", mul(mul(a, a), k(a, 1 / 64)))
    return _times_exp(a, small, poly("i0_large", sub(div(k(a, 16), a), k(a, 1))), scaled)


def i1(x: Node, scaled: bool = False) -> Node:
    a = op("abs", x)
    small = mul(poly("i1_small", mul(mul(a, a), k(a, 1 / 64))), a)
    large = poly("i1_large", sub(div(k(a, 16), a), k(a, 1)))
    value = _times_exp(a, small, large, scaled)
    return where(op("lt", x, k(x, 0)), neg(value), value)


# --- modified, of the second kind ----------------------------------------------------------------


def _second(x: Node, small: Node, large: Node, scaled: bool) -> Node:
    root = op("sqrt", x)
    near = mul(small, op("exp", x)) if scaled else small
    far = div(large if scaled else mul(op("exp", neg(x)), large), root)
    value = where(op("le", x, k(x, 2)), near, far)
    value = where(op("eq", x, k(x, 0)), k(x, math.inf), value)
    return where(op("lt", x, k(x, 0)), k(x, math.nan), value)


def k0(x: Node, scaled: bool = False) -> Node:
    z = mul(x, x)
    log = op("log", mul(x, k(x, 0.5)))
    part = poly("k0_small", linear(z, 0.5))
    small = sub(part, mul(log, poly("i0_to_2", mul(z, k(x, 0.25)))))
    return _second(x, small, poly("k0_large", sub(div(k(x, 4), x), k(x, 1))), scaled)


def k1(x: Node, scaled: bool = False) -> Node:
    z = mul(x, x)
    log = op("log", mul(x, k(x, 0.5)))
    part = div(poly("k1_small", linear(z, 0.5)), x)
    small = add(mul(mul(log, poly("i1_to_2", mul(z, k(x, 0.25)))), x), part)
    return _second(x, small, poly("k1_large", sub(div(k(x, 4), x), k(x, 1))), scaled)


# --- of the first and second kind ----------------------------------------------------------------


def _from_zero(z: Node, zero64: tuple[float, float], zero32: tuple[float, float]) -> Node:
    """z less a zero of the function that is known to more digits than the type has."""
    high, low = zero64 if z.dtype.bits == 64 else zero32
    return sub(sub(z, k(z, high)), k(z, low))


def _waves(x: Node, order: int) -> tuple[Node, Node, Node, Node]:
    """P, Q of the asymptotic form, and the sum and difference of sine and cosine.

    They take the place of cos and sin of x less an odd multiple of pi / 4, times sqrt(2).
    """
    inverse = div(k(x, 5), x)
    t = linear(mul(inverse, inverse), 2)
    q = mul(inverse, poly(f"q{order}", t))
    s, c = op("sin", x), op("cos", x)
    return poly(f"p{order}", t), q, add(s, c), sub(s, c)


def _decay(x: Node, wave: Node) -> Node:
    return div(mul(wave, k(x, INV_SQRT_PI)), op("sqrt", x))


def _j0_near(a: Node) -> Node:
    z = mul(a, a)
    return mul(
        _from_zero(z, tables.ZERO_J0_64, tables.ZERO_J0_32), poly("j0_small", linear(z, 2 / 25))
    )


def _j1_near(a: Node) -> Node:
    z = mul(a, a)
    part = poly("j1_small", linear(z, 2 / 25))
    return mul(mul(a, _from_zero(z, tables.ZERO_J1_64, tables.ZERO_J1_32)), part)


def j0(x: Node) -> Node:
    a = op("abs", x)
    p, q, plus, minus = _waves(a, 0)
    far = _decay(a, sub(mul(p, plus), mul(q, minus)))
    return where(op("le", a, k(a, 5)), _j0_near(a), far)


def j1(x: Node) -> Node:
    negative = op("lt", x, k(x, 0))
    a = where(negative, neg(x), x)
    p, q, plus, minus = _waves(a, 1)
    far = _decay(a, add(mul(p, minus), mul(q, plus)))
    value = where(op("le", a, k(a, 5)), _j1_near(a), far)
    return where(negative, neg(value), value)


def _from_right(x: Node, near: Node, far: Node) -> Node:
    value = where(op("le", x, k(x, 5)), near, far)
    value = where(op("eq", x, k(x, 0)), k(x, -math.inf), value)
    return where(op("lt", x, k(x, 0)), k(x, math.nan), value)


def y0(x: Node) -> Node:
    p, q, plus, minus = _waves(x, 0)
    far = _decay(x, add(mul(p, minus), mul(q, plus)))
    log = mul(op("log", x), _j0_near(x))
    near = op("fma", k(x, 2 / math.pi), log, poly("y0_small", linear(mul(x, x), 2 / 25)))
    return _from_right(x, near, far)


def y1(x: Node) -> Node:
    p, q, plus, minus = _waves(x, 1)
    far = _decay(x, sub(mul(q, minus), mul(p, plus)))
    rest = sub(mul(op("log", x), _j1_near(x)), div(k(x, 1), x))
    even = poly("y1_small", linear(mul(x, x), 2 / 25))
    return _from_right(x, op("fma", k(x, 2 / math.pi), rest, mul(x, even)), far)


def spherical_j0(x: Node) -> Node:
    z = mul(x, x)
    series = k(x, 1 / math.factorial(15))
    for n in (13, 11, 9, 7, 5, 3, 1):
        series = op("fma", neg(z), series, k(x, 1 / math.factorial(n)))
    near = op("lt", op("abs", x), k(x, 0.5))
    value = where(near, series, div(op("sin", x), x))
    return where(op("isinf", x), k(x, 0), value)


# --- the normal distribution ---------------------------------------------------------------------


def erfcx(x: Node) -> Node:
    """exp(x**2) erfc(x)."""
    a = op("abs", x)
    middle = k(a, ERFCX_MIDDLE)
    t = sub(k(a, 1), div(k(a, 2 * ERFCX_MIDDLE), add(a, middle)))
    tail = div(poly("erfcx", t), op("fma", a, k(a, 2), k(a, 1)))
    square = mul(a, a)
    rest = op("fma", a, a, neg(square))  # what rounding takes from the square
    e = op("exp", square)
    grown = where(op("isinf", e), e, op("fma", e, rest, e))
    left = sub(mul(k(a, 2), grown), tail)
    return where(op("lt", x, k(x, 0)), left, tail)


def log_ndtr(x: Node) -> Node:
    t = mul(x, k(x, math.sqrt(0.5)))
    half = k(x, 0.5)
    left = sub(op("log", mul(erfcx(neg(t)), half)), mul(t, t))
    right = op("log1p", neg(mul(op("erfc", t), half)))
    return where(op("lt", x, k(x, -1)), left, right)


def ndtri(y: Node) -> Node:
    half, one = k(y, 0.5), k(y, 1)
    upper = op("gt", y, half)
    least = where(upper, sub(one, y), y)
    length = op("sqrt", mul(k(y, -2), op("log", least)))
    z = div(one, length)
    near = poly("ndtri_near", linear(z, 16 / 3, 5 / 3))
    far = poly("ndtri_far", linear(z, 20, 1.5))
    part = where(op("lt", length, k(y, 8)), near, far)
    tail = sub(sub(length, div(op("log", length), length)), part)
    tail = where(upper, tail, neg(tail))
    middle = mul(op("erfinv", sub(mul(k(y, 2), y), one)), k(y, math.sqrt(2)))
    value = where(op("lt", least, k(y, math.exp(-2))), tail, middle)
    ends = where(upper, k(y, math.inf), k(y, -math.inf))
    return where(op("eq", least, k(y, 0)), ends, value)


# --- the table -----------------------------------------------------------------------------------


formula(aten.i0.default, aten.special_modified_bessel_i0.default, floats=True)(i0)
formula(aten.special_i0e.default, floats=True)(lambda x: i0(x, True))
formula(aten.special_i1.default, aten.special_modified_bessel_i1.default, floats=True)(i1)
formula(aten.special_i1e.default, floats=True)(lambda x: i1(x, True))
formula(aten.special_modified_bessel_k0.default, floats=True)(k0)
formula(aten.special_scaled_modified_bessel_k0.default, floats=True)(lambda x: k0(x, True))
formula(aten.special_modified_bessel_k1.default, floats=True)(k1)
formula(aten.special_scaled_modified_bessel_k1.default, floats=True)(lambda x: k1(x, True))
formula(aten.special_bessel_j0.default, floats=True)(j0)
formula(aten.special_bessel_j1.default, floats=True)(j1)
formula(aten.special_bessel_y0.default, floats=True)(y0)
formula(aten.special_bessel_y1.default, floats=True)(y1)
formula(aten.special_spherical_bessel_j0.default, floats=True)(spherical_j0)
formula(aten.special_erfcx.default, floats=True)(erfcx)
formula(aten.special_log_ndtr.default, floats=True)(log_ndtr)
formula(aten.special_ndtri.default, floats=True)(ndtri)
