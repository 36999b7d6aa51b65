"""Printing loops within loops: see ``litz.kernel.blocks.nest``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from litz.index import Expr
from litz.ir.body import Reduce, Store
from litz.ir.reductions import by_update
from litz.kernel.blocks.nest import early, loops, loops_around, values
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.nodes import extent
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.printer import Printer
from litz.targets.triton.reductions import accumulator


class NestPrinter(Printer):
    """Prints a plan with a loop for every dim outside its blocks."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.axis = made.axes.parallel[0]
        self.loops = loops(self.plan, self.axis)
        self.values = values(self.plan, self.axis)

    def body(self) -> None:
        groups = [[self.plan.stores[i] for i in p.stores] for p in self.made.passes]
        last: list[tuple[Store, tuple[str, ...]]] = []
        if self.made.late:
            for v in early(self.values, self.plan.stores, self.loops):
                self.value(v)
            if not loops_around(groups[-1][0], self.plan, self.axis):
                last = [(s, self.evaluate(s)) for s in groups.pop()]
        for stores in groups:
            with self.nested(loops_around(stores[0], self.plan, self.axis)):
                self.stores(stores)
        for s, texts in last:
            self.put(s, texts)

    @contextmanager
    def nested(self, dims: Sequence[Expr]) -> Iterator[None]:
        """Loops over dims, the first outermost.  What a loop around counts goes on behind."""
        outer = self.scope
        opened: list[tuple[Scope, Expr, str]] = []
        for v in dims:
            around = self.fresh(f"{v}_") if self.scope.bound(str(v)) else ""
            child = Scope(self.scope.depth + 1, self.scope, binds=str(v))
            if self.made.wide:  # a loop counts in 32 bits
                child.emit(f"{v} = litz.i64({v}_)")
            elif around:
                child.emit(f"{v} = {v}_")
            opened.append((child, v, around))
            self.scope = child
        yield
        for child, v, around in reversed(opened):
            parent = child.parent
            assert parent is not None
            counter = f"{v}_" if self.made.wide or around else str(v)
            if around:
                parent.emit(f"{around} = {v}")
            parent.emit(f"for {counter} in range(0, {self.index(extent(v))}):")
            parent.lines += child.lines or ["    " * child.depth + "pass"]
            if around:
                parent.emit(f"{v} = {around}")
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
