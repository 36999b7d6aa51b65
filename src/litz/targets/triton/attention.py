"""Printing attention: softmax of modified scores, times values, without the scores in memory.

A program keeps a block of queries and goes over blocks of keys: scores by a product, the body that
modifies them, and the running maximum, sum and result (Dao et al., 2022, 2023).
"""

from __future__ import annotations

import math
from typing import Final

from litz.ir import attention
from litz.ir.body import Const, Load, Rewriter, load, walk
from litz.ir.dtype import F32
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.nodes import extent, int_value
from litz.targets.triton.tiles import LOG2E, TilePrinter, block_of

LARGE: Final = 1e5  # of numbers above exponentials show the rounding of a product
SCORE: Final = "score"  # no buffer of a plan is called so
MASKED: Final = "float('-inf')"


class AttentionPrinter(TilePrinter):
    """Prints a plan whose stores are attention's."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.parts = p = attention.parts(self.plan.stores, self.plan.parallel)
        self.placed = {SCORE}
        # Scores are kept before they are multiplied with a number, which the exponential takes in.
        self.number, score = attention.factored(p.score)
        self.score, self.cond = attention.unmasked(score), attention.condition(score)
        self.scale = self.number * LOG2E
        raw = load(F32, SCORE, p.rows + p.keys)
        self.with_raw = Rewriter(replace=lambda _, n: raw if n is p.dot else n)

    def body(self) -> None:
        p, emit = self.parts, self.top.emit
        self.ranges(p.inner, p.columns)
        places = {p.rows: self.row(p.rows), p.inner: self.along(p.inner, "[None, :]")}
        emit(f"query = {self.operand(p.query, places)}")
        block = self.axes.parallel[-1].block
        emit(f"top = tl.full([{block}, 1], float('-inf'), tl.float32)")
        emit(f"total = tl.zeros([{block}, 1], tl.float32)")
        columns = block_of(int_value(extent(p.columns)))
        emit(f"acc = tl.zeros([{block}, {columns}], tl.float32)")
        self.everything(p.rows, self.step)
        self.results()

    def step(self) -> None:
        p, emit = self.parts, self.scope.emit
        places = {p.keys: self.moving(), p.inner: self.along(p.inner, "[None, :]")}
        emit(f"{SCORE} = litz.dot(query, tl.trans({self.operand(p.key, places)}))")
        found = self.wide_value(self.values(self.with_raw(self.score)))
        emit(f"scores = {self.within(found, MASKED)}")
        if self.cond is not None:
            self.masked(self.with_raw(self.cond), {"scores": MASKED})
        value = self.operand(
            p.value, {p.keys: self.moving(), p.columns: self.along(p.columns, "[None, :]")}
        )
        kind = TRITON_TYPES[p.value.dtype.name]
        power = f"tl.fma(scores, {self.scale}, shift * {-self.scale})"
        if self.is_far():
            power = f"(scores - shift) * {self.scale}"
        for line in (
            # What is nan makes its weight so, and that the results.
            "best = tl.maximum(top, tl.max(scores, 1)[:, None])",
            "shift = tl.where(best == float('-inf'), 0.0, best)",
            f"weight = litz.flush_exp2({power})",
            # 1 where the best stays: what rounds would grow with each block.
            f"less = litz.flush_exp2((top - shift) * {self.scale})",
            "total = total * less + tl.sum(weight, 1)[:, None]",
            f"acc = litz.dot(litz.cast(weight, {kind}), {value}, acc * less)",
            "top = best",
        ):
            emit(line)

    def is_far(self) -> bool:
        """Whether scores may be large, as masks make them: the body has such, or takes any.

        Whole blocks are masked then, and their products overflow, or round by more than 1.
        """
        nodes = [*walk((self.with_raw(self.score),))]
        large = any(isinstance(n, Const) and LARGE < abs(n.value) < math.inf for n in nodes)
        return large or any(isinstance(n, Load) and n.buffer != SCORE for n in nodes)

    def results(self) -> None:
        p = self.parts
        if p.guarded:
            self.top.emit("acc /= tl.where(total == 0, 1.0, total)")
        else:
            self.top.emit("acc /= total")
        rows = {p.rows: self.row(p.rows)}
        both = rows | {p.columns: self.along(p.columns, "[None, :]")}
        kind = TRITON_TYPES[p.out.value.dtype.name]
        inf, shift = "float('inf')", "tl.where(top == float('-inf'), 0.0, top)"
        best = f"tl.where((total == total) | (top == {inf}), top, total)"
        for s, text, places in (
            (p.out, f"litz.cast(acc, {kind})", both),
            (p.lse, f"tl.where(top == {inf}, top, tl.log2(total) + {shift} * {self.scale})", rows),
            (p.top, f"{best} * {self.scale}", rows),
            (p.total, "total", rows),
            (p.best, f"{best} * {self.number}", rows),
        ):
            if s is not None:
                self.result(s, text, places)
