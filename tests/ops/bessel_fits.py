"""Where the numbers of ``litz/lowering/bessel.json`` come from.

``python tests/ops/bessel_fits.py > bessel.json`` writes them, by the bits of a type: the smooth
parts of Bessel functions, of the scaled complementary error function and of the normal quantile, as
polynomials in a variable t over [-1, 1].  Each interpolates on Chebyshev points in high precision,
with the least degree that leaves the error well under the rounding of its type.  Those whose terms
are all positive that way are in s = (t + 1) / 2 instead.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

Real = Any
mp.prec = 260


@dataclass(frozen=True)
class Part:
    """``f`` over t in [-1, 1].

    relative: whether its error counts relative to its value.  unit: coefficients are in s.
    """

    name: str
    f: Callable[[Real], Real]
    relative: bool = True
    unit: bool = False


def coefficients(f: Callable[[Real], Real], degree: int) -> list[Real]:
    """Of the polynomial through f at Chebyshev points, lowest order first."""
    n = degree + 1
    angles = [mp.pi * (2 * k + 1) / (2 * n) for k in range(n)]
    values = [f(mp.cos(a)) for a in angles]
    series = [2 * mp.fdot(values, [mp.cos(j * a) for a in angles]) / n for j in range(n)]
    series[0] /= 2
    out = [mpf(0)] * n
    low, high = [mpf(1)], [mpf(0), mpf(1)]  # T_0 and T_1
    for c in series:
        for k, x in enumerate(low):
            out[k] += c * x
        step = [mpf(0)] + [2 * x for x in high]
        for k, x in enumerate(low):
            step[k] -= x
        low, high = high, step
    return out


def in_unit(found: list[Real]) -> list[Real]:
    """A polynomial in t = 2 s - 1 as one in s."""
    out = [mpf(0)]
    for c in reversed(found):
        step = [mpf(0)] * (len(out) + 1)
        for k, x in enumerate(out):
            step[k] -= x
            step[k + 1] += 2 * x
        step[0] += c
        out = step
    return out[: len(found)]


def error(p: Part, found: list[Real], points: list[Real], exact: list[Real]) -> Real:
    worst = mpf(0)
    for t, e in zip(points, exact, strict=True):
        off = abs(mp.polyval(found[::-1], t) - e)
        worst = max(worst, off / abs(e) if p.relative else off)
    return worst


def fit(p: Part, bits: int) -> list[float]:
    points = [mpf(k) / 20 for k in range(-20, 21)]
    exact = [p.f(t) for t in points]
    for degree in range(3, 46):
        found = coefficients(p.f, degree)
        if error(p, found, points, exact) < mpf(2) ** (-bits - 2):
            break
    else:
        raise ValueError(p.name)
    found = in_unit(found) if p.unit else found
    return [float(c) if bits > 24 else float(np.float32(float(c))) for c in found]


# --- the parts -----------------------------------------------------------------------------------


def over(low: Real, high: Real, f: Callable[[Real], Real]) -> Callable[[Real], Real]:
    """``f`` of a variable in [low, high] as a function of t; near ``low`` it may be a limit."""
    least = mpf(low) + mpf(10) ** -24
    return lambda t: f(max(mpf(low) + (t + 1) / 2 * (mpf(high) - mpf(low)), least))


def hankel(order: int, imaginary: bool) -> Callable[[Real], Real]:
    """P, or Q x / 5, of J + i Y = sqrt(2 / (pi x)) (P + i Q) exp(i (x - shift)), in 25 / x**2."""

    def f(w: Real) -> Real:
        x = 5 / mp.sqrt(w)
        if x > 60:  # the asymptotic series, far below any rounding here
            return series(order, x, imaginary)
        shift = mp.pi / 4 * (1 + 2 * order)
        h = (mp.besselj(order, x) + 1j * mp.bessely(order, x)) * mp.sqrt(mp.pi * x / 2)
        h *= mp.expj(-(x - shift))
        return h.imag * x / 5 if imaginary else h.real

    return f


def series(order: int, x: Real, imaginary: bool) -> Real:
    total, a = mpf(0), mpf(1)
    for k in range(40):
        if k % 2 == imaginary:
            total += (-1) ** (k // 2) * a / x**k
        a *= (4 * mpf(order) ** 2 - (2 * k + 1) ** 2) / (8 * (k + 1))
    return total * x / 5 if imaginary else total


def scaled_i(order: int, x: Real) -> Real:
    """I exp(-x) sqrt(x)."""
    if x < 200:
        return mp.besseli(order, x) * mp.exp(-x) * mp.sqrt(x)
    total, a = mpf(0), mpf(1)
    for k in range(60):
        total += a
        a *= -(4 * mpf(order) ** 2 - (2 * k + 1) ** 2) / (8 * (k + 1) * x)
    return total / mp.sqrt(2 * mp.pi)


def scaled_k(order: int, x: Real) -> Real:
    """K exp(x) sqrt(x)."""
    if x < 200:
        return mp.besselk(order, x) * mp.exp(x) * mp.sqrt(x)
    total, a = mpf(0), mpf(1)
    for k in range(60):
        total += a
        a *= (4 * mpf(order) ** 2 - (2 * k + 1) ** 2) / (8 * (k + 1) * x)
    return total * mp.sqrt(mp.pi / 2)


def quantile(z: Real) -> Real:
    """L - log(L) / L + ndtri(y), where y = exp(-L**2 / 2) and L = 1 / z."""
    length = 1 / z
    log_y = -(length**2) / 2
    x = length - mp.log(length) / length  # Newton on log(ndtr(-x)) = log_y
    for _ in range(60):
        tail = mp.erfc(x / mp.sqrt(2)) / 2
        step = (mp.log(tail) - log_y) * tail / (mp.exp(-(x**2) / 2) / mp.sqrt(2 * mp.pi))
        x += step
        if abs(step) < mpf(10) ** -60:
            break
    return length - mp.log(length) / length - x


ZERO_J0 = mp.besseljzero(0, 1) ** 2
ZERO_J1 = mp.besseljzero(1, 1) ** 2
ERFCX_MIDDLE = 4


def erfcx_part(t: Real) -> Real:
    if t > 1 - mpf(10) ** -20:
        return 2 / mp.sqrt(mp.pi)
    x = ERFCX_MIDDLE * (1 + t) / (1 - t)
    if x < 60:
        return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)
    total, a = mpf(0), mpf(1)
    for k in range(40):
        total += a
        a *= -(2 * k + 1) / (2 * x * x)
    return total / (x * mp.sqrt(mp.pi)) * (1 + 2 * x)


def _i0(z: Real) -> Real:
    return mp.besseli(0, mp.sqrt(z))


def _i1(z: Real) -> Real:
    return mp.besseli(1, mp.sqrt(z)) / mp.sqrt(z)


def _y0(z: Real) -> Real:
    x = mp.sqrt(z)
    return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)


def _y1(z: Real) -> Real:
    x = mp.sqrt(z)
    return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def _k0(z: Real) -> Real:
    x = mp.sqrt(z)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


def _k1(z: Real) -> Real:
    x = mp.sqrt(z)
    return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))


PARTS = (
    Part("i0_small", over(0, 64, _i0), unit=True),
    Part("i0_large", over(0, 1, lambda w: scaled_i(0, 8 / w))),
    Part("i1_small", over(0, 64, _i1), unit=True),
    Part("i1_large", over(0, 1, lambda w: scaled_i(1, 8 / w))),
    Part("i0_to_2", over(0, 4, _i0), unit=True),
    Part("i1_to_2", over(0, 4, _i1), unit=True),
    Part("k0_small", over(0, 4, _k0), False),
    Part("k0_large", over(0, 1, lambda w: scaled_k(0, 2 / w))),
    Part("k1_small", over(0, 4, _k1), False),
    Part("k1_large", over(0, 1, lambda w: scaled_k(1, 2 / w))),
    Part("j0_small", over(0, 25, lambda z: mp.besselj(0, mp.sqrt(z)) / (z - ZERO_J0))),
    Part("y0_small", over(0, 25, _y0), False),
    Part(
        "j1_small",
        over(0, 25, lambda z: mp.besselj(1, mp.sqrt(z)) / mp.sqrt(z) / (z - ZERO_J1)),
    ),
    Part("y1_small", over(0, 25, _y1), False),
    Part("p0", over(0, 1, hankel(0, False))),
    Part("q0", over(0, 1, hankel(0, True))),
    Part("p1", over(0, 1, hankel(1, False))),
    Part("q1", over(0, 1, hankel(1, True))),
    Part("erfcx", erfcx_part),
    Part("ndtri_near", over(mpf(1) / 8, mpf(1) / 2, quantile), False),
    Part("ndtri_far", over(mpf(1) / 40, mpf(1) / 8, quantile), False),
)
CONSTANTS = {"zero_j0": ZERO_J0, "zero_j1": ZERO_J1}
WIDTHS = {64: 53, 32: 24}
"""Digits of the types, by their bits."""


def two(x: Real, digits: int) -> tuple[float, float]:
    """x as a sum of two numbers of ``digits`` digits."""
    high = float(x) if digits > 24 else float(np.float32(float(x)))
    return high, float(x - mpf(high))


def text(tables: Mapping[int, Mapping[str, Sequence[float]]]) -> str:
    """JSON with as many numbers in a row as fit."""
    lines = []
    for bits, table in tables.items():
        rows = [f'  "{name}": {wrapped(numbers)}' for name, numbers in table.items()]
        lines.append(f'"{bits}": {{\n' + ",\n".join(rows) + "\n}")
    return "{" + ",\n".join(lines) + "}"


def wrapped(numbers: Sequence[float]) -> str:
    return "[\n" + textwrap.fill(", ".join(map(repr, numbers)), 98, **INDENT) + "]"


INDENT: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}


def main() -> None:
    tables: dict[int, dict[str, Sequence[float]]] = {}
    for bits, digits in WIDTHS.items():
        zeros = {name: two(x, digits) for name, x in CONSTANTS.items()}
        tables[bits] = zeros | {p.name: fit(p, digits) for p in PARTS}
    print(text(tables))


if __name__ == "__main__":
    main()
