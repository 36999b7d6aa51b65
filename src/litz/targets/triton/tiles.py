"""Printing templates that keep a block of rows and go over blocks of what it meets.

In each step tiles are computed: products by matrix units, bodies over them as in any kernel.  Where
a mask's blocks are given, only those are met, first those in which something is masked: the others
pass by the mask.
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


class TilePrinter(Printer):
    """What printers of such templates share.

    slots: of the skeleton: how many blocks are visited, and which.  inner: the loop that is open.
    partial: says of a step whether something can be masked in it; "": that is always so.
    turns: a variable that a loop around the visits counts, if there is one.  placed: names of
    values that are no loads, where bodies read them.  alone: dims of one place, as blocks.
    """

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.inner: Scope | None = None
        self.partial = ""
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

    # --- programs -----------------------------------------------------------------------------

    def program_ids(self, axes: tuple[Axis, ...]) -> dict[str, str]:
        """The blocks of some heads follow each other head by head, block by block."""
        pids = super().program_ids(axes)
        z, x = self.axes.parallel
        blocks = f"tl.cdiv({self.index(x.size)}, {x.block})"
        if self.made.together > 1:
            sizes = f"{self.index(z.size)}, {blocks}, {self.made.together}"
            self.top.emit(f"zblock, xblock = tl.swizzle2d({pids['z']}, {pids['x']}, {sizes})")
            pids = {"z": "zblock", "x": "xblock"}
        if self.made.downward:
            self.top.emit(f"xlast = {blocks} - 1 - {pids['x']}")
            pids["x"] = "xlast"
        return pids

    # --- loops --------------------------------------------------------------------------------

    def everything(self, rows: Expr, step: Callable[[], None]) -> None:
        """The loop over what is visited, or over all there is."""
        if self.slots:
            self.visits(rows, step)
            return
        size = self.index(self.axes.all[-1].size)
        first, last = self.part(f"tl.cdiv({size}, RBLOCK)")
        self.over(
            step,
            f"rstart in range({first} * RBLOCK, {last} * RBLOCK, RBLOCK)"
            if self.made.share is not None
            else f"rstart in range(0, {size}, RBLOCK)",
        )

    def visits(self, rows: Expr, step: Callable[[], None]) -> None:
        """The loop over the blocks that slots count and name."""
        emit = self.outer.emit
        x, (_, columns) = self.axes.parallel[-1], self.sizes
        each = f"({columns} // RBLOCK)"
        # Rows of several heads lie in one block of the mask.
        first = f"({self.pids['x']} * {x.block})" if len(x.dims) == 1 else "0"
        tables: list[tuple[Load, str, str, str]] = []  # names at a visit; steps before and behind
        before = ""
        for count, which in zip(self.slots[::2], self.slots[1::2], strict=True):
            assert isinstance(count, Load) and isinstance(which, Load)
            visit = visit_of(count, which)
            self.used.update(str(v) for v in count.index.free)
            at = self.pointer(count.buffer, render(count.index, TRITON, {str(rows): first}))
            behind = self.fresh("turns")
            emit(f"{behind} = {f'{before} + ' if before else ''}tl.load({at}) * {each}")
            tables.append((which, "" if visit is None else str(visit), before, behind))
            before = behind
        self.partial = f"turn < {tables[0][3]}" if tables[1:] else ""

        def start(turn: str) -> str:
            """Where a step begins; each table has an end."""
            found = []
            for which, visit, begin, end in tables:
                there = f"({turn} - {begin})" if begin else turn
                names = {str(rows): first, visit: f"({there} // {each})"}
                at = self.pointer(which.buffer, render(which.index, TRITON, names))
                inside = f"({turn} >= {begin}) & ({turn} < {end})" if begin else f"{turn} < {end}"
                found.append(f"tl.load({at}, {inside}, other=0)")
            return f"({' + '.join(found)}){self.wide} * {columns} + {turn} % {each} * RBLOCK"

        begin, end = self.part(before)
        # What a step loads from is known a step ahead: so loads can be.
        emit(f"rnext = {start(begin)}")
        after = (f"rnext = {start('(turn + 1)')}",)
        self.over(step, f"turn in range({begin}, {end})", "rstart = rnext", after=after)

    def masked(self, cond: Node, tiles: Mapping[str, str]) -> None:
        """Give tiles another value where a condition does not hold.  tiles: it, by their names."""
        loop = self.scope
        if self.partial:
            loop.emit(f"if {self.partial}:")
            self.scope = self.inner = Scope(loop.depth + 1, loop)
        text = self.value(self.values(cond))
        for name, other in tiles.items():
            self.scope.emit(f"{name} = tl.where({text}, {name}, {other})")
        if self.partial:
            loop.lines += self.scope.lines
            self.scope = self.inner = loop

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
