"""Loop trees of templates that keep a block of rows and go over blocks of what it meets.

A unit is a block of rows of one head.  It goes over blocks of the other side, those alone that the
mask's blocks name, and has its bodies once more without their mask for those in which nothing is
masked.  What runs over a block as a whole are functions of the header.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial

from litz.index import Expr, coefficient, const, min_, substitute, symbol
from litz.ir.attention import visit_of
from litz.ir.body import Load, Node, Store
from litz.ir.dtype import F32
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Nest, Placer, Scope
from litz.targets.cpp.tree import Kernel, Line, Stmt
from litz.targets.cpp.values import Speller


class BlockBuilder(Placer):
    """What builders of such trees share.

    rows, over: the variables that count the block that stays, and the one that moves; most_rows,
    most: their sizes.  row: the place in a block's arrays.  shared: dims of heads that lie in one
    block.  alone: those that one thread goes over, block by block.
    """

    def __init__(self, made: LanePlan, name: str, rows: Expr, over: Expr) -> None:
        plan, space = made.plan, made.space
        super().__init__(name, space.lane, made.lanes, plan.stores)
        self.made, self.rows, self.over_dim = made, rows, over
        self.most_rows, self.most = made.block
        self.spell = Speller(self.lanes)
        self.row0, self.over0 = symbol(f"{rows}_lo"), symbol(f"{over}_b")
        self.row = rows - self.row0
        self.shared: tuple[Expr, ...] = ()
        self.alone: tuple[Expr, ...] = ()
        self.kernel = Kernel(
            plan, name, self.lanes, space.lane, space.units, work=made.work, checks=self.checks,
            grains={rows: self.most_rows} if rows in space.units else {},
        )  # fmt: skip

    @abstractmethod
    def block(self, scope: Scope) -> None:
        """A block of rows."""

    @abstractmethod
    def step(self, scope: Scope, *, masked: bool) -> None:
        """What it does with ``keys_`` of the other side."""

    def arrays(self, sizes: Mapping[str, int]) -> None:
        self.kernel.arrays = [tree.Array(n, F32, size) for n, size in sizes.items() if size]

    def build(self) -> Kernel:
        nest = Nest(self.kernel.body)
        for v in (*self.made.space.units, *self.alone):
            loop = partial(tree.For, v, extent(v), part=v not in self.alone)
            if v is self.rows and v in self.alone:
                step = self.most_rows
                loop = partial(tree.For, self.row0, extent(v), start=const(0), step=step)
            nest.enter(loop, None if v is self.rows else v)
        rows = self.count("rows_", extent(self.rows) - self.row0, self.most_rows)
        nest.scope.body.append(rows)
        self.block(nest.scope)
        nest.close()
        return self.kernel

    def everything(self, scope: Scope) -> None:
        """All loops: over what is visited, or over all there is."""
        skeleton = self.made.plan.skeleton
        assert skeleton is not None
        if not skeleton.slots:
            self.over(const(0), extent(self.over_dim), scope, masked=True)
        for i in range(0, len(skeleton.slots), 2):
            self.visits(skeleton.slots[i : i + 2], skeleton.sizes[1], scope, masked=i == 0)

    def visits(self, slots: tuple[Node, ...], size: int, scope: Scope, *, masked: bool) -> None:
        """The loop over the blocks that one slot counts and another one names."""
        count, which = slots
        assert isinstance(count, Load) and isinstance(which, Load)
        names = {str(self.rows): str(self.row0)}
        number, start = self.name("visits"), symbol(self.name("start"))
        at = self.spell.index(count.index, names)
        scope.body.append(Line(f"const int64_t {number} = {count.buffer}[{at}];"))
        visit = visit_of(count, which)
        assert visit is not None
        inner = Scope(scope, [])
        at = self.spell.index(which.index, names)
        inner.body.append(Line(f"const int64_t {start} = {size} * int64_t({which.buffer}[{at}]);"))
        self.over(start, min_(start + size, extent(self.over_dim)), inner, masked=masked)
        scope.body.append(tree.For(visit, symbol(number), inner.body))

    def over(self, start: Expr, stop: Expr, scope: Scope, *, masked: bool) -> None:
        """The loop over blocks of the other side from ``start`` to ``stop``."""
        inner = Scope(scope, [])
        inner.body.append(self.count("keys_", stop - self.over0, self.most))
        inner.body.append(Line(f"const int64_t {self.over_dim}_e = {self.over0} + keys_;"))
        self.step(inner, masked=masked)
        scope.body.append(tree.For(self.over0, stop, inner.body, start, self.most))

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def between(self) -> tuple[str, str]:
        """The bounds of a block of the other side."""
        return str(self.over0), f"{self.over_dim}_e"

    def put(self, s: Store, scope: Scope) -> tree.Put:
        return tree.Put(s, self.place(s.value, scope))

    def row_scope(self, scope: Scope) -> Scope:
        for v in (*self.shared, self.rows):
            scope = Scope(scope, [], v)
        return scope

    def over_rows(self, row: Scope) -> list[Stmt]:
        """The loop over a block's rows; what is the same in all rows of a head goes before."""
        loop = tree.For(self.rows, self.row0 + symbol("rows_"), row.body, self.row0)
        before = row.parent.body if self.shared and row.parent is not None else []
        return self.over_heads([*before, loop])

    def over_heads(self, body: list[Stmt]) -> list[Stmt]:
        return [tree.For(v, extent(v), body) for v in self.shared] or body

    def count(self, name: str, left: Expr, most: int) -> Line:
        return Line(f"const int64_t {name} = {self.spell.index(min_(left, const(most)))};")

    def call(self, name: str, *args: object, tile: int = 0) -> Line:
        """A call of one of the header's functions; tile: of so many vectors."""
        sizes = f"{self.lanes}, {self.made.tile[0]}, {tile}" if tile else str(self.lanes)
        texts = (self.spell.index(a) if isinstance(a, Expr) else str(a) for a in args)
        return Line(f"litz::block_{name}<{sizes}>({', '.join(texts)});")

    def place_of(self, n: Load, along: Expr, within: Expr) -> tuple[str, str, str]:
        """Where a block of an operand begins, its step from row to row, and that within a row."""
        first = self.row0 if along is self.rows else self.over0
        start = self.spell.index(substitute(n.index, {within: const(0), along: first}))
        step, stride = (coefficient(n.index, v) for v in (along, within))
        assert step is not None and stride is not None
        return f"{n.buffer} + ({start})", self.spell.index(step), self.spell.index(stride)

    def product(
        self, left: str, right: tuple[str, str, str], size: Expr, width: int, to: str, rows: str
    ) -> list[Line]:
        """A block's rows of ``size`` elements times those of the other side, which are turned."""
        at, step, stride = right
        vectors = min(self.made.tile[1], self.most // self.lanes)
        whole = f"litz::ceil_div(keys_, {vectors * self.lanes}) * {vectors * self.lanes}"
        scores = to, self.most, rows, whole
        return [
            self.call("turned", at, step, stride, "key_", "keys_", size, self.most),
            self.call("product", left, width, "key_", self.most, *scores, size, tile=vectors),
        ]

    def update(
        self, weights: str, value: str, step: str, to: str, width: int, rows: str
    ) -> list[Line]:
        """A block's weights times what they weigh, added to ``to``: wide tiles, and the rest."""
        lines, at, left = [], 0, width // self.lanes
        while left:
            vectors = min(self.made.tile[1], left)
            size = left // vectors * vectors * self.lanes
            out = f"{to} + {at}", width, "scale_", rows, size, "keys_"
            args = weights, self.most, f"{value} + {at}", step, *out
            lines.append(self.call("update", *args, tile=vectors))
            at, left = at + size, left % vectors
        return lines
