"""A matrix product as a template: two factors and what follows the sum are any bodies.

Over parallel axes ``b``, ``m``, ``n`` and a reduced ``k``, several of each or none, stores say::

    product = sum over k of left[b, m, k] * right[b, k, n]
    out     = any body over product, positions and loads; several stores

Both factors have one type, which matrix units take, and are cast to the type of the sum.  An axis
belongs to ``b`` where both factors change along it, and else to the factor that does.  ``product``
builds the sum and ``parts`` knows it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.index import Expr, Var, size_hint
from litz.ir.body import Load, Node, Op, Reduce, Store, cast, cost, loads, op, reduce, walk
from litz.ir.dtype import DType
from litz.ir.program import Buffer

KIND: Final = "matmul"


@dataclass(frozen=True, slots=True)
class Parts:
    """What recipes and printers need of such stores.

    product: the sum.  left, right: its factors, before they are cast.  batch, rows, columns: the
    axes of ``b``, ``m`` and ``n``; inner: of ``k``.
    """

    product: Reduce
    left: Node
    right: Node
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    inner: tuple[Expr, ...]


def product(left: Node, right: Node, inner: Expr, accumulate: DType) -> Node:
    return reduce("sum", (inner,), op("mul", cast(left, accumulate), cast(right, accumulate)))


def parts(stores: Sequence[Store], axes: Sequence[Expr]) -> Parts:
    """The parts of a product's stores over its parallel axes.  Raises ValueError for others."""
    sums = [n for n in walk(r for s in stores for r in s.roots()) if isinstance(n, Reduce)]
    if len(sums) != 1:
        raise ValueError("there is more than one sum")
    (found,) = sums
    factors = found.args[0]
    if found.kind != "sum" or not isinstance(factors, Op) or factors.name != "mul":
        raise ValueError("what is summed is no product")
    free = (v for s in stores for vs in (s.index.free, *(r.vars for r in s.roots())) for v in vs)
    if any(v in found.axes for v in free):
        raise ValueError("something is stored for every point of the sum")
    if any(s.mode != "set" for s in stores):
        raise ValueError("memory is updated")
    left, right = (_uncast(a, found.dtype) for a in factors.args)
    if left.dtype is not right.dtype:
        raise ValueError("the factors are of several types")
    if not set(found.axes) <= {*left.vars} & {*right.vars}:
        raise ValueError("a factor does not change along the sum")
    if not set(axes) <= {*left.vars, *right.vars}:
        raise ValueError("an axis changes neither factor")
    batch = tuple(v for v in axes if v in left.vars and v in right.vars)
    rows = tuple(v for v in axes if v not in right.vars)
    columns = tuple(v for v in axes if v not in left.vars)
    return Parts(found, left, right, batch, rows, columns, found.axes)


def _uncast(n: Node, to: DType) -> Node:
    """A factor before it became the type of the sum, which its own type computes in."""
    own = isinstance(n, Op) and n.name == "cast" and n.dtype is to
    return n.args[0] if own and n.args[0].dtype.opmath is to else n


# --- what a factor may be computed from -----------------------------------------------------------

GROWTH: Final = 9 / 8  # bytes that a factor's operands may have, beside its own: scales are few
COST: Final = 24  # of an element's ops: it is computed again for every block along the other side

MORE: Final = "more bytes would be read"
AGAIN: Final = "much would be computed again for every block"


def refused(s: Store, buffers: Mapping[str, Buffer]) -> str:
    """Why what a nest stores is not computed where a product reads it; "" where it may be."""
    read = sum(bytes_of(n, buffers) for n in loads((s.value,)))
    if read > GROWTH * elements(s.index.free) * s.value.dtype.bytes:
        return MORE
    return AGAIN if cost(s.value) > COST else ""


def bytes_of(n: Load, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the elements that a load reads, each once, for sizes as hinted."""
    whole = 1
    for size in buffers[n.buffer].shape:
        whole *= size_hint(size)
    return n.dtype.bytes * min(whole, elements(n.vars))


def elements(variables: Sequence[Expr]) -> int:
    """Points of the loops among some variables."""
    count = 1
    for v in variables:
        count *= size_hint(v.extent) if isinstance(v, Var) else 1
    return count
