"""Activation functions and their backwards: the arithmetic of ATen's kernels."""

from __future__ import annotations

import math

import torch

from litz.index import Expr, floordiv
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType, wrap
from litz.lowering.formulas import (
    Number,
    elementwise,
    formula,
    formulas,
    k,
    leaky,
    logistic,
    num,
    refused,
    stepwise_f16,
    where,
)
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue, axes, slice_dim

aten = torch.ops.aten

GELU_BETA = math.sqrt(2 / math.pi)
GELU_KAPPA = 0.044715
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
# ATen's sixth is a float's, for doubles too.
SIXTH = float(wrap(1 / 6, d.F32))


# --- gelu ----------------------------------------------------------------------------------------


def _gelu_erf_factor(x: Node) -> Node:
    return 1 + op("erf", x * math.sqrt(0.5))


def _gelu_tanh_factor(x: Node) -> Node:
    return op("tanh", GELU_BETA * (x + GELU_KAPPA * (x * x * x)))


@formula(aten.gelu.default)
def gelu(x: Node, *, approximate: str) -> Node:
    if approximate == "tanh":
        return 0.5 * x * (1 + _gelu_tanh_factor(x))
    return x * 0.5 * _gelu_erf_factor(x)


@formula(aten.gelu_backward.default)
def gelu_backward(g: Node, x: Node, *, approximate: str) -> Node:
    if approximate == "tanh":
        t = _gelu_tanh_factor(x)
        slope = GELU_BETA * (1 + k(x, 3) * GELU_KAPPA * (x * x))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = 1 / math.sqrt(2 * math.pi) * op("exp", x * x * -0.5)
    return g * (0.5 * _gelu_erf_factor(x) + x * density)


# --- smooth --------------------------------------------------------------------------------------


def _tanh_softplus(x: Node) -> Node:
    return op("tanh", op("log1p", op("exp", x)))


def _mish_slope(x: Node, t: Node) -> Node:
    return t + x * logistic(x) * (1 - t * t)


def _silu_slope(x: Node, s: Node) -> Node:
    return 1 + x * (1 - s)


formulas(
    {
        aten.silu.default: lambda x: x / (1 + op("exp", -x)),
        aten.silu_backward.default: lambda g, x: g * logistic(x) * _silu_slope(x, logistic(x)),
        aten.mish.default: lambda x: x * _tanh_softplus(x),
        aten.mish_backward.default: lambda g, x: g * _mish_slope(x, _tanh_softplus(x)),
        aten.tanh_backward.default: lambda g, y: g * (1 - y * y),
    }
)
formula(aten.sigmoid_backward.default, steps=stepwise_f16)(lambda r, g, y: r(g * r(1 - y)) * y)


def _decayed(a: Node) -> Node:
    return op("exp", -op("abs", a))


@lower(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(ctx: Call, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    second = ctx.nth_result(1)
    # On GPUs the buffer for the backward has no elements.
    own = second.shape == x.shape
    kept = elementwise(ctx, _decayed, x) if own else ctx.b.full(second.shape, 0, x.dtype, x.device)
    return elementwise(ctx, log_sigmoid, x), kept


def log_sigmoid(a: Node) -> Node:
    return op("minimum", a, k(a, 0)) - op("log1p", _decayed(a))


@lower(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, buffer: TensorValue
) -> TensorValue:
    def value(g: Node, a: Node, z: Node | None) -> Node:
        z = _decayed(a) if z is None else z
        ratio = z / (1 + z)
        return g * where(a < 0, 1 - ratio, ratio)

    return elementwise(ctx, value, grad, x, buffer if buffer.shape == x.shape else None)


# --- piecewise linear ----------------------------------------------------------------------------


def _hard_gate(x: Node) -> Node:
    return op("minimum", op("maximum", x + 3, k(x, 0)), k(x, 6))


def _between(x: Node, low: Number, high: Number) -> Node:
    return (x > num(x, low)) & (x < num(x, high))


def _bounded(x: Node, low: Number, high: Number) -> Node:
    # The op keeps its second operand of two zeros: the tensor's, as eager does.
    return op("minimum", num(x, high), op("maximum", num(x, low), x))


def _rrelu_backward(
    g: Node, x: Node, noise: Node, *, lower: float, upper: float, training: bool
) -> Node:
    learns = training and upper - lower > 1e-6
    return g * noise if learns else leaky(x, g, (lower + upper) / 2)


formulas(
    {
        aten.hardsigmoid.default: lambda x: _hard_gate(x) / 6,
        aten.hardsigmoid_backward.default: lambda g, x: where(_between(x, -3, 3), g * SIXTH, 0),
        aten.hardswish.default: lambda x: x * _hard_gate(x) / 6,
        aten.hardswish_backward.default: lambda g, x: where(
            x <= -3, 0, where(x >= 3, g, g * (x / 3 + 0.5))
        ),
        aten.hardtanh.default: lambda x, *, min_val, max_val: _bounded(x, min_val, max_val),
        aten.relu6.default: lambda x: _bounded(x, 0, 6),
        aten.hardtanh_backward.default: lambda g, x, *, min_val, max_val: where(
            _between(x, min_val, max_val), g, 0
        ),
        aten.leaky_relu_backward.default: lambda g, x, *, negative_slope: leaky(
            x, g, negative_slope
        ),
        aten.rrelu_with_noise_backward.default: _rrelu_backward,
        aten._prelu_kernel.default: lambda x, w: where(x > 0, x, w * x),
        aten.threshold.default: lambda x, *, threshold, value: where(
            x <= num(x, threshold), num(x, value), x
        ),
        aten.threshold_backward.default: lambda g, x, *, threshold: where(
            x <= num(x, threshold), 0, g
        ),
    }
)
_no_integers = refused("an activation of integers")
formula(aten.leaky_relu.default, others=_no_integers)(
    lambda x, *, negative_slope: leaky(x, x, negative_slope)
)


@lower(aten._prelu_kernel_backward.default)
def prelu_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> tuple[TensorValue, TensorValue]:
    of_input = elementwise(ctx, lambda g, a, w: where(a > 0, g, w * g), grad, x, weight)
    return of_input, elementwise(ctx, lambda g, a: where(a > 0, 0, a * g), grad, x)


# --- shrinking -----------------------------------------------------------------------------------


def _limit(x: Node, lambd: Number, dtype: DType) -> Node:
    """What hardshrink and both backwards compare with: rounded to the tensor's type."""
    return num(x, lambd if isinstance(lambd, Expr) else float(wrap(float(lambd), dtype)))


def _hardshrink(dtype: DType, x: Node, *, lambd: Number) -> Node:
    """x where it is outside of [-lambd, lambd], else 0; a nan is kept."""
    bound = _limit(x, lambd, dtype)
    return where((x >= -bound) & (x <= bound), 0, x)


def _shrink_backward(dtype: DType, g: Node, x: Node, *, lambd: Number) -> Node:
    bound = _limit(x, lambd, dtype)
    return where((x < -bound) | (x > bound), g, 0)


formulas(
    {
        aten.hardshrink.default: _hardshrink,
        (aten.hardshrink_backward.default, aten.softshrink_backward.default): _shrink_backward,
    },
    steps=lambda ctx: ctx.dtype,
)


@formula(aten.softshrink.default)
def softshrink(x: Node, *, lambd: Number) -> Node:
    bound = num(x, lambd)
    rest = where(op("isnan", x), x, 0)
    return where(x > bound, x - bound, where(x < -bound, x + bound, rest))


# --- exponential units ---------------------------------------------------------------------------


def _scaled(a: Node, factor: float) -> Node:
    return a if factor == 1 else a * factor


@formula(aten.elu.default)
def elu(x: Node, *, alpha: float, scale: float, input_scale: float) -> Node:
    negative = op("expm1", _scaled(x, input_scale)) * (k(x, alpha) * scale)
    return where(x > 0, _scaled(x, scale), negative)


formula(aten.celu.default)(
    lambda x, *, alpha: elu(x, alpha=alpha, scale=1, input_scale=1.0 / float(alpha))
)
formula(aten.selu.default)(lambda x: elu(x, alpha=SELU_ALPHA, scale=SELU_SCALE, input_scale=1))


@formula(aten.elu_backward.default)
def elu_backward(
    g: Node,
    *,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: Node,
) -> Node:
    a = self_or_result
    coef = k(a, alpha) * scale
    steep = _scaled(g, input_scale)
    negative = (
        steep * (a + coef) if is_result else steep * coef * op("exp", _scaled(a, input_scale))
    )
    return where(a > 0, _scaled(g, scale), negative)


@formula(aten.softplus.default)
def softplus(x: Node, *, beta: float, threshold: float) -> Node:
    z = _scaled(x, beta)
    soft = op("log1p", op("exp", z))
    return where(z > threshold, x, soft if beta == 1 else soft / beta)


@formula(aten.softplus_backward.default)
def softplus_backward(g: Node, x: Node, *, beta: float, threshold: float) -> Node:
    scaled = _scaled(x, beta)
    z = op("exp", scaled)
    return where(scaled > threshold, g, g * z / (z + 1))


# --- gated linear units --------------------------------------------------------------------------


def _halves(x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue, Expr]:
    half = floordiv(x.shape[dim], 2)
    return slice_dim(x, dim, ZERO, half, ONE), slice_dim(x, dim, half, half, ONE), half


@lower(aten.glu.default)
def glu(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    a, b, _ = _halves(x, dim % x.ndim)
    return elementwise(ctx, lambda p, q: p * logistic(q), a, b)


@lower(aten.glu_backward.default)
def glu_backward(ctx: Call, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    """Both halves of the gradient are stored by one loop nest over a half."""
    dim %= x.ndim
    b = ctx.b
    first, second, half = _halves(x, dim)

    def gate(q: Node) -> Node:
        # ATen keeps the sigmoid in the result's memory, rounded.
        s = logistic(q)
        return s if ctx.dtype.opmath is ctx.dtype else op("round_to", s, to=ctx.dtype)

    def for_second(g: Node, p: Node, q: Node) -> Node:
        s = gate(q)
        return (1 - s) * s * p * g

    parts = (
        elementwise(ctx, lambda g, q: gate(q) * g, grad, second),
        elementwise(ctx, for_second, grad, first, second),
    )
    whole = b.allocate(ctx.dtype, ctx.shape, x.device)
    own = axes(parts[0].shape)
    stores = [
        slice_dim(whole, dim, start, half, ONE).memory.store(own, part.node)
        for start, part in zip((ZERO, half), parts, strict=True)
    ]
    b.add_loops(own, (), tuple(stores), x.device)
    return whole
