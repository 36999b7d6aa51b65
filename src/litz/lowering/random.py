"""Random numbers: a function of (seed, position), so independent of threads and order.

The seed is drawn from PyTorch's generator once per run of the program.  Each call of a random
operator owns a range of positions that no other call of the program reaches.
"""

from __future__ import annotations

import math

import torch

from litz.graph.calls import is_random
from litz.index import Expr, as_expr, const, contiguous_strides, linear
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.lowering.context import Builder, Unsupported
from litz.lowering.pooling import stored
from litz.lowering.registry import Call, lower
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

# Positions that each call owns: 2**40 elements, twice (f64 draws need a second number).
STREAM_BITS = 41
# Bits of the significand: uniform numbers of a type are multiples of 2**-digits below 1.
DIGITS = {d.BF16: 8, d.F16: 11}
# The smallest exponential sample: half a step of the uniform numbers, since zero must not occur.
TINY = {d.F32: 2.0**-25, d.F64: 2.0**-49}


def _may_draw(ctx: Call) -> None:
    if ctx.b.settings.eager_rng:
        raise Unsupported("eager's random stream was asked for")
    if ctx.node.kwargs.get("generator") is not None:
        raise Unsupported("a random generator of the user's own")


def program_seed(b: Builder, device: str) -> Node:
    """The seed of this run: drawn by one extern call that all random operators share."""
    key = f"seed {device}"
    if key not in b.shared:
        buf = b.new_buffer(d.I64, (ONE,), (ONE,), device, "extern")
        limit = 2**62
        kwargs = (("dtype", torch.int64), ("device", torch.device(device)))
        args, why = (-limit, limit, (const(1),)), "draws the seed of the program's random kernels"
        b.extern(aten.randint.low, args, (buf.name,), device, why, kwargs=kwargs)
        b.shared[key] = b.of_buffer(buf)
    return b.shared[key].at([ZERO])


def _stream(ctx: Call) -> int:
    """The number of this call among the graph's random ones, which makes its positions its own."""
    drawing = (n for n in ctx.node.graph.nodes if is_random(n.target))
    return next(k for k, n in enumerate(drawing) if n is ctx.node)


def _draw(ctx: Call, name: str, *limits: Node, second: bool = False) -> Node:
    """One random number per element of the result, by a random op of the table."""
    own = axes(ctx.shape)
    base = (_stream(ctx) << STREAM_BITS) + ((1 << (STREAM_BITS - 1)) if second else 0)
    position = linear(own, contiguous_strides(ctx.shape), const(base))
    return op(name, program_seed(ctx.b, ctx.result.device), body.index(position), *limits)


def uniform_node(ctx: Call, dtype: DType) -> Node:
    """A number in [0, 1) for each element: of type ``dtype.opmath``, exact in ``dtype``."""
    u = _draw(ctx, "rand")
    if dtype is d.F64:
        # 24 bits a draw: a second draw fills the digits below.
        low = body.cast(_draw(ctx, "rand", second=True), d.F64)
        return body.cast(u, d.F64) + low * 2.0**-24
    if dtype in DIGITS:
        steps = float(1 << DIGITS[dtype])
        whole = op("floor", u * steps)
        return whole * (1 / steps)
    return u


def normal_node(ctx: Call, dtype: DType) -> Node:
    """A standard normal number for each element, of type ``dtype.opmath``."""
    if dtype is not d.F64:
        return _draw(ctx, "randn")
    # Box and Muller (1958), on two uniform draws of 24 bits each.
    u, v = (body.cast(_draw(ctx, "rand", second=s), d.F64) for s in (False, True))
    above = 1 - u  # in (0, 1]
    radius = op("sqrt", -2.0 * op("log", above))
    return radius * op("cos", 2 * math.pi * v)


def _drawn_type(ctx: Call) -> DType:
    """The type of the floats that a call draws, where it may."""
    _may_draw(ctx)
    if not ctx.dtype.is_float:
        raise Unsupported(f"random numbers of type {ctx.dtype}")
    return ctx.dtype


def _affine(node: Node, scale: float, offset: float) -> Node:
    if scale != 1:
        node = node * scale
    return node + offset if offset != 0 else node


# --- uniform and normal --------------------------------------------------------------------------


@lower(aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator)
def rand(ctx: Call) -> TensorValue:
    return ctx.value(uniform_node(ctx, _drawn_type(ctx)))


@lower(aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.randn_like.generator)
def randn(ctx: Call) -> TensorValue:
    return ctx.value(normal_node(ctx, _drawn_type(ctx)))


@lower(aten.uniform.default)
def uniform(ctx: Call, x: TensorValue, low: float, high: float) -> TensorValue:
    return ctx.value(_affine(uniform_node(ctx, _drawn_type(ctx)), high - low, low))


@lower(aten.normal_functional.default, aten.normal.float_float)
def normal(ctx: Call, *, mean: float, std: float) -> TensorValue:
    return ctx.value(_affine(normal_node(ctx, _drawn_type(ctx)), std, mean))


@lower(aten.normal.Tensor_float)
def normal_about(ctx: Call, mean: TensorValue, std: float) -> TensorValue:
    if std < 0 or mean.dtype is not _drawn_type(ctx):
        raise Unsupported("normal numbers of this form")
    noise = _affine(normal_node(ctx, ctx.dtype), std, 0.0)
    return ctx.value(noise + ctx.b.opmath(mean.at(axes(ctx.shape))))


@lower(aten.log_normal.default)
def log_normal(ctx: Call, *, mean: float, std: float) -> TensorValue:
    return ctx.value(op("exp", _affine(normal_node(ctx, _drawn_type(ctx)), std, mean)))


@lower(aten.exponential.default)
def exponential(ctx: Call, *, lambd: float) -> TensorValue:
    acc = _drawn_type(ctx).opmath
    u = uniform_node(ctx, acc)
    above = -op("log1p", -u)
    above = op("maximum", above, body.const(acc, TINY[acc]))
    return ctx.value(above / lambd)


# --- bernoulli and dropout -----------------------------------------------------------------------


def _kept(ctx: Call, p: float) -> Node:
    """True with probability ``p``, for each element of the result."""
    return _draw(ctx, "rand") < p


@lower(aten.bernoulli.p)
def bernoulli(ctx: Call, *, p: float) -> TensorValue:
    _may_draw(ctx)
    if not 0 <= p <= 1:
        raise Unsupported("a probability outside of [0, 1]")
    return ctx.value(_kept(ctx, p))


@lower(aten.native_dropout.default)
def native_dropout(
    ctx: Call, x: TensorValue, p: float, train: bool | None
) -> tuple[TensorValue | None, ...]:
    if train is False:
        return x.with_node(x.node), ctx.b.full(ctx.shape, True, d.BOOL, x.device)
    _may_draw(ctx)
    if not 0 <= p <= 1:
        raise Unsupported("a probability outside of [0, 1]")
    # The backward pass needs the same choice: it is stored, and dropped again if nobody reads it.
    _, mask = stored(ctx, (None, _kept(ctx, 1 - p)))
    assert mask is not None
    return _dropped(ctx, x, mask, 0.0 if p == 1 else 1 / (1 - p)), mask


def _dropped(ctx: Call, x: TensorValue, mask: TensorValue, scale: float) -> TensorValue:
    """``x * mask * scale``, rounded after each step as eager rounds it."""
    opmath = ctx.b.opmath
    kept = opmath(x.node) * body.cast(mask.at(axes(x.shape)), x.dtype.opmath)
    kept = opmath(body.cast(kept, x.dtype))
    node = kept * scale
    return x.with_node(body.cast(node, x.dtype))


@lower(aten.native_dropout_backward.default)
def native_dropout_backward(
    ctx: Call, grad: TensorValue, mask: TensorValue, scale: float
) -> TensorValue:
    if not grad.dtype.is_float:  # the metadata keeps the type that eager promotes
        raise Unsupported("gradients of integers")
    return _dropped(ctx, grad, mask, scale)


# --- integers ------------------------------------------------------------------------------------


@lower(
    aten.randint.default,
    aten.randint.generator,
    aten.randint.low,
    aten.randint.low_generator,
    aten.randint_like.default,
    aten.randint_like.generator,
    aten.randint_like.low_dtype,
    aten.randint_like.low_generator_dtype,
)
def randint(ctx: Call, *, low: Expr | int = 0, high: Expr | int) -> TensorValue:
    _may_draw(ctx)
    if isinstance(low, int) and isinstance(high, int) and low >= high:
        raise Unsupported("an empty range")
    return ctx.value(_draw(ctx, "randint", *(body.index(as_expr(v)) for v in (low, high))))
