"""A matrix product as a template: two factors and what follows the sum are any bodies.

Over parallel axes ``b``, ``m``, ``n`` and a reduced ``k``, several of each or none, stores say::

    product = sum over k of left[b, m, k] * right[b, k, n]
    out     = any body over product, positions and loads; several stores

Rows may be in groups of their own right matrices: then a symbol stands for a group's number where
the right factor reads, bound to ``number``, how many groups end at or before a row.

Both factors have one type, which matrix units take, and are cast to the type of the sum.  An axis
belongs to ``b`` where both factors change along it, and else to the factor that does.  ``product``
builds the sum and ``parts`` knows it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from litz.dataclass import dataclass
from litz.index import Expr, Substitution, Var, as_expr, size_hint, var
from litz.ir.body import (
    Const,
    Index,
    Load,
    Masked,
    Node,
    Op,
    Reduce,
    Rewriter,
    Store,
    cast,
    const,
    cost,
    index,
    load,
    loads,
    masked,
    op,
    reduce,
    walk,
)
from litz.ir.dtype import BF16, F16, F32, I8, I32, I64, STORED, DType
from litz.ir.program import Buffer

KIND: Final = "matmul"
# The types of factors that templates take, and those of their sums.
SUMS: Final[Mapping[DType, DType]] = {
    **dict.fromkeys((F16, BF16, F32, *STORED), F32), I8: I32
}  # fmt: skip

# Of what libraries compute from 16-bit floats:
WHOLE: Final = 8  # elements of 16 bytes, as which their fast kernels read rows
LONG: Final = 1 << 12  # a size from which tiles of 64 lose nothing
SHORT: Final = 256  # a size below which idle elements would cost too much


def padded_size(n: int) -> int:
    """The size that takes the place of ``n`` where rows are of whole 16 bytes."""
    if n % WHOLE == 0:
        return n
    step = 64 if n >= LONG else 2 * WHOLE
    return -(-n // step) * step


@dataclass(frozen=True, slots=True)
class Parts:
    """What recipes and printers need of such stores.

    product: the sum.  left, right: its factors, before they are cast.  batch, rows, columns: the
    axes of ``b``, ``m`` and ``n``; inner: of ``k``.  group: if rows are in groups, a variable that
    stands for the group's number in the right factor.  ends: the load of groups' ends, over
    ``which``.  end: a place along the sum, and the size from which on there is nothing to add.
    """

    product: Reduce
    left: Node
    right: Node
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    group: Expr | None = None
    ends: Load | None = None
    which: Expr | None = None
    end: tuple[Expr, Expr] | None = None


def number(ends: Load, which: Expr, row: Expr) -> Node:
    """The group that a row is in.  ends: the row behind each group's last, over ``which``."""
    passed = op("le", cast(ends, I64), index(row))
    return reduce("sum", (which,), cast(passed, I64))


def product(left: Node, right: Node, inner: Expr, accumulate: DType) -> Node:
    return reduce("sum", (inner,), op("mul", cast(left, accumulate), cast(right, accumulate)))


def turned(p: Parts) -> Node:
    """The same sum with its factors the other way round: rows of the product are its columns."""
    whole = p.product.args[0]
    factors, _ = _guarded(whole)
    swapped = op("mul", *reversed(factors.args))
    again = Rewriter(replace=lambda old, n: swapped if old is factors else n)
    return reduce("sum", p.product.axes, again(whole))


def held(stores: Sequence[Store]) -> float:
    """Registers of 32 bits that an element of a result takes at most, behind the sum.

    stores: one may read what others before it store.  All is stored at the end.
    """
    made: dict[str, Node] = {}

    def known(_: Node, n: Node) -> Node:
        return made.get(n.buffer, n) if isinstance(n, Load) else n

    for s in stores:
        made[s.buffer] = Rewriter(replace=known)(s.value)
    nodes = [*walk(made.values())]
    factors = {x for n in nodes if isinstance(n, Reduce) for x in walk(n.args)}
    nodes = [n for n in nodes if n not in factors and not isinstance(n, Const)]
    last = {a: n for n in nodes for a in n.args} | dict.fromkeys(made.values())
    ends: dict[Node | None, list[Node]] = {}
    for n in nodes:
        ends.setdefault(last.get(n), []).append(n)
    now = most = 0.0
    for n in nodes:
        now += n.dtype.bytes / 4
        most = max(most, now)
        now -= sum(a.dtype.bytes / 4 for a in ends.get(n, ()))
    return most


def parts(stores: Sequence[Store], axes: Sequence[Expr]) -> Parts:
    """The parts of a product's stores over its parallel axes.  Raises ValueError for others."""
    sums = [n for n in walk(r for s in stores for r in s.roots()) if isinstance(n, Reduce)]
    numbers = [n for n in sums if is_number(n)]
    sums = [n for n in sums if n not in numbers]
    if len(sums) != 1 or len(numbers) > 1:
        raise ValueError("there is more than one sum")
    (found,) = sums
    factors, end = _guarded(found.args[0])
    if found.kind != "sum" or not isinstance(factors, Op) or factors.name != "mul":
        raise ValueError("what is summed is no product")
    free = (v for s in stores for vs in (s.index.free, *(r.vars for r in s.roots())) for v in vs)
    if any(v in found.axes for v in free):
        raise ValueError("something is stored for every point of the sum")
    if any(s.mode != "set" for s in stores):
        raise ValueError("memory is updated")
    left, right = (_uncast(a, found.dtype) for a in factors.args)
    group = _Group(right, numbers[0], axes) if numbers else None
    right = group.right if group else right
    if left.dtype is not right.dtype:
        raise ValueError("the factors are of several types")
    if not set(found.axes) <= {*left.vars} & {*right.vars}:
        raise ValueError("a factor does not change along the sum")
    if not set(axes) <= {*left.vars, *right.vars}:
        raise ValueError("an axis changes neither factor")
    batch = tuple(v for v in axes if v in left.vars and v in right.vars)
    rows = tuple(v for v in axes if v not in right.vars)
    columns = tuple(v for v in axes if v not in left.vars)
    whole = Parts(found, left, right, batch, rows, columns, found.axes, end=end)
    if group is None:
        return whole
    if batch or rows != (group.row,) or _reads(left, group.sum):
        raise ValueError("rows are not in groups one after another")
    if any(_reads(r, group.sum, found) for s in stores for r in s.roots()):
        raise ValueError("something else depends on a group")
    return replace(whole, group=group.at, ends=group.ends, which=group.which)


def guarded(product: Node, place: Expr, size: Expr) -> Node:
    """What is summed, but nothing where a place is not below a size: the last part of a sum."""
    inside = op("lt", index(place), index(size))
    return masked(inside, product, const(product.dtype, 0))


def _guarded(n: Node) -> tuple[Node, tuple[Expr, Expr] | None]:
    """What is summed without such a guard, and what that says."""
    if isinstance(n, Masked):
        cond, value, other = n.args
        a, b = cond.args if len(cond.args) == 2 else (cond, cond)
        if isinstance(a, Index) and isinstance(b, Index | Const):
            size = b.expr if isinstance(b, Index) else as_expr(int(b.value))
            if n is guarded(value, a.expr, size):
                return value, (a.expr, size)
    return n, None


def is_number(n: Reduce) -> bool:
    """Whether a sum is a row's group."""
    found, rows = loads(n.args), [x.expr for x in walk(n.args) if isinstance(x, Index)]
    return len(found) == len(rows) == len(n.axes) == 1 and n is number(found[0], n.axes[0], rows[0])


class _Group:
    """What a group's number says: its row, and the right factor by a variable for the number."""

    def __init__(self, right: Node, sum: Reduce, axes: Sequence[Expr]) -> None:
        self.sum, (self.which,), (self.ends,) = sum, sum.axes, loads(sum.args)
        (self.row,) = (x.expr for x in walk(sum.args) if isinstance(x, Index))
        assert isinstance(self.which, Var)
        self.at = var("group", self.which.extent)

        def known(_: Node, n: Node) -> Node:
            if not isinstance(n, Load) or sum not in n.args:
                return n
            bound = {s: self.at for s, value in n.indirect if value is sum}
            rest = tuple(x for x in n.indirect if x[1] is not sum)
            return load(n.dtype, n.buffer, Substitution(bound)(n.index), rest)

        self.right = Rewriter(replace=known)(right)


def _reads(n: Node, wanted: Node, but: Node | None = None) -> bool:
    """Whether a node depends on another, by another way than through a third."""
    stack, seen = [n], set[Node]()
    while stack:
        x = stack.pop()
        if x is wanted:
            return True
        if x is not but and x not in seen:
            seen.add(x)
            stack.extend(x.args)
    return False


def _uncast(n: Node, to: DType) -> Node:
    """A factor before it became the type of the sum."""
    own = isinstance(n, Op) and n.name == "cast" and n.dtype is to
    return n.args[0] if own and SUMS.get(n.args[0].dtype) is to else n


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
