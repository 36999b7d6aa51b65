"""Printing programs that go over rows: see ``litz.kernel.blocks.crossed``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from litz.ir.body import Load, Reduce, Store
from litz.kernel.nodes import loops_of
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.passes import PassPrinter
from litz.targets.triton.reductions import Accumulator, accumulator


class CrossedPrinter(PassPrinter):
    """Prints a plan as a loop over its rows; a value that no row changes comes before it.

    Where it fetches ahead, a turn loads what the next one needs before it computes anything.
    """

    def body(self) -> None:
        self.reduced_range()
        rows = self.axes.parallel[-1]
        size, steps = self.index(rows.size), f"tl.arange(0, XBLOCK){self.spread('x')}"
        self.loop = self.scope = Scope(2, self.top)
        self.scope.emit(f"xindex = xstart + {steps}")
        if "x" not in self.made.even:
            self.scope.emit(f"xmask = xindex < {size}")
        self.decode(self.scope, rows)
        if self.made.ahead:
            self.fetches(self.top, steps, size)
            self.fetches(self.scope, "xindex + XBLOCK", size)
        states = [self.state(v) for v in self.reduces if self.is_down(v)]
        whole = [s for s in self.plan.stores if loops_of(s, rows.dims)]
        self.stores(whole)
        self.top.emit(f"for xstart in range(0, {size}, XBLOCK):")
        self.top.lines += self.scope.lines
        self.loop, self.scope = None, self.top
        for v, state in states:
            for line in state.finish():
                self.top.emit(line)
            assert isinstance(v.node, Reduce)
            self.top.known[v] = state.result(v.node)
        self.stores([s for s in self.plan.stores if s not in whole])

    def fetches(self, scope: Scope, first: str, size: str) -> None:
        """Which rows are fetched from here on."""
        scope.emit(f"xnext = {first}")
        scope.emit(f"xfetched = xnext < {size}")

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        if not self.made.ahead or "x" not in v.axes or args or v.conds:
            return super().load(v, node, args)
        covered, self.covered = self.covered, self.covered - {"x"}
        text = super().load(v, node, args)
        self.covered = covered
        (q,) = self.axes.parallel[-1].dims
        text = re.sub(rf"\b(xindex|{q})\b", "xnext", text).replace("xmask", "xfetched")
        name, ahead = self.fresh(), self.fresh("ahead")
        self.top.emit(f"{ahead} = {text}")
        self.scope.emit(f"{name} = {ahead}")
        self.scope.emit(f"{ahead} = {text}")
        return name

    def is_down(self, v: Value) -> bool:
        return isinstance(v.node, Reduce) and set(v.node.axes) == set(self.axes.parallel[-1].dims)

    def state(self, v: Value) -> tuple[Value, Accumulator]:
        """What a program has of a column's reduction, and the line that adds a turn's."""
        made = accumulator([v], self.fresh("acc"), self.extents("xr"), 0)
        self.top.lines += ["    " + line for line in made.begin()]
        mask = self.mask("x")
        for line in made.update(self.wide_value(v.args[0], "xr"), mask, ""):
            self.scope.emit(line)
        return v, made

    def home(self, v: Value) -> Scope:
        return self.loop if self.loop is not None and "x" in v.axes else self.top

    def axes_written(self, s: Store) -> list[str]:
        axes = {self.values.axis_of[v] for v in loops_of(s, self.plan.reduced)}
        return [a.name for a in self.blocked if a.name in axes]
