"""Special functions of one and two arguments: logits, entropies, sinc, heaviside and their like."""

from __future__ import annotations

import math

import torch

from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.lowering.context import Unsupported
from litz.lowering.formulas import (
    Rounding,
    elementwise,
    formula,
    formulas,
    is_zero,
    k,
    never,
    refused,
    stepwise,
    stepwise_off_cpu,
    stepwise_on_cpu,
    unchanged,
    where,
)
from litz.lowering.registry import Call, lower
from litz.lowering.torch_types import to_torch
from litz.lowering.values import TensorValue

aten = torch.ops.aten

# The multivariate log-gamma adds up as many log-gammas as dimensions.
MAX_GAMMAS = 8


def _logit(r: Rounding, a: Node, *, eps: float | None) -> Node:
    if eps is not None and eps >= 0:
        a = r(op("minimum", op("maximum", a, k(a, eps)), k(a, 1) - eps))
    return op("log", r(a / r(1 - a)))


def _times_log(r: Rounding, log: str, a: Node, b: Node) -> Node:
    return where(op("isnan", b), b, where(is_zero(a), 0, a * r(op(log, b))))


def _entr(r: Rounding, a: Node) -> Node:
    rest = where(is_zero(a), 0, k(a, -math.inf))
    return where(op("isnan", a), a, where(a > 0, -a * r(op("log", a)), rest))


formulas(
    {
        aten.logit.default: _logit,
        (aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other): (
            lambda r, a, b: _times_log(r, "log", a, b)
        ),
        aten.special_xlog1py.default: lambda r, a, b: _times_log(r, "log1p", a, b),
        aten.special_entr.default: _entr,
    },
    floats=True,
    steps=stepwise_on_cpu,
)


@formula(aten.logit_backward.default, steps=stepwise_on_cpu)
def logit_backward(r: Rounding, g: Node, a: Node, *, eps: float | None) -> Node:
    slope = g / r(a * r(1 - a))
    if eps is not None and eps >= 0:
        return where((a >= eps) & (a <= k(a, 1) - eps), slope, 0)
    return where((a >= 0) & (a <= 1), slope, math.nan)


def _log_of_sum(a: Node, b: Node, exp: str) -> Node:
    tail = op("log1p", op(exp, -op("abs", a - b)))
    value = op("maximum", a, b) + (tail if exp == "exp" else tail * (1 / math.log(2)))
    return where(op("isinf", a) & op("eq", a, b), a, value)


def _sinc(a: Node) -> Node:
    product = math.pi * a
    return where(is_zero(a), 1, op("sin", product) / product)


formulas(
    {
        aten.logaddexp.default: lambda a, b: _log_of_sum(a, b, "exp"),
        aten.logaddexp2.default: lambda a, b: _log_of_sum(a, b, "exp2"),
        aten.sinc.default: _sinc,
        aten.angle.default: lambda a: where(op("isnan", a), a, where(a < 0, k(a, math.pi), 0)),
        aten.deg2rad.default: lambda a: a * (math.pi / 180),
        aten.rad2deg.default: lambda a: a * (180 / math.pi),
    },
    floats=True,
)
formulas(
    {
        aten.heaviside.default: lambda a, v: where(is_zero(a), v, body.cast(a > 0, a.dtype)),
        aten.frac.default: lambda a: a - op("trunc", a),
    }
)
formulas(
    {
        aten.isposinf.default: lambda a: op("eq", a, k(a, math.inf)),
        aten.isneginf.default: lambda a: op("eq", a, k(a, -math.inf)),
    },
    others=never,
)


@formula(aten.nan_to_num.default, steps=lambda ctx: ctx.dtype, others=unchanged)
def nan_to_num(
    dtype: DType, a: Node, *, nan: float | None, posinf: float | None, neginf: float | None
) -> Node:
    limits = torch.finfo(to_torch(dtype))
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    out = where(op("eq", a, k(a, -math.inf)), low, a)
    out = where(op("eq", a, k(a, math.inf)), high, out)
    return where(op("isnan", a), 0.0 if nan is None else nan, out)


# GPUs round what they scaled to its type, and the power of ten as well.
@formula(aten.round.decimals, steps=stepwise_off_cpu, others=refused("decimals of integers"))
def round_decimals(r: Rounding, a: Node, *, decimals: int) -> Node:
    if decimals == 0:
        return op("round", a)
    by = r(k(a, 10.0 ** abs(decimals)))
    if decimals > 0:
        return op("round", r(a * by)) / by
    return op("round", r(a / by)) * by


@formula(aten.mvlgamma.default, floats=True, steps=stepwise)
def mvlgamma(r: Rounding, a: Node, *, p: int) -> Node:
    if p > MAX_GAMMAS:
        raise Unsupported("a log-gamma of many dimensions")
    total = r(op("lgamma", r(a + (1 - p) / 2)))
    for j in range(1, p):
        total = total + r(op("lgamma", r(a + (j + 1 - p) / 2)))
    return r(total) + p * (p - 1) * math.log(math.pi) / 4


@lower(aten.ldexp.Tensor)
def ldexp(ctx: Call, x: TensorValue, power: TensorValue) -> TensorValue:
    """``x`` times a power of two: rounded once where the power is an integer."""
    if power.dtype.is_float:
        node = op("exp2", ctx.b.opmath(power.node))
        factor = power.with_node(body.cast(node, power.dtype))
        return elementwise(ctx, lambda a, c: a * c, x, factor, compute=ctx.dtype)

    def fn(a: Node, n: Node) -> Node:
        a = body.cast(a, ctx.dtype.opmath)
        if a.dtype is not d.F64:  # all powers that count have a double, of which these are the bits
            n = body.cast(op("minimum", op("maximum", n, k(n, -300)), k(n, 300)) + 1023, d.I64)
            return body.cast(a, d.F64) * op("bitcast", op("shl", n, k(n, 52)), to=d.F64)
        n = body.cast(n, d.F64)
        half = op("trunc", n * 0.5)  # in two steps, as the power alone may overflow
        return a * op("exp2", half) * op("exp2", n - half)

    shape, (a, n) = ctx.b.broadcast([x, power])
    value = fn(ctx.b.opmath(a), body.cast(n, d.I64 if n.dtype.bits == 64 else d.I32))
    return TensorValue(ctx.dtype, shape, x.device, lazy=body.cast(value, ctx.dtype))


@lower(aten.frexp.Tensor)
def frexp(ctx: Call, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """``x`` as a mantissa in [0.5, 1) times a power of two, from its bits."""
    a = ctx.b.opmath(x.node)
    wide = a.dtype.bits == 64
    bits, digits, bias = (d.I64, 52, 1022) if wide else (d.I32, 23, 126)
    mask = (1 << (bits.bits - 1 - digits)) - 1

    def exponent(v: Node) -> Node:
        return op("shr", op("bitcast", v, to=bits), body.const(bits, digits)) & mask

    # A subnormal number gets its leading digit by a multiplication that is exact.
    tiny = is_zero(exponent(a))
    scaled = where(tiny, a * 2.0 ** (digits + 1), a)
    power = exponent(scaled) - bias
    power = where(tiny, power - (digits + 1), power)
    rest = op("bitcast", scaled, to=bits) & ~(mask << digits) | (bias << digits)
    plain = is_zero(a) | op("eq", exponent(a), body.const(bits, mask))
    mantissa = where(plain, a, op("bitcast", rest, to=a.dtype))
    power = where(plain, 0, power)
    return x.with_node(body.cast(mantissa, x.dtype)), x.with_node(body.cast(power, d.I32))
