"""Where the polynomial coefficients of the C++ math headers come from.

``python tests/ops/minimax.py`` prints every set.  Each is a weighted fit on Chebyshev points in
high precision, near the minimax one; coefficients are then rounded one after the other, lowest
order first, and the rest fitted again, so that rounding costs almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

Real = Any
Fn = Callable[[Real], Real]
mp.prec = 300


@dataclass(frozen=True)
class Fit:
    """f(x) ~ sum c_k x^k on [a, b], error weighted by ``weight``; ``bits``: 24 or 53."""

    name: str
    f: Fn
    a: Real
    b: Real
    degree: int
    weight: Fn
    bits: int = 24


def least_squares(f: Fn, a: Real, b: Real, powers: Sequence[int], weight: Fn) -> list[Real]:
    """Weighted least squares on Chebyshev points: near minimax, and stable for any powers."""
    a, b, n = mpf(a), mpf(b), 6 * len(powers) + 12
    nodes = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    weights = [weight(x) for x in nodes]
    columns = [[w * x**p for x, w in zip(nodes, weights, strict=True)] for p in powers]
    target = [f(x) * w for x, w in zip(nodes, weights, strict=True)]
    normal = mp.matrix(len(powers), len(powers))
    rhs = mp.matrix(len(powers), 1)
    for i, u in enumerate(columns):
        rhs[i] = mp.fdot(u, target)
        for j, v in enumerate(columns):
            normal[i, j] = mp.fdot(u, v)
    return list(mp.lu_solve(normal, rhs))


def fit(job: Fit) -> tuple[list[float], float]:
    """Rounded coefficients, lowest order first, and the weighted error after rounding."""
    done: list[float] = []
    for k in range(job.degree + 1):
        fixed = list(done)

        def rest(x: Real, fixed: list[float] = fixed) -> Real:
            return job.f(x) - sum(mpf(c) * x**i for i, c in enumerate(fixed))

        powers = range(k, job.degree + 1)
        coefficients = least_squares(rest, job.a, job.b, powers, job.weight)
        c = float(coefficients[0])
        done.append(float(np.float32(c)) if job.bits == 24 else c)
    grid = [mpf(job.a) + (mpf(job.b) - mpf(job.a)) * i / 500 for i in range(501)]
    error = max(
        abs((sum(mpf(c) * x**i for i, c in enumerate(done)) - job.f(x)) * job.weight(x))
        for x in grid
    )
    return done, float(error)


def _series(f: Fn, at_zero: Real) -> Fn:
    return lambda x: at_zero if abs(x) < mpf(10) ** -25 else f(x)


LN2 = mp.log(2)
_H = LN2 / 2 * mpf("1.001")
_LOG = _series(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, mpf(1) / 3)
_LO, _HI = mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1


def _erf_tail(t: Real) -> Real:
    """-log(erfc(t)) over t, less 1."""
    return -mp.log(mp.erfc(t)) / t - 1 if t > mpf(10) ** -25 else 2 / mp.sqrt(mp.pi) - 1


def _erf_tail_weight(t: Real) -> Real:
    """What an error of that is to erf."""
    return t * mp.erfc(t) / mp.erf(t) if t > mpf(10) ** -25 else mp.sqrt(mp.pi) / 2


def _one(_: Real) -> Real:
    return mpf(1)


def _in_square(f: Fn, at_zero: Real) -> Fn:
    """f of sqrt(z), for the even part of an odd or even function."""
    return _series(lambda z: f(mp.sqrt(z)), at_zero)


_EXP2 = _series(lambda r: (mp.exp(r) - 1 - r) / r**2, mpf(1) / 2)
_S = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
_Q = (mp.pi / 4) ** 2 * mpf("1.001")
# 2 atanh(s) = 2 s + s R(s^2); R / z
_LOG_S = _in_square(lambda s: (2 * mp.atanh(s) - 2 * s) / s**3, mpf(2) / 3)


def _erfcx_scaled(u: Real) -> Real:
    """(1 + 2 a) e^(a^2) erfc(a), with u = (a - 3) / (a + 3)."""
    a = 3 * (1 + u) / (1 - u)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


def _erfinv_over_x(w: Real) -> Real:
    """erfinv(x) / x, with w = -log(1 - x^2)."""
    if abs(w) < mpf(10) ** -30:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def _erfinv_central(u: Real) -> Real:
    return _erfinv_over_x(u + mpf(2.5))


def _erfinv_tail(u: Real) -> Real:
    return _erfinv_over_x((u + 3) ** 2)


def _lgamma(u: Real) -> Real:
    """lgamma(y) / ((y - 1) (y - 2)) with u = y - 2."""
    if min(abs(u), abs(u + 1)) < mpf(10) ** -30:
        return mp.digamma(2) if abs(u) < 0.5 else -mp.digamma(1)
    return mp.loggamma(u + 2) / (u * (u + 1))


def _series_of(f: Fn) -> Fn:
    """f of z = 1 / sqrt(s), which goes to 1 / 12."""
    return lambda s: f(1 / mp.sqrt(s)) if s > mpf(10) ** -30 else mpf(1) / 12


def _stirling(z: Real) -> Real:
    return (mp.loggamma(z) - (z - mpf("0.5")) * mp.log(z) + z - mp.log(2 * mp.pi) / 2) * z


def _digamma(z: Real) -> Real:
    return (mp.log(z) - 1 / (2 * z) - mp.digamma(z)) * z * z


def _log_quotient(per_e: Real) -> Fn:
    """(log(1 + r) - r) / r^2 in a base."""
    return _series(lambda r: (mp.log1p(r) - r) / r**2 * per_e, -per_e / 2)


_ERF = _series(lambda z: (mp.erf(mp.sqrt(z)) / mp.sqrt(z)) - 1, 2 / mp.sqrt(mp.pi) - 1)
_SIN = _in_square(lambda x: (mp.sin(x) - x) / x**3, -mpf(1) / 6)
_COS = _in_square(lambda x: (mp.cos(x) - 1 + x * x / 2) / x**4, mpf(1) / 24)
_ASIN = _in_square(lambda x: (mp.asin(x) - x) / x**3, mpf(1) / 6)
_ATAN = _in_square(lambda x: (mp.atan(x) - x) / x**3, -mpf(1) / 3)
_TAN = _in_square(lambda x: (mp.tan(x) - x) / x**3, mpf(1) / 3)
_SINH = _in_square(lambda x: (mp.sinh(x) - x) / x**3, mpf(1) / 6)
_ATANH = _in_square(lambda x: (mp.atanh(x) - x) / x**3, mpf(1) / 3)
_MIDDLE = _erfinv_central(mpf(0))
_ERFINV = _series(
    lambda u: (_erfinv_central(u) - _MIDDLE) / u, mp.diff(_erfinv_central, mpf(0), h=mpf(10) ** -30)
)
_ERFINV_TAIL = mp.sqrt(5) - 3, mp.sqrt(17) - 3
_TURN = (mp.pi / 4 * mpf("1.01")) ** 2
_LOG2 = _series(lambda r: mp.log1p(r) / r / LN2, 1 / LN2)
_LOG2_CUBIC = _series(lambda r: (mp.log1p(r) - r + r * r / 2) / r**3 / LN2, 1 / LN2 / 3)
_EXP2_1 = _series(lambda r: (2**r - 1) / r, LN2)
_OF_A_16TH = mpf(-1) / 32, mpf(1) / 16
LOGS = (("log", mp.e, 16), ("log2", mpf(2), 15), ("log10", mpf(10), 16))

JOBS = (
    *(
        Fit(
            f"{name} in pieces",
            _log_quotient(1 / mp.log(base)),
            mpf(-1) / 56,
            mpf(1) / 32,
            3,
            lambda r, base=base: abs(r) * mp.log(base) + mpf(2) ** -9,
        )
        for name, base, _ in LOGS
    ),
    Fit("sin", _SIN, 0, _TURN, 3, lambda z: z),
    Fit("cos", _COS, 0, _TURN, 2, lambda z: z * z / 0.7),
    Fit("asin", _ASIN, 0, 0.25, 5, lambda z: z),
    Fit("atan", _ATAN, 0, 0.25, 5, lambda z: z),
    Fit("tan", _TAN, 0, _TURN, 6, lambda z: z),
    Fit("sin f64", _SIN, 0, _TURN, 5, lambda z: z, 53),
    Fit("cos f64", _COS, 0, _TURN, 5, lambda z: z * z / 0.7, 53),
    Fit("asin f64", _ASIN, 0, 0.25, 12, lambda z: z, 53),
    Fit("atan f64", _ATAN, 0, 0.25, 11, lambda z: z, 53),
    Fit("lgamma wide", _lgamma, -1, 1, 16, _one, 53),
    Fit("stirling wide", _series_of(_stirling), 0, mpf(1) / 36, 3, mp.sqrt, 53),
    Fit("digamma wide", _series_of(_digamma), 0, mpf(1) / 100, 4, lambda s: s, 53),
    Fit("exp", _EXP2, -_H, _H, 5, lambda r: r * r),
    # Where nothing is carried: results below 1 have the smaller units.
    Fit("exp short", _EXP2, -_H, _H, 4, lambda r: r * r * mp.exp(-1.5 * r) * (1 if r < 0 else 0.3)),
    Fit("exp2", _series(lambda r: (2**r - 1) / r, LN2), -0.5, 0.5, 5, lambda r: abs(r)),
    Fit("log", _LOG, _LO, _HI, 8, lambda f: f * f),
    Fit("erf whole", _erf_tail, 0, 4, 8, _erf_tail_weight),
    Fit("erf inner", _ERF, 0, mpf("0.2501"), 4, mp.sqrt),
    # Of floats: what follows the first, a sum of two, was fitted to that before it was rounded.
    Fit("erfcx float", _erfcx_scaled, -1 + mpf(10) ** -20, mpf("7.06") / mpf("13.06"), 10, _one),
    Fit("exp f64", _EXP2, -_H, _H, 10, lambda r: r * r, 53),
    Fit("exp2 f64", _series(lambda r: (2**r - 1) / r, LN2), -0.5, 0.5, 11, lambda r: abs(r), 53),
    Fit("log f64", _LOG_S, 0, _S * _S, 7, lambda z: z * mp.sqrt(z), 53),
    Fit("exp wide", _EXP2, -_H, _H, 6, lambda r: r * r, 53),
    Fit("exp2 wide", _series(lambda r: (2**r - 1) / r, LN2), -0.5, 0.5, 8, lambda r: abs(r), 53),
    Fit("log wide", _LOG_S, 0, _S * _S, 4, lambda z: z, 53),
    Fit("log2 looked up", _LOG2, *_OF_A_16TH, 6, lambda r: LN2, 53),
    Fit("exp2 looked up", _EXP2_1, -mpf(1) / 32, mpf(1) / 32, 3, abs, 53),
    Fit("log2 in two parts", _LOG2_CUBIC, *_OF_A_16TH, 10, lambda r: r * r * LN2, 53),
    Fit("exp2 of powers", _EXP2_1, -mpf(1) / 31, mpf(1) / 31, 6, abs, 53),
    Fit("sin wide", _in_square(lambda x: (mp.sin(x) - x) / x**3, -mpf(1) / 6), 0, _Q, 4, _one, 53),
    Fit("cos wide", _in_square(lambda x: (mp.cos(x) - 1) / x**2, -mpf(1) / 2), 0, _Q, 5, _one, 53),
    Fit("sinh f64", _SINH, 0, 1, 6, lambda z: z, 53),
    Fit("sinh wide", _SINH, 0, 1, 4, _one, 53),
    Fit("erf f64", _ERF, 0, 1, 11, _one, 53),
    Fit("erfc f64", _erfcx_scaled, mpf("-2.55") / mpf("3.45"), mpf(25) / 31, 20, _one, 53),
    Fit("erfinv far", lambda u: _erfinv_tail(u + 2), -0.9, 1.1, 5, _one, 53),
    # Of floats; of the first, what follows the value in the middle, a sum of two.
    Fit("erfinv central", _ERFINV, -2.5, 2.5, 8, lambda u: abs(u) / _erfinv_central(u)),
    Fit("erfinv tail", _erfinv_tail, *_ERFINV_TAIL, 9, lambda u: 1 / _erfinv_tail(u)),
    Fit("atanh", _ATANH, 0, mpf("0.43") ** 2, 4, lambda z: z),
)

# Polynomials of |x| in pieces of one width, the first half as wide, of which a vector picks each
# lane's coefficients: name, function, width, number of pieces, degree.
PIECES = (("tanh", mp.tanh, 0.3, 32, 6), ("erf", mp.erf, 65 / 256, 16, 6))


def piece(f: Fn, width: float, k: int, degree: int) -> tuple[float, list[float], float]:
    """A piece's centre, coefficients and weighted error.

    Of places near the middle the centre is one where f is nearly a float, so that the coefficient
    which outweighs the others has no error.  The first two pieces are of f(x) - x.
    """
    a, b = max(k - 0.5, 0.0) * width, (k + 0.5) * width
    if k == 0:
        return first_piece(f, b, degree)
    return centred((lambda x: f(x) - x) if k == 1 else f, a, b, degree, f)


def first_piece(f: Fn, end: Real, degree: int) -> tuple[float, list[float], float]:
    """That of f(x) - x on [0, end], a small multiple of x."""
    rest = _series(lambda x: (f(x) - x) / x, mp.diff(f, 0) - 1)
    found, error = fit(Fit("", rest, 0, end, degree - 1, lambda x: 1))
    return 0.0, [0.0, *found], error


def centred(
    g: Fn, a: Real, b: Real, degree: int, f: Fn | None = None
) -> tuple[float, list[float], float]:
    """The piece of g on [a, b]; its error is weighted by f, g itself if not given."""
    f = f or g
    middle = np.float32((a + b) / 2)
    step = np.float32((b - a) / 4096)
    near = [np.float32(middle + np.float32(i) * step) for i in range(-40, 41)]
    centre = float(
        min(
            near,
            key=lambda c: abs(
                mpf(float(np.float32(float(g(mpf(float(c))))))) / g(mpf(float(c))) - 1
            ),
        )
    )
    found, error = fit(
        Fit(
            "", lambda y: g(y + centre), a - centre, b - centre, degree, lambda y: 1 / f(y + centre)
        )
    )
    return centre, found, error


def even_pieces(f: Fn, width: float, degree: int) -> list[tuple[float, list[float], float]]:
    """32 pieces of f itself, the first half as wide."""
    ends = [(max(k - 0.5, 0.0) * width, (k + 0.5) * width) for k in range(32)]
    return [centred(f, a, b, degree) for a, b in ends]


def quarter_piece(f: Fn, k: int, degree: int) -> tuple[float, list[float], float]:
    """The piece around a whole multiple of 1/4."""
    ends = -mpf(1) / 8, mpf(1) / 8
    found, error = fit(
        Fit("", lambda y: f(y + mpf(k) / 4), *ends, degree, lambda y: 1 / f(y + mpf(k) / 4))
    )
    return k / 4, found, error


def atan_piece(k: int) -> tuple[float, list[float], float]:
    """A quarter of an octave from 2^-3 on; from 2 on as a function of -1/x."""
    low, high = (mpf(2) ** (j // 4 - 3) * (1 + mpf(j % 4) / 4) for j in (k, k + 1))
    if k == 0:
        return first_piece(mp.atan, high, 5)
    if low < 2:
        return centred(mp.atan, low, high, 5)
    return centred(lambda s: mp.pi / 2 + mp.atan(s), -1 / low, mpf(0) if k == 31 else -1 / high, 5)


def print_pieces(name: str, rows: Sequence[tuple[float, list[float], float]]) -> None:
    print(f"{name}: weighted error 2^{float(mp.log(max(r[2] for r in rows), 2)):.1f}")
    table = [[c, *coefficients] for c, coefficients, _ in rows]
    for column in zip(*table, strict=True):
        print("    {" + ", ".join(f"{c.hex()}f" for c in column) + "},")


def near_inverses(count: int) -> list[float]:
    """Of numbers in 3/4 .. 3/2, by parts of the mantissa from 1 on: of few bits, 1 around 1."""
    found = []
    for j in range(count):
        low, high = ((1 + (j + i) / count) / (1 if j < count // 2 else 2) for i in (0, 1))
        near = [k / 128 for k in range(64, 256)]
        off = [max(abs(low * c - 1), abs(high * c - 1)) for c in near]
        found.append(1.0 if j in (0, count - 1) else near[off.index(min(off))])
    return found


def print_powers() -> None:
    """Inverses, minus their logarithms to base 2, powers of two; what rounding left of both."""
    inverses = near_inverses(16)
    logs = [-mp.log(c, 2) for c in map(mpf, inverses)]
    powers = [mpf(2) ** (mpf(j) / 16) for j in range(16)]
    lows = [[v - float(v) for v in row] for row in (logs, powers)]
    for row in (inverses, logs, powers, *lows):
        print("    {" + ", ".join(float(c).hex() for c in row) + "},")


def print_logs() -> None:
    """Inverses of numbers in 3/4 .. 3/2, by 32nds of the mantissa from 1 on, and their logarithms.

    An inverse has so few bits that it times a number, less 1, is a float.  Minus its logarithm is a
    multiple of 2^-``bits`` and a rest.
    """
    inverses = []
    for j in range(32):
        low, high = ((1 + (j + i) / 32) / (1 if j < 16 else 2) for i in (0, 1))
        grain = 128 if j < 16 else 64
        near = [k / grain for k in range(grain // 2, 2 * grain)]
        off = [max(abs(low * c - 1), abs(high * c - 1)) for c in near]
        inverses.append(1.0 if j in (0, 31) else near[off.index(min(off))])
    rows = [inverses]
    for _, base, bits in LOGS:
        exact = [-mp.log(c) / mp.log(base) for c in inverses]
        heads = [mp.nint(value * 2**bits) / 2**bits for value in exact]
        rows += [heads, [np.float32(float(v - h)) for v, h in zip(exact, heads, strict=True)]]
    for row in rows:
        print("    {" + ", ".join(f"{float(c).hex()}f" for c in row) + "},")


if __name__ == "__main__":
    print_logs()
    print_powers()
    for name, f, width, count, degree in PIECES:
        print_pieces(name, [piece(f, width, k, degree) for k in range(count)])
    print_pieces("erfcx", even_pieces(lambda a: mp.exp(a * a) * mp.erfc(a), 41 / 128, 6))
    print_pieces("erfinv / x", even_pieces(_erfinv_over_x, 65 / 128, 4))
    # The centres are computed; of the last 16, from -4 on, the first is 0.
    erfs = [quarter_piece(lambda x: mp.erfc(-x), k, 5) for k in (*range(16), *range(-16, 0))]
    print_pieces("erf + 1", erfs)
    print_pieces("atan", [atan_piece((k + 16) % 32) for k in range(32)])
    for job in JOBS:
        coefficients, error = fit(job)
        print(f"{job.name}: weighted error 2^{float(mp.log(error, 2)):.1f}")
        digits = ", ".join(f"{c.hex()}" for c in coefficients)
        print("   ", digits)
