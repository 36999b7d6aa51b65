"""Reductions of several rows, or parts of one, at once: each is a stream from memory."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr
from litz.ir.body import Reduce
from litz.kernel.lanes.recipe import LanePlan
from litz.targets.cpp import tree
from litz.targets.cpp.loops import Level, TreeBuilder
from litz.targets.cpp.scope import Nest, Scope
from litz.targets.cpp.tree import Acc, Stmt


class Streams(TreeBuilder):
    """Fills a tree for ``at_once`` rows, which ``turns`` tells apart.

    own_rows: how many results they have.
    """

    at_once = own_rows = 1

    def turns(self, body: list[Stmt]) -> tree.Turns:
        """What is done for each of the rows."""
        return tree.Turns(self.space.units[-1], self.at_once, body, rows=True)

    def limit(self, dims: Sequence[Expr], group: Sequence[Reduce]) -> Sequence[int]:
        most = super().limit(dims, group)
        return most if self.at_once == 1 else [n // 2 for n in most]

    def loop(self, level: Level, accs: Sequence[Acc], copies: int) -> Stmt:
        if self.at_once == 1 or level.var is not self.lane:
            return super().loop(level, accs, copies)
        made = super().loop(level, accs, copies // 2)  # registers are for all rows
        assert isinstance(made, tree.Lanes)
        made.body = [self.turns(made.body)]
        for a in accs:
            a.copies, a.rows = a.copies * self.at_once, self.own_rows
        return made

    def reduce_loops(self, group: list[Reduce], home: Scope) -> list[Acc]:
        found = super().reduce_loops(group, home)
        for a in found:
            if a.copies == 1:  # of an outer loop
                a.copies = a.rows = self.own_rows
        return found


class Rows(Streams):
    """Rows of a loop over units, as long as there are so many, and one by one what is left."""

    def __init__(self, made: LanePlan, name: str, at_once: int = 1) -> None:
        super().__init__(made, name)
        self.at_once = self.own_rows = at_once
        self.innermost: Stmt | None = None

    def parallel_loops(self, nest: Nest) -> None:
        super().parallel_loops(nest)
        self.innermost = nest.innermost

    def point(self, scope: Scope) -> None:
        super().point(scope)
        body, loop = scope.body, self.innermost
        if self.at_once > 1:  # what follows the loops, for each row
            k = 1 + max(i for i, s in enumerate(body) if isinstance(s, (tree.For, tree.Lanes)))
            body[k:] = [self.turns(body[k:])]
            return
        # It places the same nodes in the same order: what is outside has the same names.
        other = Rows(self.made, self.kernel.name, self.made.rows)
        other.build()
        assert isinstance(loop, tree.For) and isinstance(other.innermost, tree.For)
        loop.rows, loop.beside = self.made.rows, other.innermost.body
