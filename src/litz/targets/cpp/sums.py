"""Loop trees for updates at places that data picks (``litz.kernel.lanes.updates``).

Within rows: a row is in memory of the thread from what is there first to when it is stored.  Of
rows: a list says which updates each has, as they come; they are added up in registers, a part of
the row at a time, and what comes of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from litz.index import Expr, const, product, render, symbol, var
from litz.ir.body import Store
from litz.ir.dtype import I32
from litz.kernel.lanes import updates
from litz.kernel.nodes import extent, roots
from litz.targets.cpp import tree
from litz.targets.cpp.loops import TreeBuilder
from litz.targets.cpp.rows import asks
from litz.targets.cpp.scope import Nest, Scope
from litz.targets.cpp.tree import Kernel, Ref
from litz.targets.cpp.values import DIALECT


class RoomBuilder(TreeBuilder):
    """Fills the tree of a kernel that has room for a row."""

    def build(self) -> Kernel:
        p = updates.parts(self.made.plan)
        assert p is not None
        room, k = updates.room(self.made.plan, p), self.kernel
        kinds = {updates.ROOM: p.whole.dtype, updates.VALUES: p.value.dtype, updates.PLACES: I32}
        sizes = extent(p.place) + 1, const(updates.BLOCK), const(updates.BLOCK)
        k.arrays += [tree.Array(*kind, n) for kind, n in zip(kinds.items(), sizes, strict=True)]
        nest = Nest(k.body)
        for v in self.space.units:
            nest.enter(partial(tree.For, v, extent(v), part=True), v)
        self.along((room.first,), nest.scope)
        self.updates(room, p.mode, nest.scope)
        self.lane, self.streamed = p.place, {room.last[i] for i in self.made.streamed}
        self.head = next((room.last[i] for i in self.made.heads), None)
        self.along(room.last, nest.scope)
        nest.close()
        return k

    def along(self, stores: tuple[Store, ...], scope: Scope) -> None:
        """A loop along the row."""
        assert self.lane is not None
        self.stores = stores
        self.analyse(roots(stores))
        levels, _ = self.open_levels([self.lane], scope)
        inner = levels[-1].scope
        inner.body.extend(self.puts(stores, inner))
        self.close(levels)

    def updates(self, room: updates.Room, mode: str, scope: Scope) -> None:
        """Blocks of values and places, in vectors, and what they change, one by one."""
        *outer, lane = room.over
        self.lane = lane
        self.analyse([room.number, room.value])
        levels, _ = self.open_levels(outer, scope)
        home = levels[-1].scope if levels else scope
        inner = Scope(home, [], lane)
        inner.body.extend([asks(self, f, inner) for f in self.made.fetches])
        kept = {updates.VALUES: room.value, updates.PLACES: room.number}
        inner.body.extend([tree.Keep(name, self.place(n, inner)) for name, n in kept.items()])
        ends = f"{lane}_b", f"{lane}_e"
        each = f"litz::update_each<litz::update::{mode}>"
        body: list[tree.Stmt] = [
            tree.Lanes(lane, extent(lane), inner.body, exact=self.exact(lane), between=ends),
            tree.Line(f"{each}({', '.join((updates.ROOM, *kept))}, {ends[1]} - {ends[0]});"),
        ]
        home.body.append(tree.Blocks(lane, extent(lane), body, updates.BLOCK))
        self.close(levels)


class SumBuilder(TreeBuilder):
    """Fills the tree of a kernel of sorted updates."""

    def build(self) -> Kernel:
        p, k = updates.parts(self.made.plan), self.kernel
        assert p is not None
        self.of, over = p, self.space.reduced
        rows, nest = render(extent(p.place), DIALECT), Nest(k.body)
        lists = f"{updates.FROM}, {updates.ORDER}"
        count = render(product(map(extent, over)), DIALECT)
        k.before = f"litz::sort_places({updates.PLACES}, {count}, {rows}, {lists});"
        if k.units:
            nest.enter(partial(tree.Range, p.lane, extent(p.lane)))
            nest.enter(partial(tree.For, p.place, extent(p.place)), p.place)
        else:  # of rows and updates, each thread has as many
            k.units = (var("unit_of_", extent(p.place) + product(map(extent, over))),)
            nest.scope.body += [
                tree.Line(f"const int64_t row_lo = litz::row_of({updates.FROM}, {rows}, unit_);"),
                tree.Line(f"const int64_t row_hi = litz::row_of({updates.FROM}, {rows}, units_);"),
            ]
            ends = symbol("row_lo"), symbol("row_hi")
            nest.enter(lambda body: tree.For(p.place, ends[1], body, ends[0]), p.place)
        at = f"{updates.FROM}[{p.place}"
        nest.scope.body.append(tree.Line(f"const int64_t first_ = {at}], last_ = {at} + 1];"))
        nest.scope.body.append(self.sums(nest.scope, over))
        nest.close()
        return k

    def sums(self, scope: Scope, over: Sequence[Expr]) -> tree.Sums:
        p = self.of
        start, last = (Scope(scope, [], p.lane) for _ in range(2))
        once = scope
        for v in over:
            once = Scope(once, once.body if once is not scope else [], v)
        number = updates.picked(p)
        once.env[number] = Ref(str(p.place), number.dtype)
        inner = Scope(once, [], p.lane)
        last.env[p.whole] = Ref("sum_", p.whole.dtype, True)
        first, value = self.place(p.first, start), self.place(p.value, inner)
        last.body.extend(self.puts(self.stores, last))
        (count,) = self.made.block
        between = (f"{p.lane}_lo", f"{p.lane}_hi") if p.lane in self.kernel.units else None
        return tree.Sums(
            p.lane, extent(p.lane), tuple(over), updates.ORDER, start.body, first, once.body,
            inner.body, value, last.body, p.mode, count, updates.ahead(p), between,
        )  # fmt: skip
