"""Elementwise arithmetic, comparisons, logic, casts and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.index import Expr, provably_le
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.ir.program import HostFloat
from litz.lowering.context import Operand, Unsupported
from litz.lowering.creation import filled
from litz.lowering.formulas import (
    Elementwise,
    Rounding,
    elementwise,
    float_compute,
    formula,
    formulas,
    is_zero,
    k,
    never,
    rounding,
    truth,
    unchanged,
    unrounded,
)
from litz.lowering.promotion import as_tensors, common_dtype, device_of, is_number, operand
from litz.lowering.registry import Call, lower, lower_named, lower_rows
from litz.lowering.values import ZERO, TensorValue

aten = torch.ops.aten


# --- one op of the table each ---


def primitive(name: str) -> Elementwise:
    """The formula that is one op of one element."""
    return lambda a: op(name, a)


def of_two(name: str, integers: str = "") -> Elementwise:
    """The formula that is one op of two elements, of integers maybe another one."""
    return lambda a, c: op(name if a.dtype.is_float else integers or name, a, c)


def of_truths(fn: Elementwise) -> Elementwise:
    return lambda a, c: fn(truth(a), truth(c))


for _name in (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid reciprocal"
).split():
    formula(getattr(aten, _name).default, floats=True)(primitive(_name))
for _name in ("floor", "ceil", "trunc", "round"):
    formula(getattr(aten, _name).default, others=unchanged)(primitive(_name))
for _name in ("isnan", "isinf"):
    formula(getattr(aten, _name).default, others=never)(primitive(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _packet = getattr(aten, _name)
    formula(_packet.Tensor, _packet.Scalar)(of_two(_name))
for _name in ("and", "or", "xor"):
    _op = of_two(_name if _name == "xor" else f"{_name}_")
    _packet = getattr(aten, f"bitwise_{_name}")
    formula(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_op)
    formula(getattr(aten, f"logical_{_name}").default)(of_truths(_op))
_left, _right = aten.bitwise_left_shift, aten.bitwise_right_shift
_lefts, _rights = aten.__lshift__, aten.__rshift__  # what Python's operators are traced as
formulas(
    {
        aten.neg.default: primitive("neg"),
        aten.bitwise_not.default: primitive("not_"),
        aten.logical_not.default: lambda a: op("not_", truth(a)),
        aten.square.default: lambda a: a * a,
        # Of two zeros eager keeps the tensor's, and the op keeps its second operand.
        aten.relu.default: lambda a: op("maximum", k(a, 0), a),
        aten.maximum.default: of_two("maximum"),
        aten.minimum.default: of_two("minimum"),
        # Without nan there is one maximum, and its op takes every type.
        aten.fmax.default: of_two("fmax", "maximum"),
        aten.fmin.default: of_two("fmin", "minimum"),
        (_left.Tensor, _left.Tensor_Scalar, _lefts.Tensor, _lefts.Scalar): of_two("shl"),
        (_right.Tensor, _right.Tensor_Scalar, _rights.Tensor, _rights.Scalar): of_two("shr"),
    }
)
formulas(
    {
        aten.hypot.default: of_two("hypot"),
        aten.atan2.default: of_two("atan2"),
        (aten.copysign.Tensor, aten.copysign.Scalar): of_two("copysign"),
    },
    floats=True,
)


@lower(aten.nextafter.default)
def nextafter(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    if ctx.dtype.bits == 16:
        raise Unsupported("neighbours of 16-bit floats, which arithmetic does not hold")
    return elementwise(ctx, of_two("nextafter"), x, y, compute=float_compute(ctx, x, y))


@lower(aten.abs.default)
def abs_(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype.kind in ("bool", "uint") else elementwise(ctx, primitive("abs"), x)


@lower(aten.sign.default, aten.sgn.default)
def sign(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype is d.BOOL else elementwise(ctx, primitive("sign"), x)


def _is_negative(ctx: Call, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda a: a < 0, x) if x.dtype.kind == "int" else never(ctx, x)


formula(aten.signbit.default, others=_is_negative)(primitive("signbit"))


# --- arithmetic ---


@lower_rows(
    (aten.add.Tensor, "add"),
    (aten.add.Scalar, "add"),
    (aten.sub.Tensor, "sub"),
    (aten.sub.Scalar, "sub"),
)
def scaled(ctx: Call, name: str, x: Operand, y: Operand, *, alpha: Any) -> TensorValue:
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
            return op(name, a, c * factor)
        return op("fma", -factor if name == "sub" else factor, c, a)

    return elementwise(ctx, fn, x, y, exact=name == "mul")


def _alpha(ctx: Call, alpha: Any, dtype: DType) -> Node:
    """The factor, which the CPU's kernels round to the tensors' type."""
    symbolic = isinstance(alpha, Expr | HostFloat)
    wide = d.F64 if ctx.dtype.is_float else dtype
    node = ctx.b.number(alpha) if symbolic else body.const(wide, alpha)
    if not ctx.dtype.is_float:
        return body.cast(node, dtype)
    return body.cast(operand(ctx.b, node, ctx.dtype, exact=ctx.eager.wide_numbers), dtype)


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: Call, x: Operand, y: Operand, *, alpha: Any) -> TensorValue:
    return scaled(ctx, "sub", y, x, alpha=alpha)


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return scaled(ctx, "mul", x, y, alpha=1)


# --- division ---


@formula(aten.div.Tensor, floats=True, exact=True, steps=lambda ctx: ctx.eager.inverted_divisors)
def div(inverted: bool, a: Node, c: Node) -> Node:
    return a * (1 / c) if inverted and is_number(c) else a / c


# Lists of tensors divide by numbers everywhere.
formula(aten.div.Scalar, floats=True, exact=True)(of_two("div"))


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Call, x: Operand, y: Operand, *, rounding_mode: str | None) -> TensorValue:
    if rounding_mode is None:
        compute = float_compute(ctx, x, y)
        return elementwise(ctx, of_two("div"), x, y, compute=compute, exact=True)
    common = common_dtype(ctx.b, (x, y))
    if common.is_int:
        name = "floordiv" if rounding_mode == "floor" else "truncdiv"
        return elementwise(ctx, lambda a, c: op(name, a, checked(ctx)(c)), x, y)
    if common is d.BOOL:
        raise Unsupported("rounded division of bools")
    # Eager takes its steps in the 16-bit type where the divisor is no number; of floors on CPUs.
    dense = isinstance(y, TensorValue) and y.ndim
    r = rounding(ctx, common if dense else d.F32)
    if rounding_mode == "floor":
        r = r if ctx.eager.rounded_steps else unrounded
        return elementwise(ctx, lambda a, c: _float_floordiv(a, c, r), x, y, exact=True)
    return elementwise(ctx, lambda a, c: op("trunc", r(a / c)), x, y, exact=True)


def checked(ctx: Call) -> Elementwise:
    """What eager divides by: on a CPU an integer zero is an error, elsewhere no one looks."""

    def divisor(c: Node) -> Node:
        if (
            not c.dtype.is_int
            or (isinstance(c, body.Const) and c.value)
            or not ctx.eager.checked_divisors
        ):
            return c
        return op("check_divisor", c)

    return divisor


def _float_floordiv(a: Node, c: Node, r: Rounding) -> Node:
    """c10::div_floor_floating: through fmod, so that the quotient is exact."""
    if r is unrounded:
        return op("floordiv", a, c)
    zero = k(a, 0)
    rest = op("fmod", a, c)
    quot = r(r(a - rest) / c)
    differ = op("ne", rest, zero) & op("ne", c < 0, rest < 0)
    quot = op("where", differ, r(quot - 1), quot)
    floored = op("floor", quot)
    whole = op("where", quot - floored > 0.5, floored + 1, floored)
    out = op("where", op("ne", quot, zero), whole, op("copysign", zero, a / c))
    return op("where", is_zero(c), a / c, out)


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return div_mode(ctx, x, y, rounding_mode="floor")


_mod = aten.remainder
formulas(
    {
        (_mod.Tensor, _mod.Scalar, _mod.Scalar_Tensor): lambda by, a, c: op("mod", a, by(c)),
        (aten.fmod.Tensor, aten.fmod.Scalar): lambda by, a, c: op("fmod", a, by(c)),
    },
    steps=checked,
)


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
            2.0: lambda a: a * a,
            3.0: lambda a: a * a * a,
            0.5: primitive("sqrt"),
            -0.5: primitive("rsqrt"),
            -1.0: primitive("reciprocal"),
            -2.0: lambda a: op("reciprocal", a * a),
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
    common = common_dtype(ctx.b, (x, y))
    if common is d.BOOL:
        raise Unsupported("a power of bools")
    return elementwise(ctx, of_two("pow", "ipow"), x, y)


# --- selection ---


@lower(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(ctx: Call, cond: TensorValue, x: Operand, y: Operand) -> TensorValue:
    b = ctx.b
    common = ctx.dtype
    shape, (c, *nodes) = b.broadcast([cond, *as_tensors(b, (x, y))])
    # Selection needs no opmath: keep the stored type where both sides have it.
    picked = [n if n.dtype is common else body.cast(operand(b, n, common), common) for n in nodes]
    computed = [_computed(n, common.opmath) for n in picked]
    if all(computed) and common.opmath is not common:  # picked before they are rounded, once
        picked = [n for n in computed if n is not None]
    picked_one = body.cast(op("where", truth(c), *picked), common)
    return TensorValue(common, shape, device_of((cond, x, y)), lazy=picked_one)


def _computed(n: Node, opmath: DType) -> Node | None:
    """A value in the type that arithmetic runs in, if nothing of it lies in memory."""
    if isinstance(n, body.Const):
        return body.const(opmath, n.value)
    cast = isinstance(n, body.Op) and n.name == "cast" and n.args[0].dtype is opmath
    return n.args[0] if cast else None


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ctx: Call, x: TensorValue, mask: TensorValue, value: Operand) -> TensorValue:
    return where(ctx, mask, value, x)


@lower(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: Call, x: TensorValue, min: Operand | None, max: Operand | None) -> TensorValue:
    def bounded(name: str, a: Node, limit: Node | None, bound: Operand | None) -> Node:
        if limit is None:
            return a
        # Between zeros of both signs a tensor's bound wins, a number does not.
        return op(name, *((a, limit) if isinstance(bound, TensorValue) else (limit, a)))

    def fn(a: Node, low: Node | None, high: Node | None) -> Node:
        return bounded("minimum", bounded("maximum", a, low, min), high, max)

    return elementwise(ctx, fn, x, min, max)


@lower(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ctx: Call, x: TensorValue, min: Operand) -> TensorValue:
    return clamp(ctx, x, min, None)


@lower(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ctx: Call, x: TensorValue, max: Operand) -> TensorValue:
    return clamp(ctx, x, None, max)


# --- fused arithmetic ---


# ATen's compilers contract a product and a sum to one operation with one rounding.


def by_number(ctx: Call) -> Callable[[Node, Any], Node]:
    """A factor that is a number, which is not rounded to the tensors' type."""

    def times(p: Node, value: Any) -> Node:
        if isinstance(value, Expr | HostFloat):
            return body.cast(ctx.b.number(value), p.dtype) * p
        return p if value == 1 else k(p, value) * p

    return times


Times = Callable[[Node, Any], Node]


def _addcmul(times: Times, s: Node, p: Node, q: Node, *, value: Any) -> Node:
    left = times(p, value)
    return op("fma", left, q, s) if s.dtype.is_float else s + left * q


def _lerp(a: Node, c: Node, w: Node) -> Node:
    """From the nearer end, so that both ends are met exactly."""
    diff = c - a
    up, down = op("fma", w, diff, a), op("fma", -diff, k(w, 1) - w, c)
    return op("where", op("abs", w) < 0.5, up, down)


formula(aten.lerp.Tensor)(_lerp)
formulas(
    {
        aten.addcmul.default: _addcmul,
        aten.addcdiv.default: lambda times, s, p, q, *, value: s + times(p, value) / q,
        aten.lerp.Scalar: lambda times, a, c, *, weight: _lerp(a, c, times(k(a, 1), weight)),
    },
    steps=by_number,
)


@lower_named("prims::fma")
def fma(ctx: Call, a: TensorValue, b: Any, c: TensorValue) -> TensorValue:
    """What Dynamo makes of ``addcmul_`` from PyTorch 2.13 on."""
    if not ctx.dtype.is_float:
        raise Unsupported("a fused product and sum of integers")
    return elementwise(ctx, lambda p, q, s: op("fma", p, q, s), a, b, c)


# --- casts ---


@lower(torch.ops.prims.convert_element_type.default)
def convert_element_type(ctx: Call, x: TensorValue) -> TensorValue:
    return ctx.cast(x)


@lower(aten._to_copy.default)
def to_copy(ctx: Call, x: Operand) -> TensorValue:
    if not isinstance(x, TensorValue):  # functorch promotes numbers by it
        return filled(ctx, x)
    if ctx.result.device != x.device:
        raise Unsupported("a copy between devices")
    return x.without_memory() if x.dtype is ctx.dtype else ctx.cast(x)


@lower(aten.clone.default)
def clone(ctx: Call, x: TensorValue) -> TensorValue:
    """A value of its own; stored only if something needs it in memory."""
    return x.without_memory()
