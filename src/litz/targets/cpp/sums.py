"""Loop trees for updates of rows that data picks, in the order of these rows.

A list says which updates a row has, as they come: they are added up in registers, a part of the row
at a time, and written once.  What the buffer held is never read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from litz.index import Expr, const, render, symbol, var
from litz.kernel.lanes import filled
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.loops import TreeBuilder
from litz.targets.cpp.scope import Nest, Scope
from litz.targets.cpp.tree import Kernel, Ref
from litz.targets.cpp.values import DIALECT


class SumBuilder(TreeBuilder):
    """Fills one kernel's tree."""

    def __init__(self, made: LanePlan, name: str) -> None:
        super().__init__(made, name)
        rows = filled.rows_of(made.plan)
        assert rows is not None
        self.of = rows

    def build(self) -> Kernel:
        r, k = self.of, self.kernel
        row = var("row_", r.rows)
        nest = Nest(k.body)
        count = render(extent(r.over), DIALECT)
        lists = f"{filled.FROM}, {filled.ORDER}"
        k.before = f"litz::sort_places({filled.PLACES}, {count}, {r.rows}, {lists});"
        if k.units:
            nest.enter(partial(tree.Range, r.lane, extent(r.lane)))
            nest.enter(partial(tree.For, row, const(r.rows)), row)
        else:  # of rows and updates, each thread has as many
            k.units = (var("unit_of_", const(r.rows) + extent(r.over)),)
            nest.scope.body += [
                tree.Line(f"const int64_t row_lo = litz::row_of({filled.FROM}, {r.rows}, unit_);"),
                tree.Line(f"const int64_t row_hi = litz::row_of({filled.FROM}, {r.rows}, units_);"),
            ]
            ends = symbol("row_lo"), symbol("row_hi")
            nest.enter(lambda body: tree.For(row, ends[1], body, ends[0]), row)
        at = f"{filled.FROM}[row_"
        nest.scope.body.append(tree.Line(f"const int64_t first_ = {at}], last_ = {at} + 1];"))
        nest.scope.body.append(self.sums(nest.scope, row * extent(r.lane) + r.lane))
        nest.close()
        return k

    def sums(self, scope: Scope, place: Expr) -> tree.Sums:
        r = self.of
        once = Scope(scope, [], r.over)
        once.env[r.number] = Ref("row_", r.number.dtype)
        inner = Scope(once, [], r.lane)
        value = self.place(r.store.value, inner)
        (count,) = self.made.block
        store = replace(r.store, index=place, indirect=(), mask=None)
        stream = bool(self.made.streamed)
        put = tree.Put(store, Ref("sum_", r.store.value.dtype, True), stream=stream)
        between = (f"{r.lane}_lo", f"{r.lane}_hi") if r.lane in self.kernel.units else None
        return tree.Sums(
            r.lane, extent(r.lane), r.over, filled.ORDER, once.body, inner.body, value, put, count,
            filled.ahead(r), between,
        )  # fmt: skip
