"""Loop trees of attention: its skeleton, into which the body of scores is placed."""

from __future__ import annotations

from litz.index import const, divides, product, symbol
from litz.ir import attention
from litz.ir.body import Reduce, Rewriter, load, walk
from litz.ir.dtype import F32
from litz.ir.reductions import reduction
from litz.kernel.lanes.attention import padded
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.blocks import BlockBuilder
from litz.targets.cpp.scope import Scope
from litz.targets.cpp.tree import Line, Ref

SCORES = "scores_"  # no buffer of a plan is called so


class AttentionBuilder(BlockBuilder):
    """Fills the tree of a plan whose stores are attention's."""

    def __init__(self, made: LanePlan, name: str) -> None:
        self.parts = p = attention.parts(made.plan.stores, made.plan.parallel)
        super().__init__(made, name, p.rows, p.keys)
        self.inner, self.columns = (padded(v, self.lanes) for v in (p.inner, p.columns))
        self.shared = tuple(v for v in made.space.serial if v is not p.columns)
        for v in self.shared:  # heads, one behind the other
            self.row = self.row + v * symbol("rows_")
        self.heads = int_value(product(extent(v) for v in self.shared))
        rows = self.most_rows * self.heads
        tail = -(-rows // self.lanes) * self.lanes
        self.arrays(
            {
                "query_": rows * self.inner,
                "key_": self.most * int_value(extent(p.inner)) * (p.key in made.kept),
                "value_": self.most * self.columns * (p.value in made.kept),
                SCORES: rows * self.most,
                "out_": tail * self.columns,
                **dict.fromkeys(("top_", "total_", "scale_"), tail),
            }
        )

    def block(self, scope: Scope) -> None:
        p, put = self.parts, scope.body
        put.append(Line(f"const int64_t all_ = {self.heads} * rows_;"))
        to = f"query_ + {self.spell.index((self.row - p.rows + self.row0) * self.inner)}"
        query = *self.place_of(p.query, p.rows, p.inner), to, "rows_", extent(p.inner), self.inner
        put += self.over_heads([self.call("rows", *query)])
        put.append(self.call("start", "top_", "total_", "out_", "all_", self.columns))
        self.everything(scope)
        self.results(scope)

    def step(self, scope: Scope, *, masked: bool) -> None:
        scope.body += self.products()
        self.modify(scope, masked=masked)
        scores = SCORES, self.most, "scale_", "top_", "total_", "all_", "keys_"
        scope.body += [self.call("weights", *scores), *self.values()]

    def products(self) -> list[Line]:
        """Queries times keys."""
        p, size = self.parts, extent(self.parts.inner)
        key = self.place_of(p.key, p.keys, p.inner)
        if p.key in self.made.kept:
            return self.product("query_", key, size, self.inner, SCORES, "all_")
        scores = SCORES, self.most, "all_", "keys_"
        return [self.call("dots", "query_", self.inner, *key[:2], *scores, size)]

    def values(self) -> list[Line]:
        """Weights times values, added to the results."""
        p, lines = self.parts, list[Line]()
        value, step, stride = self.place_of(p.value, p.keys, p.columns)
        if p.value in self.made.kept:
            copy = "value_", "keys_", extent(p.columns), self.columns
            lines.append(self.call("rows", value, step, stride, *copy))
            value, step = "value_", str(self.columns)
        return [*lines, *self.update(SCORES, value, step, "out_", self.columns, "all_")]

    def modify(self, scope: Scope, *, masked: bool) -> None:
        """The body of a block's scores, and the largest of every row."""
        p = self.parts
        at = self.row * self.most + p.keys - self.over0
        raw = load(F32, SCORES, at)
        score = p.score if masked else attention.unmasked(p.score)
        score = Rewriter(replace=lambda _, n: raw if n is p.dot else n)(score)
        self.analyse([score])
        row = self.row_scope(scope)
        lanes = Scope(row, [], p.keys)
        self.place(raw, lanes)  # before masks: all of them are there
        value = self.place(score, lanes)
        top = tree.Acc(self.name("a"), reduction("max"), F32, vec=True, folded=True)
        lanes.body += [
            tree.Keep(SCORES, value, f"{SCORES} + ({self.spell.index(at)})"),
            tree.Update(top, value),
        ]
        found, between = self.name(), self.between
        exact = divides(self.lanes, extent(p.keys))
        row.body += [
            tree.Clear(top),
            tree.Lanes(p.keys, extent(p.keys), lanes.body, exact=exact, between=between),
            tree.Finish(found, top, F32, "value"),
            Line(f"scale_[{self.spell.index(self.row)}] = {found};"),
        ]
        scope.body += self.over_rows(row)

    def results(self, scope: Scope) -> None:
        """The stores, from what the loop has left of their reductions."""
        p = self.parts
        row = self.row_scope(scope)
        lanes = Scope(row, [], p.columns)
        at = self.spell.index(self.row)
        for n in walk(s.value for s in (p.out, p.lse, p.top) if s is not None):
            if isinstance(n, Reduce) and p.keys in n.axes:
                if n.kind == "max":
                    row.env[n] = Ref(f"top_[{at}]", F32)
                elif p.columns not in n.vars:
                    row.env[n] = Ref(f"total_[{at}]", F32)
                else:
                    part = self.spell.index(self.row * self.columns + p.columns)
                    lanes.env[n] = Ref(f"litz::load<{self.lanes}>(out_ + ({part}))", F32, True)
        lanes.body.append(self.put(p.out, lanes))
        row.body += [self.put(s, row) for s in (p.lse, p.top) if s is not None]
        exact = extent(p.columns) is const(self.columns)
        row.body.append(tree.Lanes(p.columns, extent(p.columns), lanes.body, exact=exact))
        scope.body += self.over_rows(row)
