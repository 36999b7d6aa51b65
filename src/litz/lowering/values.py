"""Tensors while a graph is lowered: an element expression over canonical axes, computed on demand.

A ``TensorValue`` of shape ``(s0, s1, ..)`` is described by a body node over the loop variables
``i0 < s0, i1 < s1, ..``; equal shapes share their variables, so pointwise ops combine nodes without
any substitution.  A value that is a strided view of a buffer also carries that view, and then a
view of it is stride arithmetic: no copy, no expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from litz.dataclass import dataclass
from litz.errors import Unsupported
from litz.graph.calls import leaves
from litz.index import Const, Expr, const, contiguous_strides, floordiv, linear, mod, var
from litz.ir import body
from litz.ir.body import Node
from litz.ir.dtype import DType
from litz.ir.program import TensorRef

Shape = tuple[Expr, ...]
ZERO: Expr = const(0)
ONE: Expr = const(1)


@lru_cache(maxsize=1024)
def axes(shape: Shape, prefix: str = "i") -> tuple[Expr, ...]:
    """The canonical loop variables of a shape; a dimension of size 1 has index 0."""
    return tuple(ZERO if s is ONE else var(f"{prefix}{k}", s) for k, s in enumerate(shape))


def product(sizes: Sequence[Expr]) -> Expr:
    total = ONE
    for s in sizes:
        total = total * s
    return total


def last(shape: Shape, strides: Shape) -> Expr:
    """How far behind a view's first element its last one lies."""
    return linear([n - ONE for n in shape], strides)


def at_dims(ndim: int, dims: Sequence[int], index: Sequence[Expr]) -> list[Expr]:
    """An index of ``ndim`` dimensions: ``index`` at ``dims``, zero elsewhere."""
    placed = dict(zip(dims, index, strict=True))
    return [placed.get(k, ZERO) for k in range(ndim)]


@dataclass(frozen=True)
class Opaque:
    """A tensor that only extern calls touch (complex, sparse, a foreign type)."""

    ref: TensorRef


@dataclass(frozen=True)
class TensorValue:
    """A tensor of the graph: dtype, shape (elements), device and what its elements are.

    Exactly one of ``ref`` (a strided view of a buffer) and ``lazy`` (a node over ``axes(shape)``)
    is given.
    """

    dtype: DType
    shape: Shape
    device: str
    ref: TensorRef | None = None
    lazy: Node | None = None

    @cached_property
    def node(self) -> Node:
        """One element, over ``axes(shape)``."""
        if self.lazy is not None:
            return self.lazy
        return self.memory.load(axes(self.shape))

    @property
    def memory(self) -> TensorRef:
        """Where the elements lie, of a value that is stored."""
        assert self.ref is not None
        return self.ref

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def numel(self) -> Expr:
        return product(self.shape)

    def at(self, index: Sequence[Expr]) -> Node:
        """The element at ``index``: one expression a dimension, 0 being the only one of size 1."""
        own = axes(self.shape)
        mapping = {v: e for v, e in zip(own, index, strict=True) if v is not ZERO and v is not e}
        if not mapping:
            return self.node
        if self.ref is not None:
            index = [ZERO if s is ONE else i for s, i in zip(self.shape, index, strict=True)]
            return self.ref.load(index)
        return body.substitute(self.node, mapping)

    def without_memory(self) -> TensorValue:
        """The same elements as a value that is computed: stored, it is a copy."""
        return TensorValue(self.dtype, self.shape, self.device, lazy=self.node)

    def with_node(self, node: Node, shape: Shape | None = None) -> TensorValue:
        return TensorValue(
            node.dtype, self.shape if shape is None else shape, self.device, lazy=node
        )


def strided(v: TensorValue, shape: Shape, strides: Shape, offset: Expr) -> TensorValue:
    """Another strided view of the buffer under ``v`` (which must be a view of a buffer)."""
    ref = TensorRef(v.memory.buffer, v.dtype, shape, strides, offset)
    return TensorValue(v.dtype, shape, v.device, ref=ref)


def viewed(v: TensorValue, shape: Shape, index: Sequence[Expr]) -> TensorValue:
    """The tensor whose element at ``axes(shape)`` is ``v`` at ``index``."""
    return TensorValue(v.dtype, shape, v.device, lazy=v.at(index))


def written_as(v: TensorValue, shape: Shape) -> TensorValue:
    """``v`` with its sizes as ``shape`` writes them, which is its own; those known to be 1 are 1.

    Guards may have found sizes equal that are written differently, and loops over them as well.
    """
    kept = tuple(ONE if s is ONE else t for s, t in zip(v.shape, shape, strict=True))
    if kept == v.shape:
        return v
    if v.ref is not None:
        return strided(v, kept, v.ref.strides, v.ref.offset)
    return viewed(v, kept, axes(kept))


# --- views -------------------------------------------------------------------------------------


def permute(v: TensorValue, dims: Sequence[int]) -> TensorValue:
    dims = [d % v.ndim for d in dims]
    shape = tuple(v.shape[d] for d in dims)
    if v.ref is not None:
        return strided(v, shape, tuple(v.ref.strides[d] for d in dims), v.ref.offset)
    return viewed(v, shape, at_dims(v.ndim, dims, axes(shape)))


def expand(v: TensorValue, shape: Shape) -> TensorValue:
    """Broadcast to ``shape``.  Raises Unsupported where it surely does not: eager refuses that."""
    if shape == v.shape:
        return v
    if not broadcasts(v.shape, shape):
        raise Unsupported("shapes that do not broadcast")
    lead = len(shape) - v.ndim
    grown = [s is ONE and t is not ONE for s, t in zip(v.shape, shape[lead:], strict=True)]
    if v.ref is not None:
        strides = (
            *(ZERO,) * lead,
            *(ZERO if g else s for g, s in zip(grown, v.ref.strides, strict=True)),
        )
        return strided(v, shape, strides, v.ref.offset)
    own = axes(shape)[lead:]
    return viewed(v, shape, [ZERO if s is ONE else i for s, i in zip(v.shape, own, strict=True)])


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether ``shape`` may be broadcast to another one, as far as its sizes are known."""
    lead = len(to) - len(shape)
    pairs = zip(shape, to[max(lead, 0) :], strict=False)
    fit = (s is ONE or s is t or not (s.is_const and t.is_const) for s, t in pairs)
    return lead >= 0 and all(fit)


def insert_dim(v: TensorValue, dim: int) -> TensorValue:
    shape = (*v.shape[:dim], ONE, *v.shape[dim:])
    if v.ref is not None:
        inner = ONE if dim == v.ndim else v.shape[dim] * v.ref.strides[dim]
        strides = (*v.ref.strides[:dim], inner, *v.ref.strides[dim:])
        return strided(v, shape, strides, v.ref.offset)
    own = axes(shape)
    return viewed(v, shape, (*own[:dim], *own[dim + 1 :]))


def select(v: TensorValue, dim: int, at: Expr) -> TensorValue:
    shape = (*v.shape[:dim], *v.shape[dim + 1 :])
    if v.ref is not None:
        strides = (*v.ref.strides[:dim], *v.ref.strides[dim + 1 :])
        return strided(v, shape, strides, v.ref.offset + at * v.ref.strides[dim])
    own = axes(shape)
    return viewed(v, shape, (*own[:dim], at, *own[dim:]))


def slice_dim(v: TensorValue, dim: int, start: Expr, size: Expr, step: Expr) -> TensorValue:
    """``size`` elements of ``dim`` from ``start``, ``step`` apart."""
    shape = (*v.shape[:dim], size, *v.shape[dim + 1 :])
    if v.ref is not None:
        strides = (*v.ref.strides[:dim], v.ref.strides[dim] * step, *v.ref.strides[dim + 1 :])
        return strided(v, shape, strides, v.ref.offset + start * v.ref.strides[dim])
    own = list(axes(shape))
    own[dim] = start + own[dim] * step
    return viewed(v, shape, own)


def drop_dims(v: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Remove dimensions of size 1."""
    keep = [d for d in range(v.ndim) if d not in dims]
    shape = tuple(v.shape[d] for d in keep)
    if v.ref is not None:
        return strided(v, shape, tuple(v.ref.strides[d] for d in keep), v.ref.offset)
    return viewed(v, shape, at_dims(v.ndim, keep, axes(shape)))


def _factor_groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Split shapes of as many elements into runs of equal product, as fine as sizes compare."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        a = old[i] if i < len(old) else ONE
        b = new[j] if j < len(new) else ONE
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while a is not b:
            ca = a.value if isinstance(a, Const) else None
            cb = b.value if isinstance(b, Const) else None
            grow_old = ca is not None and (cb is None or ca < cb)
            if grow_old and i < len(old):
                a, i = a * old[i], i + 1
            elif j < len(new):
                b, j = b * new[j], j + 1
            elif i < len(old):
                a, i = a * old[i], i + 1
            else:
                break  # equal as the whole is
        groups.append((range(i0, i), range(j0, j)))
    return groups


@lru_cache(maxsize=1024)
def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of a view of shape ``new``, or None where only a copy could have that shape."""
    out: list[Expr] = []
    for old_dims, new_dims in _factor_groups(shape, new):
        real = [d for d in old_dims if shape[d] is not ONE]
        for d, e in zip(real, real[1:], strict=False):
            if strides[d] is not strides[e] * shape[e]:
                return None
        step = strides[real[-1]] if real else ONE
        part: list[Expr] = []
        for d in reversed(new_dims):
            part.append(step)
            step = step * new[d]
        out.extend(reversed(part))
    return tuple(out)


def reshape(v: TensorValue, shape: Shape) -> TensorValue:
    """Reinterpret the row-major order: a view where strides allow it, else an index map."""
    if shape == v.shape:
        return v
    if ZERO in v.shape or ZERO in shape:
        return TensorValue(v.dtype, shape, v.device, lazy=body.const(v.dtype, 0))
    if v.ref is not None:
        strides = view_strides(v.shape, v.ref.strides, shape)
        if strides is not None:
            return strided(v, shape, strides, v.ref.offset)
    own = axes(shape)
    index = [ZERO] * v.ndim
    for old_dims, new_dims in _factor_groups(v.shape, shape):
        new_sizes = tuple(shape[d] for d in new_dims)
        flat = linear([own[d] for d in new_dims], contiguous_strides(new_sizes))
        old_sizes = tuple(v.shape[d] for d in old_dims)
        for n, (d, step) in enumerate(zip(old_dims, contiguous_strides(old_sizes), strict=True)):
            if v.shape[d] is ONE:
                continue
            part = flat if step is ONE else floordiv(flat, step)
            index[d] = part if n == 0 else mod(part, v.shape[d])
    return viewed(v, shape, index)


def exprs(value: object) -> Iterator[Expr]:
    """The index expressions that a nested value holds, those of references too."""
    for v in leaves(value):
        if isinstance(v, Expr):
            yield v
        elif isinstance(v, TensorRef):
            yield from (*v.shape, *v.strides, v.offset)
