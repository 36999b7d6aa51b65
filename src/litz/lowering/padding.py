"""Matrix products on GPUs whose sizes are no multiple of what the library's fast kernels take.

Those want every row of a 16-bit matrix, and every size that is contiguous somewhere, to be a
multiple of 16 bytes; a product without that takes several times as long.  So a product of uneven
sizes becomes one of larger sizes, over matrices with zeros behind their rows, and its result is a
part of what that one computes.  A matrix that the program stores anyway is stored with the zeros;
one that comes from outside is copied where the product gains more than the copies cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node as FxNode

from litz.graph.aliasing import readers
from litz.index import Const, Expr, const
from litz.ir import body
from litz.ir.dtype import DType
from litz.lowering import values
from litz.lowering.context import Builder, Padding, Settings
from litz.lowering.creation import padded
from litz.lowering.values import ZERO, Shape, TensorValue

aten = torch.ops.aten

PRODUCTS = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
}
WHOLE = 8  # elements of 16 bytes
LONG = 1 << 12  # a size from which tiles of 64 lose nothing
SHORT = 256  # a size below which idle elements would cost too much


def pads(settings: Settings, device: str, dtype: DType) -> bool:
    """Whether products of such matrices are worth a look."""
    return settings.on_gpu(device) and dtype.is_float and dtype.bits == 16


def padded_size(n: int) -> int:
    """The size that takes the place of ``n``."""
    if n % WHOLE == 0:
        return n
    step = 64 if n >= LONG else 2 * WHOLE
    return -(-n // step) * step


def ints(sizes: Sequence[Expr]) -> tuple[int, ...] | None:
    """The numbers, if all are known."""
    known = tuple(e.value for e in sizes if isinstance(e, Const))
    return known if len(known) == len(sizes) else None


def with_zeros(v: TensorValue, shape: Shape) -> TensorValue:
    """``v`` with zeros behind its elements, up to ``shape``."""
    around = {k: (ZERO, new - v.shape[k]) for k, new in enumerate(shape)}
    return padded(v, shape, around, body.const(v.dtype, 0))


def stored_with_zeros(b: Builder, v: TensorValue, strides: Shape) -> TensorValue | None:
    """A lazy value in memory of these strides, with zeros behind its rows; None: it needs none."""
    sizes, steps = ints(v.shape), ints(strides)
    if sizes is None or steps is None or 0 in sizes or not pads(b.settings, v.device, v.dtype):
        return None
    inner = [k for k, (s, n) in enumerate(zip(steps, sizes, strict=True)) if s == 1 and n > 1]
    if len(inner) != 1 or sizes[inner[0]] < SHORT:
        return None
    k, row = inner[0], sizes[inner[0]]
    outer = [s for j, (s, n) in enumerate(zip(steps, sizes, strict=True)) if j != k and n > 1]
    wide = padded_size(row)
    if wide == row or any(s % row for s in outer):
        return None
    shape = tuple(const(wide) if j == k else e for j, e in enumerate(v.shape))
    apart = tuple(const(s // row * wide) if s >= row else const(s) for s in steps)
    whole = b.realize(with_zeros(v, shape), apart)
    assert whole.ref is not None
    b.padded[whole.ref.buffer] = Padding(row, zeros=True)
    return values.strided(whole, v.shape, whole.ref.strides, whole.ref.offset)


def feeds_product(n: FxNode) -> bool:
    """Whether a matrix product reads ``n`` or a view of it."""
    return any(u.target in PRODUCTS for u in readers(n))
