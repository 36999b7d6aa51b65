"""Printing one plan as one Triton kernel: what all ways to do its reductions share.

A program computes a block of the parallel axes.  How it runs along the reduced dims is said by
``passes`` (all reductions over one axis) and ``nest`` (loops within loops).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from litz.index import TRITON, Expr, Substitution, const, render
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Scan, Store
from litz.ir.ops import CHECKS, TRITON_TYPES
from litz.kernel.blocks.axes import combined_along
from litz.kernel.blocks.narrow import one_plus
from litz.kernel.blocks.places import pairs_of, rows_of
from litz.kernel.blocks.reach import fits
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import extent, loops_of
from litz.kernel.values import Value, Values
from litz.targets.triton.layout import Scope, decoded
from litz.targets.triton.spell import function_text, literal, op_text

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

HEADER = """\
import triton
import triton.language as tl
from litz.runtime.triton import helpers as litz
"""


class Printer(ABC):
    """Prints a plan once: its parallel axes, its values where they are needed first, its stores.

    checks: after ``print``, whether the kernel checks indices or divisors.
    leads: whether the kernel has another of its recipe behind it; front: what those in front of it
    write, None where there are none: before it touches any of that, it waits for them.
    asks_alignment: whether it has a constexpr that says if all addresses are multiples of 16 bytes.
    """

    def __init__(self, made: BlockPlan, name: str) -> None:
        self.made = made
        self.plan = plan = made.plan
        self.name = name
        self.axes = made.axes
        self.blocked = self.axes.blocked
        self.values = Values(self.axes.of_dims)
        dims = {v: e for a in self.axes.all for v, e in self.decoded(a)}
        self.flat = Substitution(dims)  # dims by axes
        self.dim_lines: dict[str, str] = {}  # lines that decode a dim, and which
        self.used: set[str] = set()  # the dims that are: lines of others go
        self.top = Scope(1)
        self.scope = self.top
        self.count = 0  # of names so far
        self.lines: dict[str, int] = {}  # names of values, in the order of their lines
        self.scalars = {p.name for p in plan.params if p.by_value}
        self.checks = self.asks_alignment = False
        self.covered = made.even  # the axes along which no mask is needed where lines go
        self.narrow, self.flushed = frozenset(made.narrow), frozenset(made.flushed)
        self.shared = dict(made.shared)
        self.pids: dict[str, str] = {}  # the program's number along each parallel axis
        self.pairs = pairs_of(plan) if made.pairs else ({}, {})
        self.before = {b: a for a, b in self.pairs[0].items()}
        self.rows = rows_of(plan)
        # Blocks along axes that never meet: in one shape, one's layout would be the other's.
        self.apart = made.persistent and bool(combined_along(plan))
        self.leads = self.waits = False
        self.front: frozenset[str] | None = None
        self.functions: dict[tuple[Node, ...], str] = {}  # of two states, by their names
        self.sides: list[tuple[Scope, Scope]] = []  # open scopes of rare values, each in another

    # --- what subclasses say ------------------------------------------------------------------

    @abstractmethod
    def body(self) -> None:
        """All stores and what they need, below the lines of the parallel axes."""

    @abstractmethod
    def home(self, v: Value) -> Scope:
        """The outermost open scope in which a value can be computed."""

    @abstractmethod
    def reduced(self, v: Value) -> str:
        """A reduction as an expression; its lines, if it takes some, are emitted."""

    def scanned(self, v: Value) -> str:
        """A scan as an expression; its lines are emitted."""
        raise ValueError(f"{self.name}: a scan runs in passes over the reduced axis")

    def aligned(self, e: Expr) -> str:
        """An index such that whole accesses of a row show, where ``index`` hides them; else ""."""
        return ""

    def eviction(self) -> str:
        """The argument of a load along the reduced axis that says what the cache should do."""
        return ""

    # --- names and shapes ---------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def extents(self, axes: Iterable[str]) -> str:
        """The shape of a block that varies along ``axes``."""
        names = tuple(axes)
        wanted = [a for a in self.blocked if not self.apart or a.name in names]
        parts = [f"{a.block}" if a.name in names else "1" for a in wanted]
        return f"[{', '.join(parts)}]"

    def spread(self, axis: str) -> str:
        """The subscript that turns a range along ``axis`` into a block."""
        if len(self.blocked) == 1 or self.apart:
            return ""
        return f"[{', '.join(':' if a.name == axis else 'None' for a in self.blocked)}]"

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

    def is_one(self, e: Expr, found: Iterable[Value]) -> bool:
        """Whether an index is one for a whole block: nothing is left of dims of at most one.

        found: the values that are part of it.
        """
        fixed = {v for v in e.free if v not in self.values.axis_of}
        return fixed.issuperset(self.flat(e).free) and not any(a.axes for a in found)

    def costs(self, v: Expr) -> int:
        """Divisions that it takes to decode a dim."""
        text = render(self.flat(v), TRITON)
        return text.count("//") + text.count("%")

    def mask(self, axes: Iterable[str], conds: Sequence[str] = ()) -> str:
        """The mask of a block that varies along ``axes``; empty where all of it is valid."""
        wanted = set(axes)
        parts = [
            f"{a.name}mask" for a in self.blocked if a.name in wanted and a.name not in self.covered
        ]
        return " & ".join([*parts, *conds])

    # --- the skeleton ---------------------------------------------------------------------------

    def print(self) -> str:
        if self.leads:
            self.top.emit("litz.lead(LEADS)")
        if self.made.form != "persistent":
            self.wait()
        self.parallel()
        self.body()
        signature = [p.name for p in self.plan.params if not p.by_value]
        signature += [p.name for p in self.plan.params if p.by_value]
        signature += [str(s) for s in self.plan.ints]
        constants = [a.block for a in self.blocked] + ["ALIGNED"] * self.asks_alignment
        constants += ["LEADS"] * self.leads + ["FOLLOWS"] * (self.front is not None)
        signature += [f"{name}: tl.constexpr" for name in constants]
        head = f"def {self.name}({', '.join(signature)}):"
        unused = {line for line, v in self.dim_lines.items() if v not in self.used}
        lines = [x for x in self.top.lines if x.strip() not in unused] or ["    pass"]
        before = "".join(f"\n\n{function_text(name, f)}\n" for f, name in self.functions.items())
        return HEADER + before + "\n".join(["\n\n@triton.jit", head, *lines]) + "\n"

    def wait(self, buffer: str = "") -> None:
        """Where that is still to be done, wait for what kernels in front write before ``buffer`` is
        read, or anything is stored."""
        if self.front is None or self.waits or (buffer and buffer not in self.front):
            return
        self.waits = True
        self.top.emit("litz.follow(FOLLOWS)")

    def parallel(self) -> None:
        """The program's place along the parallel axes."""
        axes = [a for a in self.axes.parallel if a in self.made.gridded]
        self.pids = pids = self.program_ids(tuple(reversed(self.made.gridded)))
        for a in axes:
            pid, name = pids[a.name], f"{a.name}index"
            if a.name == "z":
                self.top.emit(f"{name} = {pid}")
            else:
                steps = f"tl.arange(0, {a.block}){self.spread(a.name)}"
                first, end = self.stretch(a, pid)
                self.top.emit(f"{name} = {first} + {steps}")
                if a.name not in self.made.even:
                    self.top.emit(f"{a.name}mask = {name} < {end}")
            self.decode(self.top, a)

    def stretch(self, axis: Axis, pid: str) -> tuple[str, str]:
        """Where a program's block of an axis begins, and where the axis ends for it."""
        return f"{pid} * {axis.block}", self.index(axis.size)

    def program_ids(self, axes: tuple[Axis, ...]) -> dict[str, str]:
        """Spelling of each axis's program number.  axes: the fastest first."""
        wide = ".to(tl.int64)" if self.made.wide else ""
        if not self.made.flat:
            return {a.name: f"tl.program_id({i}){wide}" for i, a in enumerate(axes)}
        out: dict[str, str] = {}
        number = f"litz.ticket({self.made.words[0]})" if self.made.words else "tl.program_id(0)"
        self.top.emit(f"program = {number}{wide}")
        for i, a in enumerate(axes):
            name = f"{a.name}program"
            blocks = f"tl.cdiv({self.index(self.made.reach(a))}, {a.block})"
            blocks = self.index(a.size) if a.name == "z" else blocks
            if i + 1 < len(axes):
                self.top.emit(f"{name} = program % ({blocks})")
                self.top.emit(f"program = program // ({blocks})")
            else:
                self.top.emit(f"{name} = program")
            out[a.name] = name
        return out

    def decoded(self, axis: Axis) -> tuple[tuple[Expr, Expr], ...]:
        """Each dim of an axis in terms of its flat position."""
        return decoded(axis, self.made.backward and axis is self.axes.reduced)

    def decode(self, scope: Scope, axis: Axis) -> None:
        """The dims of an axis from its flat position."""
        for v, e in self.decoded(axis):
            line = f"{v} = {render(e, TRITON)}"
            scope.emit(line)
            self.dim_lines[line] = str(v)

    # --- values ---------------------------------------------------------------------------------

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
            home = self.scope_of(v)
            text = self.spelled(v)
            if not text.isidentifier():
                name = self.fresh()
                home.emit(f"{name} = {text}")
                text = name
                self.lines[name] = len(self.lines)
            home.known[v] = text
        found = self.scope.find(root)
        assert found is not None
        return found

    def operands(self, v: Value) -> tuple[Value, ...]:
        """What has to be known before a value can be spelled."""
        function = one_plus(v.node) if v.node in self.narrow else None
        if function is not None:
            return next(a for a in v.args if a.node is function).args
        if v.node in self.before and not v.conds:
            return (self.values(self.before[v.node]),)
        if self.skips(v):
            return (*v.args[:2], *self.outside(v.args[2]))
        return (*v.args, *v.conds)

    def skips(self, v: Value) -> bool:
        """Whether blocks without an element that takes a rare value do not compute it."""
        if not (isinstance(v.node, Op) and v.node.name == "mostly"):
            return False
        blocked = v.axes & {a.name for a in self.blocked}
        return bool(blocked) and all(v.axes == a.axes for a in v.args)

    def outside(self, v: Value) -> Iterator[Value]:
        """What a rare value is computed from that is no arithmetic."""
        stack, seen = [v], {v}
        while stack:
            a = stack.pop()
            if not isinstance(a.node, Op | Const) or getattr(a.node, "name", "") in CHECKS:
                yield a
                continue
            fresh = [b for b in self.operands(a) if b not in seen]
            stack += fresh
            seen.update(fresh)

    def rare(self, v: Value) -> str:
        """The name of a value that is mostly the first of two; the other's lines run for few."""
        cond, usual = (self.value(a) for a in v.args[:2])
        name, home, outer = self.fresh(), self.scope_of(v), self.scope
        side = Scope(home.depth + 1, outer)
        self.sides.append((self.home(v), side))
        self.scope = side
        rare = self.value(v.args[2])
        self.scope, _ = outer, self.sides.pop()
        side.emit(f"{name} = tl.where({cond}, {usual}, {rare})")
        home.emit(f"{name} = {usual}")
        home.emit(f"if litz.some({cond} == 0):")
        home.lines += side.lines
        self.lines[name] = len(self.lines)
        return name

    def scope_of(self, v: Value) -> Scope:
        """The scope in which a value is computed."""
        home = self.home(v)
        return next((side for of, side in reversed(self.sides) if of is home), home)

    def spelled(self, v: Value) -> str:
        node = v.node
        function = one_plus(node) if node in self.narrow else None
        if function is not None:
            return f"litz.narrow_{function.name}_plus_one({self.value(self.operands(v)[0])})"
        if isinstance(node, Reduce):
            return self.reduced(v)
        if isinstance(node, Scan):
            return self.scanned(v)
        if self.skips(v):
            return self.rare(v)
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
        if node in self.shared:
            axis = next(a for a in self.blocked if a.name == self.shared[node])
            last = next(a for a in reversed(self.blocked) if a.name in v.args[1].axes)
            turned = ", True" if axis is not last else ""
            return f"litz.{node.name}({', '.join(args)}, {axis.block}{turned})"
        to_float = node.name == "cast" and node.dtype.is_float
        if to_float or node.name in COMPARISONS:
            # A plain number has no type.  One is left of what no axis changes, or one of one step.
            if v.axes and all(_is_position(a.node) for a in v.args):
                short = [self.short(a.node) for a in v.args]
                if not all(text.lstrip("-").isdigit() for text in short):
                    return op_text(node, short)
        if node.name == "eq":
            text = self.same_position(v, args)
            if text:
                return text
        return self.narrow_text(v, node, args) if node in self.narrow else op_text(node, args)

    def same_position(self, v: Value, args: Sequence[str]) -> str:
        """A position compared with what is fixed where it runs: in 32 bits."""
        for own, other, text in zip(v.args, reversed(v.args), reversed(args), strict=True):
            if isinstance(own.node, Index) and own.axes - other.axes:
                e = own.node.expr
                if e.lo is not None and 0 <= e.lo and fits(e):
                    return f"litz.is_position({self.index(e)}, {text})"
        return ""

    def short(self, n: Node) -> str:
        """A position or a number in 32 bits."""
        return self.index(n.expr) if isinstance(n, Index) else str(n.value)  # type: ignore[attr-defined]

    def narrow_text(self, v: Value, node: Op, args: Sequence[str]) -> str:
        """An op whose result is rounded to 16 bits, in fewer instructions where there are such."""
        name = "flush_exp" if node in self.flushed else f"narrow_{node.name}"
        return f"litz.{name}({', '.join(args)})"

    def index_value(self, e: Expr) -> str:
        """An index as a value, computed in 64 bits where it may need them."""
        if fits(e):
            return f"litz.i64({self.index(e)})"
        names = {v: f"litz.i64({v})" for v in ("zindex", "yindex", "xindex", "rindex", "rback")}
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
        self.wait(node.buffer)
        names = {str(v): a for (v, _), a in zip(node.indirect, args, strict=True)}
        base, rest = self.start(v, node, names)
        index = self.aligned(rest) or self.index(rest, names)
        own = self.axes_of(node.index) | frozenset(n for a in v.args for n in a.axes)
        conds = [self.value(c) for c in v.conds]
        # A condition says that the element is there for points inside of its own axes alone.
        mask = self.mask(own.union(*(c.axes for c in v.conds)), conds)
        row = self.row_of(node)
        one = self.mask(own) and self.is_one(node.index, v.args)
        if one or any(not c.axes <= own for c in v.conds):
            index = f"litz.like({index}, {mask})"
        elif row is not None:
            index = f"{self.index(row)}) + ({self.index(node.index - row)}"
        tail = f", {mask}, other=0" if mask else ""
        if "r" in own:
            tail += self.eviction()
        at = self.pointer(base, index)
        if v.conds or node not in self.pairs[0]:
            return f"tl.load({at}{tail})"
        first, second = self.fresh(), self.fresh()
        home = self.home(v)
        home.emit(f"{first}, {second} = litz.load_pair({at}{mask and f', {mask}'})")
        home.known[self.values(self.pairs[0][node])] = second
        self.lines |= {first: len(self.lines), second: len(self.lines) + 1}
        return first

    def start(self, v: Value, node: Load, names: Mapping[str, str]) -> tuple[str, Expr]:
        """What a load counts from, and its index from there."""
        return node.buffer, node.index

    def row_of(self, node: Load) -> Expr | None:
        """The part of an index that several places in a row share, where neighbours are no access.

        Of a pointer to a row the rest is one instruction, which minds its sign; a sum of 32 bits
        that is made one of 64 takes two more.
        """
        row = self.rows.get(node)
        if row is None or not (fits(row) and fits(node.index - row)):
            return None
        if not self.axes_of(row) & self.axes_of(node.index - row):
            return row
        shared = sum(n.buffer == node.buffer and r is row for n, r in self.rows.items())
        return row if shared > 1 else None

    def pointer(self, buffer: str, index: str) -> str:
        return buffer if index == "0" else f"{buffer} + ({index})"

    def wide_value(self, v: Value, axes: Collection[str] = ("y", "x", "r")) -> str:
        """A value at the full shape of a block, or of a block that varies along ``axes``."""
        text = self.value(v)
        names = [a.name for a in self.blocked if a.name in axes]
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

    def axes_of(self, e: Expr) -> frozenset[str]:
        return frozenset(self.values.axis_of[v] for v in e.free if v in self.values.axis_of)

    # --- stores ---------------------------------------------------------------------------------

    def stores(self, stores: Sequence[Store]) -> None:
        """All values first, so that no store overwrites what another still reads.

        Then each in the order of its value's line: Triton (3.6, 3.7) fails to build some kernels
        that store a quotient of a reduction between two values computed from it.  What has no line
        of its own comes first.  Stores to one buffer may overlap: those stay as they are.
        """
        todo = [(s, self.evaluate(s)) for s in stores]
        if len({s.buffer for s in stores}) == len(stores):
            todo.sort(key=lambda x: self.lines.get(x[1][0], -1))
        kept, after = dict(todo), self.pairs[1]
        for store, texts in todo:
            if store in after:
                self.put(store, (*texts, *kept[after[store]]))
            elif store not in after.values():
                self.put(store, texts)

    def evaluate(self, s: Store) -> tuple[str, ...]:
        return tuple(self.value(self.values(root)) for root in s.roots())

    def put(self, s: Store, texts: Sequence[str]) -> None:
        self.wait()
        value, *rest = texts
        names = {str(v): t for (v, _), t in zip(s.indirect, rest, strict=False)}
        axes = self.axes_written(s)
        at_values = [self.values(n) for _, n in s.indirect]
        own = self.axes_of(s.index).union(*(a.axes for a in at_values))
        index = self.aligned(s.index) or self.index(s.index, names)
        if not set(axes) <= own or axes and self.is_one(s.index, at_values):
            index = f"tl.zeros({self.extents(axes)}, tl.int32) + ({index})"
        conds = [texts[-1]] if s.mask is not None else []
        mask = self.mask(axes, conds)
        at = self.pointer(s.buffer, index)
        if s in self.pairs[1]:
            self.scope.emit(f"litz.store_pair({at}, {value}, {rest[0]}{mask and f', {mask}'})")
            return
        self.scope.emit(self.put_text(s, at, value, mask))

    def axes_written(self, s: Store) -> list[str]:
        """The axes of a block that a store runs over."""
        axes = [a.name for a in self.axes.parallel if a.name not in ("z", "t")]
        return [*axes, "r"] if loops_of(s, self.plan.reduced) else axes

    def put_text(self, s: Store, at: str, value: str, mask: str) -> str:
        tail = f", {mask}" if mask else ""
        if s.mode == "set":
            return f"tl.store({at}, {value}{tail})"
        if s.mode in ("max", "min") and self.plan.dtype(s.buffer).is_float:
            return f"litz.atomic_best({at}, {value}, {mask or True}, {s.mode == 'max'})"
        if s.mode == "mul":
            return f"litz.atomic_mul({at}, {value}, {mask or True}, {s.buffer})"
        return f"litz.atomic_{s.mode}({at}, {value}{tail})"


def _is_position(n: Node) -> bool:
    """Whether 32 bits hold an integer that is known from where the kernel is."""
    if isinstance(n, Index):
        return fits(n.expr)
    return isinstance(n, Const) and n.dtype.is_int and abs(int(n.value)) < 1 << 31
