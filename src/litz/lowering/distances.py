"""Distances between tensors and between rows, and membership: a comparison, then a reduction."""

from __future__ import annotations

from typing import Any

import torch

from litz.index import Const, Expr, contiguous_strides
from litz.ir.body import Node, Scalar, op
from litz.lowering import values
from litz.lowering.context import Operand, Unsupported, WrongMetadata
from litz.lowering.formulas import elementwise
from litz.lowering.promotion import as_tensors, common_dtype
from litz.lowering.reductions import fold, norm, norm_of, reduce_one
from litz.lowering.registry import Call, lower
from litz.lowering.strides import same_layout
from litz.lowering.values import ZERO, TensorValue

aten = torch.ops.aten

# Membership among more elements than this is a sort's work.
MAX_MEMBERS = 64
# ATen takes distances of more rows than this through a matrix product.
MATRIX_ROWS = 25


@lower(aten.dist.default)
def dist(ctx: Call, x: TensorValue, y: TensorValue, p: Any) -> TensorValue:
    gap = elementwise(ctx, lambda a, c: op("sub", a, c), x, y)
    return norm(ctx, gap, p)


def _through_product(mode: int | None, rows: tuple[Expr, Expr]) -> bool:
    """Whether ATen takes Euclidean distances by a matrix product."""
    many = any(s.hi is None or s.hi > MATRIX_ROWS for s in rows)
    return mode == 1 or (mode in (None, 0) and many)


@lower(aten._cdist_forward.default)
def cdist(
    ctx: Call, x: TensorValue, y: TensorValue, p: float, compute_mode: int | None
) -> TensorValue:
    if p == 2 and _through_product(compute_mode, (x.shape[-2], y.shape[-2])):
        raise Unsupported("distances by a matrix product: ATen's libraries compute it")
    if ZERO in ctx.shape or x.shape[-1] is ZERO:
        return ctx.full(0)
    wide = values.insert_dim(x, x.ndim - 1), values.insert_dim(y, y.ndim - 2)
    gap = elementwise(ctx, lambda a, c: op("sub", a, c), *wide)
    return reduce_one(ctx.b, gap, [gap.ndim - 1], lambda n, over: norm_of(float(p), n, over))


# --- membership ----------------------------------------------------------------------------------


def _laid_out(ctx: Call) -> None:
    """ATen gives what is contiguous; PyTorch's metadata may promise the layout of the elements."""
    shape = ctx.shape
    if ZERO not in shape and not same_layout(ctx.result, contiguous_strides(shape)):
        raise WrongMetadata("isin does not keep the layout of its elements, as PyTorch says")


@lower(aten.isin.Tensor_Tensor, aten.isin.Scalar_Tensor)
def isin(ctx: Call, x: Operand, members: TensorValue, *, invert: bool) -> TensorValue:
    _laid_out(ctx)
    common = common_dtype(ctx.b, (x, members))
    members = values.reshape(ctx.cast(members, common), (members.numel,))
    count = members.shape[0]
    if not isinstance(count, Const) or not 0 < count.value <= MAX_MEMBERS:
        raise Unsupported("membership among many: ATen sorts them")
    (x,) = as_tensors(ctx.b, (x,)) if not isinstance(x, TensorValue) else (x,)
    x = ctx.cast(x, common)
    if ZERO in x.shape:
        return ctx.b.full(x.shape, False, ctx.dtype, members.device)
    equal = elementwise(ctx, lambda a, c: op("eq", a, c), values.insert_dim(x, x.ndim), members)

    def fn(n: Node, over: tuple[Expr, ...]) -> Node:
        found = fold("any", over, n)
        return op("not_", found) if invert else found

    return reduce_one(ctx.b, equal, [equal.ndim - 1], fn)


@lower(aten.isin.Tensor_Scalar)
def isin_one(ctx: Call, x: TensorValue, member: Scalar, *, invert: bool) -> TensorValue:
    _laid_out(ctx)
    name = "ne" if invert else "eq"
    return elementwise(ctx, lambda a, c: op(name, a, c), x, member)
