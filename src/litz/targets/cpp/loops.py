"""From a plan to its loop tree.

A reduction becomes a loop nest in the scope of its free variables, together with all others of the
same level and axes: one pass over the data serves them all.  Stores of the full space run in a nest
of their own after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod

from litz.dataclass import dataclass
from litz.index import Expr, ceildiv, coefficient, const, min_, product, render, substitution, var
from litz.ir.body import Node, Reduce, Scan, Store, substitute, walk
from litz.ir.body import reduce as reduce_node
from litz.ir.dtype import I32, I64, DType
from litz.ir.scans import carried, first_points
from litz.kernel.lanes.cuts import adds, limit, order
from litz.kernel.lanes.neighbours import unordered
from litz.kernel.lanes.pieces import pieces
from litz.kernel.lanes.recipe import LanePlan
from litz.kernel.moments import chunk_moments
from litz.kernel.nodes import below, extent, int_value, loops_of, roots
from litz.kernel.passes import Pass
from litz.targets.cpp import scans, sorts, tree
from litz.targets.cpp.rows import asks, position, squared
from litz.targets.cpp.scope import Nest, Placer, Scope
from litz.targets.cpp.tree import Acc, Kernel, Stmt
from litz.targets.cpp.values import DIALECT


@dataclass(slots=True)
class Level:
    """One loop of a nest; ``chunk``: the variable that counts chunks of ``var``, and their size."""

    scope: Scope
    var: Expr
    start: Expr | None = None
    stop: Expr | None = None
    step: int = 1


@dataclass(frozen=True, slots=True)
class DimRange:
    """Part of a dim; most: its largest number of iterations; depth: of the scope that sets it."""

    start: Expr
    stop: Expr
    most: int | None
    depth: int


class TreeBuilder(Placer):
    """Fills one kernel's tree, with accumulators in registers."""

    def __init__(self, made: LanePlan, name: str) -> None:
        self.made = made
        self.space = space = made.space
        self.stores = made.plan.stores
        super().__init__(name, space.lane, made.lanes, self.stores)
        self.open = list(made.reductions)
        self.nests = {n: p for p in made.passes for n in self.reduced_in(p)}
        pairs = [(self.open[i], self.open[j]) for j, i in made.totals]
        self.online = {n: pair for pair in pairs for n in pair}
        self.branches = frozenset(made.branches)
        self.copies = {n: c.count for c in made.copies for n in c.of}
        self.chunk_of = {n: c for c in made.chunks for n in c.of}
        # Reductions of a chunk that one nest does.
        self.beside: dict[Node, list[Reduce]] = {}
        self.streamed = {self.stores[i] for i in made.streamed}
        self.fresh = 0
        self.rows: dict[Node, tuple[str, Scope]] = {}
        # The dim whose next iteration a pass fetches, while the loops of that pass are made.
        self.next_row: Expr | None = None
        # The store whose loop begins with fewer lanes, likewise.
        self.head: Store | None = None
        # Parts of a dim that nests run over at present.
        self.ranges: dict[Expr, DimRange] = {}
        lane, units = space.lane, space.units
        self.kernel = Kernel(
            made.plan, name, made.lanes, lane, units, work=made.work, checks=self.checks,
            called=made.called, past=made.past,
        )  # fmt: skip
        if lane is not None and lane in units:
            self.kernel.grains = {lane: made.lanes}

    # --- values that several passes need ----------------------------------------------------------

    def early(self, n: Node, scope: Scope) -> bool:
        """Take what an earlier pass has kept, or a sort."""
        if isinstance(n, Scan) and n.row.whole:
            name = self.sorted_row(n, scope)
            inner = scope.at(self.bound_depth((*sorts.around(n, self), n.axis), scope))
            inner.env[n] = sorts.element(n, name, self)
            return True
        found = self.rows.get(n)
        if found is None or scope.guard is not None or self.lane is None:
            return False
        name, home = found
        depth = scope.binds(self.lane)
        if depth is None or scope.at(home.depth) is not home:
            return False
        text = f"litz::load<{self.lanes}>({self.place_in_row(name)})"
        scope.at(depth).env[n] = tree.Ref(text, n.dtype, True)
        return True

    def place_in_row(self, name: str) -> str:
        """Where the current lanes lie in an array over the reduced dims, padded to vectors."""
        at: Expr = const(0)
        for v in self.space.reduced:
            at = at * self.padded(v) + v
        return f"{name} + ({render(at, DIALECT)})"

    def padded(self, v: Expr) -> Expr:
        size = extent(v)
        return ceildiv(size, self.lanes) * self.lanes if v is self.lane else size

    def keep_values(self, scope: Scope, home: Scope) -> None:
        """Keep values of a pass that later ones need."""
        known = {*self.rows, *self.made.shared}
        for n in (n for n in self.made.kept if n not in known):
            ref = scope.env.get(n)
            if ref is not None and ref.vec:
                name = self.row_array(n)
                scope.body.append(tree.Keep(name, ref, self.place_in_row(name)))
                self.rows[n] = name, home

    def row_array(self, n: Node) -> str:
        """Memory for a value of every point of the reduced dims."""
        name = self.name("m")
        size = product(self.padded(v) for v in self.space.reduced)
        size += self.lanes if self.made.heads else 0  # the last of its vectors may begin late
        self.kernel.arrays.append(tree.Array(name, n.dtype, size))
        return name

    # --- reductions -----------------------------------------------------------------------------

    def emit_reduce(self, n: Reduce, scope: Scope) -> None:
        depth = self.home_depth(n, scope)
        if scope.guard is not None and self.reads[n]:
            depth = max(depth, scope.guard)
        home = scope.at(depth)
        if n in self.online and home.guard is None:
            self.online_loops(*self.online[n], home)
            return
        group = self.beside.get(n, [n])
        if home.guard is None and n in self.nests:
            group = self.reduced_in(self.nests[n])
        if n.row.counts:
            acc = self.moment_loops(n, home)
            for r in group:
                home.env[r] = self.result(r, acc, home)
        else:
            self.nest(group, home)

    # --- scans ------------------------------------------------------------------------------------

    def sorted_row(self, n: Scan, scope: Scope) -> str:
        """The array that holds a sorted row; it is filled and sorted before the loops along it."""
        found = self.rows.get(n)
        if found is not None and scope.at(found[1].depth) is found[1]:
            return found[0]
        home = scope.at(self.bound_depth(sorts.around(n, self), scope))
        levels, _ = self.open_levels([n.axis], home)
        inner, name = levels[-1].scope, self.name("m")
        self.reduce_first(n.args, inner)
        scans.first(n.args, self, inner)
        inner.body.append(sorts.keep(n, self.place(n.args[0], inner), name, self))
        self.close(levels)
        self.kernel.arrays.append(sorts.array(n, name, self))
        home.body += sorts.calls(n, name, self, self.stores)
        self.rows[n] = name, home
        return name

    def emit_scan(self, n: Scan, scope: Scope) -> None:
        scans.emit(n, self, scope)

    def hold(
        self, n: Scan, outside: Scope, home: Scope, values: Sequence[tree.Ref]
    ) -> tuple[tuple[tree.Ref, ...], list[Stmt], list[Stmt]]:
        first = scans.begins(n, self, outside)
        vec = n.axis is not self.lane and any(r.vec for r in (*values, *first))
        held = tuple(tree.Ref(self.name("c"), t, vec) for t in carried(n))
        outside.body.extend(tree.Hold(r, f) for r, f in zip(held, first, strict=True))
        return held, [], []

    def reduced_in(self, p: Pass) -> list[Reduce]:
        return [self.open[i] for g in p.groups for i in g]

    def home_depth(self, n: Reduce, scope: Scope) -> int:
        inside = max((self.ranges[v].depth for v in n.axes if v in self.ranges), default=0)
        return max(self.bound_depth(n.vars, scope), inside)

    def nest(self, group: list[Reduce], home: Scope) -> None:
        for r, acc in zip(group, self.reduce_loops(group, home), strict=True):
            home.env[r] = self.result(r, acc, home)

    def result(self, r: Reduce, acc: Acc, home: Scope) -> tree.Ref:
        """What an accumulator holds at last, by a name."""
        ref = tree.Ref(self.name(), r.dtype, acc.vec and not acc.folded)
        home.body.append(tree.Finish(ref.text, acc, r.dtype, r.gives.part))
        return ref

    def reduce_loops(self, group: list[Reduce], home: Scope) -> list[Acc]:
        """The loops of reductions that run together; their accumulators."""
        # Below a reduction that has been given fresh variables, another has them too.
        bodies, axes = group, list(order(group[0], self.space.reduced))
        if any(home.binds(v) is not None for v in axes):
            bodies, axes = self.renamed(group, axes)
        levels, chunk = self.open_levels(axes, home, self.limit(tuple(axes), group))
        scope = levels[-1].scope if levels else home
        if bodies is group:
            self.reduce_first([r.args[0] for r in bodies], scope)
        inner, outer = self.take(bodies, scope, chunk is not None, self.in_register)
        if home.guard is None and bodies is group:
            self.keep_values(scope, home)
            self.stores_along(group, scope)
        home.body.extend(tree.Clear(a) for a in outer)
        self.fetch_in(self.nests.get(group[0]))
        self.close(levels, inner, outer, chunk, self.copies.get(group[0], 1))
        self.next_row = None
        return outer

    def fetch_in(self, p: Pass | None) -> None:
        """Fetch the next row in the loops of a pass, if it is the one that should."""
        if p is not None and self.made.ahead and p is self.made.passes[self.made.ahead]:
            self.next_row = self.space.units[-1]

    def take(
        self,
        group: list[Reduce],
        scope: Scope,
        cut: bool,
        accumulator: Callable[[Reduce, bool, DType | None], Acc],
    ) -> tuple[list[Acc], list[Acc]]:
        """Accumulators of the innermost loop, updated there; and around it, where loops are cut."""
        inner: list[Acc] = []
        outer: list[Acc] = []
        scans.first(tuple(r.args[0] for r in group), self, scope)
        for r in group:
            root = squared(r)
            value = self.place(root or r.args[0], scope)
            acc = accumulator(r, value.vec, None)
            scope.body.append(tree.Update(acc, value, root is not None))
            wide = r.row.total(acc.dtype) if cut and adds(r) else None
            inner.append(acc)
            outer.append(acc if wide is None else accumulator(r, value.vec, wide))
        return inner, outer

    def in_register(self, r: Reduce, vec: bool, wide: DType | None) -> Acc:
        """An accumulator.  wide: of what others have left, whose lanes have come together."""
        folded = self.lane in r.axes
        if wide is not None:
            return Acc(self.name("a"), r.row, wide, vec and not folded)
        at = position(r) if r.row.positional else None
        dtype = r.args[0].dtype
        small = folded and at is not None and (at.hi or 1 << 31) < 1 << 31 and dtype.bytes <= 4
        places = I32 if small else I64  # as many to a register as there are values
        return Acc(self.name("a"), r.row, dtype, vec or folded, folded, position=at, places=places)

    # --- mean and deviations in one pass over memory ----------------------------------------------

    def moment_loops(self, n: Reduce, home: Scope) -> Acc:
        """Mean and squared deviations: of chunks that sit in the cache, combined after Chan et al.

        A chunk takes two passes, over what the first of them has brought into the cache.
        """
        axes = [v for v in self.space.reduced if v in n.axes]
        at, size = axes.index(self.chunk_of[n].by), self.chunk_of[n].size
        acc = self.moment_state(n)
        with self.chunks(axes, at, size, home) as chunk:
            terms = product(self.length(u) for u in axes[at:])
            inner = [self.most(u) for u in axes[at + 1 :]]
            known = [n for n in inner if n is not None]
            most = prod([size, *known]) if len(known) == len(inner) else None
            mean, m2 = chunk_moments(n.args[0], tuple(axes[at:]), terms, most=most)
            self.analyse([mean, m2])
            inside = frozenset(walk([mean, m2])) - frozenset(walk(n.args))
            chunk.own = frozenset(x for x in inside if self.levels[x] >= 0)
            sums = [r for r in walk([mean, m2]) if isinstance(r, Reduce) and r in inside]
            self.copies |= {r: self.copies.get(n, 1) for r in sums}
            self.beside |= {r: [q for q in sums if self.levels[q] == self.levels[r]] for r in sums}
            home.body.append(tree.Clear(acc))
            self.take_moments(acc, mean, m2, terms, chunk)
        return acc

    @contextmanager
    def chunks(self, axes: Sequence[Expr], at: int, size: int, home: Scope) -> Iterator[Scope]:
        """The scope of one chunk in loops over ``axes``: nests in it run over its part alone.

        size: of a chunk, along the axis at ``at``.
        """
        v = axes[at]
        start, stop = self.bounds(v)
        levels, _ = self.open_levels(axes[:at], home)
        count = var(f"{v}_w", extent(v))
        chunk = Scope(levels[-1].scope if levels else home, [], count)
        levels.append(Level(chunk, count, start, stop, size))
        before = self.ranges.get(v)
        self.ranges[v] = DimRange(count, min_(count + size, stop), size, chunk.depth)
        yield chunk
        self.ranges.pop(v)
        if before is not None:
            self.ranges[v] = before
        self.close(levels)

    # --- a maximum and the sum of exponentials below it in one pass over memory -------------------

    def online_loops(self, top: Reduce, total: Reduce, home: Scope) -> None:
        """Both, of chunks that sit in the cache: what is there is rescaled where a maximum rises.

        After Milakov and Gimelshein, 2018, by chunks in place of elements.
        """
        axes = [v for v in self.space.reduced if v in top.axes]
        cut = self.chunk_of[top]
        at = axes.index(cut.by)
        inner = tuple(axes[at:])
        most, part = (reduce_node(r.kind, inner, r.args[0]) for r in (top, total))
        assert isinstance(most, Reduce) and isinstance(part, Reduce)
        self.analyse([most, part])
        self.copies.update((new, self.copies.get(r, 1)) for new, r in ((most, top), (part, total)))
        held = Acc(self.name("a"), top.row, top.dtype)
        whole = Acc(self.name("a"), total.row, total.row.total(total.dtype))
        with self.chunks(axes, at, cut.size, home) as chunk:
            (found,) = self.reduce_loops([most], chunk)
            here = self.result(most, found, chunk)
            chunk.body += [tree.Rescale(whole, held, here), tree.Update(held, here)]
            chunk.env[top] = tree.Ref(f"{held.name}_0", top.dtype)
            (terms,) = self.reduce_loops([part], chunk)
            chunk.body.append(tree.Merge(whole, terms))
            home.body += [tree.Clear(held), tree.Clear(whole)]
        for r, acc in ((top, held), (total, whole)):
            home.env[r] = self.result(r, acc, home)

    def length(self, v: Expr) -> Expr:
        start, stop = self.bounds(v)
        return stop if start is None else stop - start

    def moment_state(self, n: Reduce) -> Acc:
        vec = self.lane is not None and self.lane in n.vars
        return Acc(self.name("a"), n.row, n.row.total(n.dtype), vec=vec)

    def take_moments(self, acc: Acc, mean: Node, m2: Node, terms: Expr, chunk: Scope) -> None:
        a, b = self.place(mean, chunk), self.place(m2, chunk)
        chunk.body.append(tree.MergeMoments(acc, a, b, terms))

    def stores_along(self, group: list[Reduce], scope: Scope) -> None:
        """Run the stores of the full space that the pass of these reductions does."""
        if group[0] in self.nests:
            stores = [self.stores[i] for i in self.nests[group[0]].stores]
            scope.body.extend([self.put(s, scope) for s in stores])

    def renamed(self, group: list[Reduce], axes: list[Expr]) -> tuple[list[Reduce], list[Expr]]:
        """The group with fresh variables, for a nest inside loops over its own axes."""
        mapping: dict[Expr, Expr] = {}
        for v in axes:
            self.fresh += 1
            mapping[v] = var(f"{v}_{self.fresh}", extent(v))
        out: list[Reduce] = []
        for r in group:
            new = substitute(r, mapping)
            assert isinstance(new, Reduce)
            out.append(new)
        self.analyse(out)
        return out, [mapping[v] for v in axes]

    # --- loops ----------------------------------------------------------------------------------

    def open_levels(
        self, axes: Sequence[Expr], home: Scope, most: Sequence[int] = ()
    ) -> tuple[list[Level], int | None]:
        """Scopes of a nest over ``axes``; and which of them counts chunks, if one does.

        most: how many iterations over each an accumulator takes.
        """
        at, size = -1, 0
        for i, n in enumerate(most):
            known = self.most(axes[i])
            at, size = (i, n) if known is None or known > n else (at, size)
        levels: list[Level] = []
        scope = home
        for i, v in enumerate(axes):
            start, stop = self.bounds(v)
            if i == at:
                count = var(f"{v}_c", extent(v))
                scope = Scope(scope, [], count)
                levels.append(Level(scope, count, start, stop, size))
                start, stop = count, min_(count + size, stop)
            scope = Scope(scope, [], v)
            scope.outside = home
            levels.append(Level(scope, v, start, stop))
        return levels, at if at >= 0 else None

    def limit(self, dims: Sequence[Expr], group: Sequence[Reduce]) -> Sequence[int]:
        """How many iterations over each dim an accumulator takes, where there is a limit."""
        if not any(map(adds, group)):
            return ()
        if dims and dims[0] not in self.space.reduced:  # each by itself, within a nest over its own
            return limit(dims, [self.most(v) for v in dims], [1] * len(dims)).most
        within = (x for x in self.made.limits if x.dims[-len(dims) :] == dims)
        return next((x.most[-len(dims) :] for x in within), ())

    def most(self, v: Expr) -> int | None:
        """The largest number of iterations over ``v``, where one is known."""
        return self.ranges[v].most if v in self.ranges else extent(v).hi

    def bounds(self, v: Expr) -> tuple[Expr | None, Expr]:
        part = self.ranges.get(v)
        return (None, extent(v)) if part is None else (part.start, part.stop)

    def close(
        self,
        levels: list[Level],
        inner: Sequence[Acc] = (),
        outer: Sequence[Acc] = (),
        chunk: int | None = None,
        copies: int = 1,
    ) -> None:
        """Attach the loops, innermost first, each to the block of the one around it."""
        for i in reversed(range(len(levels))):
            level = levels[i]
            last = i == len(levels) - 1
            stmt = self.loop(level, inner if last else (), copies if last else 1)
            parent = level.scope.parent
            assert parent is not None
            cut = (
                [(a, b) for a, b in zip(inner, outer, strict=True) if a is not b]
                if i - 1 == chunk
                else []
            )
            parent.body.extend(tree.Clear(a) for a, _ in cut)
            parent.body.append(stmt)
            parent.body.extend(tree.Merge(b, a) for a, b in cut)

    def loop(self, level: Level, accs: Sequence[Acc], copies: int) -> Stmt:
        v, body = level.var, level.scope.body
        stop = extent(v) if level.stop is None else level.stop
        if v is not self.lane:
            return tree.For(v, stop, body, level.start, level.step)
        for a in accs:
            a.copies = copies
        exact = self.exact(v, copies)
        return tree.Lanes(v, stop, body, level.start, copies, exact, None, self.next_row, self.head)

    def exact(self, v: Expr, unroll: int = 1) -> bool:
        size = extent(v)
        return size.is_const and int_value(size) % (self.lanes * unroll) == 0

    # --- the whole kernel -----------------------------------------------------------------------

    def build(self) -> Kernel:
        nest = Nest(self.kernel.body)
        self.parallel_loops(nest)
        if not self.made.cuts:
            nest.scope.body.extend([asks(self, f, nest.scope) for f in self.made.fetches])
            self.unordered = unordered(self.stores, self.lane) if self.made.unordered else {}
            self.point(nest.scope)
        nest.close()
        return self.kernel

    def parallel_loops(self, nest: Nest) -> None:
        """Enter the loops over the parallel dims."""
        space, lane = self.space, self.lane
        for v in space.units:
            if v is not lane:
                nest.enter(partial(tree.For, v, extent(v), part=True), v)
        if lane is not None and lane in space.units:
            nest.enter(partial(tree.Range, lane, extent(lane)))
        for v in space.serial:
            if v is not lane:
                nest.enter(partial(tree.For, v, extent(v)), v)
        if lane is not None and self.made.cuts:
            self.in_pieces(nest.scope, lane)
        elif lane is not None and lane in (*space.units, *space.serial):
            self.lane_loop(nest, lane, lane in space.units)

    def in_pieces(self, scope: Scope, lane: Expr) -> None:
        """The loop along the lane, cut: each piece is a loop with vectors of its own."""
        for k, p in enumerate(pieces(self.stores, lane, self.made.cuts)):
            self.lane, self.stores = p.var, p.stores
            self.unordered = unordered(p.stores, p.var) if k in self.made.unordered else {}
            self.streamed = {p.stores[i] for i in self.made.streamed}
            self.analyse(roots(p.stores))
            inner = scope if p.var is None else Scope(scope, [], p.var)
            if p.var is not None:
                here = substitution({lane: p.var + p.start})
                inner.body.extend([asks(self, f.where(here), inner) for f in self.made.fetches])
            self.point(inner)
            if p.var is not None:
                loop = tree.Lanes(p.var, extent(p.var), inner.body, exact=self.exact(p.var))
                scope.body.append(loop)

    def lane_loop(self, nest: Nest, lane: Expr, ranged: bool) -> None:
        """ranged: within the part of a thread."""
        between = (f"{lane}_lo", f"{lane}_hi") if ranged else None
        loop = partial(tree.Lanes, lane, extent(lane), exact=self.exact(lane), between=between)
        nest.enter(partial(loop, head=next((self.stores[i] for i in self.made.heads), None)), lane)

    def point(self, scope: Scope) -> None:
        """All that one point of the parallel dims computes and stores."""
        self.reduce_first(roots(self.stores), scope)
        puts = self.puts(self.flat_stores(), scope)
        for p, dims, stores in self.last_passes():
            self.ranges = {v: r for v in dims if (r := self.stored(v, stores, scope)) is not None}
            levels, _ = self.open_levels(dims, scope)
            self.ranges = {}
            inner = levels[-1].scope
            inner.body.extend(self.puts(stores, inner))
            self.fetch_in(p)
            self.head = next((self.stores[i] for i in p.stores if i in self.made.heads), None)
            self.close(levels)
            self.next_row = self.head = None
        scope.body.extend(puts)

    def stored(self, v: Expr, stores: Sequence[Store], scope: Scope) -> DimRange | None:
        """The first points along ``v``, where stores are masked elsewhere."""
        known = [first_points(s.mask, v) for s in stores]
        most = max((n for n in known if n is not None), default=0)
        return None if None in known else DimRange(const(0), const(most), most, scope.depth)

    def flat_stores(self) -> list[Store]:
        """Those of the point itself."""
        return [s for s in self.stores if not loops_of(s, self.space.reduced)]

    def last_passes(self) -> Iterator[tuple[Pass, tuple[Expr, ...], list[Store]]]:
        """Passes that reduce nothing, their dims and stores."""
        for p in self.made.passes:
            if not p.groups:
                stores = [self.stores[i] for i in p.stores]
                yield p, loops_of(stores[0], self.space.reduced), stores

    def reduce_first(self, nodes: Sequence[Node], scope: Scope) -> None:
        """Run the reductions that ``nodes`` wait for, so that values which they keep are there."""
        if all(self.levels[n] < 0 for n in nodes):
            return
        needed = below(nodes)
        for n in self.open:
            free = () if self.lane is None or self.lane in self.space.reduced else (self.lane,)
            bound = all(v in free or scope.binds(v) is not None for v in n.vars)
            if n in needed and bound and scope.find(n) is None:
                self.emit_reduce(n, scope)

    def puts(self, stores: Sequence[Store], scope: Scope) -> list[tree.Put]:
        """Stores at one point; those that fill each other's gaps are one."""
        found: list[tree.Put] = []
        for s in stores:
            own = self.put(s, scope)
            at = next((k for k, p in enumerate(found) if self.interleave(p, own)), None)
            if at is None:
                found.append(own)
            else:
                found[at] = replace(found[at], between=own.value)
        return found

    def interleave(self, p: tree.Put, q: tree.Put) -> bool:
        """Whether ``q`` stores one element behind each of ``p``, along the lanes."""
        a, b = p.store, q.store
        if a.buffer != b.buffer or self.lane is None or p.between is not None:
            return False
        plain = all(x.store.mode == "set" and not x.indirect and x.mask is None for x in (p, q))
        beside = b.index - a.index is const(1) and coefficient(a.index, self.lane) is const(2)
        return plain and beside

    def put(self, s: Store, scope: Scope) -> tree.Put:
        self.reduce_first(s.roots(), scope)
        scans.first(s.roots(), self, scope)
        value = self.place(s.value, scope)
        indirect = tuple(self.place(v, scope) for _, v in s.indirect)
        mask = None if s.mask is None else self.place(s.mask, scope)
        return tree.Put(s, value, indirect, mask, s in self.streamed)
