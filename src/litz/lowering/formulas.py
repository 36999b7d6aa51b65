"""Elementwise operators as rows of a table: what each computes of an element.

A formula is written in Python's operators on body nodes, with the arithmetic of ATen's kernels: in
f32 for 16-bit floats, or rounding where they round between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from litz.index import Expr
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, op
from litz.ir.dtype import DType
from litz.ir.exact import rounded
from litz.lowering.context import Operand, Unsupported
from litz.lowering.eager import eager_on
from litz.lowering.promotion import as_tensors, common_dtype, device_of, is_number, operand
from litz.lowering.registry import Call, lower
from litz.lowering.values import TensorValue

Overload = torch._ops.OpOverload
Elementwise = Callable[..., Node]
Rounding = Callable[[Node], Node]
Number = float | int | Expr
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
    common = compute or common_dtype(b, given)
    if common.kind == "uint" and common.bits > 8:
        raise Unsupported(f"arithmetic on {common}")
    device = device_of(given)
    tensors = as_tensors(b, given)
    shape, nodes = b.broadcast(tensors)
    wide = [
        (exact and k == 1 and not tensors[k].ndim)
        or (eager_on(device).wide_numbers and is_number(n))
        for k, n in enumerate(nodes)
    ]
    rest = iter([operand(b, n, common, exact=w) for n, w in zip(nodes, wide, strict=True)])
    node = fn(*(None if o is None else next(rest) for o in operands))
    return TensorValue(ctx.dtype, shape, device, lazy=body.cast(node, ctx.dtype))


def float_compute(ctx: Call, *operands: Operand) -> DType:
    """The common type of ops that turn integers into floats."""
    common = common_dtype(ctx.b, operands)
    return common if common.is_float else ctx.dtype if ctx.dtype.is_float else d.F32


# --- the table -----------------------------------------------------------------------------------


def formula(
    *overloads: Overload,
    floats: bool = False,
    exact: bool = False,
    steps: Callable[[Call], Any] | None = None,
    others: Callable[[Call, TensorValue], TensorValue] | None = None,
) -> Callable[[F], F]:
    """Register what an elementwise operator computes of each element: a row of their table.

    The formula's positional parameters are the leading arguments as elements, in the type that
    arithmetic runs in; its keyword-only ones are arguments as they are, tensors as elements too.
    floats: integers are computed as floats.  exact: see ``elementwise``.  steps: what the formula
    takes of the call before the elements: rounding between steps, say.  others: the lowering where
    the first argument is no tensor of floats.
    """

    def register(fn: F) -> F:
        def lowered(ctx: Call, *operands: Operand | None, **options: Any) -> TensorValue:
            first = operands[0]
            if others and isinstance(first, TensorValue) and not first.dtype.is_float:
                return others(ctx, first)
            named = [n for n, v in options.items() if isinstance(v, TensorValue)]
            operands += tuple(options.pop(n) for n in named)
            head, count = [steps(ctx)] if steps else [], len(operands) - len(named)

            def of_elements(*nodes: Node) -> Node:
                more = dict(zip(named, nodes[count:], strict=True))
                return fn(*head, *nodes[:count], **more, **options)

            compute = (
                float_compute(ctx, *(o for o in operands if o is not None)) if floats else None
            )
            return elementwise(ctx, of_elements, *operands, compute=compute, exact=exact)

        lower(*overloads, of=fn, skip=1 if steps else 0)(lowered)
        return fn

    return register


def formulas(rows: Mapping[Overload | tuple[Overload, ...], Elementwise], **how: Any) -> None:
    """Register several formulas alike.  how: what ``formula`` takes."""
    for overloads, fn in rows.items():
        formula(*(overloads if isinstance(overloads, tuple) else (overloads,)), **how)(fn)


def unchanged(ctx: Call, x: TensorValue) -> TensorValue:
    return x


def never(ctx: Call, x: TensorValue) -> TensorValue:
    return ctx.full(False)


def refused(reason: str) -> Callable[[Call, TensorValue], TensorValue]:
    def declined(ctx: Call, x: TensorValue) -> TensorValue:
        raise Unsupported(reason)

    return declined


# --- rounding between steps ----------------------------------------------------------------------


def unrounded(a: Node) -> Node:
    return a


def rounding(ctx: Call, dtype: DType) -> Rounding:
    """Rounding between the steps of a kernel that computes in a 16-bit type op by op."""
    if dtype.opmath is dtype or not ctx.b.settings.eager_numerics:
        return unrounded
    return lambda a: rounded(a, dtype)


def stepwise(ctx: Call) -> Rounding:
    return rounding(ctx, ctx.dtype)


def stepwise_f16(ctx: Call) -> Rounding:
    """ATen's kernel computes in f32 for bf16, but step by step for f16."""
    return rounding(ctx, ctx.dtype if ctx.dtype is d.F16 else d.F32)


def stepwise_bf16(ctx: Call) -> Rounding:
    """ATen's kernel computes in f32 for f16, but step by step for bf16."""
    return rounding(ctx, ctx.dtype if ctx.dtype is d.BF16 else d.F32)


def stepwise_on_cpu(ctx: Call) -> Rounding:
    """Rounding as between the steps of the CPU's kernels; those of GPUs keep 32 bits."""
    return rounding(ctx, ctx.dtype if ctx.eager.rounded_steps else d.F32)


def stepwise_off_cpu(ctx: Call) -> Rounding:
    return rounding(ctx, ctx.dtype if ctx.eager.rounded_scales else d.F32)


# --- words that formulas share -------------------------------------------------------------------


def k(node: Node, value: Scalar) -> Node:
    """A literal of the node's type."""
    return body.const(node.dtype, value)


def num(like: Node, value: Number) -> Node:
    """A number (maybe symbolic) in the type of ``like``."""
    if isinstance(value, Expr):
        return body.cast(body.index(value), like.dtype)
    return k(like, value)


def where(cond: Node, a: Node | Scalar, b: Node | Scalar) -> Node:
    """One of two values; a number has the other's type."""
    if not isinstance(a, Node):
        assert isinstance(b, Node)
        a = k(b, a)
    return op("where", cond, a, b if isinstance(b, Node) else k(a, b))


def mostly(cond: Node, usual: Node, rare: Node) -> Node:
    """``where``: of two costly values the first is what nearly all elements take."""
    return op("mostly", cond, usual, rare)


def leaky(x: Node, y: Node, slope: Number) -> Node:
    """``y``, where ``x`` is not positive times a slope."""
    return where(x > 0, y, y * num(x, slope))


def truth(a: Node) -> Node:
    return a if a.dtype is d.BOOL else op("ne", a, k(a, 0))


def is_zero(a: Node) -> Node:
    return op("eq", a, k(a, 0))


def logistic(a: Node) -> Node:
    """The sigmoid, spelled as ATen's kernels do."""
    return 1 / (1 + op("exp", -a))
