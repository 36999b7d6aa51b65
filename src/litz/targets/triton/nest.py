"""Loops within loops: for plans whose reductions do not all run over the same dims.

Every reduced dim is a loop of its own and every reduction walks its dims point by point, so that
any nesting is right; only the parallel dims make blocks.  Updates that have no atomic instruction
make the parallel dims loops too: one program then runs them in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from litz.index import Expr
from litz.ir.body import Node, Reduce, Store
from litz.ir.reductions import by_update
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.nodes import below, extent, loaded, loops_of, readers_first, roots
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.printer import Printer
from litz.targets.triton.reductions import accumulator


class NestPrinter(Printer):
    """Prints a plan with a loop for every dim outside its blocks."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        loops = [d.var for d in self.plan.dims if d.var not in made.axes.parallel[0].dims]
        self.loops = tuple(loops)
        self.values.axis_of.update({v: str(v) for v in loops})

    def body(self) -> None:
        """Stores by their loops, the deepest first, but each behind those that read where it goes.

        Where that is not enough, what depends on no loop is computed first.
        """
        groups: dict[tuple[Expr, ...], list[Store]] = {}
        for s in self.plan.stores:
            groups.setdefault(self.dims_of(s), []).append(s)
        some = sorted(groups.values(), key=lambda g: -len(self.dims_of(g[0])))
        order = readers_first(some)
        early: list[tuple[Store, tuple[str, ...]]] = []
        if order is None:
            done = self.reduce_early(some)
            early = [(s, self.evaluate(s)) for s in groups.pop((), [])]
            order = readers_first([g for g in some if self.dims_of(g[0])], done)
        if order is None or any(self.reads_late(self.dims_of(g[0]), g) for g in order):
            raise ValueError(f"{self.name}: no order of loops reads all before it is replaced")
        for stores in order:
            with self.nested(self.dims_of(stores[0])):
                self.stores(stores)
        for s, texts in early:
            self.put(s, texts)

    def reduce_early(self, groups: Iterable[Sequence[Store]]) -> set[Node]:
        """Do the reductions that depend on no loop, wherever they are used; their nodes."""
        stack = [self.values(r) for stores in groups for r in roots(stores)]
        found: dict[Value, None] = {}
        seen: set[int] = set()
        while stack:
            v = stack.pop()
            if isinstance(v.node, Reduce):
                found[v] = None
            elif id(v) not in seen:
                seen.add(id(v))
                stack += reversed((*v.args, *v.conds))
        names = {str(v) for v in self.loops}
        bound = {v.node for v in found if v.axes & names}
        free = [v for v in found if v.node not in bound]
        for v in free:
            self.value(v)
        return {v.node for v in free}

    def reads_late(self, dims: Sequence[Expr], stores: Sequence[Store]) -> bool:
        """Whether a reduction within loops would read what their earlier turns have replaced.

        It does not if it depends on the outermost loops alone, at the head of which it is done.
        """
        written = {s.buffer for s in stores}
        for n in below(roots(stores)):
            if isinstance(n, Reduce) and loaded((n,)) & written:
                fixed = [v in n.vars for v in dims]
                if fixed != sorted(fixed, reverse=True):
                    return True
        return False

    def dims_of(self, s: Store) -> tuple[Expr, ...]:
        parallel = tuple(v for v in self.loops if v in self.plan.parallel)
        return (*parallel, *loops_of(s, self.plan.reduced))

    @contextmanager
    def nested(self, dims: Sequence[Expr]) -> Iterator[None]:
        """Loops over dims, the first outermost."""
        outer = self.scope
        opened: list[tuple[Scope, Expr]] = []
        for v in dims:
            child = Scope(self.scope.depth + 1, self.scope, binds=str(v))
            if self.made.wide:  # a loop counts in 32 bits
                child.emit(f"{v} = litz.i64({v}_)")
            opened.append((child, v))
            self.scope = child
        yield
        for child, v in reversed(opened):
            parent = child.parent
            assert parent is not None
            counter = f"{v}_" if self.made.wide else str(v)
            parent.emit(f"for {counter} in range(0, {self.index(extent(v))}):")
            parent.lines += child.lines or ["    " * child.depth + "pass"]
        self.scope = outer

    def home(self, v: Value) -> Scope:
        """The outermost scope in which the value has all its dims."""
        scope = self.scope
        while scope.parent is not None and scope.binds not in v.axes:
            scope = scope.parent
        return scope

    def operands(self, v: Value) -> tuple[Value, ...]:
        """Of a reduction only its conditions: its loops compute what it reduces."""
        return v.conds if isinstance(v.node, Reduce) else super().operands(v)

    def reduced(self, v: Value) -> str:
        node = v.node
        assert isinstance(node, Reduce)
        home, here = self.home(v), self.scope
        shape = self.extents(a.name for a in self.blocked)
        acc = accumulator([v], self.fresh("acc"), shape, 0)
        for line in acc.begin():
            home.emit(line)
        self.scope = home
        with self.nested(node.axes):
            value = self.wide_value(v.args[0])
            for line in acc.update(value, "", self.position(v)):
                self.scope.emit(line)
        self.scope = here
        return acc.alone(node)

    def put_text(self, s: Store, at: str, value: str, mask: str) -> str:
        if s.mode == "set" or self.made.form != "serial":
            return super().put_text(s, at, value, mask)
        form = by_update(s.mode).triton
        dtype = self.plan.dtype(s.buffer)
        tail = f", {mask}" if mask else ""
        old = f"tl.load({at}{tail})"
        if dtype.is_float and dtype.bits == 16:
            old, value = f"{old}.to(tl.float32)", f"{value}.to(tl.float32)"
        elif dtype.kind == "bool":
            form = "{0} | {1}" if s.mode in ("add", "max") else "{0} & {1}"
        return f"tl.store({at}, {form.format(old, value)}{tail})"
