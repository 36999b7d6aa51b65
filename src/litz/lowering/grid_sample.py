"""``grid_sample``: reads between the elements of an image, at positions that are data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import add, and_, mul
from typing import Final

import torch

from litz.index import Expr
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.lowering.context import Unsupported
from litz.lowering.formulas import k, num, where
from litz.lowering.indexing import load_at
from litz.lowering.registry import Call, lower
from litz.lowering.values import ZERO, TensorValue, axes

aten = torch.ops.aten

BILINEAR: Final = 0
NEAREST: Final = 1
ZEROS: Final = 0
BORDER: Final = 1
CUBIC: Final = -0.75
WHOLE: Final = 1 << 24  # up to which float32 has every whole number


def _on_scale(a: Node, size: Expr, align: bool, once: bool) -> Node:
    """A coordinate in [-1, 1] as a position among ``size`` elements.

    once: round once where eager's CUDA kernels do, so that positions are theirs.
    """
    from_one = a + 1
    if align:
        return from_one * 0.5 * num(a, size - 1)
    if once:
        return op("fma", from_one, num(a, size), k(a, -1)) * 0.5
    return (from_one * num(a, size) - 1) * 0.5


def _clip(a: Node, size: Expr) -> Node:
    """Within the image; nan becomes 0."""
    return op("fmin", op("fmax", a, k(a, 0)), num(a, size - 1))


def _reflect(a: Node, size: Expr, align: bool) -> Node:
    """Folded at the borders: at the outermost elements' centres, or at their edges."""
    if align and size.is_const and size - 1 is ZERO:
        return k(a, 0)
    low = 0.0 if align else -0.5
    span = num(a, size - 1 if align else size)
    inside = op("abs", a - low)
    rest = op("fmod", inside, span)
    half = op("floor", inside / span) * 0.5
    even = op("eq", half, op("floor", half))
    return where(even, rest + low, span - rest + low)


def _padded(a: Node, size: Expr, padding: int, align: bool, last: bool = False) -> Node:
    """Within the image, as the padding wants it.  last: nan becomes the last place, not 0."""
    if padding == ZEROS:
        return a
    a = a if padding == BORDER else _reflect(a, size, align)
    inside = _clip(a, size)
    return where(op("eq", a, a), inside, num(a, size - 1)) if last else inside


class _Image:
    """The elements of an image ``x`` (N, C, ...) at float positions of its last dimensions."""

    def __init__(self, ctx: Call, x: TensorValue, rank: int, padded: bool) -> None:
        """padded: positions are brought within the image, as exactly as their type can."""
        self.ctx, self.sizes = ctx, x.shape[-rank:]
        self.x = ctx.b.keep(x)
        self.lead = axes(ctx.shape)[:2]
        self.within = [padded and size.hi is not None and size.hi <= WHOLE for size in self.sizes]

    def at(
        self, positions: Sequence[Node], shifts: Sequence[int] = (), dropped: bool = False
    ) -> tuple[Node, Node]:
        """(whether whole positions lie inside, the element or 0).

        shifts: by what positions have been moved since they were padded.  dropped: whoever asks
        drops what lies outside.
        """
        index, within = list(positions), []
        for j, (p, size) in enumerate(zip(positions, self.sizes, strict=True)):
            if not self.within[j] or any(shifts[j : j + 1]):
                inside = (p >= 0) & (p < num(p, size))
                within.append(inside)
                index[j] = where(inside, p, 0)
        value = load_at(self.ctx, self.x, (*self.lead, *map(self.place, index)))
        inside = reduce(and_, within, body.const(d.BOOL, True))
        if self.x.device != "cpu":  # where each thread waits for no other's memory
            return inside, value if dropped else where(inside, value, 0)
        # Masked, as whole vectors often lie outside.
        return inside, body.masked(inside, value, k(value, 0))

    def place(self, inside: Node) -> Node:
        """A whole position within the image; processors convert to 32 bits in one instruction."""
        small = all(size.hi is not None and size.hi < 1 << 31 for size in self.sizes)
        return body.cast(body.cast(inside, d.I32) if small else inside, d.I64)


def _linear(image: _Image, at: Sequence[Node], everywhere: bool) -> Node:
    """The 2 ** rank elements around, weighted by how near they are.

    everywhere: elements outside count as zeros times their weights, which shows where those are
    not finite.
    """
    floors = [op("floor", a) for a in at]
    near = [a - f for a, f in zip(at, floors, strict=True)]
    terms = []
    for corner in itertools.product((0, 1), repeat=len(at)):
        shifted = [f + c if c else f for c, f in zip(corner, floors, strict=True)]
        inside, value = image.at(shifted, corner, dropped=not everywhere)
        # As in eager mode, from the last dimension on.
        parts = [w if c else 1 - w for c, w in zip(corner, near, strict=True)][::-1]
        term = value * reduce(mul, parts)
        terms.append(term if everywhere else where(inside, term, 0))
    return reduce(add, terms)


def _cubic_weights(t: Node) -> list[Node]:
    """Of the elements at -1, 0, 1, 2 for a position between the middle ones."""

    def far(v: Node) -> Node:
        return ((CUBIC * v - 5 * CUBIC) * v + 8 * CUBIC) * v - 4 * CUBIC

    def close(v: Node) -> Node:
        return ((CUBIC + 2) * v - (CUBIC + 3)) * v * v + 1

    return [far(t + 1), close(t), close(1 - t), far(2 - t)]


def _cubic(image: _Image, at: Sequence[Node], padding: int, align: bool) -> Node:
    floors = [op("floor", a) for a in at]
    rows, columns = (_cubic_weights(a - f) for a, f in zip(at, floors, strict=True))

    def place(dim: int, shift: int) -> Node:
        return _padded(floors[dim] + (shift - 1), image.sizes[dim], padding, align)

    def line(i: int) -> Node:
        elements = (image.at((place(0, i), place(1, j)))[1] for j in range(len(columns)))
        return reduce(add, (e * c for e, c in zip(elements, columns, strict=True)))

    return reduce(add, (line(i) * row for i, row in enumerate(rows)))


@lower(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sample(
    ctx: Call, x: TensorValue, grid: TensorValue, mode: int, padding: int, align: bool
) -> TensorValue:
    rank = x.ndim - 2
    if x.dtype is not grid.dtype or x.dtype.opmath is not x.dtype:
        raise Unsupported(f"samples of {x.dtype}")
    if ZERO in x.shape or ctx.empty:
        raise Unsupported("samples of nothing")
    image = _Image(ctx, x, rank, padding != ZEROS)
    n, _, *rest = axes(ctx.shape)
    grid = ctx.b.limit(grid)
    # The grid's last dimension counts from the image's last one.
    coordinates = [grid.at((n, *rest, ZERO + (rank - 1 - j))) for j in range(rank)]
    eager = ctx.eager
    at = [
        _on_scale(a, s, align, eager.fused_positions)
        for a, s in zip(coordinates, image.sizes, strict=True)
    ]
    if mode not in (BILINEAR, NEAREST):
        node = _cubic(image, at, padding, align)
    else:
        last = (
            rank == 3 and not eager.fused_positions
        )  # as eager's loop over three dimensions on the CPU
        at = [_padded(a, s, padding, align, last) for a, s in zip(at, image.sizes, strict=True)]
        if mode == NEAREST:
            node = image.at([op("round", a) for a in at])[1]
        else:
            node = _linear(image, at, everywhere=rank == 2 and eager.outside_planes)
    return ctx.value(node)
