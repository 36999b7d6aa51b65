"""Loop trees of attention: the skeleton, into which the body of scores is placed as in any kernel.

A unit is a block of queries of one head.  It goes over blocks of keys, those alone that the mask's
blocks name, and has the body once more without its mask for those in which nothing is masked.  What
runs over a block as a whole are functions of the header.
"""

from __future__ import annotations

from litz.index import Expr, coefficient, const, min_, substitute, symbol
from litz.ir import attention
from litz.ir.body import Load, Node, Reduce, Rewriter, Store, load, walk
from litz.ir.dtype import F32
from litz.ir.reductions import reduction
from litz.kernel.lanes.attention import padded
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope
from litz.targets.cpp.tree import Kernel, Line, Ref
from litz.targets.cpp.values import Speller

SCORES = "scores_"  # no buffer of a plan is called so


class AttentionBuilder(Placer):
    """Fills the tree of a plan whose stores are attention's."""

    def __init__(self, made: LanePlan, name: str) -> None:
        plan, space = made.plan, made.space
        super().__init__(name, space.lane, made.lanes, plan.stores)
        self.made, self.parts = made, attention.parts(plan.stores, plan.parallel)
        p, (self.rows, self.keys), (tile, self.vectors) = self.parts, made.block, made.tile
        self.widths = {v: padded(v, self.lanes) for v in (p.inner, p.columns)}
        self.inner, self.columns = self.widths.values()
        self.tile = f"{self.lanes}, {tile}"
        self.spell = Speller(self.lanes)
        self.row0, self.key0 = symbol(f"{p.rows}_lo"), symbol(f"{p.keys}_b")
        self.row = p.rows - self.row0
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
        tail = -(-self.rows // self.lanes) * self.lanes
        sizes = {
            "query_": self.rows * self.inner,
            "key_": self.keys * int_value(extent(p.inner)),
            SCORES: self.rows * self.keys,
            "out_": tail * self.columns,
            **dict.fromkeys(("top_", "total_", "scale_"), tail),
        }
        if p.value in made.kept:
            sizes["value_"] = self.keys * self.columns
        self.kernel.arrays = [tree.Array(n, F32, size) for n, size in sizes.items()]

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
        args = f"query_, rows_, {extent(p.inner)}, {self.inner}"
        put.append(
            Line(f"litz::block_rows<{self.lanes}>({self.place_of(p.query, p.rows)}, {args});")
        )
        args = f"top_, total_, out_, rows_, {self.columns}"
        put.append(Line(f"litz::block_start<{self.lanes}>({args});"))
        skeleton = self.made.plan.skeleton
        assert skeleton is not None
        if not skeleton.slots:
            self.over(p.score, const(0), extent(p.keys), scope)
        for i, score in zip(range(0, len(skeleton.slots), 2), (p.score, p.unmasked), strict=False):
            self.visits(score, *skeleton.slots[i : i + 2], skeleton.sizes[1], scope)
        self.results(scope)

    def visits(self, score: Node, count: Node, which: Node, size: int, scope: Scope) -> None:
        """The loop over the key blocks that one slot counts and another one names."""
        assert isinstance(count, Load) and isinstance(which, Load)
        names = {str(self.parts.rows): str(self.row0)}
        number, at = self.name("visits"), self.spell.index(count.index, names)
        scope.body.append(Line(f"const int64_t {number} = {count.buffer}[{at}];"))
        visit = next(v for v in which.index.free if v not in count.index.free)
        inner = Scope(scope, [])
        at = self.spell.index(which.index, names)
        start = symbol(self.name("start"))
        inner.body.append(Line(f"const int64_t {start} = {size} * int64_t({which.buffer}[{at}]);"))
        self.over(score, start, min_(start + size, extent(self.parts.keys)), inner)
        scope.body.append(tree.For(visit, symbol(number), inner.body))

    def over(self, score: Node, start: Expr, stop: Expr, scope: Scope) -> None:
        """The loop over blocks of keys from ``start`` to ``stop``."""
        p, inner = self.parts, Scope(scope, [])
        put, n = inner.body, self.lanes
        end = f"{p.keys}_e"
        put.append(self.count("keys_", stop - self.key0, self.keys))
        put.append(Line(f"const int64_t {end} = {self.key0} + keys_;"))
        args = f"key_, keys_, {extent(p.inner)}, {self.keys}"
        put.append(Line(f"litz::block_turned<{n}>({self.place_of(p.key, p.keys)}, {args});"))
        args = f"query_, {self.inner}, key_, {self.keys}, {SCORES}, {self.keys}, rows_"
        step = self.vectors * n
        args += f", litz::ceil_div(keys_, {step}) * {step}, {extent(p.inner)}"
        put.append(Line(f"litz::block_product<{self.tile}, {self.vectors}>({args});"))
        self.modify(score, end, inner)
        args = f"{SCORES}, {self.keys}, scale_, top_, total_, rows_, keys_"
        put.append(Line(f"litz::block_weights<{n}>({args});"))
        self.add_values(inner)
        scope.body.append(tree.For(self.key0, stop, put, start, self.keys))

    def modify(self, score: Node, end: str, scope: Scope) -> None:
        """The body of a block's scores, and the largest of every row."""
        p = self.parts
        at = self.row * self.keys + p.keys - self.key0
        raw = load(F32, SCORES, at)
        score = Rewriter(replace=lambda _, n: raw if n is p.dot else n)(score)
        self.analyse([score])
        row = Scope(scope, [], p.rows)
        lanes = Scope(row, [], p.keys)
        self.place(raw, lanes)  # before masks: all of them are there
        value = self.place(score, lanes)
        top = tree.Acc(self.name("a"), reduction("max"), F32, vec=True, folded=True)
        lanes.body += [
            tree.Keep(SCORES, value, f"{SCORES} + ({self.spell.index(at)})"),
            tree.Update(top, value),
        ]
        exact = int_value(extent(p.keys)) % self.lanes == 0 if extent(p.keys).is_const else False
        found = self.name()
        row.body += [
            tree.Clear(top),
            tree.Lanes(
                p.keys, extent(p.keys), lanes.body, exact=exact, between=(str(self.key0), end)
            ),
            tree.Finish(found, top, F32, "value"),
            Line(f"scale_[{self.spell.index(self.row)}] = {found};"),
        ]
        scope.body.append(self.over_rows(row))

    def add_values(self, scope: Scope) -> None:
        """Weights times values, added to the results."""
        p, n = self.parts, self.lanes
        place = self.place_of(p.value, p.keys)
        value = place.split(",", 1)[0]
        if p.value in self.made.kept:
            value, args = "value_", f"value_, keys_, {extent(p.columns)}, {self.columns}"
            scope.body.append(Line(f"litz::block_rows<{n}>({place}, {args});"))
        width = 4 if self.vectors == 4 else 2
        vectors = self.columns // n
        whole, rest = vectors // width * width, vectors % width
        for at, count, size in ((0, width, whole), (whole, rest, rest)):
            if size:
                args = f"{SCORES}, {self.keys}, {value} + {at * n}, {self.columns}, "
                args += f"out_ + {at * n}, {self.columns}, scale_, rows_, {size * n}, keys_"
                scope.body.append(Line(f"litz::block_update<{self.tile}, {count}>({args});"))

    def results(self, scope: Scope) -> None:
        """The stores, from what the loop has left of their reductions."""
        p = self.parts
        row = Scope(scope, [], p.rows)
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
        scope.body.append(self.over_rows(row))

    # --- pieces ---------------------------------------------------------------------------------

    def put(self, s: Store, scope: Scope) -> tree.Put:
        return tree.Put(s, self.place(s.value, scope))

    def over_rows(self, row: Scope) -> tree.For:
        return tree.For(self.parts.rows, self.row0 + symbol("rows_"), row.body, self.row0)

    def count(self, name: str, left: Expr, most: int) -> Line:
        return Line(f"const int64_t {name} = {self.spell.index(min_(left, const(most)))};")

    def place_of(self, n: Load, along: Expr) -> str:
        """Where a block of an operand begins, its step and its stride, as arguments."""
        p = self.parts
        within = p.columns if n is p.value else p.inner
        first = self.row0 if along is p.rows else self.key0
        start = self.spell.index(substitute(n.index, {within: const(0), along: first}))
        steps = (coefficient(n.index, v) for v in (along, within))
        return ", ".join(
            (f"{n.buffer} + ({start})", *(self.spell.index(s or const(0)) for s in steps))
        )
