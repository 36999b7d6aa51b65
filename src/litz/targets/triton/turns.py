"""Printing programs that go through rows in turns: see ``litz.kernel.blocks.turns``."""

from __future__ import annotations

from collections.abc import Mapping

from litz.index import Expr, coefficient
from litz.ir.body import Load
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.passes import PassPrinter


class TurnPrinter(PassPrinter):
    """Prints a plan as a loop over axis t; a value that no turn changes comes before it."""

    def body(self) -> None:
        turns = self.axes.turns
        assert turns is not None
        self.loop = self.scope = Scope(2, self.top)
        self.decode(self.scope, turns)
        self.stores(self.plan.stores)
        count = f"{self.index(turns.size)}, loop_unroll_factor={self.made.at_once}"
        self.top.emit(f"for tindex in tl.range(0, {count}):")
        self.top.lines += self.scope.lines

    def home(self, v: Value) -> Scope:
        return self.loop if self.loop is not None and "t" in v.axes else self.top

    def start(self, v: Value, node: Load, names: Mapping[str, str]) -> tuple[str, Expr]:
        """Of a place that is looked up the first turn's: others lie a fixed distance behind it."""
        assert self.axes.turns is not None
        (turn,) = self.axes.turns.dims
        step = coefficient(node.index, turn)
        known = step is not None and step.is_const and not any("t" in a.axes for a in v.args)
        if not known or step is None or not node.indirect or v.conds:
            return super().start(v, node, names)
        name = self.fresh("at")
        rest = self.index(node.index - step * turn, names)
        self.top.emit(f"{name} = {self.pointer(node.buffer, rest)}")
        return name, step * turn
