"""Loop trees of attention: the skeleton, into which the body of scores is placed as in any kernel.

A unit is a block of queries of one head.  It goes over blocks of keys, those alone that the mask's
blocks name, and has the body once more without its mask for those in which nothing is masked.  What
runs over a block as a whole are functions of the header.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.index import Expr, coefficient, const, divides, min_, product, substitute, symbol
from litz.ir import attention
from litz.ir.body import Load, Node, Reduce, Rewriter, Store, load, walk
from litz.ir.dtype import F32
from litz.ir.reductions import reduction
from litz.kernel.lanes.attention import padded
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope
from litz.targets.cpp.tree import Kernel, Line, Ref, Stmt
from litz.targets.cpp.values import Speller

SCORES = "scores_"  # no buffer of a plan is called so


class AttentionBuilder(Placer):
    """Fills the tree of a plan whose stores are attention's."""

    def __init__(self, made: LanePlan, name: str) -> None:
        plan, space = made.plan, made.space
        super().__init__(name, space.lane, made.lanes, plan.stores)
        self.made, self.parts = made, attention.parts(plan.stores, plan.parallel)
        p, (self.rows, self.keys), self.vectors = self.parts, made.block, made.tile[1]
        self.inner, self.columns = (padded(v, self.lanes) for v in (p.inner, p.columns))
        self.spell = Speller(self.lanes)
        self.row0, self.key0 = symbol(f"{p.rows}_lo"), symbol(f"{p.keys}_b")
        self.row = p.rows - self.row0
        self.shared = tuple(v for v in space.serial if v is not p.columns)
        for v in self.shared:  # heads, one behind the other
            self.row = self.row + v * symbol("rows_")
        self.heads = int_value(product(extent(v) for v in self.shared))
        self.kernel = Kernel(
            plan,
            name,
            self.lanes,
            space.lane,
            space.units,
            work=made.work,
            checks=self.checks,
            grains={p.rows: self.rows},
        )
        rows = self.rows * self.heads
        tail = -(-rows // self.lanes) * self.lanes
        sizes = {
            "query_": rows * self.inner,
            "key_": self.keys * int_value(extent(p.inner)) * (p.key in made.kept),
            "value_": self.keys * self.columns * (p.value in made.kept),
            SCORES: rows * self.keys,
            "out_": tail * self.columns,
            **dict.fromkeys(("top_", "total_", "scale_"), tail),
        }
        self.kernel.arrays = [tree.Array(n, F32, size) for n, size in sizes.items() if size]

    def build(self) -> Kernel:
        scope = Scope(None, self.kernel.body)
        chain = []
        for v in self.made.space.units:
            inner = Scope(scope, [], v if v is not self.parts.rows else None)
            chain.append((scope, tree.For(v, extent(v), inner.body, part=True)))
            scope = inner
        self.block(scope)
        for outer, stmt in reversed(chain):
            outer.body.append(stmt)
        return self.kernel

    def block(self, scope: Scope) -> None:
        """A block of queries."""
        p, put = self.parts, scope.body
        put.append(self.count("rows_", extent(p.rows) - self.row0, self.rows))
        put.append(Line(f"const int64_t all_ = {self.heads} * rows_;"))
        to = f"query_ + {self.spell.index((self.row - p.rows + self.row0) * self.inner)}"
        query = *self.place_of(p.query, p.rows), to, "rows_", extent(p.inner), self.inner
        put += self.over_heads([self.call("rows", *query)])
        put.append(self.call("start", "top_", "total_", "out_", "all_", self.columns))
        skeleton = self.made.plan.skeleton
        assert skeleton is not None
        if not skeleton.slots:
            self.over(p.score, const(0), extent(p.keys), scope)
        for i, score in zip(range(0, len(skeleton.slots), 2), (p.score, p.unmasked), strict=False):
            self.visits(score, skeleton.slots[i : i + 2], skeleton.sizes[1], scope)
        self.results(scope)

    def visits(self, score: Node, slots: tuple[Node, ...], size: int, scope: Scope) -> None:
        """The loop over the key blocks that one slot counts and another one names."""
        count, which = slots
        assert isinstance(count, Load) and isinstance(which, Load)
        names = {str(self.parts.rows): str(self.row0)}
        number, start = self.name("visits"), symbol(self.name("start"))
        at = self.spell.index(count.index, names)
        scope.body.append(Line(f"const int64_t {number} = {count.buffer}[{at}];"))
        visit = next(v for v in which.index.free if v not in count.index.free)
        inner = Scope(scope, [])
        at = self.spell.index(which.index, names)
        inner.body.append(Line(f"const int64_t {start} = {size} * int64_t({which.buffer}[{at}]);"))
        self.over(score, start, min_(start + size, extent(self.parts.keys)), inner)
        scope.body.append(tree.For(visit, symbol(number), inner.body))

    def over(self, score: Node, start: Expr, stop: Expr, scope: Scope) -> None:
        """The loop over blocks of keys from ``start`` to ``stop``."""
        inner = Scope(scope, [])
        put = inner.body
        put.append(self.count("keys_", stop - self.key0, self.keys))
        put.append(Line(f"const int64_t {self.parts.keys}_e = {self.key0} + keys_;"))
        put += self.products()
        self.modify(score, inner)
        scores = SCORES, self.keys, "scale_", "top_", "total_", "all_", "keys_"
        put += [self.call("weights", *scores), *self.values()]
        scope.body.append(tree.For(self.key0, stop, put, start, self.keys))

    def products(self) -> Iterator[Line]:
        """Queries times keys."""
        p, size = self.parts, extent(self.parts.inner)
        at, step, stride = self.place_of(p.key, p.keys)
        query, scores = ("query_", self.inner), (SCORES, self.keys, "all_")
        if p.key not in self.made.kept:
            yield self.call("dots", *query, at, step, *scores, "keys_", size)
            return
        yield self.call("turned", at, step, stride, "key_", "keys_", size, self.keys)
        vectors = min(self.vectors, self.keys // self.lanes)
        width = vectors * self.lanes
        whole = f"litz::ceil_div(keys_, {width}) * {width}"
        yield self.call("product", *query, "key_", self.keys, *scores, whole, size, tile=vectors)

    def values(self) -> Iterator[Line]:
        """Weights times values, added to the results."""
        p = self.parts
        value, step, stride = self.place_of(p.value, p.keys)
        if p.value in self.made.kept:
            copy = "value_", "keys_", extent(p.columns), self.columns
            yield self.call("rows", value, step, stride, *copy)
            value, step = "value_", str(self.columns)
        at, left = 0, self.columns // self.lanes
        while left:  # as many wide tiles as there are, and one for the rest
            vectors = min(self.vectors, left)
            size = left // vectors * vectors * self.lanes
            out = f"out_ + {at}", self.columns, "scale_", "all_", size, "keys_"
            args = SCORES, self.keys, f"{value} + {at}", step, *out
            yield self.call("update", *args, tile=vectors)
            at, left = at + size, left % vectors

    def modify(self, score: Node, scope: Scope) -> None:
        """The body of a block's scores, and the largest of every row."""
        p = self.parts
        at = self.row * self.keys + p.keys - self.key0
        raw = load(F32, SCORES, at)
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
        found, between = self.name(), (str(self.key0), f"{p.keys}_e")
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

    # --- pieces ---------------------------------------------------------------------------------

    def put(self, s: Store, scope: Scope) -> tree.Put:
        return tree.Put(s, self.place(s.value, scope))

    def row_scope(self, scope: Scope) -> Scope:
        for v in (*self.shared, self.parts.rows):
            scope = Scope(scope, [], v)
        return scope

    def over_rows(self, row: Scope) -> list[Stmt]:
        """The loop over a block's rows; what is the same in all rows of a head goes before."""
        loop = tree.For(self.parts.rows, self.row0 + symbol("rows_"), row.body, self.row0)
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

    def place_of(self, n: Load, along: Expr) -> tuple[str, str, str]:
        """Where a block of an operand begins, its step from row to row, and that within a row."""
        p = self.parts
        within = p.columns if n is p.value else p.inner
        first = self.row0 if along is p.rows else self.key0
        start = self.spell.index(substitute(n.index, {within: const(0), along: first}))
        step, stride = (coefficient(n.index, v) for v in (along, within))
        assert step is not None and stride is not None
        return f"{n.buffer} + ({start})", self.spell.index(step), self.spell.index(stride)
