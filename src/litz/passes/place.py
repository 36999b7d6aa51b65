"""Matrix products that write their results straight into a part of a larger buffer.

What of a concatenation, or within a pad, only holds a product's result is memory that the library
can fill: nothing is copied then, and of a pad the rim alone is stored, however many sides it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import (
    ONE,
    ZERO,
    Const,
    Expr,
    Substitution,
    Var,
    as_expr,
    product,
    split_linear,
    var,
)
from litz.index.layout import invert
from litz.ir import body
from litz.ir.body import Index, Load, Masked, Node, Op, Store
from litz.ir.masks import conjuncts
from litz.ir.program import Extern, Loops, Program, ProgramNode, TensorRef
from litz.passes.choose import OPERATORS
from litz.passes.epilogues import PRODUCT
from litz.passes.uses import Uses

ALIGNED = 16  # bytes that rows begin at a multiple of, so that GPUs' libraries keep their speed


@dataclass(frozen=True)
class FillInPlace:
    """A product's call whose result is only copied takes the copy's place, and writes there.

    blocks: kinds of devices whose kernels run over blocks, as GPUs' do.
    """

    blocks: tuple[str, ...]
    name: ClassVar[str] = "fill in place"

    def __call__(self, program: Program) -> Program:
        calls = [n for n in program.nodes if isinstance(n, Extern) and _is_product(n)]
        if not calls:
            return program
        uses = Uses(program)
        copies = [made for c in calls if (made := _copy(uses, c)) and self._may_be(made)]
        return _replaced(program, copies)

    def _may_be(self, made: _Copy) -> bool:
        wide = made.call.device.partition(":")[0] in self.blocks
        return not wide or _is_aligned(made.part)


def _is_product(n: Extern) -> bool:
    known = n.target in OPERATORS.values() or n.target_name == PRODUCT
    return known and len(n.outputs) == 1


@dataclass(frozen=True)
class _Copy:
    """A nest that copies a call's result: over ``axes`` from what is loaded to the place ``to``.

    part: where the result lies then.  rim: what is left of the nest, if it pads.
    """

    call: Extern
    nest: Loops
    axes: tuple[Var, ...]
    load: Load
    to: Expr
    part: TensorRef
    rim: Loops | None

    def nodes(self) -> tuple[ProgramNode, ...]:
        """What stands where the copy stood: the call, which fills its part, and the rim."""
        c = self.call
        own = replace(
            c, kwargs=(*c.kwargs, ("out", self.part)), outputs=(self.part.buffer,),
            origins=tuple(dict.fromkeys((*c.origins, *self.nest.origins))),
        )  # fmt: skip
        return (own,) if self.rim is None else (own, self.rim)


def _replaced(p: Program, copies: Sequence[_Copy]) -> Program:
    """The program in which calls take the places of copies of what they compute."""
    found = {made.nest.name: made for made in copies}
    moved = {made.call.name for made in copies}
    lost = {made.load.buffer: made for made in copies}
    nodes: list[ProgramNode] = []
    for n in p.nodes:
        if n.name in found:
            nodes += found[n.name].nodes()
        elif n.name not in moved:
            nodes.append(n)
    bindings = []
    for b in p.bindings:
        if (made := found.get(b.behind or "")) is not None and made.rim is None:
            b = replace(b, behind=made.call.name)
        if (made := lost.get(b.ref.buffer)) is not None:
            ref = _moved(b.ref, made.axes, made.load.index, made.to, made.part.buffer)
            if ref is None:
                continue
            b = replace(b, ref=ref)
        bindings.append(b)
    buffers = {k: b for k, b in p.buffers.items() if k not in lost}
    return replace(p, nodes=tuple(nodes), buffers=buffers, bindings=tuple(bindings))


def _copy(uses: Uses, c: Extern) -> _Copy | None:
    """The nest that copies what a call computes, if nobody else reads that."""
    p, root = uses.program, uses.program.root
    (name,) = c.outputs
    nest = None if name is None else _reader(uses, name)
    if nest is None or name is None or len(nest.stores) != 1 or nest.reduce_axes:
        return None
    (store,) = nest.stores
    target, given = p.buffers[store.buffer], {root(x) for x in uses.reads[c.name]}
    plain = store.mode == "set" and store.mask is None and not store.indirect
    if not plain or target.kind != "temp" or target.alias is not None or target.name in given:
        return None
    first, last = uses.places[c.name], uses.places[nest.name]
    if any(first < uses.places[n] < last for x in given for n in uses.makers.get(x, ())):
        return None
    readers = uses.readers.get(store.buffer, {}).values()
    if uses.maker(store.buffer) is nest and any(isinstance(n, Loops) for n in readers):
        return None  # a kernel that reads all of it computes the copy on its way
    axes = tuple(v for v in nest.axes if isinstance(v, Var))
    load, to, rim = store.value, store.index, None
    if isinstance(load, Masked):
        found = _inside(nest, store, load)
        if found is None:
            return None
        axes, load, to, rim = found
    if not isinstance(load, Load) or load.buffer != name or load.indirect:
        return None
    own = p.buffers[name]
    part = _moved(own.whole, axes, load.index, to, store.buffer)
    if part is None or part.strides[-1] is not ONE or target.dtype is not own.dtype:
        return None
    return _Copy(c, nest, axes, load, to, part, rim)


def _reader(uses: Uses, name: str) -> Loops | None:
    """The one nest that reads a temporary which nobody else sees."""
    readers = [*uses.readers.get(name, {}).values()]
    apart = uses.program.root(name) == name and name not in uses.shown
    if not apart or len(readers) != 1 or uses.maker(name) is None:
        return None
    return readers[0] if isinstance(readers[0], Loops) else None


def _moved(
    ref: TensorRef, axes: tuple[Var, ...], read: Expr, to: Expr, buffer: str
) -> TensorRef | None:
    """``ref`` where what lay at ``read`` lies at ``to`` of a buffer; None: no such view."""
    points = tuple(ZERO if s is ONE else var(f"d{k}", s) for k, s in enumerate(ref.shape))
    if product(v.extent for v in axes) is not product(ref.shape):
        return None
    places = invert(read, axes, ref.place(points))
    moving = [v for v in points if v is not ZERO]
    split = places and split_linear(Substitution(dict(places))(to), moving)
    if not split:
        return None
    steps = [split[0].get(v, ZERO) for v in points]
    for k in reversed(range(len(steps))):  # of a size of one any step will do: the rows' own
        if points[k] is ZERO:
            steps[k] = ONE if k == len(steps) - 1 else steps[k + 1] * ref.shape[k + 1]
    if any(s.lo is None or s.lo < 0 for s in steps):
        return None
    return TensorRef(buffer, ref.dtype, ref.shape, tuple(steps), split[1])


# --- pads -----------------------------------------------------------------------------------------


def _inside(
    nest: Loops, store: Store, value: Masked
) -> tuple[tuple[Var, ...], Node, Expr, Loops] | None:
    """A pad as a copy: its axes, what it loads, where that goes, and the rim; None for others.

    The rim at one side is a nest over it.  Of several sides it is what the whole nest stores where
    the pad reads nothing: one kernel, as the pad was.
    """
    cond, load, fill = value.args
    if not isinstance(fill, body.Const) or not isinstance(load, Load):
        return None
    ranges: dict[Var, tuple[int, int]] = {}
    sides: list[dict[Var, tuple[int, int]]] = []
    for v, (low, high) in _bounds(cond).items():
        if not isinstance(v, Var) or v not in nest.axes or not isinstance(v.extent, Const):
            return None
        size = v.extent.value
        ranges[v] = begin, end = max(low or 0, 0), min(size if high is None else high, size)
        sides += [{v: side} for side in ((0, begin), (end, size)) if side[0] < side[1]]
    if not sides or any(low >= high for low, high in ranges.values()):
        return None
    moved, own = _part(nest, ranges)
    beyond, axes = _part(nest, sides[0] if len(sides) == 1 else {})
    mask = None if len(sides) == 1 else body.op("not_", cond)
    stored = Store(store.buffer, beyond(store.index), fill, mask=mask)
    read = body.load(load.dtype, load.buffer, moved(load.index), load.indirect)
    return own, read, moved(store.index), replace(nest, axes=axes, stores=(stored,))


def _part(
    nest: Loops, ranges: Mapping[Var, tuple[int, int]]
) -> tuple[Substitution, tuple[Var, ...]]:
    """The axes of a nest where some run over ranges alone, and how these are written."""
    own, to = dict[Expr, Expr](), dict[Expr, Expr]()
    for v, (low, high) in ranges.items():
        own[v] = ZERO if high - low == 1 else var(str(v), high - low)
        to[v] = own[v] + low
    axes = (own.get(x, x) for x in nest.axes)
    return Substitution(to), tuple(x for x in axes if isinstance(x, Var))


def _bounds(cond: Node) -> dict[Expr, tuple[int | None, int | None]]:
    """The ranges that variables lie in where a condition holds; {} where it says anything else."""
    found: dict[Expr, tuple[int | None, int | None]] = {}
    for n in conjuncts(cond):
        if not isinstance(n, Op) or n.name not in ("lt", "le"):
            return {}
        a, b = (_place(x) for x in n.args)
        if a is None or b is None:
            return {}
        free = dict.fromkeys((*a.free, *b.free))
        split = split_linear(b - a - (n.name == "lt"), list(free))
        if len(free) != 1 or split is None or not isinstance(split[1], Const):
            return {}
        ((v, step),) = split[0].items()
        low, high = found.get(v, (None, None))
        if step is ONE:
            low = max(-split[1].value, low or 0)
        elif step is as_expr(-1):
            high = min(split[1].value + 1, split[1].value + 1 if high is None else high)
        else:
            return {}
        found[v] = low, high
    return found


def _place(n: Node) -> Expr | None:
    if isinstance(n, Index):
        return n.expr
    return as_expr(int(n.value)) if isinstance(n, body.Const) and n.dtype.is_int else None


def _is_aligned(part: TensorRef) -> bool:
    starts = (part.offset, *part.strides[:-1])
    return all(isinstance(s, Const) and s.value * part.dtype.bytes % ALIGNED == 0 for s in starts)
