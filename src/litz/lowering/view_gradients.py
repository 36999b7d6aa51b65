"""Gradients of views and padding: each input element gathers what was read from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from litz.index import Expr, and_, as_expr, eq, floordiv, le, lt
from litz.ir import body
from litz.lowering import views
from litz.lowering.context import Unsupported
from litz.lowering.pooling import gathered
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.values import ZERO, TensorValue, axes

aten = torch.ops.aten

# Gradients of more overlapping reads than this per element are left to ATen.
MAX_READS = 32


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
    if grad.lazy is not None and body.cost(grad.lazy) > 1:
        grad = ctx.b.realize(grad)
    found = (
        (at(chosen), and_(*(c for _, c in chosen)), ()) for chosen in itertools.product(*readings)
    )
    return ctx.value(gathered(ctx, grad, (r for r in found if r[1].hi != 0)))


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
