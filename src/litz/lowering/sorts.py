"""Sorts of rows, and what is read off a sorted row: its first elements, its median.

An element becomes one integer, its *rank*, that sorts as it does: its value in the high bits and,
where anybody wants to know it, the place it comes from below them.  Such ranks all differ, so that
equal elements keep their order, and nothing else has to move along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.index import Const, Expr, const, size_hint, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, op
from litz.ir.dtype import DType
from litz.ir.reductions import reduction
from litz.lowering.context import Unsupported
from litz.lowering.formulas import is_zero, k, where
from litz.lowering.reductions import number
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.strides import result_buffer
from litz.lowering.values import (
    ONE,
    ZERO,
    TensorValue,
    at_dims,
    axes,
    product,
    reshape,
)

aten = torch.ops.aten

_WORDS: Final = {16: d.I16, 32: d.I32, 64: d.I64}
_MANTISSAS: Final = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
# A GPU's program holds a row's ranks in registers, 16 bytes a thread: of longer rows each level of
# the network goes through shared memory, and ATen's radix sort passes over them less often.
BLOCK: Final = 256 * 16


# What rows of several blocks give may be found in parts: of so many elements in all, so that ATen,
# which walks over them a few times, waits for launches; and of few that are wanted of each part.
SPLIT: Final = 1 << 21
FEW: Final = 8


@dataclass(frozen=True)
class Limit:
    """How long rows are that a CPU's thread sorts as quickly as ATen does what is asked for.

    elements: by the type of ranks.  reason: why ATen does longer ones.
    """

    elements: Mapping[DType, int]
    reason: str


# A network walks over a row some log(n)^2 / 2 times, which should stay in the nearer caches; ATen
# partitions it a few times where one element is asked for.  The first few take a walk over all, in
# memory for their ranks.
ALL: Final = Limit({d.I32: 1 << 15, d.I64: 1 << 14}, "a sort of long rows: ATen computes it")
ONE_OF: Final = Limit({d.I32: 1 << 13, d.I64: 1 << 12}, "one of a long row: ATen partitions it")
FIRST: Final = Limit({d.I32: 1 << 20, d.I64: 1 << 20}, "the first of long rows: ATen selects them")
MOST: Final = 1 << 10  # that are few


@dataclass(frozen=True)
class Ranks:
    """The integers that stand for elements: ``word`` is their type, ``key`` that of their values.

    down: in descending order.  placed: their lower half says where elements come from.
    """

    dtype: DType
    word: DType
    key: DType
    down: bool
    placed: bool

    @property
    def most(self) -> int:
        """All bits of a float but its sign."""
        return (1 << self.dtype.bits - 1) - 1

    def of(self, value: Node, at: Expr) -> Node:
        """The rank of an element at position ``at``."""
        if self.dtype.is_float:
            key, low = self._of_float(value)
        else:
            key, low = body.cast(value, self.key), body.const(d.BOOL, False)
        key = op("xor", key, k(key, -1)) if self.down else key
        if not self.placed:
            return key
        high, place = (body.cast(n, self.word) for n in (key, body.index(at)))
        place = op("or_", op("shl", place, k(place, 1)), body.cast(low, self.word))
        return op("or_", op("shl", high, k(high, self.word.bits // 2)), place)

    def _of_float(self, value: Node) -> tuple[Node, Node]:
        """Its bits in order, nan behind all numbers; whether it is a zero that has lost a sign."""
        bits = body.cast(op("bitcast", value, to=_WORDS[self.dtype.bits]), self.key)
        negative = op("lt", bits, k(bits, 0))
        size = op("and_", bits, k(bits, self.most))
        mantissa = _MANTISSAS[self.dtype.name]
        key = where(negative, op("xor", bits, k(bits, self.most)), bits)
        nan = op("gt", size, k(size, self.most >> mantissa << mantissa))
        key = where(nan, k(key, self.most), key)
        if not self.placed:
            return key, negative
        return where(is_zero(size), size, key), op("and_", is_zero(size), negative)

    def value(self, rank: Node) -> Node:
        """The element that has a rank."""
        key = rank
        if self.placed:
            key = body.cast(op("shr", rank, k(rank, self.word.bits // 2)), self.key)
        key = op("xor", key, k(key, -1)) if self.down else key
        if not self.dtype.is_float:
            return body.cast(key, self.dtype)
        bits = where(op("lt", key, k(key, 0)), op("xor", key, k(key, self.most)), key)
        if self.placed:
            negative = op("ne", op("and_", rank, k(rank, 1)), k(rank, 0))
            bits = where(negative, k(key, -1 - self.most), bits)
        return op("bitcast", body.cast(bits, _WORDS[self.dtype.bits]), to=self.dtype)

    def place(self, rank: Node) -> Node:
        """Where the element that has a rank comes from."""
        at = op("and_", op("shr", rank, k(rank, 1)), k(rank, (1 << self.word.bits // 2 - 1) - 1))
        return body.cast(at, d.I64)


def ranks_of(dtype: DType, size: Expr, down: bool, placed: bool) -> Ranks:
    """Ranks of the fewest bits.  Raises Unsupported where they would need more than 64."""
    long = dtype.bits == 64 or dtype is d.U32
    if not placed:
        word = d.I64 if long else d.I32
        return Ranks(dtype, word, word, down, False)
    if long:
        raise Unsupported("a sort of 64-bit values and their places: ATen computes it")
    short = size.hi is not None and size.hi <= 1 << 15
    narrow = dtype.bits <= 16 and dtype is not d.U16
    return Ranks(dtype, d.I32 if narrow and short else d.I64, d.I32, down, True)


@dataclass(frozen=True)
class Rows:
    """A tensor's rows along ``dim``, sorted.

    own: variables of its dimensions; over: those of its elements before the sort, along ``dim``.
    """

    ctx: Call
    x: TensorValue
    dim: int
    ranks: Ranks
    own: tuple[Expr, ...]
    over: Expr

    @property
    def element(self) -> Node:
        return self.x.at([self.over if i == self.dim else a for i, a in enumerate(self.own)])

    def at(self, place: Expr) -> Node:
        """The rank of the element that belongs at ``place``."""
        ranked = self.ranks.of(self.element, self.over)
        return body.scan("sort", "value", self.over, place, (ranked,))

    def picked(self, place: Node) -> Node:
        """The rank of the one element of each row at ``place``."""
        found, own = self.at(self.over), op("eq", body.index(self.over), place)
        least = k(found, -(1 << found.dtype.bits - 1))
        return body.reduce("max", (self.over,), where(own, found, least))

    def results(self, rank: Node, mask: Node | None = None) -> tuple[TensorValue | None, ...]:
        """The values and places that are read: of one element a row, or of each."""
        ctx, stores = self.ctx, []
        at = [a if i != self.dim or a in rank.vars else ZERO for i, a in enumerate(self.own)]
        kept = [a for i, a in enumerate(at) if i != self.dim]
        out: list[TensorValue | None] = []
        for i, part in enumerate((self.ranks.value, self.ranks.place)):
            if i not in ctx.used:
                out.append(None)
                continue
            made = result_buffer(ctx, i)
            index = at if made.ndim == len(at) else kept
            stores.append(made.memory.store(index, part(rank), mask=mask))
            out.append(made)
        ctx.b.add_loops(tuple(at), (self.over,), tuple(stores), self.x.device)
        return tuple(out)


def rows(
    ctx: Call, x: TensorValue, dim: int, limit: Limit, down: bool = False, placed: bool = False
) -> Rows:
    """placed: equal elements keep their order even if no places are read.

    Raises Unsupported where ATen is to sort them.
    """
    size = x.shape[dim]
    placed = 1 in ctx.used or (placed and x.dtype.is_float)
    ranks = ranks_of(x.dtype, size, down, placed)
    if ctx.b.settings.on_gpu(x.device):
        if size.hi is None:
            raise Unsupported("a sort of rows of open length: ATen computes it")
        if size.hi * ranks.word.bytes > BLOCK:
            raise Unsupported("a sort of rows that no block holds: ATen computes it")
    elif size_hint(size, 0) > limit.elements[ranks.word]:
        raise Unsupported(limit.reason)
    return Rows(ctx, x, dim, ranks, axes(x.shape), var("r0", size))


def _single(ctx: Call, x: TensorValue, dim: int) -> tuple[Any, ...] | None:
    """The results where rows have one element, or there is none."""
    r = ctx.nth_result(0)
    if not (ctx.empty or not x.ndim or x.shape[dim] is ONE):
        return None
    if ctx.empty:
        value = ctx.b.full(r.shape, 0, r.dtype, r.device)
    else:
        kept = [i for i in range(x.ndim) if i != dim or len(r.shape) == x.ndim]
        element = x.at(at_dims(x.ndim, kept, axes(r.shape)))
        value = TensorValue(r.dtype, r.shape, r.device, lazy=element)
    return value, ctx.b.full(r.shape, 0, d.I64, r.device)


@lower(aten.sort.default, aten.sort.stable)
def sort(
    ctx: Call, x: TensorValue, *, dim: int, descending: bool, stable: bool | None = None
) -> tuple[Any, ...]:
    dim = dim % x.ndim if x.ndim else 0
    if (known := _single(ctx, x, dim)) is not None:
        return known
    found = rows(ctx, x, dim, ALL, descending, bool(stable))
    return found.results(found.at(found.own[dim]))


@lower(aten.topk.default)
def topk(
    ctx: Call, x: TensorValue, count: Expr | int, *, dim: int, largest: bool
) -> tuple[Any, ...]:
    dim = dim % x.ndim if x.ndim else 0
    if (known := _single(ctx, x, dim)) is not None:
        return known
    if (parts := _in_parts(ctx, x, dim, count, largest)) is not None:
        return parts
    few = isinstance(count, int) and count <= MOST
    found = rows(ctx, x, dim, FIRST if few else ALL, largest)
    at = found.own[dim]
    mask = op("lt", body.index(at), number(d.I64, count))
    return found.results(found.at(at), mask)


def _in_parts(
    ctx: Call, x: TensorValue, dim: int, count: Expr | int, down: bool
) -> tuple[Any, ...] | None:
    """The first of few long rows on a GPU: of parts that a block sorts, and then of what is left.

    None where rows are not such.
    """
    n, b, total = x.shape[dim], ctx.b, product(x.shape)
    if not b.settings.on_gpu(x.device) or not isinstance(n, Const) or not isinstance(count, int):
        return None
    ranks = ranks_of(x.dtype, n, down, 1 in ctx.used)
    part, left = BLOCK // ranks.word.bytes, n.value
    if left <= part or count * FEW > part or size_hint(total, SPLIT) > SPLIT:
        return None
    lead = (*x.shape[:dim], *x.shape[dim + 1 :])
    word, last = ranks.word, body.const(ranks.word, (1 << ranks.word.bits - 1) - 1)

    found: TensorValue | None = None  # the first of each part, one part behind the other

    def read(row: Sequence[Expr], place: Expr) -> Node:
        """A rank of those that are left."""
        if found is None:
            return ranks.of(x.at([*row[:dim], place, *row[dim:]]), place)
        return found.memory.load((*row, ZERO, place))

    while left > part:
        parts = -(-left // part)
        own = axes((*lead, const(parts), const(part)))
        *row, p, at = own
        over = var("r0", const(part))
        place = p * part + over
        rank = read(row, place)
        if left % part:
            inside = op("lt", body.index(place), number(d.I64, left))
            rank = body.masked(inside, rank, last)
        shape = (*lead, const(parts), const(count))
        found = b.allocate(word, shape, x.device)
        mask = op("lt", body.index(at), number(d.I64, count))
        ranked = body.scan("sort", "value", over, at, (rank,))
        b.add_loops(own, (over,), (found.memory.store(own, ranked, mask=mask),), x.device)
        left = parts * count

    size = const(left)
    own, over = axes((*x.shape[:dim], size, *x.shape[dim + 1 :])), var("r0", size)
    at = own[dim]
    rank = read((*own[:dim], *own[dim + 1 :]), over)
    ranked = body.scan("sort", "value", over, at, (rank,))
    mask = op("lt", body.index(at), number(d.I64, count))
    return Rows(ctx, x, dim, ranks, own, over).results(ranked, mask)


def _pick(ctx: Call, x: TensorValue, dim: int, place: Callable[[Rows], Node]) -> tuple[Any, ...]:
    """The element of each row that belongs at a place."""
    dim = dim % x.ndim if x.ndim else 0
    if (known := _single(ctx, x, dim)) is not None:
        return known
    found = rows(ctx, x, dim, ONE_OF)
    return found.results(found.picked(place(found)))


@lower(aten.kthvalue.default)
def kthvalue(ctx: Call, x: TensorValue, count: Expr | int, dim: int) -> tuple[Any, ...]:
    return _pick(ctx, x, dim, lambda found: number(d.I64, count) - 1)


@lower_rows((aten.median.dim, False), (aten.nanmedian.dim, True))
def median(ctx: Call, ignore: bool, x: TensorValue, dim: int) -> tuple[Any, ...]:
    return _pick(ctx, x, dim, lambda found: _middle(ctx, ignore, found))


@lower_rows((aten.median.default, False), (aten.nanmedian.default, True))
def median_of_all(ctx: Call, ignore: bool, x: TensorValue) -> Any:
    flat = reshape(x, (product(x.shape),))
    if flat.shape[0] is ZERO:
        return ctx.full(math.nan if x.dtype.is_float else reduction("max").identity(x.dtype))
    only = replace(ctx, used=frozenset([0]))
    return _pick(only, flat, 0, lambda found: _middle(ctx, ignore, found))[0]


def _middle(ctx: Call, ignore: bool, found: Rows) -> Node:
    """The place of the lower median; of a nan where there is any, unless they are ignored."""
    size = number(d.I64, found.over.extent)  # type: ignore[attr-defined]
    x = found.element
    if not x.dtype.is_float:
        return op("shr", size - 1, k(size, 1))
    wide = ctx.b.opmath(x)
    missing = body.cast(op("ne", wide, wide), d.I64)
    count = body.reduce("sum", (found.over,), missing)
    if ignore:
        return op("shr", op("maximum", size - count - 1, k(size, 0)), k(size, 1))
    return where(is_zero(count), op("shr", size - 1, k(size, 1)), size - count)
