"""Updates at places that data picks, of what nests before them have stored: a template does both.

The zeros that an embedding's gradient is added into, say, or a copy of a tensor: by themselves they
go to memory and come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import (
    ZERO,
    Expr,
    Substitution,
    Var,
    coefficient,
    const,
    invert,
    mixed_radix,
    product,
    size_hint,
    var,
)
from litz.ir import updates
from litz.ir.body import Const as Value
from litz.ir.body import Index, Load, Op, Rewriter, Store, cast, loads, op, walk
from litz.ir.dtype import I64
from litz.ir.program import Loops, Program, ProgramNode, Skeleton, Template
from litz.ir.skeletons import fault

LARGE = 1 << 20  # bytes that no cache near a core holds
ROOM = 1 << 18  # bytes of a row that such a cache holds
SHORT = 1 << 9  # bytes of a row: what is done for each takes long beside updates of less
RARE = 8  # elements to an update of a row: what little is changed may as well be in memory
MOST = 1 << 30  # rows, or updates: they are counted in 32 bits


@dataclass(frozen=True)
class TakeUpdates:
    """The nest that stores all of a buffer goes where the next that touches it updates it.

    blocks: kinds of devices whose kernels run over blocks: there it stays.
    """

    blocks: tuple[str, ...] = ()
    name: ClassVar[str] = "take updates"

    def __call__(self, program: Program) -> Program:
        nodes: list[ProgramNode] = []
        stored: dict[str, Loops] = {}  # by buffer: what has
        for n in program.nodes:
            if isinstance(n, Loops) and (made := _taken(program, n, stored)) is not None:
                nodes.remove(stored.pop(made.stores[0].buffer))
                n = made
            read, wrote = (
                {program.root(b) for b in names} for names in (n.read_buffers(), n.write_buffers())
            )
            for b, m in [*stored.items()]:
                if b in read | wrote or not wrote.isdisjoint(map(program.root, m.read_buffers())):
                    del stored[b]
            if isinstance(n, Loops) and self._stores(program, n):
                stored[n.stores[0].buffer] = n
            nodes.append(n)
        return program if len(nodes) == len(program.nodes) else replace(program, nodes=tuple(nodes))

    def _stores(self, program: Program, n: Loops) -> bool:
        """Whether a nest computes all of one buffer from what lies at one place each, no more."""
        in_blocks = n.device.partition(":")[0] in self.blocks
        if in_blocks or len(n.stores) != 1 or n.reduce_axes:
            return False
        (s,) = n.stores
        b = program.buffers[s.buffer]
        plain = s.mode == "set" and s.mask is None and not s.indirect
        simple = all(isinstance(x, Value | Load | Op | Index) for x in walk(s.roots()))
        if not plain or not simple or b.alias is not None or b.kind != "temp":
            return False
        return _is_whole(s.index, n.axes, b.shape)


def _taken(program: Program, n: Loops, stored: Mapping[str, Loops]) -> Template | None:
    """The template of a nest that updates such a buffer."""
    if len(n.stores) != 1 or n.reduce_axes:
        return None
    (s,) = n.stores
    if s.buffer not in stored or s.mode == "set" or len(s.indirect) != 1:
        return None
    if s.value.dtype.bits == 16:  # maxima and minima, which run one by one: sums are of float32
        return None
    if any(program.root(x.buffer) == s.buffer for x in n.reads()):
        return None
    made = _template(program, n, s, stored[s.buffer])
    return made if made is not None and not fault(made) and _serves(made) else None


def _is_whole(index: Expr, loops: tuple[Expr, ...], shape: tuple[Expr, ...]) -> bool:
    radix = mixed_radix(index, [v for v in loops if isinstance(v, Var)])
    if radix is None or not radix.dense or radix.offset is not ZERO:
        return False
    return radix.size is product(shape)


def _template(program: Program, n: Loops, s: Store, before: Loops) -> Template | None:
    """A nest's updates ``s`` of what another has stored."""
    ((data, number),) = s.indirect
    free = (x for k in range(len(n.axes) + 1) if (x := f"i{k}") not in map(str, n.axes))
    if data.lo != 0 or data.hi is None:
        return None
    place = var(next(free), data.hi + 1)
    index = Substitution({data: place})(s.index)
    over = tuple(v for v in n.axes if v not in s.index.free)
    loops = (*(v for v in n.axes if v not in over), place)
    (first,) = before.stores
    at = invert(first.index, [v for v in before.axes if isinstance(v, Var)], index)
    if not over or at is None or not _is_whole(index, loops, program.buffers[s.buffer].shape):
        return None
    number = cast(number, I64)
    if s.mask is not None:
        number = op("where", s.mask, number, updates.NONE)
    start = Rewriter(Substitution(at))(first.value)
    value = updates.value(start, number, s.value, place, over, s.mode)
    steps = {v: coefficient(index, v) for v in loops}
    axes = sorted(loops, key=lambda v: -size_hint(steps[v] or ZERO))
    stores = (replace(s, index=index, value=value, mode="set", indirect=(), mask=None),)
    origins = tuple(dict.fromkeys((*before.origins, *n.origins)))
    return Template(n.name, tuple(axes), over, stores, n.device, Skeleton(updates.KIND), origins)


def _serves(t: Template) -> bool:
    """Whether a template takes less time than nests."""
    p, width = updates.parts(t.stores, t.axes), t.stores[0].value.dtype.bytes
    row, count, rows = (_extent(v) for v in ((p.lane,), t.reduce_axes, (p.place,)))
    if row * width < SHORT:
        return False
    if p.within:
        # Narrow numbers are updated as wide ones, which go to memory and come back.
        narrow = any(x.dtype.bytes < width for x in loads((p.first, p.value)))
        worth = narrow or count * RARE >= row
        return worth and row * width <= ROOM and any(_goes_along(p, v) for v in t.reduce_axes)
    return LARGE <= rows * row * width and max(rows, count) <= MOST


def _extent(loops: Sequence[Expr]) -> int:
    return size_hint(product(v.extent for v in loops))  # type: ignore[attr-defined]


def _goes_along(p: updates.Parts, v: Expr) -> bool:
    """Whether updates are read one after the other along an axis."""
    found = loads((p.number, p.value))
    steps = [coefficient(x.index, v) for x in found if not x.indirect]
    return len(steps) == len(found) and {*steps} <= {const(0), const(1)} and const(1) in steps
