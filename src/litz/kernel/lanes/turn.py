"""What a kernel of rows reads or writes down columns is transposed in phases of its own.

Vectors along a reduced dim that an operand is strided in would take it element by element, a cache
line each, and that in every pass.  Tiles turned in registers read and write whole lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.index import Expr, coefficient, const, product, size_hint
from litz.ir.body import Load, Masked, Node, Store, load, replaced, walk
from litz.kernel.lanes.space import Space
from litz.kernel.nodes import extent, int_value, loaded, over_all, roots
from litz.kernel.phases import Phases, Temporary, linear, phase
from litz.kernel.plan import Dim, KernelPlan
from litz.kernel.tiling import FULL_VECTOR, NEAR


def divide(plan: KernelPlan, space: Space) -> Phases | None:
    """The plan on operands that lie along its lane, phases that turn those before and behind it."""
    if space.lane is None or space.lane not in space.reduced or not _long(space.lane):
        return None
    made = _Maker(plan, space, space.lane)
    stores = made.inputs(plan.stores)
    stores = made.outputs(stores)
    if not made.temps:
        return None
    rest = phase(plan, made.temps, plan.dims, stores, space.lane)
    return Phases((*made.before, rest, *made.behind), tuple(made.temps))


class _Maker:
    def __init__(self, plan: KernelPlan, space: Space, lane: Expr) -> None:
        self.plan, self.lane = plan, lane
        self.others = (*space.units, *space.serial, *(v for v in space.reduced if v is not lane))
        self.temps: list[Temporary] = []
        self.before: list[KernelPlan] = []
        self.behind: list[KernelPlan] = []

    def inputs(self, stores: Sequence[Store]) -> tuple[Store, ...]:
        written = {s.buffer for s in stores}
        known: dict[Node, Node] = {}
        for n in _unmasked(roots(stores)):
            down = self.down(n.index)
            if down is not None and n.buffer not in written:
                name, at = self.temp(n)
                known[n] = load(n.dtype, name, at)
                self.before.append(self.turn(Store(name, at, n), down))
        return replaced(stores, known)

    def outputs(self, stores: Sequence[Store]) -> tuple[Store, ...]:
        read = loaded(roots(stores))
        found: list[Store] = []
        for s in stores:
            down = self.down(s.index)
            plain = s.mode == "set" and s.mask is None and not s.indirect and s.buffer not in read
            if down is None or not plain or not over_all(s, self.plan.reduced):
                found.append(s)
                continue
            name, at = self.temp(s)
            found.append(Store(name, at, s.value))
            back = load(s.value.dtype, name, at)
            self.behind.append(self.turn(replace(s, value=back), down))
        return tuple(found)

    def down(self, index: Expr) -> Expr | None:
        """The dim whose neighbours an access has side by side, where the lane's are far apart."""
        step = coefficient(index, self.lane)
        if step is None or step.is_const and abs(int_value(step)) <= NEAR:
            return None
        beside = (v for v in self.others if coefficient(index, v) is const(1) and _long(v))
        return next(beside, None)

    def temp(self, of: Load | Store) -> tuple[str, Expr]:
        """Memory for an operand along the lane, by name and index."""
        dims = tuple(v for v in (*self.others, self.lane) if v in of.index.free)
        dtype = of.dtype if isinstance(of, Load) else of.value.dtype
        self.temps.append(
            Temporary(f"m{len(self.temps)}_", dtype, product(extent(v) for v in dims))
        )
        return self.temps[-1].name, linear(dims)

    def turn(self, s: Store, down: Expr) -> KernelPlan:
        across = (down, self.lane)
        loops = (*(v for v in self.others if v in s.index.free and v is not down), *across)
        points = tuple(Dim(v, "p") for v in loops)
        return replace(phase(self.plan, self.temps, points, (s,), self.lane), tile=down)


def _long(v: Expr) -> bool:
    return size_hint(extent(v)) >= FULL_VECTOR


def _unmasked(nodes: tuple[Node, ...]) -> Iterator[Load]:
    """The loads that every point may make."""
    inside = [n.args[1] for n in walk(nodes) if isinstance(n, Masked)]
    held = set(walk(inside))
    return (n for n in walk(nodes) if isinstance(n, Load) and not n.indirect and n not in held)
