"""Tensors made of nothing but their index: constants, ranges, triangles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from litz.index import And, Cmp, Const, Expr, Not, Or, and_, as_expr, eq, le, lt
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, op
from litz.ir.dtype import DType
from litz.ir.dtype import wrap as wrap_scalar
from litz.ir.program import Buffer, HostFloat
from litz.lowering.context import Builder, Unsupported
from litz.lowering.registry import Call, Result, lower, lower_rows
from litz.lowering.strides import dense as dense_result
from litz.lowering.torch_types import to_torch
from litz.lowering.values import ZERO, Shape, TensorValue, axes

aten = torch.ops.aten
prims = torch.ops.prims


MEMORY: Final = "memory for a call to write"


def unfilled(b: Builder, r: Result) -> Buffer:
    """New memory without a value."""
    buf = b.new_buffer(r.dtype, r.shape, r.strides, r.device, "fresh")
    options = (("dtype", to_torch(r.dtype)), ("device", torch.device(r.device)))
    b.extern(
        torch.empty_strided, (r.shape, r.strides), (buf.name,), buf.device, MEMORY, kwargs=options,
        target_name="empty_strided",
    )  # fmt: skip
    return buf


def literal(value: Scalar | Expr, dtype: DType) -> Node:
    """A number as an element of ``dtype``, rounded as eager rounds it when it fills a tensor."""
    if isinstance(value, Expr):
        return body.cast(body.index(value), dtype)
    if dtype.is_float or dtype is d.BOOL:
        return body.const(dtype, wrap_scalar(value, dtype))
    if not math.isfinite(value):
        raise Unsupported(f"{value} as {dtype}")
    whole = int(value)
    if dtype is d.U64 and whole < 0 or wrap_scalar(whole, dtype) != whole:
        raise Unsupported(f"{value} does not fit {dtype}")
    return body.const(dtype, whole)


def number(b: Builder, value: Scalar | Expr | HostFloat, dtype: DType) -> Node:
    """Like ``literal``, of a float that the host computes too."""
    if not isinstance(value, HostFloat):
        return literal(value, dtype)
    if not dtype.is_float:
        raise Unsupported(f"a symbolic float as {dtype}")
    return body.cast(b.number(value), dtype)


def holds(cond: Expr) -> Node:
    """A comparison of index expressions as a bool node."""
    if isinstance(cond, Const):
        return body.const(d.BOOL, cond.value)
    if isinstance(cond, Cmp):
        return op(cond.op, body.index(cond.a), body.index(cond.b))
    if isinstance(cond, And | Or):
        name = "and_" if isinstance(cond, And) else "or_"
        first, *rest = (holds(a) for a in cond.args)
        for part in rest:
            first = op(name, first, part)
        return first
    if isinstance(cond, Not):
        return op("not_", holds(cond.arg))
    return op("ne", body.index(cond), body.const(d.I64, 0))


def padded(
    x: TensorValue, shape: Shape, around: Mapping[int, tuple[Expr, Expr]], fill: Node
) -> TensorValue:
    """``x`` with ``fill`` before and behind its elements, as many as ``around`` says by dim."""
    index = list(axes(shape))
    inside: list[Expr] = []
    for dim, (left, right) in around.items():
        size = x.shape[dim]
        at = index[dim] - left
        if not (left.hi is not None and left.hi <= 0):
            inside.append(le(ZERO, at))
        if not (right.hi is not None and right.hi <= 0):
            inside.append(lt(at, size))
        index[dim] = at
    node = x.at(index)
    if inside:
        node = body.masked(holds(and_(*inside)), node, fill)
    return TensorValue(x.dtype, shape, x.device, lazy=node)


def dense(ctx: Call) -> bool:
    """Whether the result lies in memory without gaps or overlaps (or has no elements)."""
    return any(s.hi == 0 for s in ctx.shape) or dense_result(ctx.result)


def filled(ctx: Call, value: Scalar | Expr | HostFloat) -> TensorValue:
    """A tensor like the call's result with one value everywhere."""
    if not dense(ctx):
        raise Unsupported("a new tensor with gaps or overlaps in memory")
    return ctx.value(number(ctx.b, value, ctx.dtype))


# --- one value everywhere ------------------------------------------------------------------------


# Memory without a value: what it holds is anybody's choice, and zero is the one that repeats.
# Under deterministic algorithms PyTorch fills it with what shows.
EMPTY: Final = (
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.empty_permuted.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)


@lower(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten._efficientzerotensor.default,
    aten.zero.default,
)
def zeros(ctx: Call) -> TensorValue:
    return filled(ctx, 0)


@lower(*EMPTY)
def empty(ctx: Call) -> TensorValue:
    shows = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not (shows and torch.are_deterministic_algorithms_enabled()):
        return filled(ctx, 0)
    if ctx.dtype.is_float:
        return filled(ctx, math.nan)
    return filled(ctx, True if ctx.dtype is d.BOOL else torch.iinfo(to_torch(ctx.dtype)).max)


@lower(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(ctx: Call) -> TensorValue:
    return filled(ctx, 1)


@lower(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(ctx: Call, *, fill_value: Scalar | Expr | HostFloat) -> TensorValue:
    return filled(ctx, fill_value)


@lower(aten.scalar_tensor.default)
def scalar_tensor(ctx: Call, value: Scalar | Expr | HostFloat) -> TensorValue:
    return filled(ctx, value)


@lower(aten.fill.Scalar)
def fill_scalar(ctx: Call, *, value: Scalar | Expr | HostFloat) -> TensorValue:
    return filled(ctx, value)


@lower(aten.fill.Tensor)
def fill_tensor(ctx: Call, x: TensorValue, value: TensorValue) -> TensorValue:
    if value.ndim or value.device != x.device:
        raise Unsupported("fill with other than a number on the same device")
    return ctx.value(ctx.b.user_cast(value.node, ctx.dtype))


@lower(aten.lift_fresh_copy.default)
def lift_fresh_copy(ctx: Call, x: TensorValue) -> TensorValue:
    return x.without_memory()


# --- ranges --------------------------------------------------------------------------------------


def _range(ctx: Call, start: Scalar | Expr, step: Scalar | Expr) -> TensorValue:
    """``start + i * step`` along the only dimension."""
    (i,) = axes(ctx.shape)
    if not isinstance(start, float) and not isinstance(step, float):
        position = as_expr(start) + i * as_expr(step)
        # Small enough to be exact in any float type's accumulation, or an integer anyway.
        if not ctx.dtype.is_float or _exact(position, ctx.dtype):
            return ctx.value(body.index(position))
    if not ctx.dtype.is_float:
        raise Unsupported("an integer range with fractional steps")
    # Eager accumulates in f64, and in f32 for the 16-bit floats.
    acc = d.F32 if ctx.dtype.bits == 16 else d.F64
    scaled = number(ctx.b, step, acc) * body.cast(body.index(i), acc)
    return ctx.value(number(ctx.b, start, acc) + scaled)


def _exact(position: Expr, dtype: DType) -> bool:
    limit = 1 << (24 if dtype.bits <= 32 else 53)
    return (
        position.lo is not None
        and position.hi is not None
        and -limit <= position.lo
        and position.hi <= limit
    )


@lower(aten.arange.default, aten.arange.start, aten.arange.start_step, prims.iota.default)
def arange(ctx: Call, *, start: Scalar | Expr = 0, step: Scalar | Expr = 1) -> TensorValue:
    return _range(ctx, start, step)


def _ends(ctx: Call, start: Any, end: Any, steps: Any) -> tuple[Node, Node]:
    """The first and last element of a range, as they are when the program runs."""
    if isinstance(start, Expr) or isinstance(end, Expr) or not isinstance(steps, int):
        raise Unsupported("a range between symbolic numbers")
    if ctx.dtype not in (d.F32, d.F64):
        raise Unsupported(f"a range of {ctx.dtype}")
    # Numbers of tensors come to the host first, which makes doubles of them.
    first, last = (
        body.cast(ctx.b.opmath(v.node), d.F64)
        if isinstance(v, TensorValue)
        else body.const(d.F64, float(v))
        for v in (start, end)
    )
    return first, last


def _between(ctx: Call, first: Node, last: Node, steps: int) -> Node:
    """Equal steps from both ends towards the middle, so that the last element is exactly that."""
    acc = ctx.dtype
    first, last = body.cast(first, acc), body.cast(last, acc)
    (i,) = axes(ctx.shape)
    step = (last - first) / (steps - 1)

    def along(base: Node, sign: str, count: Expr) -> Node:
        return op(sign, base, step * body.cast(body.index(count), acc))

    up, down = along(first, "add", i), along(last, "sub", as_expr(steps - 1) - i)
    return op("where", holds(lt(i, steps // 2)), up, down)


@lower(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(ctx: Call, start: Any, end: Any, steps: Any) -> TensorValue:
    first, last = _ends(ctx, start, end, steps)
    return ctx.value(first if steps <= 1 else _between(ctx, first, last, steps))


@lower(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(ctx: Call, start: Any, end: Any, steps: Any, base: Any) -> TensorValue:
    if not isinstance(base, float | int):
        raise Unsupported("powers of a symbolic number")
    first, last = _ends(ctx, start, end, steps)
    power = first if steps <= 1 else _between(ctx, first, last, steps)
    # A single power is one of doubles, as in eager.
    return ctx.value(op("pow", body.const(power.dtype, float(base)), power))


# --- by row and column ---------------------------------------------------------------------------


@lower(aten.eye.default, aten.eye.m)
def eye(ctx: Call) -> TensorValue:
    row, col = axes(ctx.shape)
    one, zero = literal(1, ctx.dtype), literal(0, ctx.dtype)
    return ctx.value(op("where", holds(eq(row, col)), one, zero))


@lower_rows((aten.tril.default, True), (aten.triu.default, False))
def triangle(ctx: Call, below: bool, x: TensorValue, diagonal: Expr | int) -> TensorValue:
    row, col = axes(x.shape)[-2:]
    inside = le(col, row + diagonal) if below else le(row + diagonal, col)
    return x.with_node(op("where", holds(inside), x.node, literal(0, x.dtype)))
