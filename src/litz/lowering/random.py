"""Random numbers: a function of (seed, position), so independent of threads and order.

The seed is drawn from PyTorch's generator once per run of the program.  Each call of a random
operator owns a range of positions that no other call of the program reaches.

The seed is a call of its own, on a GPU a launch.  Where one operator draws all numbers of a
program, few, and nothing can be fused with it, ATen draws and writes them in one.
"""

from __future__ import annotations

import math
import operator
from typing import Final

import torch
from torch._ops import OpOverload
from torch.fx import Node as FxNode

from litz.graph.calls import is_random
from litz.index import Expr, as_expr, const, linear, product, size_hint
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.lowering.context import Builder, Unsupported
from litz.lowering.creation import unfilled
from litz.lowering.formulas import elementwise, leaky, where
from litz.lowering.pooling import stored
from litz.lowering.registry import Call, find, lower
from litz.lowering.strides import result_strides
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

# Positions that each call owns: 2**40 elements, twice (f64 draws need a second number).
STREAM_BITS = 41
# Bits of the significand: uniform numbers of a type are multiples of 2**-digits below 1.
DIGITS = {d.BF16: 8, d.F16: 11}
# The smallest exponential sample: half a step of the uniform numbers, since zero must not occur.
TINY = {d.F32: 2.0**-25, d.F64: 2.0**-49}


EAGER: Final = "eager's random stream was asked for"
ALONE: Final = "draws all random numbers, and nothing is fused with it: ATen does in one call"
# Elements up to which a second launch takes longer than ATen's kernels are slower: those that draw,
# and that of dropout, which writes a mask besides.
FEW, FEW_DROPPED = 1 << 16, 1 << 20
FEW_ON_CPU = 1 << 11  # up to which drawing the seed takes longer than ATen, which draws one by one


def _may_draw(ctx: Call, alone: int = FEW) -> None:
    """alone: elements up to which the call may be left to ATen; 0 if it reads what is computed."""
    if ctx.b.settings.eager_rng:
        raise Unsupported(EAGER)
    if ctx.node.kwargs.get("generator") is not None:
        raise Unsupported("a random generator of the user's own")
    if _is_alone(ctx, alone):
        raise Unsupported(ALONE)


def _is_alone(ctx: Call, most: int = FEW) -> bool:
    """Whether a call is the graph's one that draws, and few numbers, which only calls take."""
    n = ctx.node
    most = min(most, FEW_ON_CPU) if ctx.result.device == "cpu" else most
    if size_hint(product(ctx.shape)) > most:
        return False
    others = any(is_random(m.target) and m is not n for m in n.graph.nodes)
    users = [w for u in n.users for w in (u.users if u.target is operator.getitem else (u,))]
    called = all(u.op == "output" or _is_called(u) for u in users)
    return not others and (called or _is_written_back(n))


def _is_written_back(n: FxNode) -> bool:
    """Whether a call's result is just written over its argument, an input that nobody reads."""
    x, users = n.args[0] if n.args else None, list(n.users)
    if not isinstance(x, FxNode) or x.op != "placeholder" or len(x.users) > 2 or len(users) != 1:
        return False
    return users[0].target is aten.copy_.default and users[0].args[:2] == (x, n)


def _is_called(n: object) -> bool:
    """Whether a node is no kernel of Litz: what is given, or what ATen is called for."""
    assert isinstance(n, FxNode)
    return n.op != "call_function" or (isinstance(n.target, OpOverload) and find(n.target) is None)


def _filled(ctx: Call, fill: OpOverload, *args: float) -> TensorValue | None:
    """The result as memory that an operator of ATen fills, where ATen is to draw.

    What functional operators draw for is an argument's memory, which they copy first: new memory
    does, or the argument's own where the result is written there.
    """
    eager = ctx.b.settings.eager_rng
    own = ctx.node.kwargs.get("generator") is not None
    if own or not (eager or _is_alone(ctx)):
        return None
    given = ctx.b.buffers.get(str(ctx.node.args[0])) if _is_written_back(ctx.node) else None
    out = ctx.b.of_buffer(given or unfilled(ctx.b, ctx.result))
    ctx.before_mutation(out)
    why, written = EAGER if eager else ALONE, (out.memory.buffer,)
    ctx.b.extern(fill, (out.memory, *args), (None,), ctx.result.device, why, mutates=written)
    return out


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
    """One random number per element of the result, by a random op of the table.

    Positions run as the result lies in memory, so that neighbours there have neighbours' numbers.
    """
    own = axes(ctx.shape)
    base = (_stream(ctx) << STREAM_BITS) + ((1 << (STREAM_BITS - 1)) if second else 0)
    position = linear(own, result_strides(ctx.result), const(base))
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


def _drawn_type(ctx: Call, alone: int = FEW) -> DType:
    """The type of the floats that a call draws, where it may: see ``_may_draw``."""
    _may_draw(ctx, alone)
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
    if (filled := _filled(ctx, aten.uniform_.default, low, high)) is not None:
        return filled
    dtype = _drawn_type(ctx)
    if low > high:
        raise Unsupported("a range that eager refuses")
    return ctx.value(_affine(uniform_node(ctx, dtype), high - low, low))


@lower(aten.normal_functional.default, aten.normal.float_float)
def normal(ctx: Call, *, mean: float, std: float) -> TensorValue:
    if (filled := _filled(ctx, aten.normal_.default, mean, std)) is not None:
        return filled
    return ctx.value(_affine(normal_node(ctx, _drawn_type(ctx)), std, mean))


@lower(aten.normal.Tensor_float)
def normal_about(ctx: Call, mean: TensorValue, std: float) -> TensorValue:
    few = FEW if _is_called(ctx.node.args[0]) else 0
    if std < 0 or mean.dtype is not _drawn_type(ctx, few):
        raise Unsupported("normal numbers of this form")
    noise = _affine(normal_node(ctx, ctx.dtype), std, 0.0)
    return ctx.value(noise + ctx.b.opmath(mean.at(axes(ctx.shape))))


@lower(aten.log_normal.default)
def log_normal(ctx: Call, *, mean: float, std: float) -> TensorValue:
    if (filled := _filled(ctx, aten.log_normal_.default, mean, std)) is not None:
        return filled
    return ctx.value(op("exp", _affine(normal_node(ctx, _drawn_type(ctx)), std, mean)))


@lower(aten.exponential.default)
def exponential(ctx: Call, *, lambd: float) -> TensorValue:
    if (filled := _filled(ctx, aten.exponential_.default, lambd)) is not None:
        return filled
    acc = _drawn_type(ctx).opmath
    u = uniform_node(ctx, acc)
    above = -op("log1p", -u)
    above = op("maximum", above, body.const(acc, TINY[acc]))
    return ctx.value(above / lambd)


@lower(aten.cauchy.default)
def cauchy(ctx: Call, *, median: float, sigma: float) -> TensorValue:
    if (filled := _filled(ctx, aten.cauchy_.default, median, sigma)) is not None:
        return filled
    u = uniform_node(ctx, _drawn_type(ctx).opmath)
    return ctx.value(_affine(op("tan", math.pi * (u - 0.5)), sigma, median))


@lower(aten.geometric.default)
def geometric(ctx: Call, *, p: float) -> TensorValue:
    if (filled := _filled(ctx, aten.geometric_.default, p)) is not None:
        return filled
    acc = _drawn_type(ctx).opmath
    if not 0 < p < 1:
        raise Unsupported("a probability outside of (0, 1)")
    steps = op("ceil", op("log1p", -uniform_node(ctx, acc)) / math.log1p(-p))
    return ctx.value(op("maximum", steps, body.const(acc, 1)))


# --- bernoulli and dropout -----------------------------------------------------------------------


def _kept(ctx: Call, p: float) -> Node:
    """True with probability ``p``, for each element of the result."""
    return _draw(ctx, "rand") < p


@lower(aten.bernoulli.p)
def bernoulli(ctx: Call, *, p: float) -> TensorValue:
    if (filled := _filled(ctx, aten.bernoulli_.float, p)) is not None:
        return filled
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
    _may_draw(ctx, FEW_DROPPED if _is_called(ctx.node.args[0]) else 0)
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


@lower(aten.rrelu_with_noise_functional.default)
def rrelu(
    ctx: Call, x: TensorValue, noise: TensorValue, *, lower: float, upper: float, training: bool
) -> tuple[TensorValue | None, ...]:
    if not x.dtype.is_float:
        raise Unsupported("an activation of integers")
    if not training:
        return elementwise(ctx, lambda a: leaky(a, a, (lower + upper) / 2), x), noise
    if x.ref is not None and _is_called(ctx.node.args[0]) and _is_alone(ctx):
        r, kept = ctx.result, ctx.b.of_buffer(unfilled(ctx.b, ctx.nth_result(1)))
        out = ctx.b.new_buffer(r.dtype, r.shape, r.strides, r.device, "extern")
        args = x.memory, kept.memory, lower, upper, True
        ctx.b.extern(
            aten.rrelu_with_noise.default, args, (out.name,), r.device, ALONE,
            mutates=(kept.memory.buffer,),
        )  # fmt: skip
        return ctx.b.of_buffer(out), kept
    slope = _affine(uniform_node(ctx, _drawn_type(ctx, alone=0)), upper - lower, lower)
    own = x.with_node(body.cast(slope, x.dtype))
    kept = elementwise(ctx, lambda a, s: where(a <= 0, s, 1), x, own)
    return elementwise(ctx, lambda a, s: a * s, x, kept), kept


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
