"""Values in memory, laid out as the graph's metadata states.

Operators of ATen may count on more of their arguments than the elements: PyTorch pads, slices and
expands a mask of attention so that its rows begin at multiples of 16 bytes, and the kernel reads
whole vectors of them.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.index import ONE, ZERO, Expr, divides, provably_lt
from litz.ir import body
from litz.lowering import values
from litz.lowering.context import Builder
from litz.lowering.creation import padded
from litz.lowering.registry import Result
from litz.lowering.strides import apart, dense, same_layout
from litz.lowering.values import Shape, TensorValue, at_dims, axes

aten = torch.ops.aten

# Matrix products take tensors however they lie.
CONTRACTIONS: Final = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
)

# Where PyTorch keeps a plan that was made for one layout for others too: an argument is laid out as
# another one.  Up to 2.13 cuDNN's plans for the backward of attention do not tell apart how the
# gradient lies, which eager mode gets wrong results and illegal reads from.
_AS_ANOTHER = {"aten::_scaled_dot_product_cudnn_attention_backward": (0, 4)}
# And so that plans made by eager mode are not met, a number that is part of their key by its bits:
# the rate of dropout, of which -0.0 is none as well.
_ZERO_IN_KEYS = {"aten::_scaled_dot_product_cudnn_attention_backward": 13}


def stated_by(n: FxNode, by: FxNode) -> Any:
    """The value whose metadata says how the operator call ``by`` is handed its argument ``n``."""
    own = n.meta.get("val")
    pair = _AS_ANOTHER.get(getattr(getattr(by.target, "_schema", None), "name", ""))
    if pair is None or by.args[pair[0]] is not n:
        return own
    other = by.args[pair[1]]
    val = other.meta.get("val") if isinstance(other, FxNode) else None
    if not isinstance(own, torch.Tensor) or not isinstance(val, torch.Tensor):
        return own
    return val if (val.shape, val.dtype) == (own.shape, own.dtype) else own


def with_own_plans(target: torch._ops.OpOverload, args: tuple[object, ...]) -> tuple[object, ...]:
    """Arguments equal to ``args`` by which PyTorch finds no plan that eager mode has made."""
    k = _ZERO_IN_KEYS.get(target._schema.name)
    return args if k is None or args[k] != 0.0 else (*args[:k], -0.0, *args[k + 1 :])


def laid_out(b: Builder, v: TensorValue, r: Result) -> TensorValue:
    """A copy of ``v`` with the strides of ``r``, and zeros where rows have gaps behind them."""
    own = [k for k, st in enumerate(r.strides) if st is not ZERO]
    shape = tuple(v.shape[k] if k in own else ONE for k in range(v.ndim))
    strides = tuple(r.strides[k] if k in own else ONE for k in range(v.ndim))
    if ZERO in v.shape or not apart(Result(r.dtype, shape, strides, r.device)):
        return stored_as(b, v, r)  # elements may share places
    once = values.viewed(v, shape, at_dims(v.ndim, own, [axes(v.shape)[k] for k in own]))
    row = _row(shape, strides)
    if row is not None:
        dim, size = row
        wide = tuple(size if k == dim else n for k, n in enumerate(shape))
        behind = {dim: (ZERO, size - shape[dim])}
        once = padded(once, wide, behind, body.const(v.dtype, 0))
    stored = values.strided(b.realize(once, strides), shape, strides, ZERO)
    return values.expand(stored, v.shape)


def stored_as(b: Builder, v: TensorValue, r: Result) -> TensorValue:
    """``v`` in memory of its own with exactly the strides of ``r``, gaps and overlaps included."""
    if dense(r):
        return b.realize(v.without_memory(), r.strides)
    span = ZERO if ZERO in r.shape else values.last(r.shape, r.strides) + ONE
    if v.ref is not None and same_layout(v.ref, r.strides):  # gaps may hold something too
        flat = b.realize(values.strided(v, (span,), (ONE,), v.ref.offset).without_memory())
    else:
        flat = b.allocate(v.dtype, (span,), v.device)
        # An expanded dimension lies in memory once, if at all.
        pairs = zip(r.shape, r.strides, strict=True)
        kept = tuple(ONE if st is ZERO and s is not ZERO else s for s, st in pairs)
        once = values.viewed(v, kept, axes(kept))
        b.store_into(once, values.strided(flat, kept, r.strides, ZERO))
    return values.strided(flat, r.shape, r.strides, ZERO)


def _row(shape: Shape, strides: Shape) -> tuple[int, Expr] | None:
    """The contiguous dimension and how many elements its rows are apart, where that is more."""
    inner = [
        k
        for k, (n, st) in enumerate(zip(shape, strides, strict=True))
        if st is ONE and n is not ONE
    ]
    if len(inner) != 1:
        return None
    size = shape[inner[0]]
    outer = [st for n, st in zip(shape, strides, strict=True) if n is not ONE and st is not ONE]
    for row in outer:
        if provably_lt(size, row) and all(divides(row, st) for st in outer):
            return inner[0], row
    return None
