"""Gradients of views and padding: each input element gathers what was read from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from litz.index import Expr, and_, as_expr, eq, floordiv, le, lt, mod
from litz.ir import body
from litz.ir.body import Node, op
from litz.lowering import views
from litz.lowering.context import Unsupported
from litz.lowering.creation import holds, literal
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.values import ONE, ZERO, TensorValue, axes

aten = torch.ops.aten

# Gradients of more overlapping reads than this per element are left to ATen.
MAX_READS = 32


def _where(ctx: Call, grad: TensorValue, inside: Expr, at: Sequence[Expr]) -> TensorValue:
    """``grad`` at ``at`` where ``inside`` holds, else zero."""
    if ZERO in grad.shape:
        return ctx.full(0)
    return ctx.value(body.masked(holds(inside), grad.at(at), literal(0, grad.dtype)))


@lower(aten.select_backward.default)
def select_backward(ctx: Call, grad: TensorValue, *, dim: int, index: Expr | int) -> TensorValue:
    own = axes(ctx.shape)
    dim = views.wrap(dim, len(own))
    at = views.wrap_index(index, ctx.shape[dim])
    return _where(ctx, grad, eq(own[dim], at), [*own[:dim], *own[dim + 1 :]])


@lower(aten.slice_backward.default)
def slice_backward(
    ctx: Call,
    grad: TensorValue,
    *,
    dim: int,
    start: Expr | int,
    end: Expr | int,
    step: Expr | int,
) -> TensorValue:
    own = axes(ctx.shape)
    dim = views.wrap(dim, len(own))
    size, i, by = ctx.shape[dim], own[dim], as_expr(step)
    first = views.clamp_position(start, size, ZERO)
    stop = views.clamp_position(end, size, size)
    inside = [le(first, i), lt(i, stop)]
    if by is not ONE:
        inside.append(eq(mod(i - first, by), 0))
    at = [*own[:dim], floordiv(i - first, by), *own[dim + 1 :]]
    return _where(ctx, grad, and_(*inside), at)


@lower(aten.diagonal_backward.default)
def diagonal_backward(
    ctx: Call, grad: TensorValue, *, offset: int, dim1: int, dim2: int
) -> TensorValue:
    own = axes(ctx.shape)
    dim1, dim2 = views.wrap(dim1, len(own)), views.wrap(dim2, len(own))
    row, col = own[dim1], own[dim2]
    rest = [own[k] for k in range(len(own)) if k not in (dim1, dim2)]
    along = row if offset >= 0 else col
    return _where(ctx, grad, eq(row + offset, col), [*rest, along])


# --- elements that are read several times -------------------------------------------------------

# One reading of an input element along one dimension: where its gradient lies, and when it does.
Reading = tuple[Expr, Expr]


def _gathered(
    ctx: Call, grad: TensorValue, at: Any, readings: Sequence[Sequence[Reading]]
) -> TensorValue:
    """The sum over all combinations of one reading a dimension.

    at: from the chosen positions to the full position in ``grad``.
    """
    if ctx.empty or ZERO in grad.shape:
        return ctx.full(0)
    if math.prod(len(r) for r in readings) > MAX_READS:
        raise Unsupported("gradients of reads that overlap this much")
    b = ctx.b
    if grad.lazy is not None and body.cost(grad.lazy) > 1:
        grad = b.realize(grad)
    zero = body.const(grad.dtype.opmath, 0)
    total: Node | None = None
    for chosen in itertools.product(*readings):
        inside = and_(*(c for _, c in chosen))
        if inside.hi == 0:
            continue
        part = body.masked(holds(inside), b.opmath(grad.at(at(chosen))), zero)
        total = part if total is None else op("add", total, part)
    return ctx.value(zero if total is None else total)


@lower(aten.unfold_backward.default)
def unfold_backward(
    ctx: Call, grad: TensorValue, *, dim: int, size: Expr | int, step: Expr | int
) -> TensorValue:
    own = axes(ctx.shape)
    if not own or not isinstance(size, int) or not isinstance(step, int):
        raise Unsupported("unfold of this form")
    dim = views.wrap(dim, len(own))
    i, count = own[dim], grad.shape[dim]
    readings = []
    for back in range(-(-size // step) - 1, -1, -1):
        o = floordiv(i, step) - back
        readings.append((o, and_(le(ZERO, o), lt(o, count), lt(i - o * step, size))))

    def at(chosen: Sequence[Reading]) -> list[Expr]:
        ((o, _),) = chosen
        return [*own[:dim], o, *own[dim + 1 :], i - o * step]

    return _gathered(ctx, grad, at, [readings])


@lower_rows(
    (aten.reflection_pad1d_backward.default, True),
    (aten.reflection_pad2d_backward.default, True),
    (aten.replication_pad1d_backward.default, False),
    (aten.replication_pad2d_backward.default, False),
)
def pad_backward(
    ctx: Call, reflect: bool, grad: TensorValue, *, padding: Sequence[Expr | int]
) -> TensorValue:
    rank = len(padding) // 2
    own = axes(ctx.shape)
    lead = len(own) - rank
    choices: list[list[Reading]] = []
    for k in range(rank):
        dim = len(own) - 1 - k
        left, right = padding[2 * k], padding[2 * k + 1]
        images = (_mirrored if reflect else _repeated)(own[dim], ctx.shape[dim] - 1, left, right)
        count = grad.shape[dim]
        choices.insert(0, [(i, and_(c, le(ZERO, i), lt(i, count))) for i, c in images])
    return _gathered(ctx, grad, lambda chosen: [*own[:lead], *(i for i, _ in chosen)], choices)


def _mirrored(h: Expr, last: Expr, left: Expr | int, right: Expr | int) -> list[Reading]:
    """Where a padded tensor shows element ``h``, in ascending order."""
    middle = (h + left, as_expr(1))
    return [(left - h, lt(ZERO, h)), middle, (left + 2 * last - h, lt(h, last))]


def _repeated(h: Expr, last: Expr, left: Expr | int, right: Expr | int) -> list[Reading]:
    if not isinstance(left, int) or not isinstance(right, int):
        raise Unsupported("gradients of padding of symbolic size")
    before = [(as_expr(i), eq(h, 0)) for i in range(left)]
    after = [(last + left + 1 + i, eq(h, last)) for i in range(right)]
    return [*before, (h + left, as_expr(1)), *after]
