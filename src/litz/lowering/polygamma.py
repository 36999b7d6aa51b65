"""Derivatives of digamma, by the sum of a few terms, an asymptotic series and reflection."""

from __future__ import annotations

import math
from typing import Final

import torch

from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.activations import add, div, mul, sub, where
from litz.lowering.context import Unsupported
from litz.lowering.pointwise import elementwise, float_compute, k
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
            result = a if result is None else mul(result, a)
        n >>= 1
        if not n:
            assert result is not None
            return result
        a = mul(a, a)


def hurwitz(s: int, q: Node) -> Node:
    """The sum of (q + j) ** -s over j >= 0, for q > 0."""
    one = k(q, 1)
    total = div(one, power(q, s))
    for j in range(1, TERMS):
        total = add(total, div(one, power(add(q, k(q, j)), s)))
    w = add(q, k(q, TERMS))
    last = div(one, power(w, s))
    # The tail: w ** (1 - s) / (s - 1), half of the first term, and corrections in 1 / w ** 2.
    z = div(one, mul(w, w))
    series = k(q, 0)
    for j in range(len(BERNOULLI), 0, -1):
        rising = math.prod(range(s, s + 2 * j - 1))
        c = BERNOULLI[j - 1] * rising / math.factorial(2 * j)
        series = add(mul(series, z), k(q, c))
    # Inverse first: for large q the power itself would overflow.
    head = mul(power(div(one, w), s - 1), k(q, 1 / (s - 1)))
    return add(total, add(head, add(mul(last, k(q, 0.5)), mul(div(last, w), series))))


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


def _all_terms(s: int, x: Node) -> Node:
    """The sum of (x + j) ** -s over all integers j."""
    part = sub(x, op("round", x))
    size = op("abs", part)
    # Near a half the cotangent is small: exactly what is left up to there, then.
    far = op("gt", size, k(x, 0.25))
    angle = mul(where(far, sub(k(x, 0.5), size), size), k(x, math.pi))
    sine, cosine = op("sin", angle), op("cos", angle)
    cot = div(where(far, sine, cosine), where(far, cosine, sine))
    cot = op("copysign", cot, part)
    value = k(x, 0)
    for c in reversed(_cotangents(s - 1)):
        value = op("fma", value, cot, k(x, c)) if c else mul(value, cot)
    return mul(value, k(x, (-1) ** (s - 1) * math.pi**s / math.factorial(s - 1)))


def derivative(n: int, x: Node) -> Node:
    """Of order n >= 2."""
    s = n + 1
    negative = op("lt", x, k(x, 0))
    right = hurwitz(s, where(negative, sub(k(x, 1), x), x))
    left = add(_all_terms(s, x), right) if s % 2 else sub(_all_terms(s, x), right)
    value = where(negative, left, right)
    # Poles, minus infinity among them.
    pole = op("and_", op("le", x, k(x, 0)), op("eq", x, op("floor", x)))
    value = where(op("eq", x, k(x, math.inf)), k(x, math.nan), where(pole, k(x, math.inf), value))
    return mul(value, k(x, (-1) ** (n + 1) * math.factorial(n)))


def trigamma(x: Node) -> Node:
    """Step by step as eager, whose values at the poles are large and finite."""
    one = k(x, 1)
    low = op("lt", x, k(x, 0.5))
    sine = op("sin", mul(k(x, math.pi), x))
    start = where(low, div(k(x, -(math.pi**2)), mul(sine, sine)), k(x, 0))
    y = where(low, sub(one, x), x)
    for _ in range(6):
        start = add(start, div(one, mul(y, y)))
        y = add(y, one)
    z = div(one, mul(y, y))
    inner = sub(k(x, 1 / 30), mul(z, k(x, 1 / 42)))
    inner = mul(z, sub(k(x, 1 / 6), mul(z, inner)))
    start = add(start, div(add(add(one, div(one, mul(k(x, 2), y))), inner), y))
    return where(low, op("neg", start), start)


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
