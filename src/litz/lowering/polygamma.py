"""Derivatives of digamma, by the sum of a few terms, an asymptotic series and reflection."""

from __future__ import annotations

import math
from typing import Final

import torch

from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.context import Unsupported
from litz.lowering.formulas import elementwise, float_compute, k, where
from litz.lowering.registry import Call, lower
from litz.lowering.values import TensorValue

aten = torch.ops.aten

TERMS: Final = 9  # that are summed one by one
# B(2 j) of the Euler-Maclaurin formula.
BERNOULLI: Final = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
)  # fmt: skip
MAX_ORDER: Final = 8


def power(a: Node, n: int) -> Node:
    """a to a positive whole power."""
    result: Node | None = None
    while True:
        if n & 1:
            result = a if result is None else result * a
        n >>= 1
        if not n:
            assert result is not None
            return result
        a = a * a


def hurwitz(s: int, q: Node) -> Node:
    """The sum of (q + j) ** -s over j >= 0, for q > 0."""
    total = 1 / power(q, s)
    for j in range(1, TERMS):
        total = total + 1 / power(q + j, s)
    w = q + TERMS
    last = 1 / power(w, s)
    # The tail: w ** (1 - s) / (s - 1), half of the first term, and corrections in 1 / w ** 2.
    z = 1 / (w * w)
    series = k(q, 0)
    for j in range(len(BERNOULLI), 0, -1):
        rising = math.prod(range(s, s + 2 * j - 1))
        series = series * z + BERNOULLI[j - 1] * rising / math.factorial(2 * j)
    # Inverse first: for large q the power itself would overflow.
    head = power(1 / w, s - 1) * (1 / (s - 1))
    return total + (head + (last * 0.5 + last / w * series))


def _cotangents(order: int) -> list[int]:
    """The derivative of this order of cot u as a polynomial in cot u, lowest power first."""
    p = [0, 1]
    for _ in range(order):
        slope = [j * c for j, c in enumerate(p)][1:]
        p = [0] * (len(slope) + 2)
        for j, c in enumerate(slope):
            p[j] -= c
            p[j + 2] -= c
    return p


def _sign(n: int) -> int:
    return -1 if n % 2 else 1


def _all_terms(s: int, x: Node) -> Node:
    """The sum of (x + j) ** -s over all integers j."""
    part = x - op("round", x)
    size = op("abs", part)
    # Near a half the cotangent is small: exactly what is left up to there, then.
    far = size > 0.25
    angle = where(far, 0.5 - size, size) * math.pi
    sine, cosine = op("sin", angle), op("cos", angle)
    cot = op("copysign", where(far, sine, cosine) / where(far, cosine, sine), part)
    value = k(x, 0)
    for c in reversed(_cotangents(s - 1)):
        value = op("fma", value, cot, k(x, c)) if c else value * cot
    return value * (_sign(s - 1) * math.pi**s / math.factorial(s - 1))


def derivative(n: int, x: Node) -> Node:
    """Of order n >= 2."""
    s = n + 1
    negative = x < 0
    right = hurwitz(s, where(negative, 1 - x, x))
    left = _all_terms(s, x) + right if s % 2 else _all_terms(s, x) - right
    value = where(negative, left, right)
    # Poles, minus infinity among them.
    pole = (x <= 0) & op("eq", x, op("floor", x))
    value = where(op("eq", x, k(x, math.inf)), math.nan, where(pole, math.inf, value))
    return value * (_sign(n + 1) * math.factorial(n))


def trigamma(x: Node) -> Node:
    """Step by step as eager, whose values at the poles are large and finite."""
    low = x < 0.5
    sine = op("sin", math.pi * x)
    start = where(low, -(math.pi**2) / (sine * sine), 0)
    y = where(low, 1 - x, x)
    for _ in range(6):
        start = start + 1 / (y * y)
        y = y + 1
    z = 1 / (y * y)
    inner = z * (1 / 6 - z * (1 / 30 - z * (1 / 42)))
    start = start + (1 + 1 / (2 * y) + inner) / y
    return where(low, -start, start)


@lower(aten.polygamma.default)
def polygamma(ctx: Call, n: int, x: TensorValue) -> TensorValue:
    if not isinstance(n, int) or not 0 <= n <= MAX_ORDER:
        raise Unsupported("a special function: ATen computes it")

    def fn(a: Node) -> Node:
        if n == 0:
            return op("digamma", a)
        return trigamma(a) if n == 1 else derivative(n, a)

    # High powers multiply the rounding of what they are of: near poles, six times and more.
    compute = d.F64 if n > 1 else float_compute(ctx, x)
    return elementwise(ctx, fn, x, compute=compute)
