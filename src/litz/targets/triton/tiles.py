"""Printing templates that keep a block of rows and go over blocks of what it meets.

In each step tiles are computed: products by matrix units, bodies over them as in any kernel.  Where
a mask's blocks are given, only those are met, and bodies are printed once more without their mask
for those in which nothing is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from litz.index import TRITON, Expr, Substitution, render
from litz.ir.attention import visit_of
from litz.ir.body import Index, Load, Node, Store, walk
from litz.kernel.blocks.attention import LEAST
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.blocks.sizes import power_of_two
from litz.kernel.nodes import extent, int_value
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope, decoded
from litz.targets.triton.printer import Printer

LOG2E: Final = 1.4426950408889634

Steps = Callable[[bool], None]


class TilePrinter(Printer):
    """What printers of such templates share.

    slots: of the skeleton: how many blocks are visited, and which.  inner: the loop that is open.
    turns: a variable that a loop around the visits counts, if there is one.  placed: names of
    values that are no loads, where bodies read them.  alone: dims of one place, as blocks.
    """

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.inner: Scope | None = None
        self.outer = self.top
        self.turns: Expr | None = None
        self.placed: set[str] = set()
        self.turning: dict[Node, bool] = {}
        skeleton = self.plan.skeleton
        assert skeleton is not None
        self.slots, self.sizes = skeleton.slots, skeleton.sizes
        # The one place along a block's axis is a block too, as its mask is.
        alone = {v: a for a in self.blocked for v, e in decoded(a) if e.is_const}
        self.flat = Substitution(
            {v: e for a in self.axes.all for v, e in decoded(a) if v not in alone}
        )
        self.alone = {str(v): f"{a.name}index * 0" for v, a in alone.items()}

    def decode(self, scope: Scope, axis: Axis) -> None:
        super().decode(scope, axis)
        for v in axis.dims:
            if str(v) in self.alone:
                scope.emit(f"{v} = {self.alone[str(v)]}")

    @property
    def wide(self) -> str:
        return ".to(tl.int64)" if self.made.wide else ""

    def home(self, v: Value) -> Scope:
        if "r" in v.axes:
            assert self.inner is not None
            return self.inner
        return self.outer if self.turns is not None and self.turns_with(v.node) else self.top

    def turns_with(self, node: Node) -> bool:
        """Whether a node depends on the loop around the visits."""
        if node not in self.turning:
            found = (n for n in walk((node,)) if isinstance(n, Load | Index))
            places = (n.index if isinstance(n, Load) else n.expr for n in found)
            self.turning[node] = any(self.turns in e.free for e in places)
        return self.turning[node]

    def reduced(self, v: Value) -> str:
        raise ValueError(f"{self.name}: a reduction within a tile")

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        """What functions read is there at every place of a tile, masked ones too."""
        if node.buffer in self.placed:
            return node.buffer
        return super().load(replace(v, conds=()), node, args)

    # --- operands -----------------------------------------------------------------------------

    def operand(self, n: Load, places: Mapping[Expr, tuple[str, str]]) -> str:
        """A block of an operand.  places: the text of variables, and the mask along each."""
        at, mask = self.place(n.buffer, n.index, places)
        return f"tl.load({at}{f', {mask}, other=0' if mask else ''})"

    def result(self, s: Store, text: str, places: Mapping[Expr, tuple[str, str]]) -> None:
        """Store a block of rows."""
        at, mask = self.place(s.buffer, s.index, places)
        self.top.emit(f"tl.store({at}, {text}{f', {mask}' if mask else ''})")

    def place(
        self, buffer: str, index: Expr, places: Mapping[Expr, tuple[str, str]]
    ) -> tuple[str, str]:
        """Where a block lies, and its mask."""
        names = {str(v): text for v, (text, _) in places.items()}
        self.used.update(map(str, index.free))
        conds = [m for _, m in places.values() if m]
        return self.pointer(buffer, render(index, TRITON, names)), " & ".join(conds)

    def along(self, v: Expr, subscript: str) -> tuple[str, str]:
        """A place along a row, and its mask where a block is wider than the row."""
        size, place = int_value(extent(v)), f"{v}s{subscript}"
        return place, "" if size == block_of(size) else f"({place} < {size})"

    def row(self, v: Expr) -> tuple[str, str]:
        """The places of rows, as a block even if there is one, and their mask."""
        alone = len(self.axes.parallel[-1].dims) == 1
        return "xindex" if alone else str(v), self.mask("x")

    def ranges(self, *variables: Expr) -> None:
        """The places along rows."""
        for v in dict.fromkeys(variables):
            self.top.emit(f"{v}s = tl.arange(0, {block_of(int_value(extent(v)))}){self.wide}")

    # --- loops --------------------------------------------------------------------------------

    def everything(self, rows: Expr, steps: Steps) -> None:
        """All loops: over what is visited, or over all there is.

        steps: prints one step; is told whether something can be masked in it.
        """
        if not self.slots:
            size = self.index(self.axes.all[-1].size)
            first, last = self.part(f"tl.cdiv({size}, RBLOCK)")
            self.over(
                lambda: steps(True),
                f"rstart in range({first} * RBLOCK, {last} * RBLOCK, RBLOCK)"
                if self.made.share is not None
                else f"rstart in range(0, {size}, RBLOCK)",
            )
            return
        self.visits(rows, lambda: steps(True), *self.slots[:2])
        if self.slots[2:]:
            self.visits(rows, lambda: steps(False), *self.slots[2:])

    def visits(self, rows: Expr, steps: Callable[[], None], count: Node, which: Node) -> None:
        """The loop over the blocks that one slot counts and another one names."""
        _, columns = self.sizes
        assert isinstance(count, Load) and isinstance(which, Load)
        visit = visit_of(count, which)
        x = self.axes.parallel[-1]
        # Rows of several heads lie in one block of the mask.
        first = f"({self.pids['x']} * {x.block})" if len(x.dims) == 1 else "0"
        names = {str(rows): first, **({} if visit is None else {str(visit): "visit"})}
        self.used.update(str(v) for v in count.index.free)
        number = self.fresh("visits")
        at = self.pointer(count.buffer, render(count.index, TRITON, names))
        self.outer.emit(f"{number} = tl.load({at})")
        block = self.pointer(which.buffer, render(which.index, TRITON, names))
        each = f"({columns} // RBLOCK)"
        begin, end = self.part(f"{number} * {each}")
        # What a step loads from is known a step ahead: so loads can be.
        start = f"tl.load({block}){self.wide} * {columns} + TURN % {each} * RBLOCK"
        turns = f"({end})"
        self.outer.emit(f"visit = {begin} // {each}")
        self.outer.emit(f"rnext = {start.replace('TURN', begin)}")
        self.over(
            steps,
            f"turn in range({begin}, {end})",
            "rstart = rnext",
            after=(
                f"visit = tl.minimum(turn + 1, {turns} - 1) // {each}",
                f"rnext = {start.replace('TURN', '(turn + 1)')}",
            ),
        )

    def part(self, steps: str) -> tuple[str, str]:
        """The first of so many steps, and the one behind the last, that a program does."""
        if self.made.share is None:
            return "0", steps
        self.used.add(str(self.made.share))
        count = int_value(extent(self.made.share))
        each, end = self.fresh("each"), self.fresh("end")
        self.outer.emit(f"{each} = tl.cdiv({steps}, {count})")
        self.outer.emit(f"{end} = tl.minimum({steps}, ({self.made.share} + 1) * {each})")
        return f"{self.made.share} * {each}", end

    def over(
        self, steps: Callable[[], None], loop: str, *lines: str, after: Sequence[str] = ()
    ) -> None:
        """One loop over blocks of the other side.  after: lines at its end."""
        child = Scope(self.outer.depth + 1, self.outer)
        self.scope = self.inner = child
        for line in lines:
            child.emit(line)
        child.emit(f"rindex = rstart + tl.arange(0, RBLOCK)[None, :]{self.wide}")
        child.emit(f"rrow = rstart + tl.arange(0, RBLOCK)[:, None]{self.wide}")
        if "r" not in self.made.even:
            child.emit(f"rmask = rindex < {self.index(self.axes.all[-1].size)}")
        axis = self.axes.reduced
        assert axis is not None
        self.decode(child, axis)
        steps()
        for line in after:
            child.emit(line)
        self.scope, self.inner = self.outer, None
        self.outer.emit(f"for {loop}:")
        self.outer.lines += child.lines

    def moving(self) -> tuple[str, str]:
        """The places of the other side as rows, and their mask."""
        size = self.index(self.axes.all[-1].size)
        return "rrow", "" if "r" in self.made.even else f"(rrow < {size})"

    def within(self, text: str, other: str) -> str:
        """A tile, with another value beyond the end."""
        return text if "r" in self.made.even else f"tl.where(rmask, {text}, {other})"


def block_of(size: int) -> int:
    """Elements of a block that holds a row, as matrix units take them."""
    return max(LEAST, power_of_two(size))
