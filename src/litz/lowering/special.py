"""Special functions of one and two arguments: logits, entropies, sinc, heaviside and their like."""

from __future__ import annotations

import math

import torch

from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.activations import add, div, mul, steps, stepwise, sub, where
from litz.lowering.context import Unsupported
from litz.lowering.pointwise import Rounding, elementwise, formula, k, never
from litz.lowering.registry import Call, lower
from litz.lowering.torch_types import to_torch
from litz.lowering.values import TensorValue

aten = torch.ops.aten

# The multivariate log-gamma adds up as many log-gammas as dimensions.
MAX_GAMMAS = 8


def stepwise_on_cpu(ctx: Call) -> Rounding:
    """Rounding as between the steps of the CPU's kernels; those of GPUs keep 32 bits."""
    return steps(ctx, ctx.dtype if ctx.result.device.startswith("cpu") else d.F32)


@formula(aten.logit.default, floats=True, steps=stepwise_on_cpu)
def logit(r: Rounding, a: Node, *, eps: float | None) -> Node:
    one = k(a, 1)
    if eps is not None and eps >= 0:
        a = r(op("minimum", op("maximum", a, k(a, eps)), sub(one, k(a, eps))))
    return op("log", r(div(a, r(sub(one, a)))))


@formula(aten.logit_backward.default, steps=stepwise_on_cpu)
def logit_backward(r: Rounding, g: Node, a: Node, *, eps: float | None) -> Node:
    one, zero = k(a, 1), k(a, 0)
    slope = div(g, r(mul(a, r(sub(one, a)))))
    if eps is not None and eps >= 0:
        low, high = k(a, eps), sub(one, k(a, eps))
        inside = op("and_", op("ge", a, low), op("le", a, high))
        return where(inside, slope, zero)
    inside = op("and_", op("ge", a, zero), op("le", a, one))
    return where(inside, slope, k(a, math.nan))


def _times_log(r: Rounding, log: str, a: Node, b: Node) -> Node:
    value = where(op("eq", a, k(a, 0)), k(a, 0), mul(a, r(op(log, b))))
    return where(op("isnan", b), b, value)


@formula(
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Self,
    aten.xlogy.Scalar_Other,
    floats=True,
    steps=stepwise_on_cpu,
)
def xlogy(r: Rounding, a: Node, b: Node) -> Node:
    return _times_log(r, "log", a, b)


@formula(aten.special_xlog1py.default, floats=True, steps=stepwise_on_cpu)
def xlog1py(r: Rounding, a: Node, b: Node) -> Node:
    return _times_log(r, "log1p", a, b)


@formula(aten.special_entr.default, floats=True, steps=stepwise_on_cpu)
def entr(r: Rounding, a: Node) -> Node:
    zero = k(a, 0)
    value = mul(op("neg", a), r(op("log", a)))
    rest = where(op("eq", a, zero), zero, k(a, -math.inf))
    return where(op("isnan", a), a, where(op("gt", a, zero), value, rest))


@formula(aten.logaddexp.default, floats=True)
def logaddexp(a: Node, b: Node) -> Node:
    gap = op("neg", op("abs", sub(a, b)))
    value = add(op("maximum", a, b), op("log1p", op("exp", gap)))
    return where(op("and_", op("isinf", a), op("eq", a, b)), a, value)


@formula(aten.logaddexp2.default, floats=True)
def logaddexp2(a: Node, b: Node) -> Node:
    gap = op("neg", op("abs", sub(a, b)))
    bits = mul(op("log1p", op("exp2", gap)), k(a, 1 / math.log(2)))
    value = add(op("maximum", a, b), bits)
    return where(op("and_", op("isinf", a), op("eq", a, b)), a, value)


@lower(aten.nan_to_num.default)
def nan_to_num(
    ctx: Call,
    x: TensorValue,
    *,
    nan: float | None,
    posinf: float | None,
    neginf: float | None,
) -> TensorValue:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(to_torch(x.dtype))
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def fn(a: Node) -> Node:
        out = where(op("eq", a, k(a, -math.inf)), k(a, low), a)
        out = where(op("eq", a, k(a, math.inf)), k(a, high), out)
        return where(op("isnan", a), k(a, 0.0 if nan is None else nan), out)

    return elementwise(ctx, fn, x)


@formula(aten.sinc.default, floats=True)
def sinc(a: Node) -> Node:
    product = mul(k(a, math.pi), a)
    return where(op("eq", a, k(a, 0)), k(a, 1), div(op("sin", product), product))


@formula(aten.heaviside.default)
def heaviside(a: Node, v: Node) -> Node:
    positive = body.cast(op("gt", a, k(a, 0)), a.dtype)
    return where(op("eq", a, k(a, 0)), v, positive)


@formula(aten.angle.default, floats=True)
def angle(a: Node) -> Node:
    turned = where(op("lt", a, k(a, 0)), k(a, math.pi), k(a, 0))
    return where(op("isnan", a), a, turned)


formula(aten.frac.default)(lambda a: sub(a, op("trunc", a)))
formula(aten.deg2rad.default, floats=True)(lambda a: mul(a, k(a, math.pi / 180)))
formula(aten.rad2deg.default, floats=True)(lambda a: mul(a, k(a, 180 / math.pi)))
formula(aten.isposinf.default, others=never)(lambda a: op("eq", a, k(a, math.inf)))
formula(aten.isneginf.default, others=never)(lambda a: op("eq", a, k(a, -math.inf)))


@lower(aten.round.decimals)
def round_decimals(ctx: Call, x: TensorValue, *, decimals: int) -> TensorValue:
    if not x.dtype.is_float:
        raise Unsupported("decimals of integers")
    if decimals == 0:
        return elementwise(ctx, lambda a: op("round", a), x)

    # GPUs round what they scaled to its type, and the power of ten as well.
    on_cpu = ctx.result.device.startswith("cpu")
    r = (lambda a: a) if on_cpu else steps(ctx, ctx.dtype)

    def fn(a: Node) -> Node:
        by = r(k(a, 10.0 ** abs(decimals)))
        if decimals > 0:
            return div(op("round", r(mul(a, by))), by)
        return mul(op("round", r(div(a, by))), by)

    return elementwise(ctx, fn, x)


@formula(aten.mvlgamma.default, floats=True, steps=stepwise)
def mvlgamma(r: Rounding, a: Node, *, p: int) -> Node:
    if p > MAX_GAMMAS:
        raise Unsupported("a log-gamma of many dimensions")
    total = r(op("lgamma", r(add(a, k(a, (1 - p) / 2)))))
    for j in range(1, p):
        total = add(total, r(op("lgamma", r(add(a, k(a, (j + 1 - p) / 2))))))
    return add(r(total), k(a, p * (p - 1) * math.log(math.pi) / 4))


@lower(aten.ldexp.Tensor)
def ldexp(ctx: Call, x: TensorValue, power: TensorValue) -> TensorValue:
    """``x`` times a power of two: rounded once where the power is an integer."""
    if power.dtype.is_float:
        node = op("exp2", ctx.b.opmath(power.node))
        factor = power.with_node(body.cast(node, power.dtype))
        return elementwise(ctx, mul, x, factor, compute=ctx.dtype)

    def fn(a: Node, n: Node) -> Node:
        a = body.cast(a, ctx.dtype.opmath)
        if a.dtype is not d.F64:
            return mul(body.cast(a, d.F64), op("exp2", n))
        half = op("trunc", mul(n, k(n, 0.5)))  # in two steps, as the power alone may overflow
        return mul(a, op("exp2", half), op("exp2", sub(n, half)))

    shape, (a, n) = ctx.b.broadcast([x, power])
    value = fn(ctx.b.opmath(a), body.cast(n, d.F64))
    return TensorValue(ctx.dtype, shape, x.device, lazy=body.cast(value, ctx.dtype))


@lower(aten.frexp.Tensor)
def frexp(ctx: Call, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """``x`` as a mantissa in [0.5, 1) times a power of two, from its bits."""
    a = ctx.b.opmath(x.node)
    wide = a.dtype.bits == 64
    bits, digits, bias = (d.I64, 52, 1022) if wide else (d.I32, 23, 126)
    mask = (1 << (bits.bits - 1 - digits)) - 1

    def exponent(v: Node) -> Node:
        field = op("shr", op("bitcast", v, to=bits), body.const(bits, digits))
        return op("and_", field, body.const(bits, mask))

    # A subnormal number gets its leading digit by a multiplication that is exact.
    tiny = op("eq", exponent(a), body.const(bits, 0))
    scaled = where(tiny, mul(a, k(a, 2.0 ** (digits + 1))), a)
    power = sub(exponent(scaled), body.const(bits, bias))
    power = where(tiny, sub(power, body.const(bits, digits + 1)), power)
    rest = op("and_", op("bitcast", scaled, to=bits), body.const(bits, ~(mask << digits)))
    rest = op("or_", rest, body.const(bits, bias << digits))
    plain = op("or_", op("eq", a, k(a, 0)), op("eq", exponent(a), body.const(bits, mask)))
    mantissa = where(plain, a, op("bitcast", rest, to=a.dtype))
    power = where(plain, body.const(bits, 0), power)
    return x.with_node(body.cast(mantissa, x.dtype)), x.with_node(body.cast(power, d.I32))
