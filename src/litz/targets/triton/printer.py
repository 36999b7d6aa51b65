"""Printing one plan as one Triton kernel.

A program computes a block of the parallel axes.  Along the reduced axis the block either holds all
of it (persistent: each value is computed once and stays in registers) or a part, over which a loop
runs once for every pass: first the reductions that need no other, then those that need them, and so
on, and last the stores of the full space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from litz.index import TRITON, Expr, Substitution, Symbol, const, divides, render
from litz.ir.body import Const, Index, Load, Masked, Op, Reduce, Store
from litz.ir.ops import CHECKS, TRITON_TYPES
from litz.kernel.nodes import extent, loops_of, mergeable, roots
from litz.kernel.plan import KernelPlan
from litz.targets.triton.axes import Axis
from litz.targets.triton.blocks import narrowest
from litz.targets.triton.layout import Scope, Shape, decoded, row_start
from litz.targets.triton.narrow import is_close_quotient, narrow_nodes, one_plus, vanishing_nodes
from litz.targets.triton.reach import LIMIT
from litz.targets.triton.reductions import Accumulator, accumulator, at_once, twins
from litz.targets.triton.softmax import SoftmaxAccumulator, is_pair
from litz.targets.triton.spell import literal, neutral, op_text
from litz.targets.triton.values import Value, Values

# Ops with a cheaper form for values that are rounded to 16 bits.
NARROW = ("div", "exp", "sigmoid")

HEADER = """\
import triton
import triton.language as tl
from litz.runtime.triton import helpers as litz


@triton.jit
"""


class Printer:
    """Prints a plan.  Every reduction runs over all of the reduced axis."""

    def __init__(self, plan: KernelPlan, name: str, shape: Shape) -> None:
        self.plan = plan
        self.name = name
        self.shape = shape
        self.axes = shape.axes
        self.blocked = self.axes.blocked
        every = (*self.axes.parallel, *((self.axes.reduced,) if self.axes.reduced else ()))
        self.values = Values({v: a.name for a in every for v in a.dims})
        self.flat = Substitution({v: e for a in every for v, e in decoded(a)})
        self.used: set[str] = set()
        self.dim_lines: dict[str, str] = {}
        self.top = Scope(1)
        self.scope = self.top
        self.loop: Scope | None = None
        self.count = 0
        self.scalars = {p.name for p in plan.params if p.by_value}
        self.checks = False
        self.policy = ""
        self.narrow = narrow_nodes(plan.stores)
        self.vanishing = vanishing_nodes(plan.stores)
        self.whole = False  # whether the loop at hand takes whole blocks alone
        self.bases: dict[Expr, str] = {}
        self.pids: dict[str, str] = {}
        self.totals: dict[Value, Value] = {}
        self.inverses: dict[Value, str] = {}

    # --- names and shapes ---------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def extents(self, axes: Iterable[str]) -> str:
        """The shape of a block that varies along ``axes``."""
        names = tuple(axes)
        parts = [f"{a.name.upper()}BLOCK" if a.name in names else "1" for a in self.blocked]
        return f"[{', '.join(parts)}]"

    def spread(self, axis: str) -> str:
        """The subscript that turns a range along ``axis`` into a block."""
        if len(self.blocked) == 1:
            return ""
        return f"[{', '.join(':' if a.name == axis else 'None' for a in self.blocked)}]"

    @property
    def at(self) -> int:
        """Which axis of a block is reduced."""
        return len(self.blocked) - 1

    def index(self, e: Expr, names: Mapping[str, str] | None = None) -> str:
        """An index in terms of the flat axes where that is simpler, else of their dims.

        What is contiguous along an axis should look so to Triton.
        """
        dims = [v for v in e.free if v in self.values.axis_of]
        flat = self.flat(e)
        text = render(flat, TRITON, names)
        if text.count("//") + text.count("%") <= sum(self.costs(v) for v in dims) // 2:
            return text
        self.used.update(str(v) for v in dims)
        return render(e, TRITON, names)

    def costs(self, v: Expr) -> int:
        """Divisions that it takes to decode a dim."""
        text = render(self.flat(v), TRITON)
        return text.count("//") + text.count("%")

    def mask(self, axes: Iterable[str], conds: Sequence[str] = ()) -> str:
        """The mask of a block that varies along ``axes``; empty where all of it is valid."""
        wanted = set(axes)
        parts = [
            f"{a.name}mask"
            for a in self.blocked
            if a.name in wanted
            and a.name not in self.shape.even
            and not (self.whole and a.name == "r")
        ]
        return " & ".join([*parts, *conds])

    # --- the skeleton ---------------------------------------------------------------------------

    def print(self) -> str:
        self.parallel()
        self.body()
        signature = [p.name for p in self.plan.params if not p.by_value]
        signature += [p.name for p in self.plan.params if p.by_value]
        signature += [str(s) for s in self.plan.ints]
        blocks = [f"{a.name.upper()}BLOCK: tl.constexpr" for a in self.blocked]
        head = f"def {self.name}({', '.join([*signature, *blocks])}):"
        unused = {line for line, v in self.dim_lines.items() if v not in self.used}
        lines = [x for x in self.top.lines if x.strip() not in unused] or ["    pass"]
        return HEADER + "\n".join([head, *lines]) + "\n"

    def parallel(self) -> None:
        """The program's place along the parallel axes."""
        axes = self.axes.parallel
        self.pids = pids = self.program_ids(tuple(reversed(axes)))
        for a in axes:
            pid, name = pids[a.name], f"{a.name}index"
            if a.name == "z":
                self.top.emit(f"{name} = {pid}")
            else:
                steps = f"tl.arange(0, {a.name.upper()}BLOCK){self.spread(a.name)}"
                self.top.emit(f"{name} = {pid} * {a.name.upper()}BLOCK + {steps}")
                if a.name not in self.shape.even:
                    self.top.emit(f"{a.name}mask = {name} < {self.index(a.size)}")
            self.decode(self.top, a)

    def program_ids(self, axes: tuple[Axis, ...]) -> dict[str, str]:
        """Spelling of each axis's program number.  axes: the fastest first."""
        wide = ".to(tl.int64)" if self.shape.wide else ""
        if not self.shape.flat:
            return {a.name: f"tl.program_id({i}){wide}" for i, a in enumerate(axes)}
        out: dict[str, str] = {}
        self.top.emit(f"program = tl.program_id(0){wide}")
        for i, a in enumerate(axes):
            name = f"{a.name}program"
            blocks = f"tl.cdiv({self.index(a.size)}, {a.name.upper()}BLOCK)"
            blocks = self.index(a.size) if a.name == "z" else blocks
            if i + 1 < len(axes):
                self.top.emit(f"{name} = program % ({blocks})")
                self.top.emit(f"program = program // ({blocks})")
            else:
                self.top.emit(f"{name} = program")
            out[a.name] = name
        return out

    def decode(self, scope: Scope, axis: Axis) -> None:
        """The dims of an axis from its flat position."""
        for v, e in decoded(axis):
            line = f"{v} = {render(e, TRITON)}"
            scope.emit(line)
            self.dim_lines[line] = str(v)

    # --- passes ---------------------------------------------------------------------------------

    def body(self) -> None:
        reduces = self.reductions()
        self.totals = {b: a for a in reduces for b in reduces if is_pair(a, b)}
        flat = [s for s in self.plan.stores if not loops_of(s, self.plan.reduced)]
        full = [s for s in self.plan.stores if s not in flat]
        if self.axes.reduced is None:
            self.stores(self.plan.stores)
        elif self.shape.persistent:
            self.reduced_range()
            self.stores(self.plan.stores)
        else:
            self.passes(flat, full)

    def passes(self, flat: Sequence[Store], full: Sequence[Store]) -> None:
        reduces = self.reductions()
        pairs = self.totals
        rounds = [
            [r for r in reduces if r.stage == stage and r not in pairs]
            for stage in range(1, max((r.stage for r in reduces), default=0) + 1)
        ]
        rounds = [here for here in rounds if here]
        pending = list(full)
        for i, here in enumerate(rounds):
            along = self.along(pending, [r for later in rounds[i:] for r in later])
            pending = [s for s in pending if s not in along]
            # What a later pass reads again should stay in the cache until the last has read it.
            more = pending or i + 1 < len(rounds)
            self.policy = "evict_last" if more else "evict_first" if i else ""
            self.reduce_loop(here, pairs, along)
        self.policy = "evict_first" if rounds else ""
        # Loads of the flat stores come before the full ones may overwrite what they read.
        values = [self.evaluate(s) for s in flat]
        if pending:
            self.sweep(lambda: self.stores(pending))
        for store, value in zip(flat, values, strict=True):
            self.put(store, value)

    def along(self, pending: Sequence[Store], open_: Sequence[Value]) -> list[Store]:
        """Stores of the full space that the pass which does the first of ``open_`` can do too.

        They wait for none of these, and nothing that is read in this pass or later lies there.
        """
        stage = open_[0].stage
        ready = [s for s in pending if all(self.values(n).stage < stage for n in s.roots())]
        others = [s for s in self.plan.stores if s not in ready]
        return mergeable(ready, [*(r.node.args[0] for r in open_), *roots(others)])

    def reductions(self) -> list[Value]:
        """All reductions of the plan, arguments first."""
        out: dict[Value, None] = {}
        seen: set[int] = set()

        def visit(v: Value) -> None:
            stack = [(v, False)]
            while stack:
                top, done = stack.pop()
                if done:
                    if isinstance(top.node, Reduce):
                        out[top] = None
                elif id(top) not in seen:
                    seen.add(id(top))
                    stack.append((top, True))
                    stack += [(a, False) for a in reversed((*top.args, *top.conds))]

        for s in self.plan.stores:
            for root in s.roots():
                visit(self.values(root))
        return list(out)

    def sweep(self, body: Callable[[], None]) -> None:
        """``body`` in loops over the reduced axis: one over whole blocks, one over what is left."""
        axis = self.axes.reduced
        assert axis is not None
        size = self.index(axis.size)
        if "r" in self.shape.even:
            self.loop_over(f"0, {size}", "rindex = rstart", "", body)
            return
        if not axis.size.is_const:
            self.loop_over(f"0, {size}", "rindex = rstart", f"rindex < {size}", body)
            return
        # A part of a row in front of its first whole access belongs to what is left.
        rows = self.shape.rows
        inner = f"({size} - {rows[1] - 1})" if rows else size
        self.once(f"rwhole: tl.constexpr = {inner} // RBLOCK * RBLOCK")
        if rows:
            self.once(f"xrow = {self.pids['x']}")
            self.once(f"rhead = (0 - ({self.row(rows[0])})) & {rows[1] - 1}")
        self.whole = True
        inside = f"rmain = rstart + {self.steps()}\nrindex = rhead + rmain"
        self.loop_over("0, rwhole", inside if rows else "rindex = rstart", "", body)
        self.whole = False
        end = f"rlast = rstart + {self.steps()}\nrindex = "
        end += "tl.where(rlast < rhead, rlast, rlast + rwhole)" if rows else "rlast + rwhole"
        self.loop_over(f"0, {size} - rwhole", end, f"rlast < {size} - rwhole", body)

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
        wide = ".to(tl.int64)" if self.shape.wide else ""
        return f"tl.arange(0, RBLOCK){self.spread('r')}{wide}"

    def reduced_range(self) -> None:
        """All of the reduced axis."""
        axis = self.axes.reduced
        assert axis is not None
        self.top.emit(f"rindex = {self.steps()}")
        if "r" not in self.shape.even:
            self.top.emit(f"rmask = rindex < {self.index(axis.size)}")
        self.decode(self.top, axis)

    # --- reductions -----------------------------------------------------------------------------

    def reduce_loop(
        self, reduces: Sequence[Value], pairs: Mapping[Value, Value], along: Sequence[Store]
    ) -> None:
        """One pass that does all reductions of one stage.

        pairs: sums of exponentials that run along with their maxima.  along: stores of the full
        space that run along too.
        """
        accs = []
        names = [a.name for a in self.blocked]
        shape = self.extents(names)
        for group in twins(reduces):
            sums = [b for b, a in pairs.items() if a is group[0]]
            if sums:
                dtype = group[0].args[0].node.dtype
                exact = any(b.node not in self.narrow for b in sums)
                acc: Accumulator = SoftmaxAccumulator(
                    "sum", dtype, self.fresh("acc"), shape, self.at, self.neighbours(), exact
                )
                group += sums
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
            self.stores(along)

        self.sweep(turn)
        for group, acc in accs:
            for line in acc.finish():
                self.top.emit(line)
            for v in group:
                assert isinstance(v.node, Reduce)
                self.top.known[v] = acc.result(v.node.kind)

    def neighbours(self) -> int:
        """Elements along the reduced axis that one thread loads at once."""
        if self.plan.lane not in self.plan.reduced:
            return 1
        return max(1, min(16 // narrowest(self.plan), self.shape.config.block("r")))

    def turns(self) -> str:
        """How many turns of a loop over the reduced axis each lane takes part in, unless all."""
        axis = self.axes.reduced
        assert axis is not None
        if "r" in self.shape.even:
            return ""
        lane = f"tl.arange(0, RBLOCK){self.spread('r')}"
        return f"({self.index(axis.size)} + (RBLOCK - 1) - {lane}) // RBLOCK"

    def reduced(self, v: Value) -> str:
        """A reduction of a block that holds all of the axis."""
        if not self.shape.persistent:
            raise ValueError(f"{self.name}: a reduction is needed before its pass")
        node = v.node
        assert isinstance(node, Reduce)
        value = self.wide_value(v.args[0])
        dtype = v.args[0].node.dtype
        mask = self.mask("r")
        if mask:
            value = f"tl.where({mask}, {value}, {neutral(node.kind, dtype)})"
        return at_once(node.kind, value, self.at, self.position(v))

    def wide_value(self, v: Value) -> str:
        """A value at the full shape of a block."""
        text = self.value(v)
        names = [a.name for a in self.blocked]
        if names and all(n in v.axes for n in names):
            return text
        return f"tl.broadcast_to({text}, {self.extents(names)})"

    def position(self, v: Value) -> str:
        """The linear position along a reduction's axes, for the argument reductions."""
        node = v.node
        assert isinstance(node, Reduce)
        at: Expr = const(0)
        for a in node.axes:
            at = at * extent(a) + a
        return self.index_value(at)

    # --- values ---------------------------------------------------------------------------------

    def home(self, v: Value) -> Scope:
        return self.loop if self.loop is not None and "r" in v.axes else self.top

    def value(self, root: Value) -> str:
        """The name of a value, computed where it is not known yet."""
        stack = [root]
        while stack:
            v = stack[-1]
            if self.scope.find(v) is not None:
                stack.pop()
                continue
            missing = [a for a in self.operands(v) if self.scope.find(a) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            home = self.home(v)
            text = self.spelled(v)
            if not text.isidentifier():
                name = self.fresh()
                home.emit(f"{name} = {text}")
                text = name
            home.known[v] = text
        found = self.scope.find(root)
        assert found is not None
        return found

    def operands(self, v: Value) -> tuple[Value, ...]:
        """What has to be known before a value can be spelled."""
        function = one_plus(v.node) if v.node in self.narrow else None
        if function is not None:
            return next(a for a in v.args if a.node is function).args
        return (*v.args, *v.conds)

    def spelled(self, v: Value) -> str:
        node = v.node
        function = one_plus(node) if node in self.narrow else None
        if function is not None:
            return f"litz.narrow_{function.name}_plus_one({self.value(self.operands(v)[0])})"
        if isinstance(node, Reduce):
            return self.reduced(v)
        args = [self.value(a) for a in v.args]
        if isinstance(node, Const):
            return literal(node)
        if isinstance(node, Index):
            return self.index_value(node.expr)
        if isinstance(node, Masked):
            return f"tl.where({', '.join(args)})"
        if isinstance(node, Load):
            return self.load(v, node, args)
        assert isinstance(node, Op)
        if node.name in CHECKS:
            return self.check(v, args)
        if node.name == "eq":
            text = self.same_position(v, args)
            if text:
                return text
        if node in self.narrow:
            text = self.narrow_text(v, node, args)
            if text:
                return text
        return op_text(node, args)

    def same_position(self, v: Value, args: Sequence[str]) -> str:
        """A position compared with what is fixed where it runs: in 32 bits."""
        for own, other, text in zip(v.args, reversed(v.args), reversed(args), strict=True):
            if isinstance(own.node, Index) and own.axes - other.axes:
                e = own.node.expr
                if e.lo is not None and e.hi is not None and 0 <= e.lo and e.hi < LIMIT:
                    return f"litz.is_position({self.index(e)}, {text})"
        return ""

    def narrow_text(self, v: Value, node: Op, args: Sequence[str]) -> str:
        """An op whose result is rounded to 16 bits, in fewer instructions where there are such."""
        if node.name == "div" and v.args[1] in self.totals:
            # At least 1, being the sum of exponentials of which one is that of zero.
            total = v.args[1]
            if total not in self.inverses:
                name = self.inverses[total] = self.fresh()
                self.home(total).emit(f"{name} = litz.reciprocal({args[1]})")
            return f"({args[0]} * {self.inverses[total]})"
        if node.name == "exp" and node in self.vanishing:
            return f"litz.flush_exp({args[0]})"
        if node.name in NARROW and (node.name != "div" or is_close_quotient(node)):
            return f"litz.narrow_{node.name}({', '.join(args)})"
        return ""

    def index_value(self, e: Expr) -> str:
        """An index as a value, computed in 64 bits where it may need them."""
        if e.lo is not None and e.hi is not None and -LIMIT < e.lo and e.hi < LIMIT:
            return f"litz.i64({self.index(e)})"
        names = {v: f"litz.i64({v})" for v in ("zindex", "yindex", "xindex", "rindex")}
        names |= {str(v): f"litz.i64({v})" for v in e.free}
        return self.index(e, names)

    def check(self, v: Value, args: Sequence[str]) -> str:
        """The index where it is valid, else 0, or a divisor as it is; a fault of the kernel."""
        self.checks = True
        at, *size = args
        inside = self.fresh("ok")
        home = self.home(v)
        valid = f"(0 <= {at}) & ({at} < {size[0]})" if size else f"{at} != 0"
        home.emit(f"{inside} = {valid}")
        conds = [self.value(c) for c in v.conds]
        mask = self.mask(v.axes, conds)
        claim = f"{inside} | (({mask}) == 0)" if mask else inside
        home.emit(f"litz.{'check' if size else 'check_divisor'}({claim})")
        return f"tl.where({inside}, {at}, 0)" if size else at

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        if node.buffer in self.scalars:
            return f"tl.cast({node.buffer}, {TRITON_TYPES[node.dtype.name]})"
        names = {s.name: a for (s, _), a in zip(_symbols(node.indirect), args, strict=True)}
        index = self.aligned(node.index) or self.index(node.index, names)
        own = self.axes_of(node.index) | frozenset(n for a in v.args for n in a.axes)
        conds = [self.value(c) for c in v.conds]
        mask = self.mask(own, conds)
        if any(not c.axes <= own for c in v.conds):
            index = f"litz.like({index}, {mask})"
        tail = f", {mask}, other=0" if mask else ""
        if "r" in own:
            tail += self.eviction()
        return f"tl.load({self.pointer(node.buffer, index)}{tail})"

    def eviction(self) -> str:
        """What the cache should do with what a reduction reads."""
        # What a block holds whole it reads once: kept a while, it lets writes pass first.
        policy = "evict_last" if self.shape.persistent else self.policy
        return f', eviction_policy="{policy}"' if policy else ""

    def aligned(self, e: Expr) -> str:
        """An index within the whole blocks of a row, such that whole accesses show; or nothing."""
        rows = self.shape.rows
        if rows is None or not self.whole or self.loop is None:
            return ""
        (v,) = self.plan.reduced
        start = row_start(e, v)
        if start is None or not divides(rows[1], start - rows[0]):
            return ""
        if start not in self.bases:
            name = self.bases[start] = f"rbase{len(self.bases)}"
            self.top.emit(f"{name} = tl.multiple_of({self.row(start)} + rhead, {rows[1]})")
        return f"{self.bases[start]} + rmain"

    def pointer(self, buffer: str, index: str) -> str:
        return buffer if index == "0" else f"{buffer} + ({index})"

    def axes_of(self, e: Expr) -> frozenset[str]:
        return frozenset(self.values.axis_of[v] for v in e.free if v in self.values.axis_of)

    # --- stores ---------------------------------------------------------------------------------

    def stores(self, stores: Sequence[Store]) -> None:
        """All values first, so that no store overwrites what another still reads."""
        values = [self.evaluate(s) for s in stores]
        for store, value in zip(stores, values, strict=True):
            self.put(store, value)

    def evaluate(self, s: Store) -> tuple[str, ...]:
        return tuple(self.value(self.values(root)) for root in s.roots())

    def put(self, s: Store, texts: Sequence[str]) -> None:
        value, *rest = texts
        names = {sym.name: t for (sym, _), t in zip(_symbols(s.indirect), rest, strict=False)}
        axes = [a.name for a in self.axes.parallel if a.name != "z"]
        if loops_of(s, self.plan.reduced):
            axes.append("r")
        own = self.axes_of(s.index)
        for _, n in s.indirect:
            own |= self.values(n).axes
        index = self.aligned(s.index) or self.index(s.index, names)
        # Of nothing there is one place, whatever the axes.
        if not set(axes) <= own or index == "0":
            index = f"tl.zeros({self.extents(axes)}, tl.int32) + ({index})"
        conds = [texts[-1]] if s.mask is not None else []
        mask = self.mask(axes, conds)
        at = self.pointer(s.buffer, index)
        self.scope.emit(self.put_text(s, at, value, mask))

    def put_text(self, s: Store, at: str, value: str, mask: str) -> str:
        tail = f", {mask}" if mask else ""
        if s.mode == "set":
            return f"tl.store({at}, {value}{tail})"
        how = f'{tail}, sem="relaxed"'
        return f"tl.atomic_{s.mode}({at}, {value}{how})"


def _symbols(indirect: Iterable[tuple[Expr, object]]) -> list[tuple[Symbol, object]]:
    return [(s, n) for s, n in indirect if isinstance(s, Symbol)]
