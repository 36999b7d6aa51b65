"""Rows with a few idle elements at their ends, for matrix products on GPUs.

The fast kernels of the GPU's libraries want every row of a 16-bit matrix to begin at a multiple of
16 bytes; without that a product takes several times as long.  A matrix that the program stores
anyway gets such rows where nobody outside sees them; one that comes from outside is copied where
the product gains more than the copy costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.fx import Node as FxNode

from litz.index import Const, const
from litz.ir.dtype import DType
from litz.ir.program import TensorRef
from litz.lowering.values import Shape

if TYPE_CHECKING:
    from litz.lowering.context import Settings

aten = torch.ops.aten

PRODUCTS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))
WHOLE = 16  # bytes
SHORT = 256  # elements of a row below which idle ones would cost too much
MANY = 256  # products that an element takes part in, from which a copy pays


def pads(settings: Settings, device: str, dtype: DType) -> bool:
    """Whether rows of such a matrix are worth padding."""
    on_gpu = settings.interpreted or not device.startswith("cpu")
    return on_gpu and dtype.is_float and dtype.bits == 16


def padded(shape: Shape, strides: Shape, dtype: DType) -> Shape:
    """Strides of a dense layout with idle elements behind rows, if rows need them."""
    if not all(isinstance(e, Const) for e in (*shape, *strides)):
        return strides
    sizes = [e.value for e in shape]  # type: ignore[attr-defined]
    steps = [e.value for e in strides]  # type: ignore[attr-defined]
    inner = [k for k, (s, n) in enumerate(zip(steps, sizes, strict=True)) if s == 1 and n > 1]
    whole = WHOLE // dtype.bytes
    if len(inner) != 1 or 0 in sizes or sizes[inner[0]] % whole == 0 or sizes[inner[0]] < SHORT:
        return strides
    row = sizes[inner[0]]
    if any(s % row for k, (s, n) in enumerate(zip(steps, sizes, strict=True)) if s > 1 and n > 1):
        return strides
    wide = -(-row // whole) * whole
    return tuple(const(s // row * wide) if s >= row else const(s) for s in steps)


def feeds_product(n: FxNode, is_view: Callable[[object], bool]) -> bool:
    """Whether a matrix product reads ``n`` or a view of it.  is_view: of a call's target."""
    return any(
        u.target in PRODUCTS or (is_view(u.target) and feeds_product(u, is_view)) for u in n.users
    )


def worth_a_copy(ref: TensorRef, others: int) -> bool:
    """Whether a stored matrix has rows that a product is slow with, and the product is large.

    others: how many times the product reads each element.
    """
    if len(ref.shape) < 2 or others < MANY:
        return False
    if not all(isinstance(e, Const) for e in (*ref.shape, *ref.strides)):
        return False
    whole = const(WHOLE // ref.dtype.bytes)
    steps = [s for s, n in zip(ref.strides, ref.shape, strict=True) if n is not const(1)]
    sizes = [n.value for n in ref.shape[-2:]]  # type: ignore[attr-defined]
    uneven = any(s is not const(1) and s % whole is not const(0) for s in steps)
    return uneven and const(1) in steps[-2:] and min(sizes) >= SHORT


def product_width(n: FxNode, at: int) -> int:
    """How many times the product ``n`` reads each element of its matrix operand ``at``."""
    val = n.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.ndim < 2:
        return 0
    first = at == len(n.args) - 2
    size = val.shape[-1] if first else val.shape[-2]
    return size if isinstance(size, int) else 0
