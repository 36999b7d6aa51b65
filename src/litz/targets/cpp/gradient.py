"""Loop trees of attention's gradients: weights and slopes, computed anew, times what they meet."""

from __future__ import annotations

from dataclasses import replace

from litz.index import const, divides
from litz.ir import attention
from litz.ir.attention import unmasked
from litz.ir.body import Node, Reduce, Rewriter, Store, cast, load, walk
from litz.ir.dtype import F32
from litz.ir.reductions import reduction
from litz.kernel.lanes.attention import padded
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.blocks import BlockBuilder
from litz.targets.cpp.scope import Scope
from litz.targets.cpp.tree import Line, Ref, Stmt


class GradientBuilder(BlockBuilder):
    """Fills the tree of a plan whose stores are a gradient of attention."""

    def __init__(self, made: LanePlan, name: str) -> None:
        self.parts = p = attention.gradient_parts(made.plan.stores, made.plan.parallel)
        super().__init__(made, name, p.rows, p.over)
        columns = [s.column for s in p.sums]
        self.alone = tuple(v for v in made.space.serial if v not in columns)
        self.inner = [padded(x.inner, self.lanes) for x in p.products]
        self.columns = [padded(s.column, self.lanes) for s in p.sums]
        rows, turned = self.most_rows, max(int_value(extent(x.inner)) for x in p.products)
        count = max(len(p.products), len(p.sums))
        self.arrays(
            {
                **{f"left{k}_": rows * width for k, width in enumerate(self.inner)},
                "key_": self.most * turned,
                "value_": self.most * max(self.columns),
                **{f"tile{k}_": rows * self.most for k in range(count)},
                **{f"out{k}_": rows * width for k, width in enumerate(self.columns)},
                "scale_": rows,
            }
        )

    def block(self, scope: Scope) -> None:
        p, put = self.parts, scope.body
        for k, x in enumerate(p.products):
            left = self.place_of(x.left, p.rows, x.inner)
            put.append(
                self.call("rows", *left, f"left{k}_", "rows_", extent(x.inner), self.inner[k])
            )
        put += [self.fill("scale_", "rows_", "1.0f")]
        put += [self.fill(f"out{k}_", f"rows_ * {n}", "0.0f") for k, n in enumerate(self.columns)]
        if p.heads is None:
            self.everything(scope)
        else:
            inner = Scope(scope, [], p.heads)
            self.everything(inner)
            put.append(tree.For(p.heads, extent(p.heads), inner.body))
        self.results(scope)

    def step(self, scope: Scope, *, masked: bool) -> None:
        p = self.parts
        for k, x in enumerate(p.products):
            right = self.place_of(x.right, p.over, x.inner)
            left = f"left{k}_", self.inner[k]
            scope.body += self.product(
                left[0], right, extent(x.inner), left[1], f"tile{k}_", "rows_"
            )
        self.tiles(scope, masked=masked)
        for k, s in enumerate(p.sums):
            operand = *self.place_of(s.operand, p.over, s.column), "value_", "keys_"
            width = self.columns[k]
            scope.body.append(self.call("rows", *operand, extent(s.column), width))
            args = "value_", str(width), f"out{k}_", width, "rows_"
            scope.body += self.update(f"tile{k}_", *args)

    def tiles(self, scope: Scope, *, masked: bool) -> None:
        """What each sum has of a block, in place of the products that it is computed from.

        And what each score adds to memory; where it goes to one place, that of a row together.
        """
        p, at = self.parts, self.row * self.most + self.parts.over - self.over0
        known: dict[Node, Node] = {
            x.node: load(F32, f"tile{k}_", at) for k, x in enumerate(p.products)
        }
        with_products = Rewriter(memo=dict(known))
        tiles = [cast(s.tile if masked else unmasked(s.tile), F32) for s in p.sums]
        found = [with_products(n) for n in tiles]
        updates = [
            with_products.store(s if masked else replace(s, value=unmasked(s.value)))
            for s in p.updates
        ]
        self.analyse([*found, *(r for s in updates for r in s.roots())])
        row = self.row_scope(scope)
        lanes = Scope(row, [], p.over)
        for raw in known.values():
            self.place(raw, lanes)  # before masks: all of them are there
        values = [self.place(n, lanes) for n in found]
        added = [self.update_of(s, row, lanes) for s in updates]
        where = self.spell.index(at)
        lanes.body += [
            tree.Keep(f"tile{k}_", v, f"tile{k}_ + ({where})") for k, v in enumerate(values)
        ]
        exact = divides(self.lanes, extent(p.over))
        row.body.append(
            tree.Lanes(p.over, extent(p.over), lanes.body, exact=exact, between=self.between)
        )
        row.body += [stmt for some in added for stmt in some]
        scope.body += self.over_rows(row)

    def update_of(self, s: Store, row: Scope, lanes: Scope) -> list[Stmt]:
        """Adds to memory at each score; or in a row's end, by the statements that are returned."""
        value = self.place(s.value, lanes)
        if self.parts.over in s.index.free or any(self.parts.over in n.vars for _, n in s.indirect):
            places = tuple(self.place(n, lanes) for _, n in s.indirect)
            lanes.body.append(tree.Put(s, value, places))
            return []
        total = tree.Acc(self.name("a"), reduction("sum"), value.dtype, vec=True, folded=True)
        found = self.name()
        row.body.append(tree.Clear(total))
        lanes.body.append(tree.Update(total, value))
        places = tuple(self.place(n, row) for _, n in s.indirect)
        put = tree.Put(s, Ref(found, value.dtype), places)
        return [tree.Finish(found, total, value.dtype, "value"), put]

    def results(self, scope: Scope) -> None:
        row = self.row_scope(scope)
        for k, s in enumerate(self.parts.sums):
            lanes = Scope(row, [], s.column)
            part = self.spell.index(self.row * self.columns[k] + s.column)
            (found,) = (n for n in walk(s.store.roots()) if _is_sum(n, s.column))
            lanes.env[found] = Ref(f"litz::load<{self.lanes}>(out{k}_ + ({part}))", F32, True)
            lanes.body.append(self.put(s.store, lanes))
            exact = extent(s.column) is const(self.columns[k])
            row.body.append(tree.Lanes(s.column, extent(s.column), lanes.body, exact=exact))
        scope.body += self.over_rows(row)

    def fill(self, array: str, size: str, value: str) -> Line:
        return Line(f"for (int64_t i_ = 0; i_ < {size}; i_++) {array}[i_] = {value};")


def _is_sum(n: Node, column: object) -> bool:
    return isinstance(n, Reduce) and column in n.vars
