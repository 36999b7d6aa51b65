"""Matrix products over larger sizes than the graph's (see ``litz.lowering.padding``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node as FxNode

from litz.index import const
from litz.lowering import values
from litz.lowering.context import Padding
from litz.lowering.padding import PRODUCTS, SHORT, WHOLE, ints, padded_size, pads, with_zeros
from litz.lowering.state import GraphLowering
from litz.lowering.storing import in_memory, shows_memory, stays_inside
from litz.lowering.values import ONE, TensorValue, contiguous_strides

# Rates of a large GPU, to weigh copies against products: bytes a second, operations a second.
COPY, SLOW, FAST = 4e12, 1.2e14, 5e14


@dataclass
class _Operand:
    """A stored matrix (or a batch of them), its two sizes, and what they become."""

    value: TensorValue
    sizes: tuple[int, int]
    rows_first: bool  # whether the last size is contiguous

    @property
    def inner(self) -> int:
        return 1 if self.rows_first else 0

    def at_hand(self, low: GraphLowering, grown: tuple[int, int], zeros: int) -> bool:
        """Whether memory holds what it grows by.  zeros: the size along which that must be 0."""
        ref = self.value.ref
        assert ref is not None
        behind = low.b.padded.get(ref.buffer)
        if behind is None or grown[1 - self.inner] != self.sizes[1 - self.inner]:
            return False
        row = ref.strides[-2 if self.rows_first else -1]
        fits = row is const(grown[self.inner]) and ref.offset % row is const(0)
        # Behind a part of a row lies what is left of it.
        clean = behind.zeros and self.sizes[self.inner] == behind.row
        return fits and (clean or self.inner != zeros)

    def grow(self, low: GraphLowering, grown: tuple[int, int], zeros: int) -> TensorValue:
        v = self.value
        if grown == self.sizes:
            return v
        shape = (*v.shape[:-2], const(grown[0]), const(grown[1]))
        assert v.ref is not None
        if self.at_hand(low, grown, zeros):
            return values.strided(v, shape, v.ref.strides, v.ref.offset)
        lazy = v.without_memory()
        dense = contiguous_strides(shape)
        if not self.rows_first:
            flipped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
            dense = (*flipped[:-2], flipped[-1], flipped[-2])
        return low.b.realize(with_zeros(lazy, shape), dense)


def _operand(v: TensorValue) -> _Operand | None:
    sizes = ints(v.shape[-2:])
    if v.ref is None or sizes is None or ints(v.shape) is None:
        return None
    last, first = v.ref.strides[-1] is ONE, v.ref.strides[-2] is ONE
    return _Operand(v, (sizes[0], sizes[1]), last) if last or first else None


def padded_product(low: GraphLowering, n: FxNode, reason: str) -> TensorValue | None:
    """A product over larger sizes, of whose result ``n`` is a part; None: as it is, it is well."""
    target = n.target
    result = low.result(n.meta["val"]) if target in PRODUCTS else None
    if result is None or n.kwargs or not pads(low.settings, result.device, result.dtype):
        return None
    if any(low.result(a.meta["val"]) is None for a in n.all_input_nodes):
        return None
    *bias, a_node, b_node = n.args
    if any(x.meta["val"].ndim != 1 for x in bias):  # type: ignore[union-attr]
        return None
    shapes = [ints(low.result(x.meta["val"]).shape) for x in (a_node, b_node)]  # type: ignore
    if None in shapes or result.strides != contiguous_strides(result.shape):
        return None
    (*batch, m, k), (*_, cols) = shapes  # type: ignore[misc]
    work = 2.0 * m * k * cols
    for size in batch:
        work *= size
    if min(m, k, cols) < SHORT or all(s % WHOLE == 0 for s in (m, k, cols)):
        return None
    a, b = (_operand(in_memory(low, x)) for x in (a_node, b_node))
    if a is None or b is None:
        return None
    # A size has to be even where it is contiguous in a matrix; in the result it is the last.
    m2 = m if a.rows_first else padded_size(m)
    k2 = padded_size(k) if a.rows_first or not b.rows_first else k
    n2 = padded_size(cols)
    if (m2, k2, n2) == (m, k, cols):
        return None
    moved = 0.0  # bytes
    if n2 != cols and not stays_inside(n):
        if not stays_inside(n, or_returned=True):
            return None
        moved += 2.0 * work / k  # the result is copied
    for x, grown, zeros in ((a, (m2, k2), 1), (b, (k2, n2), 0)):
        if grown != x.sizes and not x.at_hand(low, grown, zeros):
            moved += 4.0 * grown[0] * grown[1] * (work / (2.0 * m * k * cols))
    if moved / COPY > work / SLOW - work / FAST:
        return None
    operands = [a.grow(low, (m2, k2), 1), b.grow(low, (k2, n2), 0)]
    vector = [_longer(low, in_memory(low, x), cols, n2) for x in bias]
    out = _call(low, n, reason, [*vector, *operands], (m2, n2))
    if n2 != cols and shows_memory(low, n):
        return low.b.realize(out.without_memory(), result.strides)
    return out


def _longer(low: GraphLowering, v: TensorValue, size: int, grown: int) -> TensorValue:
    """A vector, or one number for all of ``size`` places, with zeros behind these."""
    if grown == size:
        return v
    v = values.expand(v, (const(size),))
    lazy = v.without_memory()
    return low.b.realize(with_zeros(lazy, (const(grown),)))


def _call(
    low: GraphLowering,
    n: FxNode,
    reason: str,
    operands: list[TensorValue],
    grown: tuple[int, int],
) -> TensorValue:
    result: Any = low.result(n.meta["val"])
    shape = (*result.shape[:-2], const(grown[0]), const(grown[1]))
    strides = contiguous_strides(shape)
    buf = low.b.new_buffer(result.dtype, shape, strides, result.device)
    if shape[-1] is not result.shape[-1]:
        # Zeros, unless an operand was infinite.
        low.b.padded[buf.name] = Padding(result.shape[-1].value, zeros=False)
    target = PRODUCTS[n.target]  # type: ignore[index]
    refs = tuple(v.ref for v in operands)
    low.b.extern(target, refs, (buf.name,), result.device, reason, out_variant=True)
    return values.strided(low.b.of_buffer(buf), result.shape, strides, values.ZERO)
