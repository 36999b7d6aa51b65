"""Printing attention's gradients: tiles of weights and slopes, computed anew, times what they meet.

A program keeps a block of queries and goes over keys (the query's gradient), or the other way round
(those of keys and values).
"""

from __future__ import annotations

from typing import Final

from litz.index import Expr, substitute, var
from litz.ir import attention
from litz.ir.attention import condition, unmasked
from litz.ir.body import Load, Masked, Node, Rewriter, Store, load
from litz.ir.dtype import F16, F32
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.nodes import extent, int_value
from litz.targets.triton.layout import Scope
from litz.targets.triton.tiles import LOG2E, TilePrinter, block_of

WEIGHT: Final = "weight"  # no buffer of a plan is called so


class GradientPrinter(TilePrinter):
    """Prints a plan whose stores are a gradient of attention."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.parts = p = attention.gradient_parts(self.plan.stores, self.plan.parallel)
        self.turns = p.heads
        # Numbers that scores and tiles are multiplied with: the exponential takes in the first, a
        # sum in its end the other; tiles of narrow range are multiplied in each step.
        number, self.score = attention.factored(p.score)
        self.scale = number * LOG2E
        self.tiles = [
            (1.0, g.tile) if g.operand.dtype is F16 else attention.factored(g.tile) for g in p.sums
        ]
        place = p.rows + p.over
        self.known = {x.node: load(F32, f"dot{k}", place) for k, x in enumerate(p.products)}
        weights = {p.weight: load(F32, WEIGHT, place)}
        self.with_products = Rewriter(replace=lambda _, n: self.known.get(n, n))
        self.with_weight = Rewriter(replace=lambda old, n: weights.get(old, self.known.get(old, n)))
        self.placed = {WEIGHT, *(x.buffer for x in self.known.values())}

    def body(self) -> None:
        p, emit = self.parts, self.top.emit
        self.ranges(*(x.inner for x in p.products), *(s.column for s in p.sums))
        for k, x in enumerate(p.products):
            places = {p.rows: self.row(p.rows), x.inner: self.along(x.inner, "[None, :]")}
            emit(f"left{k} = {self.operand(x.left, places)}")
        block = self.axes.parallel[-1].block
        for k, s in enumerate(p.sums):
            columns = block_of(int_value(extent(s.column)))
            emit(f"acc{k} = tl.zeros([{block}, {columns}], tl.float32)")
        for k, update in enumerate(p.updates):
            if "r" not in self.spread_of(update):
                emit(f"sum{k} = tl.zeros([{block}, 1], tl.float32)")
        if p.heads is not None:
            self.outer = Scope(self.top.depth + 1, self.top)
        self.everything(p.rows, self.step)
        if p.heads is not None:
            emit(f"for {p.heads} in range(0, {int_value(extent(p.heads))}):")
            self.top.lines += self.outer.lines
        self.scope = self.outer = self.top
        self.results()

    def step(self) -> None:
        p, emit = self.parts, self.scope.emit
        loaded: dict[tuple[str, Expr], str] = {}

        def moving(n: Load, column: Expr) -> str:
            """A block of the other side, loaded once."""
            alike = n.buffer, substitute(n.index, {column: var("column", extent(column))})
            if alike not in loaded:
                places = {p.over: self.moving(), column: self.along(column, "[None, :]")}
                loaded[alike] = name = f"right{len(loaded)}"
                emit(f"{name} = {self.operand(n, places)}")
            return loaded[alike]

        for k, x in enumerate(p.products):
            emit(f"dot{k} = litz.dot(left{k}, tl.trans({moving(x.right, x.inner)}))")
        text = self.wide_value(self.values(self.with_products(self.score)))
        shift = self.wide_value(self.values(p.shift))
        emit(f"shift = {shift}")
        scores = self.within(text, "float('-inf')")
        emit(f"{WEIGHT} = litz.flush_exp2(tl.fma({scores}, {self.scale}, -shift))")
        masks: dict[Node, dict[str, str]] = {}
        for k, s in enumerate(p.sums):
            kind = TRITON_TYPES[s.operand.dtype.name]
            self.tile(f"tile{k}", self.tiles[k][1], masks, "", kind)
        for k, update in enumerate(p.updates):
            self.tile(f"added{k}", update.value, masks, self.mask("x"))
            if len(self.spread_of(update)) > 1 and isinstance(update.value, Masked):
                # What is masked is not added, wherever it would be.
                emit(f"kept{k} = tl.full({self.extents('xr')}, 1, tl.int1)")
                masks[update.value.args[0]][f"kept{k}"] = "False"
        for cond, names in masks.items():
            self.masked(self.with_products(cond), names)
        for k, s in enumerate(p.sums):
            emit(f"acc{k} = litz.dot(tile{k}, {moving(s.operand, s.column)}, acc{k})")
        for k, update in enumerate(p.updates):
            self.update(k, update)

    def tile(
        self, name: str, node: Node, masks: dict[Node, dict[str, str]], rows: str, to: str = ""
    ) -> None:
        """A tile where nothing is masked; ``masks`` gets what masks it.  rows: which there are."""
        text = self.wide_value(self.values(self.with_weight(unmasked(node))))
        text = self.within(f"tl.where({rows}, {text}, 0)" if rows else text, "0")
        self.scope.emit(f"{name} = litz.cast({text}, {to})" if to else f"{name} = {text}")
        cond = condition(node)
        if cond is not None:
            masks.setdefault(cond, {})[name] = "0.0"

    def update(self, k: int, s: Store) -> None:
        """What a tile adds to memory: a sum along each axis that the place does not depend on."""
        along = self.spread_of(s)
        if "r" not in along:
            self.scope.emit(f"sum{k} += tl.sum(added{k}, 1)[:, None]")
        elif "x" not in along:
            self.add(s, f"tl.sum(added{k}, 0)[None, :]", self.mask("r"))
        else:
            conds = [f"kept{k}"] if isinstance(s.value, Masked) else []
            self.add(s, f"added{k}", self.mask("xr", conds))

    def spread_of(self, s: Store) -> frozenset[str]:
        """The axes along which the place of an update changes."""
        found = self.axes_of(s.index)
        return found.union(*(self.values(self.with_weight(n)).axes for _, n in s.indirect))

    def add(self, s: Store, text: str, mask: str) -> None:
        names = {str(v): self.value(self.values(self.with_weight(n))) for v, n in s.indirect}
        at = self.pointer(s.buffer, self.index(s.index, names))
        self.scope.emit(self.put_text(s, at, text, mask))

    def results(self) -> None:
        p = self.parts
        for k, g in enumerate(p.sums):
            places = {p.rows: self.row(p.rows), g.column: self.along(g.column, "[None, :]")}
            value = f"acc{k} * {self.tiles[k][0]}, {TRITON_TYPES[g.store.value.dtype.name]}"
            self.result(g.store, f"litz.cast({value})", places)
        for k, s in enumerate(p.updates):
            if "r" not in (along := self.spread_of(s)):
                by_row = "x" in along
                self.add(s, f"sum{k}" if by_row else f"tl.sum(sum{k})", self.mask("x" * by_row))
