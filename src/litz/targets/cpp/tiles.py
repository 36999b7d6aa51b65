"""Loop trees over tiles: kernels that read or write some buffers along another dim than the lane.

A tile is a square of lanes by rows, as many of each as a vector has lanes.  What is contiguous
along the rows is read (or written) as vectors in that direction and transposed in registers, so
that every access is contiguous.  Tiles are visited in blocks, whose lines stay in the cache until
all of each line is used.
"""

from __future__ import annotations

from functools import partial

from litz.index import Expr, coefficient, const
from litz.ir.body import Load, Node, walk
from litz.ir.dtype import DType
from litz.kernel.lanes.access import begins_at, move, turned
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent, goes_along, roots
from litz.targets.cpp import tree
from litz.targets.cpp.loops import TreeBuilder
from litz.targets.cpp.scope import Nest, Scope
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
        self.loads = frozenset(made.turned)
        exact = self.exact(self.across) and self.exact(self.down)
        # What is read down the rows then comes as it lies, and lines that are written need no care.
        first = bool(made.streamed)
        self.tiles = tree.Tiles(self.down, self.across, [], [], exact=exact, down_first=first)
        self.tiles.move = None if made.whole else move(self.stores, self.down, self.across)
        if made.whole:
            store = self.stores[made.streamed[0]]
            line = LINE // store.value.dtype.bytes
            self.tiles.line = 0 if begins_at(store.index, self.across, line) else line
            nodes = (*made.turned, *(self.stores[i].value for i in made.streamed))
            pad = LINE // min(n.dtype.bytes for n in nodes)  # rows that collide in no cache
            self.tiles.pitch = self.kernel.grains[self.across] + pad
            self.kernel.units = (*others, self.across, self.down)
            read = (n for n in walk(roots(self.stores)) if isinstance(n, Load))
            rows = ((n, coefficient(n.index, self.down)) for n in read)
            self.tiles.asks = [
                tree.Turn("", n.buffer, n.index, row)
                for n, row in rows
                if row is not None and row is not const(0) and goes_along(n, self.across)
            ]

    def parallel_loops(self, nest: Nest) -> None:
        for v in (*self.kernel.units, *self.space.serial):
            loop = partial(tree.For, v, extent(v), part=v in self.kernel.units)
            nest.enter(loop, None if v in self.kernel.grains else v)
        nest.close_with(self.tiles)
        rows = Scope(nest.scope, self.tiles.rows, self.down)
        nest.scope = Scope(rows, self.tiles.body, self.across)

    def tile(self, dtype: DType) -> str:
        name, size = self.name("m"), self.lanes * self.lanes
        if self.tiles.pitch:
            size = self.kernel.grains[self.down] * self.tiles.pitch
        self.kernel.arrays.append(tree.Array(name, dtype, size))
        return name

    def row(self, name: str) -> str:
        return f"{name} + ({self.down} - {self.down}_t) * {self.lanes}"

    def early(self, n: Node, scope: Scope) -> bool:
        """Loads that run down the rows come from a transposed tile."""
        if n not in self.loads or scope.guard is not None:
            return False
        assert isinstance(n, Load)
        name = self.tile(n.dtype)
        self.tiles.loads.append(self.turn(name, n.buffer, n.index))
        lanes = scope.at(scope.binds(self.across) or 0)
        text = f"litz::load<{self.lanes}>({self.row(name)})"
        if self.tiles.pitch:
            row, lane = (f"({v} - {v}_lo)" for v in (self.down, self.across))
            at = f"{name} + {row} * {self.tiles.pitch} + {lane}"
            text = self.name("t")
            lanes.body.append(tree.Take(text, at))
        lanes.env[n] = Ref(text, n.dtype, True)
        return True

    def point(self, scope: Scope) -> None:
        if self.tiles.move is not None and self.tiles.exact:
            return
        puts = [self.put(s, scope) for s in self.stores]
        for i, p in enumerate(puts):
            scope.body.append(self.turned_put(p) if i in self.made.turned_stores else p)

    def turned_put(self, p: tree.Put) -> Stmt:
        name = self.tile(p.value.dtype)
        self.tiles.stores.append(self.turn(name, p.store.buffer, p.store.index))
        return tree.Keep(name, p.value, self.row(name))

    def turn(self, array: str, buffer: str, index: Expr) -> tree.Turn:
        stride = turned(index, self.down, self.across)
        assert stride is not None
        return tree.Turn(array, buffer, index, stride)
