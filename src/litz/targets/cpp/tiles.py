"""Loop trees over tiles: kernels that read or write some buffers along another dim than the lane.

A tile is a square of lanes by rows, as many of each as a vector has lanes.  What is contiguous
along the rows is read (or written) as vectors in that direction and transposed in registers, so
that every access is contiguous.  Tiles are visited in blocks, whose lines stay in the cache until
all of each line is used.
"""

from __future__ import annotations

from litz.index import Expr, coefficient
from litz.ir.body import Load, Node, Store
from litz.ir.dtype import DType
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.loops import TreeBuilder
from litz.targets.cpp.scope import Scope
from litz.targets.cpp.tree import Ref, Stmt


class TileBuilder(TreeBuilder):
    """Fills one kernel's tree, row by row of transposed tiles."""

    def __init__(self, made: LanePlan, name: str) -> None:
        super().__init__(made, name)
        space, tile = made.space, made.plan.tile
        assert space.lane is not None and tile is not None
        self.across: Expr = space.lane
        self.down: Expr = tile
        others = tuple(v for v in space.units if v is not self.across and v is not self.down)
        self.kernel.units = (*others, self.down, self.across)
        self.kernel.grains = dict(zip((self.down, self.across), made.block, strict=True))
        exact = self.exact(self.across) and self.exact(self.down)
        self.tiles = tree.Tiles(self.down, self.across, [], [], exact=exact)

    def turned(self, index: Expr) -> Expr | None:
        """The stride along the lanes of an access that is contiguous down the rows, else None."""
        if self.down not in index.free:
            return None
        step = coefficient(index, self.down)
        if step is None or not step.is_const or int(step) != 1:  # type: ignore[call-overload]
            return None
        stride = coefficient(index, self.across)
        if stride is None or (stride.is_const and int(stride) in (0, 1)):  # type: ignore[call-overload]
            return None
        return stride

    def parallel_loops(self) -> tuple[Scope, list[tuple[Scope, Stmt]]]:
        scope = Scope(None, self.kernel.body)
        chain: list[tuple[Scope, Stmt]] = []
        for v in self.kernel.units:
            blocked = v in self.kernel.grains
            inner = Scope(scope, [], None if blocked else v)
            chain.append((scope, tree.For(v, extent(v), inner.body, part=True)))
            scope = inner
        for v in self.space.serial:
            inner = Scope(scope, [], v)
            chain.append((scope, tree.For(v, extent(v), inner.body)))
            scope = inner
        chain.append((scope, self.tiles))
        rows = Scope(scope, self.tiles.rows, self.down)
        return Scope(rows, self.tiles.body, self.across), chain

    def tile(self, dtype: DType) -> str:
        name = self.name("m")
        self.kernel.arrays.append(tree.Array(name, dtype, self.lanes * self.lanes))
        return name

    def row(self, name: str) -> str:
        return f"{name} + ({self.down} - {self.down}_t) * {self.lanes}"

    def early(self, n: Node, scope: Scope) -> bool:
        """Loads that run down the rows come from a transposed tile."""
        if not isinstance(n, Load) or n.indirect or scope.guard is not None:
            return False
        stride = self.turned(n.index)
        if stride is None:
            return False
        name = self.tile(n.dtype)
        self.tiles.loads.append(tree.Turn(name, n.buffer, n.index, stride))
        lanes = scope.at(scope.binds(self.across) or 0)
        lanes.env[n] = Ref(f"litz::load<{self.lanes}>({self.row(name)})", n.dtype, True)
        return True

    def point(self, scope: Scope) -> None:
        puts = [self.put(s, scope) for s in self.stores]
        for p in puts:
            scope.body.append(self._turned_put(p.store, p) or p)

    def _turned_put(self, s: Store, p: tree.Put) -> Stmt | None:
        stride = None
        if s.mode == "set" and not s.indirect and s.mask is None:
            stride = self.turned(s.index)
        if stride is None:
            return None
        name = self.tile(p.value.dtype)
        self.tiles.stores.append(tree.Turn(name, s.buffer, s.index, stride))
        return tree.Keep(name, p.value, self.row(name))
