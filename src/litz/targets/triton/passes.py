"""Printing plans whose reductions all run over the whole reduced axis, or that have none.

Along the reduced axis a block either holds all of it (persistent: each value is computed once and
stays in registers) or a part, over which a loop runs once for every pass: first the reductions that
need no other, then those that need them, and so on, and last the stores of the full space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from litz.index import TRITON, Expr, divides, product, render
from litz.ir.body import Op, Reduce, Store
from litz.ir.reductions import EXPONENTIALS
from litz.kernel.blocks.recipe import BlockPlan
from litz.kernel.blocks.sizes import CACHE, hint
from litz.kernel.nodes import loops_of, row_start
from litz.kernel.passes import Pass, reductions
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.printer import Printer
from litz.targets.triton.reductions import Accumulator, accumulator, at_once
from litz.targets.triton.scans import Scans
from litz.targets.triton.softmax import SoftmaxAccumulator
from litz.targets.triton.spell import neutral

# What the cache should do with what a pass reads.
POLICY = {"once": "", "again": "evict_last", "last": "evict_first"}


class PassPrinter(Printer):
    """Prints a plan in passes over its reduced axis."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.loop: Scope | None = None  # the loop over the reduced axis that lines go to
        self.whole = False  # whether that loop takes the whole accesses of odd rows
        self.policy = ""  # what the cache should do with what that loop reads
        self.streams = False  # whether what that loop stores should leave the cache at once
        self.bases: dict[Expr, str] = {}  # names of where rows begin
        self.reduces = reductions(self.values, self.plan.stores)
        # Sums of a softmax, each with its maximum.
        self.totals = {self.reduces[b]: self.reduces[a] for b, a in made.totals}
        self.inverses: dict[Value, str] = {}  # names of their reciprocals
        self.scans = Scans(self, self.at)

    def body(self) -> None:
        if self.made.form == "passes":
            self.passes()
            return
        if self.made.form in ("persistent", "lookback"):
            self.reduced_range()
        if self.made.inside:
            self.inside()
        self.stores(self.plan.stores)
        if self.made.inside:
            self.top.lines += self.scope.lines

    def inside(self) -> None:
        """The stores of a block that lies inside of axis x; below, those of the last one."""
        first, end = self.stretch(self.axes.parallel[-1], self.pids["x"])
        self.once(f"if {first} + XBLOCK <= {end}:")
        self.covered, self.scope = self.made.even | {"x"}, Scope(2, self.top)
        self.stores(self.plan.stores)
        self.top.lines += self.scope.lines
        self.once("else:")
        self.covered, self.scope = self.made.even, Scope(2, self.top)

    def passes(self) -> None:
        flat = [s for s in self.plan.stores if not loops_of(s, self.plan.reduced)]
        reducing = [p for p in self.made.passes if p.groups]
        for p in reducing:
            self.policy = POLICY[p.reads]
            self.reduce_loop(p)
        # Loads of the flat stores come before the full ones may overwrite what they read.
        self.policy = "evict_first" if reducing else ""
        size = sum(self.plan.dtype(s.buffer).bytes for s in self.plan.stores if s not in flat)
        size *= hint(product(a.size for a in self.axes.all))
        self.streams = bool(reducing) and size > CACHE
        values = [self.evaluate(s) for s in flat]
        for p in self.made.passes[len(reducing) :]:
            self.sweep(partial(self.stores_of, p))
        for store, value in zip(flat, values, strict=True):
            self.put(store, value)

    def stores_of(self, p: Pass) -> None:
        self.stores([self.plan.stores[i] for i in p.stores])

    def sweep(self, body: Callable[[], None]) -> None:
        """``body`` in loops over the reduced axis: one over whole blocks, one over what is left."""
        axis = self.axes.reduced
        assert axis is not None
        self.scans.begin()
        size = self.index(axis.size)
        if self.made.backward:
            self.sweep_back(size, body)
            return
        if "r" in self.made.even:
            self.loop_over(f"0, {size}", "rindex = rstart", "", body)
            return
        if not axis.size.is_const:
            self.loop_over(f"0, {size}", "rindex = rstart", f"rindex < {size}", body)
            return
        # A part of a row in front of its first whole access belongs to what is left.
        rows = self.made.rows
        inner = f"({size} - {rows[1] - 1})" if rows else size
        self.once(f"rwhole: tl.constexpr = {inner} // RBLOCK * RBLOCK")
        if rows:
            self.once(f"xrow = {self.pids['x']}")
            self.once(f"rhead = (0 - ({self.row(rows[0])})) & {rows[1] - 1}")
        self.covered, self.whole = self.made.even | {"r"}, rows is not None
        inside = f"rmain = rstart + {self.steps()}\nrindex = rhead + rmain"
        self.loop_over("0, rwhole", inside if rows else "rindex = rstart", "", body)
        self.covered, self.whole = self.made.even, False
        end = f"rlast = rstart + {self.steps()}\nrindex = "
        end += "tl.where(rlast < rhead, rlast, rlast + rwhole)" if rows else "rlast + rwhole"
        self.loop_over(f"0, {size} - rwhole", end, f"rlast < {size} - rwhole", body)

    def sweep_back(self, size: str, body: Callable[[], None]) -> None:
        """``sweep`` from the end of what lies in memory."""
        line, some = self.back("rstart"), "rback >= 0"
        axis = self.axes.reduced
        if "r" in self.made.even or (axis is not None and not axis.size.is_const):
            self.loop_over(f"0, {size}", line, "" if "r" in self.made.even else some, body)
            return
        self.once(f"rwhole: tl.constexpr = {size} // RBLOCK * RBLOCK")
        self.covered = self.made.even | {"r"}
        self.loop_over("0, rwhole", line, "", body)
        self.covered = self.made.even
        self.loop_over(f"rwhole, {size}", line, some, body)

    def back(self, start: str) -> str:
        """Places of a block in memory, of which what a scan comes to first lies last."""
        axis = self.axes.reduced
        assert axis is not None
        start = f" - {start}" if start else ""
        return f"rback = {self.index(axis.size)} - RBLOCK{start} + {self.steps()}"

    def once(self, line: str) -> None:
        """A line at the top, unless it is there."""
        if f"    {line}" not in self.top.lines:
            self.top.emit(line)

    def row(self, start: Expr) -> str:
        """Where a row begins, as a scalar: a program has one row."""
        return render(self.flat(start), TRITON, {"xindex": "xrow"})

    def loop_over(self, range_: str, index: str, mask: str, body: Callable[[], None]) -> None:
        """A loop of blocks along the reduced axis."""
        axis = self.axes.reduced
        assert axis is not None
        child = Scope(2, self.top)
        if index.endswith("rstart"):
            index += f" + {self.steps()}"
        for line in index.split("\n"):
            child.emit(line)
        if mask:
            child.emit(f"rmask = {mask}")
        self.decode(child, axis)
        self.scope = self.loop = child
        body()
        self.end_of_turn()
        self.scope, self.loop = self.top, None
        self.top.emit(f"for rstart in range({range_}, RBLOCK):")
        self.top.lines += child.lines

    def end_of_turn(self) -> None:
        """What a loop over the reduced axis does at the end of each turn."""

    def steps(self) -> str:
        wide = ".to(tl.int64)" if self.made.wide else ""
        run = self.made.run
        steps = "tl.arange(0, RBLOCK)" if run == 1 else f"litz.in_runs(RBLOCK, {run})"
        return f"{steps}{self.spread('r')}{wide}"

    def reduced_range(self) -> None:
        """All of the reduced axis, or a program's block of it."""
        axis = self.axes.reduced
        assert axis is not None
        start = f"{self.pids['r']} * RBLOCK" if "r" in self.pids else ""
        place = self.back(start) if self.made.backward else f"rindex = {self.steps()}"
        if start and not self.made.backward:
            place = f"rindex = {start} + {self.steps()}"
        rows, inside = self.made.rows, f"rindex < {self.index(axis.size)}"
        if rows is not None:
            self.top.emit(f"rhead = ({self.index(rows[0])}) & {rows[1] - 1}")
            place, inside = f"{place} - rhead", f"(rindex >= 0) & ({inside})"
        self.top.emit(place)
        if "r" not in self.made.even:
            inside = "rback >= 0" if self.made.backward else inside
            self.top.emit(f"rmask = {inside}")
        self.decode(self.top, axis)
        if self.made.words is not None:
            self.scans.look_back.begin()

    # --- reductions -----------------------------------------------------------------------------

    @property
    def at(self) -> int:
        """Which axis of a block is reduced."""
        return 0 if self.apart else len(self.blocked) - 1

    def reduce_loop(self, p: Pass) -> None:
        """One pass that reduces."""
        accs = []
        names = [a.name for a in self.blocked]
        shape = self.extents(names)
        for group in ([self.reduces[i] for i in g] for g in p.groups):
            sums = [b for b, a in self.totals.items() if a is group[0]]
            if sums:
                dtype = group[0].args[0].node.dtype
                exact = any(b.node not in self.narrow for b in sums)
                acc: Accumulator = SoftmaxAccumulator(
                    EXPONENTIALS,
                    dtype,
                    self.fresh("acc"),
                    shape,
                    self.at,
                    self.made.neighbours,
                    exact,
                )
            else:
                acc = accumulator(group, self.fresh("acc"), shape, self.at, self.turns())
            self.top.lines += ["    " + line for line in acc.begin()]
            accs.append((group, acc))

        def turn() -> None:
            mask = self.mask("r")
            for group, acc in accs:
                value = self.wide_value(group[0].args[0])
                for line in acc.update(value, mask, self.position(group[0])):
                    self.scope.emit(line)
            self.stores_of(p)

        self.sweep(turn)
        for group, acc in accs:
            for line in acc.finish():
                self.top.emit(line)
            for v in group:
                assert isinstance(v.node, Reduce)
                self.top.known[v] = acc.result(v.node)

    def turns(self) -> str:
        """How many turns of a loop over the reduced axis each lane takes part in, unless all."""
        axis = self.axes.reduced
        assert axis is not None
        if "r" in self.made.even:
            return ""
        lane = f"tl.arange(0, RBLOCK){self.spread('r')}"
        return f"({self.index(axis.size)} + (RBLOCK - 1) - {lane}) // RBLOCK"

    def reduced(self, v: Value) -> str:
        """A reduction of a block that holds all of the axis."""
        if not self.made.persistent:
            raise ValueError(f"{self.name}: a reduction is needed before its pass")
        node = v.node
        assert isinstance(node, Reduce)
        # Along axes that its argument does not vary along, a reduction is the same.
        value = self.wide_value(v.args[0], {*v.args[0].axes, "r"})
        dtype = v.args[0].node.dtype
        mask = self.mask("r")
        if mask:
            value = f"tl.where({mask}, {value}, {neutral(node.row, dtype)})"
        text = at_once(node.row, value, self.at, self.position(v))
        return f"litz.alone({text})" if self.apart else text

    def scanned(self, v: Value) -> str:
        return self.scans(v)

    # --- values and their accesses --------------------------------------------------------------

    def home(self, v: Value) -> Scope:
        if self.made.inside:
            return self.scope
        return self.loop if self.loop is not None and "r" in v.axes else self.top

    def narrow_text(self, v: Value, node: Op, args: Sequence[str]) -> str:
        total = v.args[-1]
        if node.name != "div" or total not in self.totals:
            return super().narrow_text(v, node, args)
        # At least 1, being the sum of exponentials of which one is that of zero.
        if total not in self.inverses:
            name = self.inverses[total] = self.fresh()
            self.home(total).emit(f"{name} = litz.reciprocal({args[1]})")
        return f"({args[0]} * {self.inverses[total]})"

    def put_text(self, s: Store, at: str, value: str, mask: str) -> str:
        text = super().put_text(s, at, value, mask)
        if self.loop is None or not self.streams or s.mode != "set":
            return text
        # What nobody finds in the cache anyway leaves it to what is read again.
        return f'{text[:-1]}, cache_modifier=".cs")'

    def eviction(self) -> str:
        """What the cache should do with what a reduction reads."""
        # What a block holds whole it reads once: kept a while, it lets writes pass first.
        policy = "evict_last" if self.made.persistent else self.policy
        return f', eviction_policy="{policy}"' if policy else ""

    def aligned(self, e: Expr) -> str:
        rows = self.made.rows if self.whole else None
        if rows is None:
            return ""
        (v,) = self.plan.reduced
        start = row_start(e, v)
        if start is None or not divides(rows[1], start - rows[0]):
            return ""
        if start not in self.bases:
            name = self.bases[start] = f"rbase{len(self.bases)}"
            self.top.emit(f"{name} = tl.multiple_of({self.row(start)} + rhead, {rows[1]})")
        return f"{self.bases[start]} + rmain"
