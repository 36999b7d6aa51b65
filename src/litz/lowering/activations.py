"""Activation functions: the arithmetic of ATen's kernels, in f32 for 16-bit floats."""

from __future__ import annotations

import math
from functools import partial

import torch

from litz.index import Expr, floordiv
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Store, op
from litz.ir.dtype import wrap
from litz.lowering.context import Unsupported
from litz.lowering.pointwise import Rounding, elementwise, formula, k
from litz.lowering.registry import Call, lower
from litz.lowering.values import (
    ONE,
    ZERO,
    TensorValue,
    axes,
    contiguous_strides,
    linear,
    slice_dim,
)

aten = torch.ops.aten

Number = float | int | Expr

GELU_BETA = math.sqrt(2 / math.pi)
GELU_KAPPA = 0.044715
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def num(like: Node, value: Number) -> Node:
    """A number (maybe symbolic) in the type of ``like``."""
    if isinstance(value, Expr):
        return body.cast(body.index(value), like.dtype)
    return k(like, value)


def add(a: Node, b: Node) -> Node:
    return op("add", a, b)


def sub(a: Node, b: Node) -> Node:
    return op("sub", a, b)


def mul(a: Node, *rest: Node) -> Node:
    for b in rest:
        a = op("mul", a, b)
    return a


def div(a: Node, b: Node) -> Node:
    return op("div", a, b)


def where(c: Node, a: Node, b: Node) -> Node:
    return op("where", c, a, b)


def logistic(a: Node) -> Node:
    """1 / (1 + exp(-a)), spelled as ATen's kernels do."""
    return div(k(a, 1), one_plus_exp_neg(a))


def one_plus_exp_neg(a: Node) -> Node:
    return add(k(a, 1), op("exp", op("neg", a)))


def steps(ctx: Call, dtype: d.DType) -> Rounding:
    """Rounding between the steps of a kernel that computes in a 16-bit type op by op."""
    if dtype.opmath is dtype or not ctx.b.settings.eager_numerics:
        return lambda a: a
    return lambda a: op("round_to", a, to=dtype)


def stepwise(ctx: Call) -> Rounding:
    return steps(ctx, ctx.dtype)


def stepwise_f16(ctx: Call) -> Rounding:
    """ATen's kernel computes in f32 for bf16, but step by step for f16."""
    return steps(ctx, ctx.dtype if ctx.dtype is d.F16 else d.F32)


# --- gelu ----------------------------------------------------------------------------------------


def _gelu_erf(x: Node) -> Node:
    return mul(x, k(x, 0.5), add(k(x, 1), op("erf", mul(x, k(x, math.sqrt(0.5))))))


def _tanh_inner(x: Node) -> Node:
    cube = mul(x, x, x)
    return op("tanh", mul(k(x, GELU_BETA), add(x, mul(k(x, GELU_KAPPA), cube))))


def _gelu_tanh(x: Node) -> Node:
    return mul(k(x, 0.5), x, add(k(x, 1), _tanh_inner(x)))


@formula(aten.gelu.default)
def gelu(x: Node, *, approximate: str) -> Node:
    return _gelu_tanh(x) if approximate == "tanh" else _gelu_erf(x)


def _gelu_erf_backward(g: Node, x: Node) -> Node:
    cdf = mul(k(x, 0.5), add(k(x, 1), op("erf", mul(x, k(x, math.sqrt(0.5))))))
    pdf = mul(k(x, 1 / math.sqrt(2 * math.pi)), op("exp", mul(x, x, k(x, -0.5))))
    return mul(g, add(cdf, mul(x, pdf)))


def _gelu_tanh_backward(g: Node, x: Node) -> Node:
    one = k(x, 1)
    t = _tanh_inner(x)
    left = mul(k(x, 0.5), add(one, t))
    slope = mul(k(x, GELU_BETA), add(one, mul(k(x, 3), k(x, GELU_KAPPA), mul(x, x))))
    right = mul(k(x, 0.5), x, sub(one, mul(t, t)), slope)
    return mul(g, add(left, right))


@formula(aten.gelu_backward.default)
def gelu_backward(g: Node, x: Node, *, approximate: str) -> Node:
    return _gelu_tanh_backward(g, x) if approximate == "tanh" else _gelu_erf_backward(g, x)


# --- sigmoid, silu, mish, tanh -------------------------------------------------------------------


@formula(aten.silu.default)
def silu(x: Node) -> Node:
    return div(x, one_plus_exp_neg(x))


@formula(aten.silu_backward.default)
def silu_backward(g: Node, x: Node) -> Node:
    s = logistic(x)
    return mul(g, s, add(k(x, 1), mul(x, sub(k(x, 1), s))))


def _tanh_softplus(x: Node) -> Node:
    return op("tanh", op("log1p", op("exp", x)))


@formula(aten.mish.default)
def mish(x: Node) -> Node:
    return mul(x, _tanh_softplus(x))


@formula(aten.mish_backward.default)
def mish_backward(g: Node, x: Node) -> Node:
    t = _tanh_softplus(x)
    return mul(g, add(t, mul(x, logistic(x), sub(k(x, 1), mul(t, t)))))


@formula(aten.sigmoid_backward.default, steps=stepwise_f16)
def sigmoid_backward(r: Rounding, g: Node, y: Node) -> Node:
    return mul(r(mul(g, r(sub(k(y, 1), y)))), y)


@formula(aten.tanh_backward.default)
def tanh_backward(g: Node, y: Node) -> Node:
    return mul(g, sub(k(y, 1), mul(y, y)))


@lower(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(ctx: Call, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    second = ctx.nth_result(1)

    def value(a: Node) -> Node:
        return sub(op("minimum", a, k(a, 0)), op("log1p", _decayed(a)))

    # On GPUs the buffer for the backward has no elements.
    own = second.shape == x.shape
    kept = elementwise(ctx, _decayed, x) if own else ctx.b.full(second.shape, 0, x.dtype, x.device)
    return elementwise(ctx, value, x), kept


def _decayed(a: Node) -> Node:
    return op("exp", op("neg", op("abs", a)))


@lower(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, buffer: TensorValue
) -> TensorValue:
    def value(g: Node, a: Node, z: Node | None) -> Node:
        z = _decayed(a) if z is None else z
        one = k(a, 1)
        negative = op("lt", a, k(a, 0))
        ratio = div(z, add(one, z))
        return mul(g, where(negative, sub(one, ratio), ratio))

    return elementwise(ctx, value, grad, x, buffer if buffer.shape == x.shape else None)


# --- piecewise linear ----------------------------------------------------------------------------


def _hard_gate(x: Node) -> Node:
    return op("minimum", op("maximum", add(x, k(x, 3)), k(x, 0)), k(x, 6))


@formula(aten.hardsigmoid.default)
def hardsigmoid(x: Node) -> Node:
    return div(_hard_gate(x), k(x, 6))


@formula(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(g: Node, x: Node) -> Node:
    inside = op("and_", op("gt", x, k(x, -3)), op("lt", x, k(x, 3)))
    # ATen's sixth is a float's, for doubles too.
    return where(inside, mul(g, k(x, float(wrap(1 / 6, d.F32)))), k(x, 0))


@formula(aten.hardswish.default)
def hardswish(x: Node) -> Node:
    return div(mul(x, _hard_gate(x)), k(x, 6))


@formula(aten.hardswish_backward.default)
def hardswish_backward(g: Node, x: Node) -> Node:
    middle = mul(g, add(div(x, k(x, 3)), k(x, 0.5)))
    upper = where(op("ge", x, k(x, 3)), g, middle)
    return where(op("le", x, k(x, -3)), k(x, 0), upper)


@formula(aten.hardtanh.default)
def hardtanh(x: Node, *, min_val: Number, max_val: Number) -> Node:
    # The op keeps its second operand of two zeros: the tensor's, as eager does.
    return op("minimum", num(x, max_val), op("maximum", num(x, min_val), x))


@formula(aten.relu6.default)
def relu6(x: Node) -> Node:
    return hardtanh(x, min_val=0, max_val=6)


@formula(aten.hardtanh_backward.default)
def hardtanh_backward(g: Node, x: Node, *, min_val: Number, max_val: Number) -> Node:
    inside = op("and_", op("gt", x, num(x, min_val)), op("lt", x, num(x, max_val)))
    return where(inside, g, k(x, 0))


def _refused(ctx: Call, x: TensorValue) -> TensorValue:
    raise Unsupported("an activation of integers")


@formula(aten.leaky_relu.default, others=_refused)
def leaky_relu(x: Node, *, negative_slope: Number) -> Node:
    return where(op("gt", x, k(x, 0)), x, mul(x, num(x, negative_slope)))


@formula(aten.leaky_relu_backward.default)
def leaky_relu_backward(g: Node, x: Node, *, negative_slope: Number) -> Node:
    return where(op("gt", x, k(x, 0)), g, mul(g, num(x, negative_slope)))


@lower(aten.rrelu_with_noise_functional.default)
def rrelu(
    ctx: Call, x: TensorValue, noise: TensorValue, *, lower: float, upper: float, training: bool
) -> tuple[TensorValue, TensorValue]:
    if training:
        raise Unsupported("random slopes")
    if not x.dtype.is_float:
        _refused(ctx, x)
    return elementwise(ctx, partial(leaky_relu, negative_slope=(lower + upper) / 2), x), noise


@formula(aten.rrelu_with_noise_backward.default)
def rrelu_backward(
    g: Node, x: Node, noise: Node, *, lower: float, upper: float, training: bool
) -> Node:
    if training and upper - lower > 1e-6:
        return mul(g, noise)
    return leaky_relu_backward(g, x, negative_slope=(lower + upper) / 2)


@formula(aten._prelu_kernel.default)
def prelu(x: Node, w: Node) -> Node:
    return where(op("gt", x, k(x, 0)), x, mul(w, x))


@lower(aten._prelu_kernel_backward.default)
def prelu_backward(
    ctx: Call, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> tuple[TensorValue, TensorValue]:
    def for_input(g: Node, a: Node, w: Node) -> Node:
        return where(op("gt", a, k(a, 0)), g, mul(w, g))

    def for_weight(g: Node, a: Node) -> Node:
        return where(op("gt", a, k(a, 0)), k(a, 0), mul(a, g))

    return elementwise(ctx, for_input, grad, x, weight), elementwise(ctx, for_weight, grad, x)


@formula(aten.threshold.default)
def threshold(x: Node, *, threshold: Number, value: Number) -> Node:
    return where(op("le", x, num(x, threshold)), num(x, value), x)


@formula(aten.threshold_backward.default)
def threshold_backward(g: Node, x: Node, *, threshold: Number) -> Node:
    return where(op("le", x, num(x, threshold)), k(x, 0), g)


# --- shrinking -----------------------------------------------------------------------------------


def _lambda(x: TensorValue, value: Number) -> Number:
    """hardshrink and both backwards compare with a threshold rounded to the tensor's type."""
    return value if isinstance(value, Expr) else float(wrap(float(value), x.dtype))


@lower(aten.hardshrink.default)
def hardshrink(ctx: Call, x: TensorValue, lambd: Number) -> TensorValue:
    return _shrunk(ctx, x, x, lambd)


@lower(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(ctx: Call, grad: TensorValue, x: TensorValue, lambd: Number) -> TensorValue:
    return _shrunk(ctx, grad, x, lambd)


def _shrunk(ctx: Call, value: TensorValue, x: TensorValue, lambd: Number) -> TensorValue:
    """``value`` where ``x`` is outside of [-lambd, lambd], else 0; hardshrink keeps a nan."""
    limit = _lambda(x, lambd)

    def fn(v: Node, a: Node) -> Node:
        bound = num(a, limit)
        if value is x:
            inside = op("and_", op("ge", a, op("neg", bound)), op("le", a, bound))
            return where(inside, k(a, 0), v)
        outside = op("or_", op("lt", a, op("neg", bound)), op("gt", a, bound))
        return where(outside, v, k(a, 0))

    return elementwise(ctx, fn, value, x)


@formula(aten.softshrink.default)
def softshrink(x: Node, *, lambd: Number) -> Node:
    bound = num(x, lambd)
    rest = where(op("isnan", x), x, k(x, 0))
    below = where(op("lt", x, op("neg", bound)), add(x, bound), rest)
    return where(op("gt", x, bound), sub(x, bound), below)


# --- exponential units ---------------------------------------------------------------------------


@formula(aten.elu.default)
def elu(x: Node, *, alpha: float, scale: float, input_scale: float) -> Node:
    coef = mul(k(x, alpha), k(x, scale))
    negative = mul(op("expm1", _scaled(x, input_scale)), coef)
    return where(op("gt", x, k(x, 0)), _scaled(x, scale), negative)


def _scaled(a: Node, factor: float) -> Node:
    return a if factor == 1 else mul(a, k(a, factor))


@formula(aten.celu.default)
def celu(x: Node, *, alpha: float) -> Node:
    return elu(x, alpha=alpha, scale=1, input_scale=1.0 / float(alpha))


@formula(aten.selu.default)
def selu(x: Node) -> Node:
    return elu(x, alpha=SELU_ALPHA, scale=SELU_SCALE, input_scale=1)


@lower(aten.elu_backward.default)
def elu_backward(
    ctx: Call,
    grad: TensorValue,
    *,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: TensorValue,
) -> TensorValue:
    def fn(g: Node, a: Node) -> Node:
        coef = mul(k(a, alpha), k(a, scale))
        steep = _scaled(g, input_scale)
        if is_result:
            negative = mul(steep, add(a, coef))
        else:
            negative = mul(steep, coef, op("exp", _scaled(a, input_scale)))
        return where(op("gt", a, k(a, 0)), _scaled(g, scale), negative)

    return elementwise(ctx, fn, grad, self_or_result)


@formula(aten.softplus.default)
def softplus(x: Node, *, beta: float, threshold: float) -> Node:
    z = _scaled(x, beta)
    soft = op("log1p", op("exp", z))
    soft = soft if beta == 1 else div(soft, k(x, beta))
    return where(op("gt", z, k(x, threshold)), x, soft)


@formula(aten.softplus_backward.default)
def softplus_backward(g: Node, x: Node, *, beta: float, threshold: float) -> Node:
    scaled = _scaled(x, beta)
    z = op("exp", scaled)
    soft = div(mul(g, z), add(z, k(x, 1)))
    return where(op("gt", scaled, k(x, threshold)), g, soft)


# --- gated linear units --------------------------------------------------------------------------


def _halves(x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue, Expr]:
    half = floordiv(x.shape[dim], 2)
    return slice_dim(x, dim, ZERO, half, ONE), slice_dim(x, dim, half, half, ONE), half


@lower(aten.glu.default)
def glu(ctx: Call, x: TensorValue, dim: int) -> TensorValue:
    a, b, _ = _halves(x, dim % x.ndim)
    return elementwise(ctx, lambda p, q: mul(p, logistic(q)), a, b)


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
        return mul(sub(k(s, 1), s), s, p, g)

    parts = (
        elementwise(ctx, lambda g, q: mul(gate(q), g), grad, second),
        elementwise(ctx, for_second, grad, first, second),
    )
    shape = ctx.shape
    buf = b.new_buffer(ctx.dtype, shape, contiguous_strides(shape), x.device)
    whole = b.of_buffer(buf)
    own = axes(parts[0].shape)
    stores = []
    for start, part in zip((ZERO, half), parts, strict=True):
        view = slice_dim(whole, dim, start, half, ONE).ref
        assert view is not None
        stores.append(Store(buf.name, linear(own, view.strides, view.offset), part.node))
    b.add_loops(own, (), tuple(stores), x.device)
    return whole
