"""Bessel functions, the scaled error function, normal quantiles: polynomials on a few intervals.

The smooth parts are fitted in high precision (``bessel.json``); what is singular or oscillates is
put together from elementary functions, by the same formulas as ATen, so that overflow and special
values are eager's.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from litz.ir.body import Node, op
from litz.lowering.formulas import formulas, is_zero, k, mostly, where

aten = torch.ops.aten

INV_SQRT_PI: Final = 1 / math.sqrt(math.pi)
ERFCX_MIDDLE: Final = 4  # of the fit's variable


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Coefficients by the bits of their type and by name, lowest power first."""
    text = Path(__file__).with_name("bessel.json").read_text()
    tables: Mapping[str, Mapping[str, Sequence[float]]] = json.loads(text)
    return tables


def numbers_of(name: str, like: Node) -> Sequence[float]:
    return _tables()[str(like.dtype.bits)][name]


def poly(name: str, t: Node) -> Node:
    """A polynomial of the tables, in Horner's form."""
    numbers = numbers_of(name, t)
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
    near = small * op("exp", -a) if scaled else small
    far = (large if scaled else op("exp", a) * large) / root
    return mostly(a <= 8, near, far)


def i0(x: Node, scaled: bool = False) -> Node:
    a = op("abs", x)
    return _times_exp(a, poly("i0_small", a * a * (1 / 64)), poly("i0_large", 16 / a - 1), scaled)


def i1(x: Node, scaled: bool = False) -> Node:
    a = op("abs", x)
    small = poly("i1_small", a * a * (1 / 64)) * a
    value = _times_exp(a, small, poly("i1_large", 16 / a - 1), scaled)
    return where(x < 0, -value, value)


# --- modified, of the second kind ----------------------------------------------------------------


def _second(x: Node, small: Node, large: Node, scaled: bool) -> Node:
    near = small * op("exp", x) if scaled else small
    far = (large if scaled else op("exp", -x) * large) / op("sqrt", x)
    return where(x < 0, math.nan, where(is_zero(x), math.inf, where(x <= 2, near, far)))


def k0(x: Node, scaled: bool = False) -> Node:
    z = x * x
    log = op("log", x * 0.5)
    small = poly("k0_small", linear(z, 0.5)) - log * poly("i0_to_2", z * 0.25)
    return _second(x, small, poly("k0_large", 4 / x - 1), scaled)


def k1(x: Node, scaled: bool = False) -> Node:
    z = x * x
    log = op("log", x * 0.5)
    small = log * poly("i1_to_2", z * 0.25) * x + poly("k1_small", linear(z, 0.5)) / x
    return _second(x, small, poly("k1_large", 4 / x - 1), scaled)


# --- of the first and second kind ----------------------------------------------------------------


def _from_zero(z: Node, name: str) -> Node:
    """z less a zero of the function that is known to more digits than the type has."""
    high, low = numbers_of(name, z)
    return z - high - low


def _waves(x: Node, order: int) -> tuple[Node, Node, Node, Node]:
    """P, Q of the asymptotic form, and the sum and difference of sine and cosine.

    They take the place of cos and sin of x less an odd multiple of pi / 4, times sqrt(2).
    """
    inverse = 5 / x
    t = linear(inverse * inverse, 2)
    q = inverse * poly(f"q{order}", t)
    s, c = op("sin", x), op("cos", x)
    return poly(f"p{order}", t), q, s + c, s - c


def _decay(x: Node, wave: Node) -> Node:
    return wave * INV_SQRT_PI / op("sqrt", x)


def _j0_near(a: Node) -> Node:
    z = a * a
    return _from_zero(z, "zero_j0") * poly("j0_small", linear(z, 2 / 25))


def _j1_near(a: Node) -> Node:
    z = a * a
    return a * _from_zero(z, "zero_j1") * poly("j1_small", linear(z, 2 / 25))


def j0(x: Node) -> Node:
    a = op("abs", x)
    p, q, plus, minus = _waves(a, 0)
    return mostly(a <= 5, _j0_near(a), _decay(a, p * plus - q * minus))


def j1(x: Node) -> Node:
    negative = x < 0
    a = where(negative, -x, x)
    p, q, plus, minus = _waves(a, 1)
    value = mostly(a <= 5, _j1_near(a), _decay(a, p * minus + q * plus))
    return where(negative, -value, value)


def _from_right(x: Node, near: Node, far: Node) -> Node:
    value = mostly(x <= 5, near, far)
    return where(x < 0, math.nan, where(is_zero(x), -math.inf, value))


def y0(x: Node) -> Node:
    p, q, plus, minus = _waves(x, 0)
    log = op("log", x) * _j0_near(x)
    near = op("fma", k(x, 2 / math.pi), log, poly("y0_small", linear(x * x, 2 / 25)))
    return _from_right(x, near, _decay(x, p * minus + q * plus))


def y1(x: Node) -> Node:
    p, q, plus, minus = _waves(x, 1)
    rest = op("log", x) * _j1_near(x) - 1 / x
    even = poly("y1_small", linear(x * x, 2 / 25))
    near = op("fma", k(x, 2 / math.pi), rest, x * even)
    return _from_right(x, near, _decay(x, q * minus - p * plus))


def spherical_j0(x: Node) -> Node:
    z = x * x
    series = k(x, 1 / math.factorial(15))
    for n in (13, 11, 9, 7, 5, 3, 1):
        series = op("fma", -z, series, k(x, 1 / math.factorial(n)))
    value = where(op("abs", x) < 0.5, series, op("sin", x) / x)
    return where(op("isinf", x), 0, value)


# --- the normal distribution ---------------------------------------------------------------------


def erfcx(x: Node) -> Node:
    """exp(x**2) erfc(x)."""
    a = op("abs", x)
    t = 1 - 2 * ERFCX_MIDDLE / (a + ERFCX_MIDDLE)
    tail = poly("erfcx", t) / op("fma", a, k(a, 2), k(a, 1))
    square = a * a
    rest = op("fma", a, a, -square)  # what rounding takes from the square
    e = op("exp", square)
    grown = where(op("isinf", e), e, op("fma", e, rest, e))
    return where(x < 0, 2 * grown - tail, tail)


def log_ndtr(x: Node) -> Node:
    t = x * math.sqrt(0.5)
    left = op("log", erfcx(-t) * 0.5) - t * t
    return where(x < -1, left, op("log1p", -(op("erfc", t) * 0.5)))


def ndtri(y: Node) -> Node:
    upper = y > 0.5
    least = where(upper, 1 - y, y)
    length = op("sqrt", -2 * op("log", least))
    z = 1 / length
    near = poly("ndtri_near", linear(z, 16 / 3, 5 / 3))
    far = poly("ndtri_far", linear(z, 20, 1.5))
    tail = length - op("log", length) / length - where(length < 8, near, far)
    tail = where(upper, tail, -tail)
    middle = op("erfinv", 2 * y - 1) * math.sqrt(2)
    value = where(least < math.exp(-2), tail, middle)
    return where(is_zero(least), where(upper, k(y, math.inf), -math.inf), value)


# --- the table -----------------------------------------------------------------------------------


formulas(
    {
        (aten.i0.default, aten.special_modified_bessel_i0.default): i0,
        aten.special_i0e.default: lambda x: i0(x, True),
        (aten.special_i1.default, aten.special_modified_bessel_i1.default): i1,
        aten.special_i1e.default: lambda x: i1(x, True),
        aten.special_modified_bessel_k0.default: k0,
        aten.special_scaled_modified_bessel_k0.default: lambda x: k0(x, True),
        aten.special_modified_bessel_k1.default: k1,
        aten.special_scaled_modified_bessel_k1.default: lambda x: k1(x, True),
        aten.special_bessel_j0.default: j0,
        aten.special_bessel_j1.default: j1,
        aten.special_bessel_y0.default: y0,
        aten.special_bessel_y1.default: y1,
        aten.special_spherical_bessel_j0.default: spherical_j0,
        aten.special_erfcx.default: erfcx,
        aten.special_log_ndtr.default: log_ndtr,
        aten.special_ndtri.default: ndtri,
    },
    floats=True,
)
