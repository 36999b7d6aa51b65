"""Loop trees for reductions whose lane dim is not reduced: sums of columns.

Walking down one vector's column at a time would touch a line of memory in every row.  Instead a
block of lanes is taken together: each row of the block is read in one go, and what belongs to a
lane across rows (accumulators, values that only depend on the lane) sits in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from litz.index import Expr, product, render
from litz.ir.body import Node, Op, Reduce, Scan, Store, walk
from litz.ir.dtype import F64, DType
from litz.ir.scans import carried
from litz.kernel.lanes.cuts import order
from litz.kernel.lanes.nests import needs, succeeding
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import below, extent, roots
from litz.kernel.phases import linear
from litz.targets.cpp import tree
from litz.targets.cpp.loops import Level, TreeBuilder
from litz.targets.cpp.rows import position
from litz.targets.cpp.scans import begins
from litz.targets.cpp.scope import Nest, Scope
from litz.targets.cpp.tree import Acc, Ref, Stmt
from litz.targets.cpp.values import DIALECT, converted, ctype

SOON = 1 << 9  # elements that come from memory while others are computed with


class ColumnBuilder(TreeBuilder):
    """Fills one kernel's tree, with accumulators in arrays over a block of lanes."""

    def __init__(self, made: LanePlan, name: str) -> None:
        super().__init__(made, name)
        assert made.space.lane is not None
        self.across: Expr = made.space.lane
        self.block_depth = 0
        self.preludes: dict[Scope, tree.Lanes] = {}
        (self.size,) = made.block
        self.chunk_ahead = 0
        computed = [needs(p, self.stores, made.reductions) for p in made.passes]
        self.places = succeeding(made.kept, computed)
        self.lane_values = set(made.kept)

    # --- loops ----------------------------------------------------------------------------------

    def lane_loop(self, nest: Nest, lane: Expr, ranged: bool) -> None:
        nest.enter(partial(tree.Blocks, lane, extent(lane), size=self.size, ranged=ranged))
        self.block_depth = nest.scope.depth

    def lanes_stmt(self, body: list[Stmt]) -> tree.Lanes:
        v = self.across
        between = (f"{v}_b", f"{v}_e")
        return tree.Lanes(v, extent(v), body, exact=self.exact(v), between=between)

    def array(self, dtype: DType) -> str:
        name = self.name("m")
        self.kernel.arrays.append(tree.Array(name, dtype, self.size))
        return name

    def fetch(self, array: str, dtype: DType, to: DType | None = None) -> Ref:
        text = f"litz::load<{self.lanes}>({array} + ({self.across} - {self.across}_b))"
        return Ref(converted(text, dtype, to or dtype), to or dtype, True)

    def row_array(self, n: Node) -> str:
        if n in self.places:
            return self.rows[self.places[n]][0]
        name = self.name("m")
        rows = product(extent(v) for v in self.space.reduced)
        self.kernel.arrays.append(tree.Array(name, n.dtype, rows * self.size))
        return name

    def place_in_row(self, name: str) -> str:
        at = linear(self.space.reduced) * self.size
        return f"{name} + ({render(at, DIALECT)} + {self.across} - {self.across}_b)"

    # --- values that outlive a loop over lanes ----------------------------------------------------

    def outer_depth(self, vars: tuple[Expr, ...], scope: Scope) -> int:
        own = [v for v in vars if v is not self.lane]
        return max(self.bound_depth(own, scope), self.block_depth)

    def ref(self, n: Node, scope: Scope) -> tuple[Ref, int]:
        ref, depth = super().ref(n, scope)
        if ref.vec:  # an array's element is only there in loops over lanes
            depth = max(depth, scope.binds(self.across) or 0)
        return ref, depth

    def early(self, n: Node, scope: Scope) -> bool:
        """Compute a lane's value once before the rows, if it is the same in all of them."""
        if super().early(n, scope):
            return True
        depth = scope.binds(self.across)
        if depth is None or n not in self.lane_values:
            return False
        if scope.guard is not None and self.reads[n]:
            return False
        outer = self.outer_depth(n.vars, scope)
        if outer >= depth - 1:
            return False
        self.keep(n, scope.at(outer))
        return True

    def keep(self, n: Node, home: Scope) -> Ref:
        """Compute ``n`` for the block's lanes at ``home``, into an array."""
        scope = Scope(home, [], self.across)
        value = self.place(n, scope)
        name = self.array(n.dtype)
        scope.body.append(tree.Keep(name, value))
        last = home.body[-1] if home.body else None
        known = self.preludes.get(home)
        if known is not None and last is known:
            known.body.extend(scope.body)
        else:
            stmt = self.lanes_stmt(scope.body)
            home.body.append(stmt)
            self.preludes[home] = stmt
        ref = self.fetch(name, n.dtype)
        home.env[n] = ref
        return ref

    # --- scans ------------------------------------------------------------------------------------

    def hold(
        self, n: Scan, outside: Scope, home: Scope, values: Sequence[Ref]
    ) -> tuple[tuple[Ref, ...], list[Stmt], list[Stmt]]:
        if home.binds(self.across) is None:
            return super().hold(n, outside, home, values)
        inner = Scope(outside, [], self.across)
        held, before, after = [], [], []
        first = begins(n, self, inner)
        for dtype, ref in zip(carried(n), first, strict=True):
            text = (
                ref.text if ref.vec else f"litz::Vec<{ctype(ref.dtype)}, {self.lanes}>({ref.text})"
            )
            text = converted(text, ref.dtype, dtype)
            name, own = self.array(dtype), Ref(self.name("c"), dtype, True)
            inner.body.append(tree.Keep(name, Ref(text, dtype, True)))
            held.append(own)
            before.append(tree.Hold(own, self.fetch(name, dtype)))
            after.append(tree.Keep(name, own))
        outside.body.append(self.lanes_stmt(inner.body))
        return tuple(held), [*before], [*after]

    # --- reductions -------------------------------------------------------------------------------

    def home_depth(self, n: Reduce, scope: Scope) -> int:
        depth = super().home_depth(n, scope) if self.lane not in n.vars else 0
        if self.lane in n.vars:
            inside = max((self.ranges[v].depth for v in n.axes if v in self.ranges), default=0)
            depth = max(self.outer_depth(n.vars, scope), inside)
        return depth

    def result(self, r: Reduce, acc: Acc, home: Scope) -> Ref:
        if acc.block is None:
            return super().result(r, acc, home)
        if r.gives.part == "m2":
            return self.fetch(f"{acc.name}q", F64, r.dtype)
        if r.row.counts:
            held = self.fetch(acc.name, F64).text
            mean = r.row.part("mean").cpp.format(held, f"{acc.name}_n")
            return Ref(f"litz::cast<{ctype(r.dtype)}>({mean})", r.dtype, True)
        name = f"{acc.name}i" if acc.position is not None else acc.name
        own = acc.dtype if acc.position is None else r.dtype
        ref = self.fetch(name, own, r.dtype)
        if own is r.dtype or len(self.made.passes) < 2:
            return ref
        scope = Scope(home, [], self.across)  # rows find it converted
        ref = self.kept(ref, scope)
        home.body.append(self.lanes_stmt(scope.body))
        return ref

    def reduce_loops(self, group: list[Reduce], home: Scope) -> list[Acc]:
        if self.lane not in group[0].vars or home.binds(self.across) is not None:
            return super().reduce_loops(group, home)
        axes = order(group[0], self.space.reduced)
        levels, chunk = self.open_levels(axes, home, self.limit(axes, group))
        rows = levels[-1].scope
        scope = Scope(rows, [], self.across)
        inner, outer = self.take(group, scope, chunk is not None, self.in_block)
        if home.guard is None:
            self.keep_values(scope, home)
            self.stores_along(group, scope)
        rows.body.append(self.lanes_stmt(scope.body))
        home.body.extend(tree.Clear(a) for a in outer)
        self.chunk_ahead = self.next_chunk(group, axes[0])
        self.close(levels, inner, outer, chunk, self.copies.get(group[0], 1))
        return outer

    def next_chunk(self, group: list[Reduce], v: Expr) -> int:
        """How many rows behind a chunk's the same rows of the next one are, which a pass fetches.

        The first pass waits for memory, and has the lines; later ones leave it idle.
        """
        later = any(n in self.beside for n in below([r.args[0] for r in group]))
        return self.ranges[v].most or 0 if later and v in self.ranges else 0

    def loop(self, level: Level, accs: Sequence[Acc], copies: int) -> Stmt:
        """Several rows at once where nothing but values of the rows comes before their lanes."""
        made = super().loop(level, accs, copies)
        if isinstance(made, tree.For) and isinstance(made.body[-1], tree.Lanes):
            if all(isinstance(s, tree.Let) for s in made.body[:-1]):
                made.together, made.ahead = copies, max(copies, SOON // self.size)
                if level.var in self.ranges:
                    made.ahead = self.chunk_ahead
        return made

    def in_block(self, r: Reduce, vec: bool, wide: DType | None) -> Acc:
        dtype = wide or r.args[0].dtype
        acc = Acc(self.array(dtype), r.row, dtype, vec=True, block=self.across)
        if r.row.positional:
            acc.position = position(r)
            self.kernel.arrays.append(tree.Array(f"{acc.name}i", r.dtype, self.size))
        return acc

    def moment_state(self, n: Reduce) -> Acc:
        acc = super().moment_state(n)
        if acc.vec:
            acc.name, acc.block = self.array(F64), self.across
            self.kernel.arrays.append(tree.Array(f"{acc.name}q", F64, self.size))
        return acc

    def take_moments(self, acc: Acc, mean: Node, m2: Node, terms: Expr, chunk: Scope) -> None:
        if acc.block is None:
            super().take_moments(acc, mean, m2, terms, chunk)
            return
        # What the deviations in all rows share: the chunk's mean.
        for r in (n for n in walk([mean, m2]) if isinstance(n, Reduce)):
            own = (n for n in below(r.args) if isinstance(n, Op) and self.across in n.vars)
            self.lane_values.update(n for n in own if r.axes[-1] not in n.vars)
        scope = Scope(chunk, [], self.across)
        super().take_moments(acc, mean, m2, terms, scope)
        chunk.body.append(self.lanes_stmt(scope.body))
        chunk.body.append(tree.Counted(acc, terms))

    # --- stores -----------------------------------------------------------------------------------

    def point(self, scope: Scope) -> None:
        self.reduce_first(roots(self.stores), scope)
        late = self.flat(self.flat_stores(), scope, self.made.late)
        for _, dims, stores in self.last_passes():
            levels, _ = self.open_levels(dims, scope)
            rows = levels[-1].scope
            inner = Scope(rows, [], self.across)
            inner.body.extend([self.put(s, inner) for s in stores])
            rows.body.append(self.lanes_stmt(inner.body))
            self.close(levels)
        if late:
            scope.body.append(self.lanes_stmt(late))

    def flat(self, stores: list[Store], scope: Scope, late: bool) -> list[Stmt]:
        """Compute what is stored once a lane, and store it now or return the late stores."""
        if not stores:
            return []
        inner = Scope(scope, [], self.across)
        puts: list[Stmt] = []
        for put in [self.put(s, inner) for s in stores]:
            if late:
                put.value = self.kept(put.value, inner)
                put.indirect = tuple(self.kept(r, inner) for r in put.indirect)
                put.mask = None if put.mask is None else self.kept(put.mask, inner)
            puts.append(put)
        if not late:
            inner.body.extend(puts)
        scope.body.append(self.lanes_stmt(inner.body))
        return puts if late else []

    def kept(self, r: Ref, scope: Scope) -> Ref:
        """A value of the loop over lanes, as later loops find it."""
        if not r.vec:
            return r
        name = self.array(r.dtype)
        scope.body.append(tree.Keep(name, r))
        return self.fetch(name, r.dtype)
