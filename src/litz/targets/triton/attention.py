"""Printing attention: the skeleton, into which the body of scores is printed as in any kernel.

A program keeps a block of queries and goes over blocks of keys: scores by a product, the body that
modifies them, and the running maximum, sum and result (Dao et al., 2022, 2023).  Where the mask's
blocks are given, it goes over those alone, and prints the body once more without its mask for those
in which nothing is masked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from litz.index import TRITON, Expr, render
from litz.ir import attention
from litz.ir.body import Load, Node, Rewriter, load
from litz.ir.dtype import F32
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.attention import LEAST
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.blocks.sizes import power_of_two
from litz.kernel.nodes import extent, int_value
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.printer import Printer

SCORE: Final = "score"  # no buffer of a plan is called so
LOG2E: Final = math.log2(math.e)


class AttentionPrinter(Printer):
    """Prints a plan whose stores are attention's."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.parts = p = attention.parts(self.plan.stores, self.plan.parallel)
        self.loop: Scope | None = None
        self.inner, self.columns = (int_value(extent(v)) for v in (p.inner, p.columns))
        raw = load(F32, SCORE, p.rows + p.keys)
        self.with_raw = Rewriter(replace=lambda _, n: raw if n is p.dot else n)
        skeleton = self.plan.skeleton
        assert skeleton is not None
        self.slots, self.sizes = skeleton.slots, skeleton.sizes

    def home(self, v: Value) -> Scope:
        return self.loop if self.loop is not None and "r" in v.axes else self.top

    def reduced(self, v: Value) -> str:
        raise ValueError(f"{self.name}: a reduction within the score of attention")

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        return SCORE if node.buffer == SCORE else super().load(v, node, args)

    # --- operands -----------------------------------------------------------------------------

    def operand(self, n: Load, places: Mapping[Expr, tuple[str, str]]) -> str:
        """A block of an operand.  places: the text of variables, and the mask along each."""
        names = {str(v): text for v, (text, _) in places.items()}
        self.used.update(str(v) for v in n.index.free if v in self.values.axis_of)
        conds = [m for v, (_, m) in places.items() if m]
        mask = f", {' & '.join(conds)}, other=0" if conds else ""
        return f"tl.load({self.pointer(n.buffer, render(n.index, TRITON, names))}{mask})"

    def within(self, size: int, place: str) -> tuple[str, str]:
        """A place along a row of ``size`` elements, and its mask where a block is wider."""
        return place, "" if size == _block(size) else f"({place} < {size})"

    def body(self) -> None:
        p, emit = self.parts, self.top.emit
        wide = ".to(tl.int64)" if self.made.wide else ""
        for name, size in (("inner", self.inner), ("column", self.columns)):
            emit(f"{name}s = tl.arange(0, {_block(size)}){wide}")
        xmask = self.mask("x")
        inner = self.within(self.inner, "inners[None, :]")
        query = self.operand(p.query, {p.rows: (str(p.rows), xmask), p.inner: inner})
        emit(f"query = {query}")
        shape = f"[{self.axes.parallel[-1].block}, {_block(self.columns)}]"
        emit(f"top = tl.full([{self.axes.parallel[-1].block}, 1], float('-inf'), tl.float32)")
        emit(f"total = tl.zeros([{self.axes.parallel[-1].block}, 1], tl.float32)")
        emit(f"acc = tl.zeros({shape}, tl.float32)")
        if not self.slots:
            self.over(p.score, f"rstart in range(0, {self.index(self.axes.all[-1].size)}, RBLOCK)")
        else:
            self.visits(p.score, *self.slots[:2])
            if self.slots[2:]:
                self.visits(p.unmasked, *self.slots[2:])
        self.results()

    def visits(self, score: Node, count: Node, which: Node) -> None:
        """The loop over the key blocks that one slot counts and another one names."""
        rows, columns = self.sizes
        assert isinstance(count, Load) and isinstance(which, Load)
        visit = next((v for v in which.index.free if v not in count.index.free), None)
        first = f"({self.pids['x']} * {self.axes.parallel[-1].block})"
        names = {str(self.parts.rows): first, **({} if visit is None else {str(visit): "visit"})}
        self.used.update(str(v) for v in count.index.free)
        number = self.fresh("visits")
        at = self.pointer(count.buffer, render(count.index, TRITON, names))
        self.top.emit(f"{number} = tl.load({at})")
        block = self.pointer(which.buffer, render(which.index, TRITON, names))
        wide = ".to(tl.int64)" if self.made.wide else ""
        self.over(
            score,
            f"turn in range(0, {number} * ({columns} // RBLOCK))",
            f"visit = turn // ({columns} // RBLOCK)",
            f"rstart = tl.load({block}){wide} * {columns} + turn % ({columns} // RBLOCK) * RBLOCK",
        )

    def over(self, score: Node, loop: str, *lines: str) -> None:
        """One loop over blocks of keys."""
        p = self.parts
        child = Scope(2, self.top)
        self.scope = self.loop = child
        wide = ".to(tl.int64)" if self.made.wide else ""
        for line in lines:
            child.emit(line)
        child.emit(f"rindex = rstart + tl.arange(0, RBLOCK)[None, :]{wide}")
        child.emit(f"rrow = rstart + tl.arange(0, RBLOCK)[:, None]{wide}")
        rmask = rrow = ""
        if "r" not in self.made.even:
            size = self.index(self.axes.all[-1].size)
            child.emit(f"rmask = rindex < {size}")
            rmask, rrow = "rmask", f"(rrow < {size})"
        axis = self.axes.reduced
        assert axis is not None
        self.decode(child, axis)
        inner = self.within(self.inner, "inners[:, None]")
        key = self.operand(p.key, {p.keys: ("rindex", rmask), p.inner: inner})
        child.emit(f"{SCORE} = litz.dot(query, {key})")
        found = self.wide_value(self.values(self.with_raw(score)))
        seen = f"tl.where({rmask}, {found}, float('-inf'))" if rmask else found
        child.emit(f"scores = {seen}")
        columns = self.within(self.columns, "columns[None, :]")
        value = self.operand(p.value, {p.keys: ("rrow", rrow), p.columns: columns})
        kind = TRITON_TYPES[p.value.dtype.name]
        for line in (
            # What is nan makes its weight so, and that the results.
            "best = tl.maximum(top, tl.max(scores, 1)[:, None])",
            f"shift = tl.where(best == float('-inf'), 0.0, best * {-LOG2E})",
            f"weight = litz.flush_exp2(tl.fma(scores, {LOG2E}, shift))",
            f"less = litz.flush_exp2(tl.fma(top, {LOG2E}, shift))",
            "total = total * less + tl.sum(weight, 1)[:, None]",
            f"acc = litz.dot(litz.cast(weight, {kind}), {value}, acc * less)",
            "top = best",
        ):
            child.emit(line)
        self.scope, self.loop = self.top, None
        self.top.emit(f"for {loop}:")
        self.top.lines += child.lines

    def results(self) -> None:
        p = self.parts
        self.top.emit("total_or_one = tl.where(total == 0, 1.0, total)")
        scale = 1 / math.log(2)
        columns = self.within(self.columns, "columns[None, :]")
        rows = self.mask("x")
        both = " & ".join(m for m in (rows, columns[1]) if m)
        kind = TRITON_TYPES[p.out.value.dtype.name]
        shift = "tl.where(top == float('-inf'), 0.0, top)"
        for s, text, mask in (
            (p.out, f"litz.cast(acc / total_or_one, {kind})", both),
            (p.lse, f"tl.log2(total) + {shift} * {scale}", rows),
            (p.top, f"tl.where(total == total, top, total) * {scale}", rows),
        ):
            if s is None:
                continue
            self.used.update(str(v) for v in s.index.free)
            names = {str(p.columns): columns[0]}
            at = self.pointer(s.buffer, render(s.index, TRITON, names))
            tail = f", {mask}" if mask else ""
            self.top.emit(f"tl.store({at}, {text}{tail})")


def _block(size: int) -> int:
    """Elements of a block that holds a row, as matrix units take them."""
    return max(LEAST, power_of_two(size))
