"""Special functions of one and two arguments: logits, entropies, sinc, heaviside and their like."""

from __future__ import annotations

import math

import torch

from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.activations import add, div, mul, steps, sub, where
from litz.lowering.context import Operand
from litz.lowering.pointwise import elementwise, float_compute, k
from litz.lowering.registry import Call, lower
from litz.lowering.torch_types import to_torch
from litz.lowering.values import TensorValue

aten = torch.ops.aten


@lower(aten.logit.default)
def logit(ctx: Call, x: TensorValue, eps: float | None = None) -> TensorValue:
    r = steps(ctx, ctx.dtype)

    def fn(a: Node) -> Node:
        one = k(a, 1)
        if eps is not None and eps >= 0:
            a = r(op("minimum", op("maximum", a, k(a, eps)), sub(one, k(a, eps))))
        return op("log", r(div(a, r(sub(one, a)))))

    return elementwise(ctx, fn, x, compute=float_compute(ctx, x))


@lower(aten.logit_backward.default)
def logit_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, eps: float | None = None
) -> TensorValue:
    r = steps(ctx, ctx.dtype)

    def fn(g: Node, a: Node) -> Node:
        one, zero = k(a, 1), k(a, 0)
        slope = div(g, r(mul(a, r(sub(one, a)))))
        if eps is not None and eps >= 0:
            low, high = k(a, eps), sub(one, k(a, eps))
            inside = op("and_", op("ge", a, low), op("le", a, high))
            return where(inside, slope, zero)
        inside = op("and_", op("ge", a, zero), op("le", a, one))
        return where(inside, slope, k(a, math.nan))

    return elementwise(ctx, fn, grad, x)


@lower(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return _times_log(ctx, x, y, "log")


@lower(aten.special_xlog1py.default)
def xlog1py(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return _times_log(ctx, x, y, "log1p")


def _times_log(ctx: Call, x: Operand, y: Operand, log: str) -> TensorValue:
    r = steps(ctx, ctx.dtype)

    def fn(a: Node, b: Node) -> Node:
        value = where(op("eq", a, k(a, 0)), k(a, 0), mul(a, r(op(log, b))))
        return where(op("isnan", b), b, value)

    return elementwise(ctx, fn, x, y, compute=float_compute(ctx, x, y))


@lower(aten.special_entr.default)
def entr(ctx: Call, x: TensorValue) -> TensorValue:
    r = steps(ctx, ctx.dtype)

    def fn(a: Node) -> Node:
        zero = k(a, 0)
        value = mul(op("neg", a), r(op("log", a)))
        rest = where(op("eq", a, zero), zero, k(a, -math.inf))
        return where(op("isnan", a), a, where(op("gt", a, zero), value, rest))

    return elementwise(ctx, fn, x, compute=float_compute(ctx, x))


@lower(aten.logaddexp.default)
def logaddexp(ctx: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    def fn(a: Node, b: Node) -> Node:
        gap = op("neg", op("abs", sub(a, b)))
        value = add(op("maximum", a, b), op("log1p", op("exp", gap)))
        return where(op("and_", op("isinf", a), op("eq", a, b)), a, value)

    return elementwise(ctx, fn, x, y, compute=float_compute(ctx, x, y))


@lower(aten.logaddexp2.default)
def logaddexp2(ctx: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    def fn(a: Node, b: Node) -> Node:
        gap = op("neg", op("abs", sub(a, b)))
        bits = mul(op("log1p", op("exp2", gap)), k(a, 1 / math.log(2)))
        value = add(op("maximum", a, b), bits)
        return where(op("and_", op("isinf", a), op("eq", a, b)), a, value)

    return elementwise(ctx, fn, x, y, compute=float_compute(ctx, x, y))


@lower(aten.nan_to_num.default)
def nan_to_num(
    ctx: Call,
    x: TensorValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
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


@lower(aten.sinc.default)
def sinc(ctx: Call, x: TensorValue) -> TensorValue:
    def fn(a: Node) -> Node:
        product = mul(k(a, math.pi), a)
        return where(op("eq", a, k(a, 0)), k(a, 1), div(op("sin", product), product))

    return elementwise(ctx, fn, x, compute=float_compute(ctx, x))


@lower(aten.frac.default)
def frac(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: sub(a, op("trunc", a)), x)


@lower(aten.deg2rad.default)
def deg2rad(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: mul(a, k(a, math.pi / 180)), x, compute=float_compute(ctx, x))


@lower(aten.rad2deg.default)
def rad2deg(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: mul(a, k(a, 180 / math.pi)), x, compute=float_compute(ctx, x))


@lower(aten.heaviside.default)
def heaviside(ctx: Call, x: TensorValue, values: TensorValue) -> TensorValue:
    def fn(a: Node, v: Node) -> Node:
        positive = body.cast(op("gt", a, k(a, 0)), a.dtype)
        return where(op("eq", a, k(a, 0)), v, positive)

    return elementwise(ctx, fn, x, values)


@lower(aten.isposinf.default)
def isposinf(ctx: Call, x: TensorValue) -> TensorValue:
    return _is_value(ctx, x, math.inf)


@lower(aten.isneginf.default)
def isneginf(ctx: Call, x: TensorValue) -> TensorValue:
    return _is_value(ctx, x, -math.inf)


def _is_value(ctx: Call, x: TensorValue, value: float) -> TensorValue:
    if not x.dtype.is_float:
        return ctx.b.full(x.shape, False, d.BOOL, x.device)
    return elementwise(ctx, lambda a: op("eq", a, k(a, value)), x)
