"""Elementwise arithmetic, comparisons, logic, casts and where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from litz.index import Expr, provably_le
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.ir.program import HostFloat
from litz.lowering.context import Operand, Unsupported
from litz.lowering.creation import filled
from litz.lowering.promotion import as_tensors, common_dtype, device_of, is_number, operand
from litz.lowering.registry import Call, lower, lower_named
from litz.lowering.values import ZERO, TensorValue

aten = torch.ops.aten
Elementwise = Callable[..., Node]
Rounding = Callable[[Node], Node]
F = TypeVar("F", bound=Elementwise)


def elementwise(
    ctx: Call,
    fn: Elementwise,
    *operands: Operand | None,
    compute: DType | None = None,
    exact: bool = False,
) -> TensorValue:
    """``fn`` over promoted operands in opmath; the result is rounded to the graph's result dtype.

    Operands that are None stay None.  compute: the common dtype, where it isn't the promoted one.
    exact: ATen's CPU kernel takes a second operand without dimensions in the opmath type; other
    kernels round it to the common one.
    """
    b = ctx.b
    given = [o for o in operands if o is not None]
    common = compute or common_dtype(given)
    if common.kind == "uint" and common.bits > 8:
        raise Unsupported(f"arithmetic on {common}")
    device = device_of(given)
    tensors = as_tensors(b, given)
    shape, nodes = b.broadcast(tensors)
    wide = [
        (exact and k == 1 and not tensors[k].ndim)
        or (not device.startswith("cpu") and is_number(n))
        for k, n in enumerate(nodes)
    ]
    rest = iter([operand(b, n, common, exact=w) for n, w in zip(nodes, wide, strict=True)])
    node = fn(*(None if o is None else next(rest) for o in operands))
    return TensorValue(ctx.dtype, shape, device, lazy=body.cast(node, ctx.dtype))


def float_compute(ctx: Call, *operands: Operand) -> DType:
    """The common type of ops that turn integers into floats."""
    common = common_dtype(operands)
    return common if common.is_float else ctx.dtype if ctx.dtype.is_float else d.F32


def formula(
    *overloads: torch._ops.OpOverload,
    floats: bool = False,
    exact: bool = False,
    steps: Callable[[Call], Rounding] | None = None,
    others: Callable[[Call, TensorValue], TensorValue] | None = None,
) -> Callable[[F], F]:
    """Register what an elementwise operator computes of each element: a row of their table.

    The formula's positional parameters are the leading arguments as elements, in the type that
    arithmetic runs in; its keyword-only ones are arguments as they are.  floats: integers are
    computed as floats.  exact: see ``elementwise``.  steps: rounding between steps, which the
    formula takes before the elements.  others: the lowering where the first is no tensor of floats.
    """

    def register(fn: F) -> F:
        def lowered(ctx: Call, *operands: Operand, **options: Any) -> TensorValue:
            first = operands[0]
            if others and isinstance(first, TensorValue) and not first.dtype.is_float:
                return others(ctx, first)
            of_elements = partial(fn, *([steps(ctx)] if steps else []), **options)
            compute = float_compute(ctx, *operands) if floats else None
            return elementwise(ctx, of_elements, *operands, compute=compute, exact=exact)

        lower(*overloads, of=fn, skip=1 if steps else 0)(lowered)
        return fn

    return register


def unchanged(ctx: Call, x: TensorValue) -> TensorValue:
    return x


def never(ctx: Call, x: TensorValue) -> TensorValue:
    return ctx.full(False)


def k(node: Node, value: float | int | bool) -> Node:
    """A literal of the node's type."""
    return body.const(node.dtype, value)


def truth(a: Node) -> Node:
    return a if a.dtype is d.BOOL else op("ne", a, k(a, 0))


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
formula(aten.neg.default)(primitive("neg"))
formula(aten.bitwise_not.default)(primitive("not_"))
formula(aten.logical_not.default)(lambda a: op("not_", truth(a)))
formula(aten.square.default)(lambda a: op("mul", a, a))
# Of two zeros eager keeps the tensor's, and the op keeps its second operand.
formula(aten.relu.default)(lambda a: op("maximum", k(a, 0), a))

for _name in ("maximum", "minimum"):
    formula(getattr(aten, _name).default)(of_two(_name))
# Without nan there is one maximum, and its op takes every type.
formula(aten.fmax.default)(of_two("fmax", "maximum"))
formula(aten.fmin.default)(of_two("fmin", "minimum"))
formula(aten.hypot.default, floats=True)(of_two("hypot"))
formula(aten.atan2.default, floats=True)(of_two("atan2"))
formula(aten.copysign.Tensor, aten.copysign.Scalar, floats=True)(of_two("copysign"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _packet = getattr(aten, _name)
    formula(_packet.Tensor, _packet.Scalar)(of_two(_name))
for _name in ("and", "or", "xor"):
    _op = of_two(_name if _name == "xor" else f"{_name}_")
    _packet = getattr(aten, f"bitwise_{_name}")
    formula(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_op)
    formula(getattr(aten, f"logical_{_name}").default)(of_truths(_op))
formula(
    aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.__lshift__.Scalar
)(of_two("shl"))
formula(
    aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar
)(of_two("shr"))


@lower(aten.nextafter.default)
def nextafter(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    if ctx.dtype.bits == 16:
        raise Unsupported("neighbours of 16-bit floats, which arithmetic does not hold")
    return elementwise(ctx, of_two("nextafter"), x, y, compute=float_compute(ctx, x, y))


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
def add(ctx: Call, x: Operand, y: Operand, *, alpha: Any) -> TensorValue:
    return _scaled("add", ctx, x, y, alpha)


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: Call, x: Operand, y: Operand, *, alpha: Any) -> TensorValue:
    return _scaled("sub", ctx, x, y, alpha)


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: Call, x: Operand, y: Operand, *, alpha: Any) -> TensorValue:
    return _scaled("sub", ctx, y, x, alpha)


@lower(aten.mul.Tensor, aten.mul.Scalar)
def mul(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return _scaled("mul", ctx, x, y, 1)


formula(aten.div.Tensor, aten.div.Scalar, floats=True, exact=True)(of_two("div"))


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Call, x: Operand, y: Operand, *, rounding_mode: str | None) -> TensorValue:
    if rounding_mode is None:
        compute = float_compute(ctx, x, y)
        return elementwise(ctx, of_two("div"), x, y, compute=compute, exact=True)
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
    return div_mode(ctx, x, y, rounding_mode="floor")


@lower(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("mod", a, divisor(ctx, c)), x, y)


@lower(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(ctx: Call, x: Operand, y: Operand) -> TensorValue:
    return elementwise(ctx, lambda a, c: op("fmod", a, divisor(ctx, c)), x, y)


@lower(aten.abs.default)
def abs_(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype.kind in ("bool", "uint") else elementwise(ctx, lambda a: op("abs", a), x)


@lower(aten.sign.default, aten.sgn.default)
def sign(ctx: Call, x: TensorValue) -> TensorValue:
    return x if x.dtype is d.BOOL else elementwise(ctx, lambda a: op("sign", a), x)


@lower(aten.signbit.default)
def signbit(ctx: Call, x: TensorValue) -> TensorValue:
    if x.dtype.is_float:
        return elementwise(ctx, lambda a: op("signbit", a), x)
    if x.dtype.kind == "int":
        return elementwise(ctx, lambda a: op("lt", a, k(a, 0)), x)
    return never(ctx, x)


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


def _times(ctx: Call, p: Node, value: Any) -> Node:
    """``p`` by a number, which is not rounded to the tensors' type."""
    if isinstance(value, Expr | HostFloat):
        return op("mul", body.cast(ctx.b.number(value), p.dtype), p)
    return p if value == 1 else op("mul", k(p, value), p)


@lower(aten.addcmul.default)
def addcmul(
    ctx: Call, x: TensorValue, a: TensorValue, c: TensorValue, *, value: Any
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
    ctx: Call, x: TensorValue, a: TensorValue, c: TensorValue, *, value: Any
) -> TensorValue:
    def fn(s: Node, p: Node, q: Node) -> Node:
        return op("add", s, op("div", _times(ctx, p, value), q))

    return elementwise(ctx, fn, x, a, c)


@lower(aten.lerp.Scalar)
def lerp_by_number(ctx: Call, x: TensorValue, y: TensorValue, *, weight: Any) -> TensorValue:
    def fn(a: Node, c: Node) -> Node:
        return _mixed(a, c, _times(ctx, k(a, 1), weight))

    return elementwise(ctx, fn, x, y)


@formula(aten.lerp.Tensor)
def _mixed(a: Node, c: Node, w: Node) -> Node:
    """From the nearer end, so that both ends are met exactly."""
    diff = op("sub", c, a)
    up = op("fma", w, diff, a)
    down = op("fma", op("neg", diff), op("sub", k(w, 1), w), c)
    return op("where", op("lt", op("abs", w), k(w, 0.5)), up, down)


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
