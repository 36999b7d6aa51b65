"""Elementwise arithmetic, comparisons, logic, casts and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.index import Expr, provably_le
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, op
from litz.ir.dtype import DType
from litz.ir.program import HostFloat
from litz.lowering.context import Operand, Unsupported
from litz.lowering.creation import filled
from litz.lowering.promotion import as_tensors, common_dtype, device_of, is_number, operand
from litz.lowering.registry import Call, lower, lower_named
from litz.lowering.torch_types import from_torch
from litz.lowering.values import ZERO, TensorValue

aten = torch.ops.aten
Elementwise = Callable[..., Node]


def elementwise(
    ctx: Call,
    fn: Elementwise,
    *operands: Operand,
    compute: DType | None = None,
    exact: bool = False,
) -> TensorValue:
    """``fn`` over promoted operands in opmath; the result is rounded to the graph's result dtype.

    compute: the common dtype, where it isn't the promoted one.  exact: ATen's CPU kernel takes a
    second operand without dimensions in the opmath type; other kernels round it to the common one.
    """
    b = ctx.b
    common = compute or common_dtype(operands)
    if common.kind == "uint" and common.bits > 8:
        raise Unsupported(f"arithmetic on {common}")
    device = device_of(operands)
    tensors = as_tensors(b, operands)
    shape, nodes = b.broadcast(tensors)
    wide = [
        (exact and k == 1 and not tensors[k].ndim)
        or (not device.startswith("cpu") and is_number(n))
        for k, n in enumerate(nodes)
    ]
    node = fn(*(operand(b, n, common, exact=w) for n, w in zip(nodes, wide, strict=True)))
    return TensorValue(ctx.dtype, shape, device, lazy=body.cast(node, ctx.dtype))


def float_compute(ctx: Call, *operands: Operand) -> DType:
    """The common type of ops that turn integers into floats."""
    common = common_dtype(operands)
    return common if common.is_float else ctx.dtype if ctx.dtype.is_float else d.F32


def k(node: Node, value: float | int | bool) -> Node:
    """A literal of the node's type."""
    return body.const(node.dtype, value)


# --- one op of the table each ---

FLOAT_UNARY = {
    "sqrt": aten.sqrt, "rsqrt": aten.rsqrt, "exp": aten.exp, "exp2": aten.exp2,
    "expm1": aten.expm1, "log": aten.log, "log2": aten.log2, "log10": aten.log10,
    "log1p": aten.log1p, "sin": aten.sin, "cos": aten.cos, "tan": aten.tan, "asin": aten.asin,
    "acos": aten.acos, "atan": aten.atan, "sinh": aten.sinh, "cosh": aten.cosh,
    "tanh": aten.tanh, "asinh": aten.asinh, "acosh": aten.acosh, "atanh": aten.atanh,
    "erf": aten.erf, "erfc": aten.erfc, "erfinv": aten.erfinv, "lgamma": aten.lgamma,
    "digamma": aten.digamma, "sigmoid": aten.sigmoid, "reciprocal": aten.reciprocal,
}  # fmt: skip
ROUNDING = {
    "floor": aten.floor,
    "ceil": aten.ceil,
    "trunc": aten.trunc,
    "round": aten.round,
}
BINARY = {"maximum": aten.maximum, "minimum": aten.minimum, "fmax": aten.fmax, "fmin": aten.fmin}
FLOAT_BINARY = {"atan2": aten.atan2}
SAME_BINARY = {"copysign": aten.copysign, "nextafter": aten.nextafter, "hypot": aten.hypot}
COMPARE = {
    "eq": aten.eq, "ne": aten.ne, "lt": aten.lt, "le": aten.le, "gt": aten.gt, "ge": aten.ge
}  # fmt: skip
BITWISE = {"and_": aten.bitwise_and, "or_": aten.bitwise_or, "xor": aten.bitwise_xor}
LOGICAL = {"and_": aten.logical_and, "or_": aten.logical_or, "xor": aten.logical_xor}


def _unary(name: str) -> Callable[..., TensorValue]:
    def fn(ctx: Call, x: TensorValue) -> TensorValue:
        return elementwise(ctx, lambda a: op(name, a), x, compute=float_compute(ctx, x))

    return fn


def _rounding(name: str) -> Callable[..., TensorValue]:
    def fn(ctx: Call, x: TensorValue) -> TensorValue:
        return x if not x.dtype.is_float else elementwise(ctx, lambda a: op(name, a), x)

    return fn


def _binary(name: str) -> Callable[..., TensorValue]:
    # Without nan there is one maximum, and its op takes every type.
    whole = {"fmax": "maximum", "fmin": "minimum"}.get(name, name)

    def fn(ctx: Call, x: Operand, y: Operand) -> TensorValue:
        return elementwise(ctx, lambda a, c: op(name if a.dtype.is_float else whole, a, c), x, y)

    return fn


def _float_binary(name: str) -> Callable[..., TensorValue]:
    def fn(ctx: Call, x: Operand, y: Operand) -> TensorValue:
        if name == "nextafter" and ctx.dtype.bits == 16:
            raise Unsupported("neighbours of 16-bit floats, which arithmetic does not hold")
        return elementwise(ctx, lambda a, c: op(name, a, c), x, y, compute=float_compute(ctx, x, y))

    return fn


def _logical(name: str) -> Callable[..., TensorValue]:
    def fn(ctx: Call, x: TensorValue, y: TensorValue) -> TensorValue:
        return elementwise(ctx, lambda a, c: op(name, truth(a), truth(c)), x, y)

    return fn


def truth(a: Node) -> Node:
    return a if a.dtype is d.BOOL else op("ne", a, k(a, 0))


for _name, _packet in FLOAT_UNARY.items():
    lower(_packet.default)(_unary(_name))
for _name, _packet in ROUNDING.items():
    lower(_packet.default)(_rounding(_name))
for _name, _packet in BINARY.items():
    lower(_packet.default)(_binary(_name))
for _name, _packet in SAME_BINARY.items():
    lower(_packet.default if _name == "hypot" or _name == "nextafter" else _packet.Tensor)(
        _float_binary(_name)
    )
lower(aten.copysign.Scalar)(_float_binary("copysign"))
for _name, _packet in FLOAT_BINARY.items():
    lower(_packet.default)(_float_binary(_name))
for _name, _packet in COMPARE.items():
    lower(_packet.Tensor, _packet.Scalar)(_binary(_name))
for _name, _packet in BITWISE.items():
    lower(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_binary(_name))
for _name, _packet in LOGICAL.items():
    lower(_packet.default)(_logical(_name))


# --- arithmetic ---


def _scaled(name: str, ctx: Call, x: Operand, y: Operand, alpha: float | int) -> TensorValue:
    bool_op = {"add": "or_", "mul": "and_"}.get(name)
    if bool_op is None and any(isinstance(v, TensorValue) and v.dtype is d.BOOL for v in (x, y)):
        raise Unsupported("subtraction of bools")

    def fn(a: Node, c: Node) -> Node:
        if a.dtype is d.BOOL and bool_op is not None:
            return op(bool_op, a, c) if alpha else a
        if not isinstance(alpha, Expr | HostFloat) and alpha == 1:
            return op(name, a, c)
        factor = _alpha(ctx, alpha, c.dtype)
        if not a.dtype.is_float:
            return op(name, a, op("mul", c, factor))
        return op("fma", op("neg", factor) if name == "sub" else factor, c, a)

    return elementwise(ctx, fn, x, y, exact=name == "mul")


def _alpha(ctx: Call, alpha: Any, dtype: DType) -> Node:
    """The factor, which the CPU's kernels round to the tensors' type."""
    symbolic = isinstance(alpha, Expr | HostFloat)
    wide = d.F64 if ctx.dtype.is_float else dtype
    node = ctx.b.number(alpha) if symbolic else body.const(wide, alpha)
    if not ctx.dtype.is_float:
        return body.cast(node, dtype)
    exact = not ctx.result.device.startswith("cpu")
    return body.cast(operand(ctx.b, node, ctx.dtype, exact=exact), dtype)


@lower(aten.add.Tensor, aten.add.Scalar)
def add(ctx: Call, x: Operand, y: Operand, alpha: Any = 1) -> TensorValue:
    return _scaled("add", ctx, x, y, alpha)


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: Call, x: Operand, y: Operand, alpha: Any = 1) -> TensorValue:
    return _scaled("sub", ctx, x, y, alpha)


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: Call, x: Operand, y: Operand, alpha: Any = 1) -> TensorValue:
    return _scaled("sub", ctx, y, x, alpha)


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return _scaled("mul", ctx, x, y, 1)


@lower(aten.div.Tensor, aten.div.Scalar)
def div(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    compute = float_compute(ctx, x, y)
    return elementwise(ctx, lambda a, c: op("div", a, c), x, y, compute=compute, exact=True)


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Call, x: Operand, y: Operand, rounding_mode: str | None) -> TensorValue:
    if rounding_mode is None:
        return div(ctx, x, y)
    common = common_dtype((x, y))
    if common.is_int:
        name = "floordiv" if rounding_mode == "floor" else "truncdiv"
        return elementwise(ctx, lambda a, c: op(name, a, divisor(ctx, c)), x, y)
    if common is d.BOOL:
        raise Unsupported("rounded division of bools")
    r = _between(ctx, common, y)
    if rounding_mode == "floor":
        return elementwise(ctx, lambda a, c: _float_floordiv(a, c, r), x, y, exact=True)
    return elementwise(ctx, lambda a, c: op("trunc", r(op("div", a, c))), x, y, exact=True)


def _between(ctx: Call, common: DType, y: Operand) -> Callable[[Node], Node]:
    """Rounding between steps: eager takes them in the 16-bit type where ``y`` is no number."""
    number = not isinstance(y, TensorValue) or not y.ndim
    if common.opmath is common or number or not ctx.b.settings.eager_numerics:
        return lambda a: a
    return lambda a: op("round_to", a, to=common)


def divisor(ctx: Call, c: Node) -> Node:
    """What eager divides by: on a CPU an integer zero is an error, elsewhere no one looks."""
    if not c.dtype.is_int or (isinstance(c, body.Const) and c.value):
        return c
    return op("check_divisor", c) if ctx.result.device.startswith("cpu") else c


def _float_floordiv(a: Node, c: Node, r: Callable[[Node], Node]) -> Node:
    """c10::div_floor_floating: through fmod, so that the quotient is exact."""
    zero = k(a, 0)
    rest = op("fmod", a, c)
    quot = r(op("div", r(op("sub", a, rest)), c))
    differ = op("and_", op("ne", rest, zero), op("ne", op("lt", c, zero), op("lt", rest, zero)))
    quot = op("where", differ, r(op("sub", quot, k(a, 1))), quot)
    floored = op("floor", quot)
    near = op("gt", op("sub", quot, floored), k(a, 0.5))
    whole = op("where", near, op("add", floored, k(a, 1)), floored)
    signed_zero = op("copysign", zero, op("div", a, c))
    out = op("where", op("ne", quot, zero), whole, signed_zero)
    return op("where", op("eq", c, zero), op("div", a, c), out)


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return div_mode(ctx, x, y, "floor")


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("mod", a, divisor(ctx, c)), x, y)


@lower(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("fmod", a, divisor(ctx, c)), x, y)


@lower(aten.neg.default)
def neg(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: op("neg", a), x)


@lower(aten.abs.default)
def abs_(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype.kind in ("bool", "uint") else elementwise(ctx, lambda a: op("abs", a), x)


@lower(aten.sign.default, aten.sgn.default)
def sign(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype is d.BOOL else elementwise(ctx, lambda a: op("sign", a), x)


@lower(aten.square.default)
def square(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: op("mul", a, a), x)


@lower(aten.relu.default)
def relu(ctx: Call, x: TensorValue) -> TensorValue:
    # Of two zeros eager keeps the tensor's, and the op keeps its second operand.
    return elementwise(ctx, lambda a: op("maximum", k(a, 0), a), x)


@lower(aten.isnan.default)
def isnan(ctx: Call, x: TensorValue) -> TensorValue:
    if not x.dtype.is_float:
        return ctx.b.full(x.shape, False, d.BOOL, x.device)
    return elementwise(ctx, lambda a: op("isnan", a), x)


@lower(aten.isinf.default)
def isinf(ctx: Call, x: TensorValue) -> TensorValue:
    if not x.dtype.is_float:
        return ctx.b.full(x.shape, False, d.BOOL, x.device)
    return elementwise(ctx, lambda a: op("isinf", a), x)


@lower(aten.signbit.default)
def signbit(ctx: Call, x: TensorValue) -> TensorValue:
    if x.dtype.is_float:
        return elementwise(ctx, lambda a: op("signbit", a), x)
    if x.dtype.kind == "int":
        return elementwise(ctx, lambda a: op("lt", a, k(a, 0)), x)
    return ctx.b.full(x.shape, False, d.BOOL, x.device)


@lower(aten.bitwise_not.default)
def bitwise_not(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: op("not_", a), x)


@lower(aten.logical_not.default)
def logical_not(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: op("not_", truth(a)), x)


@lower(
    aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.__lshift__.Scalar
)
def left_shift(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("shl", a, c), x, y)


@lower(
    aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar
)
def right_shift(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("shr", a, c), x, y)


# --- powers ---


@lower(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Call, x: TensorValue, y: Any) -> TensorValue:
    small = isinstance(y, Expr) and not provably_le(ZERO, y) or isinstance(y, int) and y < 0
    if ctx.dtype.is_int and small:
        raise Unsupported("an integer to a negative power, which eager refuses")
    if isinstance(y, Expr | HostFloat):
        return pow_tensor(ctx, x, y)
    if x.dtype.is_float:
        # The exponents that eager's kernel special-cases, with its own arithmetic.
        special: dict[float, Elementwise] = {
            2.0: lambda a: op("mul", a, a),
            3.0: lambda a: op("mul", op("mul", a, a), a),
            0.5: lambda a: op("sqrt", a),
            -0.5: lambda a: op("rsqrt", a),
            -1.0: lambda a: op("reciprocal", a),
            -2.0: lambda a: op("reciprocal", op("mul", a, a)),
            1.0: lambda a: a,
            0.0: lambda a: k(a, 1),
        }
        # In f16 eager takes roots by its power function, which tells the zeros apart no more.
        root = x.dtype is d.F16 and abs(float(y)) == 0.5
        if float(y) in special and not root:
            return elementwise(ctx, special[float(y)], x)
    return pow_tensor(ctx, x, y)


@lower(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    common = common_dtype((x, y))
    if common is d.BOOL:
        raise Unsupported("a power of bools")
    name = "pow" if common.is_float else "ipow"
    return elementwise(ctx, lambda a, c: op(name, a, c), x, y)


# --- selection ---


@lower(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(ctx: Call, cond: TensorValue, x: Operand, y: Operand) -> TensorValue:
    b = ctx.b
    common = ctx.dtype
    shape, (c, *nodes) = b.broadcast([cond, *as_tensors(b, (x, y))])
    # Selection needs no opmath: keep the stored type where both sides have it.
    picked = [n if n.dtype is common else body.cast(operand(b, n, common), common) for n in nodes]
    return TensorValue(common, shape, device_of((cond, x, y)), lazy=op("where", truth(c), *picked))


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ctx: Call, x: TensorValue, mask: TensorValue, value: Operand) -> TensorValue:
    return where(ctx, mask, value, x)


@lower(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: Call, x: TensorValue, min: Any = None, max: Any = None) -> TensorValue:
    bounds = [v for v in (min, max) if v is not None]

    def fn(a: Node, *limits: Node) -> Node:
        rest = list(limits)
        for name, bound in (("maximum", min), ("minimum", max)):
            if bound is not None:
                limit = rest.pop(0)
                # Between zeros of both signs a tensor's bound wins, a number does not.
                pair = (a, limit) if isinstance(bound, TensorValue) else (limit, a)
                a = op(name, *pair)
        return a

    return elementwise(ctx, fn, x, *bounds)


@lower(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ctx: Call, x: TensorValue, min: Any) -> TensorValue:
    return clamp(ctx, x, min, None)


@lower(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ctx: Call, x: TensorValue, max: Any) -> TensorValue:
    return clamp(ctx, x, None, max)


# --- fused arithmetic ---


# ATen's compilers contract a product and a sum to one operation with one rounding.


def _times(ctx: Call, p: Node, value: Any) -> Node:
    """``p`` by a number, which is not rounded to the tensors' type."""
    if isinstance(value, Expr | HostFloat):
        return op("mul", body.cast(ctx.b.number(value), p.dtype), p)
    return p if value == 1 else op("mul", k(p, value), p)


@lower(aten.addcmul.default)
def addcmul(
    ctx: Call, x: TensorValue, a: TensorValue, c: TensorValue, value: Any = 1
) -> TensorValue:
    def fn(s: Node, p: Node, q: Node) -> Node:
        left = _times(ctx, p, value)
        return op("fma", left, q, s) if s.dtype.is_float else op("add", s, op("mul", left, q))

    return elementwise(ctx, fn, x, a, c)


@lower_named("prims::fma")
def fma(ctx: Call, a: TensorValue, b: Any, c: TensorValue) -> TensorValue:
    """What Dynamo makes of ``addcmul_`` from PyTorch 2.13 on."""
    if not ctx.dtype.is_float:
        raise Unsupported("a fused product and sum of integers")
    return elementwise(ctx, lambda p, q, s: op("fma", p, q, s), a, b, c)


@lower(aten.addcdiv.default)
def addcdiv(
    ctx: Call, x: TensorValue, a: TensorValue, c: TensorValue, value: Any = 1
) -> TensorValue:
    def fn(s: Node, p: Node, q: Node) -> Node:
        return op("add", s, op("div", _times(ctx, p, value), q))

    return elementwise(ctx, fn, x, a, c)


@lower(aten.lerp.Tensor)
def lerp(ctx: Call, x: TensorValue, y: TensorValue, weight: TensorValue) -> TensorValue:
    return elementwise(ctx, _mixed, x, y, weight)


@lower(aten.lerp.Scalar)
def lerp_by_number(ctx: Call, x: TensorValue, y: TensorValue, weight: Any) -> TensorValue:
    def fn(a: Node, c: Node) -> Node:
        return _mixed(a, c, _times(ctx, k(a, 1), weight))

    return elementwise(ctx, fn, x, y)


def _mixed(a: Node, c: Node, w: Node) -> Node:
    """From the nearer end, so that both ends are met exactly."""
    diff = op("sub", c, a)
    up = op("fma", w, diff, a)
    down = op("fma", op("neg", diff), op("sub", k(w, 1), w), c)
    return op("where", op("lt", op("abs", w), k(w, 0.5)), up, down)


# --- casts ---


def to_dtype(ctx: Call, x: TensorValue, dtype: DType) -> TensorValue:
    if x.dtype is dtype:
        return x
    return TensorValue(dtype, x.shape, x.device, lazy=ctx.b.user_cast(x.node, dtype))


@lower(torch.ops.prims.convert_element_type.default)
def convert_element_type(ctx: Call, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    to = from_torch(dtype)
    if to is None:
        raise Unsupported(f"a cast to {dtype}")
    return to_dtype(ctx, x, to)


@lower(aten._to_copy.default)
def to_copy(ctx: Call, x: TensorValue | Scalar | Expr | HostFloat, **kwargs: Any) -> TensorValue:
    if not isinstance(x, TensorValue):  # functorch promotes numbers by it
        return filled(ctx, x)
    if ctx.result.device != x.device:
        raise Unsupported("a copy between devices")
    if kwargs.get("pin_memory"):
        raise Unsupported("pinned memory")
    if x.dtype is ctx.dtype:
        return clone(ctx, x)
    return to_dtype(ctx, x, ctx.dtype)


@lower(aten.clone.default)
def clone(ctx: Call, x: TensorValue, memory_format: Any = None) -> TensorValue:
    """A value of its own; stored only if something needs it in memory."""
    return x.without_memory()
