"""The rules of well-formed programs, and the walk that checks them.

``RULES`` is the one table: what each rule says, and after which stages it holds.  A broken rule is
always a fault of Litz, so the error shows the IR around the place with the message on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Final, NoReturn

from litz.dataclass import dataclass
from litz.errors import VerifyError
from litz.index import Const, Expr, Symbol, Var, as_expr, mixed_radix, split_linear
from litz.ir.body import Index, Load, Masked, Namer, Node, Op, Reduce, Scan, Store, walk
from litz.ir.dtype import BOOL
from litz.ir.ops import result_dtype
from litz.ir.program import (
    Buffer,
    Contraction,
    Extern,
    HostFloat,
    Nest,
    Program,
    Subgraph,
    Template,
    TensorRef,
)
from litz.ir.scans import faults as scan_faults
from litz.ir.skeletons import fault
from litz.ir.text import ValuePrinter, marked, node_lines

KINDS: Final = ("input", "temp", "extern", "fresh", "constant", "opaque")


@dataclass(frozen=True)
class Rule:
    """What must hold.  unless: stages after which it may not."""

    says: str
    unless: tuple[str, ...] = ()


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "buffer": Rule("every buffer that is named exists, under its own name"),
        "layout": Rule("a layout has one stride a dimension, and no size is negative"),
        "kind": Rule(f"a buffer's kind is one of {', '.join(KINDS)}"),
        "alias": Rule("an alias names another buffer, and aliases form no cycle"),
        "input": Rule("inputs are buffers or symbols, each once"),
        "name": Rule("nodes have names of their own, and so have the variables of a nest"),
        "defined": Rule("memory is read only behind what writes it"),
        "once": Rule("no store overwrites another that nothing has read"),
        "output": Rule("an extern binds new buffers, or fills those that the program allocates"),
        "dtype": Rule("a load has its buffer's type, and so has a stored value"),
        "operand": Rule("what an op or a reduction takes and gives is as its table says"),
        "mask": Rule("conditions and masks are bool"),
        "indirect": Rule("a symbol bound to a node is bound once, to an integer, and used"),
        "variable": Rule("a loop variable is used only inside its own loop"),
        "symbol": Rule("a size symbol is read from an input or from an extern's result"),
        "reduce": Rule("a reduction runs over distinct reduced variables of its nest"),
        "scan": Rule("a scan runs over a reduced variable of its nest, and starts before it"),
        "full-space": Rule(
            "a loop nest uses reduced variables inside reductions only, or in a template's updates",
            unless=("schedule", "kernel"),
        ),
        "contraction": Rule(
            "a contraction is of tensors of one type and agreeing sizes, and fills a temp of them"
        ),
        "body": Rule("a call runs bodies of the program, which take what its tuples hold"),
        "skeleton": Rule("a template's stores are what its skeleton computes"),
        "bounds": Rule("no access lies outside of its buffer"),
        "device": Rule("a nest touches the memory of its own device, and numbers of the host"),
    }
)


Step = Extern | Contraction | Nest


def verify(program: Program, after: str, steps: Sequence[Step] | None = None) -> None:
    """Check a program as it stands after a stage; raises ``VerifyError``.

    steps: what runs instead of the program's own nodes (a schedule's groups and externs).
    """
    _Checker(program, after, program.nodes if steps is None else steps).run()
    for body in program.bodies.values():
        verify(body, after)


Culprit = Node | Store | None


@dataclass
class _Checker:
    """One walk over a program."""

    program: Program
    after: str
    steps: Sequence[Step]
    defined: set[str] = field(default_factory=set)
    symbols: set[Expr | HostFloat] = field(default_factory=set)
    # Whole stores that nothing has read since, by buffer: the node's name.
    unread: dict[str, str] = field(default_factory=dict)
    at: int = -1

    def fail(self, rule: str, message: str, culprit: Culprit = None) -> None:
        if self.after not in RULES[rule].unless:
            self._raise(rule, message, culprit)

    def _raise(self, rule: str, message: str, culprit: Culprit) -> NoReturn:
        where = _around(self.steps, self.at, message, culprit, ValuePrinter(self.program.buffers))
        says = RULES[rule].says
        raise VerifyError(f"after {self.after}: {message}\n  rule {rule!r}: {says}\n{where}")

    def run(self) -> None:
        self.table()
        self.inputs()
        names: set[str] = set()
        for i, step in enumerate(self.steps):
            self.at = i
            if step.name in names:
                self.fail("name", f"two nodes are named {step.name}")
            names.add(step.name)
            if isinstance(step, Extern):
                self.extern(step)
            elif isinstance(step, Contraction):
                self.contraction(step)
            else:
                self.nest(step)
        self.at = len(self.steps)
        self.values(self.program.outputs, "the program returns")

    # --- the head ---------------------------------------------------------------------------

    def table(self) -> None:
        buffers = self.program.buffers
        for name, b in buffers.items():
            if b.name != name:
                self.fail("buffer", f"buffer {b.name} stands under the name {name}")
            if b.kind not in KINDS:
                self.fail("kind", f"buffer {name} is of kind {b.kind!r}")
            self.layout(name, b.shape, b.strides)
            seen = {name}
            at = b
            while (up := at.alias) is not None:
                if up not in buffers or up in seen:
                    self.fail("alias", f"the alias of {name} leads to {up}")
                    break
                seen.add(up)
                at = buffers[up]

    def layout(self, name: str, shape: Sequence[Expr], strides: Sequence[Expr]) -> None:
        if len(shape) != len(strides):
            self.fail("layout", f"{name} has {len(shape)} sizes and {len(strides)} strides")
        for d in shape:
            if d.hi is not None and d.hi < 0:
                self.fail("layout", f"{name} has the size {d}")

    def inputs(self) -> None:
        p = self.program
        names = {str(s) for s, _, _ in p.symbols}
        if len(set(p.inputs)) != len(p.inputs):
            self.fail("input", "two inputs have one name")
        for s, position, dim in p.symbols:
            if not 0 <= position < len(p.inputs):
                self.fail("input", f"{s} is read from argument {position}, which there is not")
            b = p.buffers.get(p.inputs[position])
            if dim is not None and b is not None and b.kind == "input" and dim >= len(b.shape):
                self.fail("input", f"{s} is read from dimension {dim} of {b.name}")
            self.symbols.add(s)
        for name in p.inputs:
            b = p.buffers.get(name)
            if b is not None and b.kind not in ("input", "opaque"):
                self.fail("input", f"input {name} is of kind {b.kind!r}")
            if b is not None or name in names:
                self.defined.add(name)
            else:  # a number that has no symbol is a float, or nothing uses it
                self.symbols.add(HostFloat(name))
        self.defined.update(n for n, b in p.buffers.items() if b.kind == "constant")
        self.defined.update(n for n in p.constants if n in p.buffers)

    # --- nests ------------------------------------------------------------------------------

    def nest(self, n: Nest) -> None:
        axes = (*n.axes, *n.reduce_axes)
        own = {str(a) for a in axes}
        if len(own) != len(axes):
            self.fail("name", f"two variables of {n.name} have one name")
        for a in axes:
            if not isinstance(a, Var):
                self.fail("variable", f"{n.name} loops over {a}, which is no variable")
            else:
                self.known_symbols(a.extent, None)
        reads: dict[str, None] = {}
        unmasked = set(_unmasked(n.stores))
        runs = not any(isinstance(a, Var) and a.extent is as_expr(0) for a in axes)
        for node in walk(r for s in n.stores for r in s.roots()):
            self.node(node, n)
            if isinstance(node, Load):
                reads[node.buffer] = None
                if runs and node in unmasked:
                    self.bounds(node.buffer, node.index, node.indirect, node)
        for s in n.stores:
            self.store(s, n)
            if runs and s.mask is None:
                self.bounds(s.buffer, s.index, s.indirect, s)
        self.effects(n, reads, runs)
        if isinstance(n, Template) and (why := fault(n)):
            self.fail("skeleton", f"{n.name}: {why}")

    def effects(self, n: Nest, reads: Iterable[str], runs: bool) -> None:
        written = {s.buffer: None for s in n.stores}
        updated = {s.buffer for s in n.stores if s.updates}
        for name in (*reads, *(b for b in written if b in updated)):
            if name not in self.defined and name not in written:
                self.fail("defined", f"{n.name} reads {name} before anything writes it")
            self.unread.pop(self.program.root(name), None)
        for s in n.stores:
            whole = s.mode == "set" and s.mask is None and not s.indirect
            b = self.program.buffers[s.buffer]
            fills = runs and whole and b.kind == "temp" and _covers(s, n, b)
            if fills and s.buffer in self.unread:
                other = self.unread[s.buffer]
                self.fail("once", f"{n.name} overwrites {s.buffer}, which {other} stored", s)
            if fills:
                self.unread[s.buffer] = n.name
        self.defined.update(written)

    def node(self, node: Node, n: Nest) -> None:
        if isinstance(node, Load):
            self.access(node.buffer, node.index, node.indirect, n, node)
            if node.dtype is not (own := self.program.buffers[node.buffer].dtype):
                text = f"a load of {node.dtype} from {node.buffer}, which is {own}"
                self.fail("dtype", text, node)
        elif isinstance(node, Index):
            self.known_symbols(node.expr, node)
        elif isinstance(node, Op):
            self.op(node)
        elif isinstance(node, Masked):
            cond, value, other = node.args
            if cond.dtype is not BOOL:
                self.fail("mask", f"a condition of type {cond.dtype}", node)
            if not value.dtype is other.dtype is node.dtype:
                self.fail("operand", f"masked: {value.dtype} and {other.dtype}", node)
        elif isinstance(node, Reduce):
            stray = [str(a) for a in node.axes if a not in n.reduce_axes]
            if stray or not node.axes or len(set(node.axes)) != len(node.axes):
                text = ", ".join(stray or map(str, node.axes))
                self.fail("reduce", f"a reduction over [{text}] in {n.name}", node)
            if not node.row.takes(node.args[0].dtype):
                self.fail("operand", f"{node.kind} of {node.args[0].dtype}", node)
        elif isinstance(node, Scan):
            for rule, why in scan_faults(node, n.reduce_axes):
                self.fail(rule, f"{why} in {n.name}", node)
        leaves = node.at.free if isinstance(node, Scan) else ()
        self.variables(node.vars if isinstance(node, (Load, Index)) else leaves, n, node)

    def op(self, node: Op) -> None:
        try:
            expected = result_dtype(node.name, tuple(a.dtype for a in node.args), node.param)
        except (ValueError, TypeError, KeyError) as e:
            self.fail("operand", f"{node.name}: {e}", node)
            return
        if expected is not node.dtype:
            self.fail("operand", f"{node.name} gives {expected}, not {node.dtype}", node)

    def store(self, s: Store, n: Nest) -> None:
        self.access(s.buffer, s.index, s.indirect, n, s)
        b = self.program.buffers[s.buffer]
        if s.value.dtype is not b.dtype:
            self.fail("dtype", f"a store of {s.value.dtype} to {b.name}, which is {b.dtype}", s)
        if b.kind in ("constant", "opaque"):
            self.fail("output", f"{n.name} stores to {b.name}, which is of kind {b.kind!r}", s)
        if b.kind in ("extern", "fresh") and b.name not in self.defined:
            self.fail("output", f"{n.name} stores to {b.name} before an extern returns it", s)
        if s.mask is not None and s.mask.dtype is not BOOL:
            self.fail("mask", f"a mask of type {s.mask.dtype}", s)
        bound = {sym for sym, _ in s.indirect}
        self.variables([v for v in s.index.free if v not in bound], n, s)
        if isinstance(n, Template) and s.mode != "set":
            return
        for root in s.roots():
            for v in root.vars:
                if v in n.reduce_axes:
                    self.fail("full-space", f"{v} is used outside of a reduction", s)
        if any(v in n.reduce_axes for v in s.index.free):
            self.fail("full-space", f"{s.buffer} is stored at a reduced variable", s)

    def access(
        self,
        buffer: str,
        index: Expr,
        indirect: Sequence[tuple[Expr, Node]],
        n: Nest,
        culprit: Culprit,
    ) -> None:
        if buffer not in self.program.buffers:
            self._raise("buffer", f"there is no buffer {buffer}", culprit)
        b = self.program.buffers[buffer]
        number = not b.shape and b.device == "cpu" and not isinstance(culprit, Store)
        if b.device != n.device and not number:
            text = f"{n.name} runs on {n.device}, {buffer} lies on {b.device}"
            self.fail("device", text, culprit)
        bound = [s for s, _ in indirect]
        for s, value in indirect:
            used = s in index.free or as_expr(0) in b.strides  # where a step is 0, in none
            if not value.dtype.is_int or bound.count(s) > 1 or not used:
                self.fail("indirect", f"{s} of {buffer} is bound to {value.dtype}", culprit)

    def variables(self, leaves: Iterable[Expr], n: Nest, culprit: Culprit) -> None:
        for v in leaves:
            if isinstance(v, Var):
                if v not in n.axes and v not in n.reduce_axes:
                    self.fail("variable", f"{v} is no variable of {n.name}", culprit)
            elif isinstance(v, Symbol):
                self.known_symbols(v, culprit)

    def known_symbols(self, e: Expr, culprit: Culprit) -> None:
        for s in e.free:
            if isinstance(s, Symbol) and s not in self.symbols:
                self.fail("symbol", f"nothing gives the value of {s}", culprit)

    def bounds(
        self, name: str, index: Expr, indirect: Sequence[tuple[Expr, Node]], culprit: Culprit
    ) -> None:
        b = self.program.buffers[name]
        size = _elements(b)
        if b.kind == "opaque" or size is None or not all(d.is_const for d in b.shape):
            return
        exact = _exact_range(index, bool(indirect))
        if exact is not None:
            outside = exact[0] < 0 or exact[1] >= size
        else:  # the bounds of an expression may be wide: outside only if all of them is
            outside = (index.hi is not None and index.hi < 0) or (
                index.lo is not None and index.lo >= size
            )
        if outside:
            self.fail("bounds", f"{name}[{index}] leaves the {size} elements of {name}", culprit)

    # --- externs ----------------------------------------------------------------------------

    def extern(self, e: Extern) -> None:
        buffers, outputs = self.program.buffers, [o for o in e.outputs if o is not None]
        for name in sorted({*outputs, *e.mutates} - buffers.keys()):
            self._raise("buffer", f"there is no buffer {name}", None)
        # A part of what is filled need not be there before.
        self.defined.update(outputs if e.out_variant else ())
        self.values((e.args, tuple(v for _, v in e.kwargs)), f"{e.name} takes")
        self.bodies(e)
        for name in outputs:
            kind = buffers[name].kind
            if e.out_variant != (kind == "temp") or kind in ("input", "constant"):
                self.fail("output", f"{e.name} binds {name}, which is of kind {kind!r}")
            if not e.out_variant and name in self.defined:
                self.fail("output", f"{e.name} binds {name} a second time")
            self.defined.add(name)
        for name in e.mutates:
            if name not in self.defined:
                self.fail("defined", f"{e.name} writes into {name} before it exists")
            self.unread.pop(self.program.root(name), None)
        for position, s in e.symbols:
            if position < 0 or not isinstance(s, (Symbol, HostFloat)):
                self.fail("symbol", f"{e.name} gives {s} at position {position}")
            self.give(e.name, s)
        for s, position, dim in e.sizes:
            made = e.outputs[position] if 0 <= position < len(e.outputs) else None
            if not isinstance(s, Symbol) or made is None or dim >= len(buffers[made].shape):
                self.fail("symbol", f"{e.name} gives {s} as size {dim} of result {position}")
            self.give(e.name, s)
        for expected, _, _ in e.checks:
            self.known_symbols(expected, None)
        if e.single and len(e.outputs) > 1:
            self.fail("output", f"{e.name} has one result and {len(e.outputs)} outputs")

    def bodies(self, e: Extern) -> None:
        taken = sum(len(a) for a in e.args if isinstance(a, tuple))
        for name in (v.name for v in _leaves((e.args, e.kwargs)) if isinstance(v, Subgraph)):
            body = self.program.bodies.get(name)
            if body is None:
                self.fail("body", f"{e.name} runs {name}, which there is not")
            elif len(body.inputs) != taken:
                self.fail("body", f"{name} takes {len(body.inputs)} inputs, {e.name} gives {taken}")

    def contraction(self, c: Contraction) -> None:
        self.values((c.refs(), c.alpha, c.beta), f"{c.name} takes")
        out = self.program.buffers.get(c.out)
        if out is None:
            self._raise("buffer", f"there is no buffer {c.out}", None)
        kinds = {r.dtype for r in (c.left, c.right)}
        more = {out.dtype} - {c.accumulate} | ({c.bias.dtype} if c.bias else set())
        if out.kind != "temp" or len(kinds) > 1 or not more <= (kinds if more else more):
            self.fail("contraction", f"{c.name} fills {c.out}, which is {out.dtype} {out.kind}")
        *b, m, n, k = c.axes.values()
        pairs = [(c.right.shape, (*b, k, n)), (c.left.shape, (*b, m, k)), (out.shape, (*b, m, n))]
        if any(len(x) != len(y) or any(map(_differ, x, y)) for x, y in pairs):
            self.fail("contraction", f"the sizes of {c.name} do not agree")
        for name in (*c.read_buffers(), c.out):
            if self.program.buffers[name].device != c.device:
                self.fail("device", f"{c.name} runs on {c.device}, {name} does not lie there")
        self.defined.add(c.out)

    def give(self, by: str, number: Expr | HostFloat) -> None:
        if number in self.symbols:
            self.fail("symbol", f"{by} gives {number} a value, which it has already")
        self.symbols.add(number)

    def values(self, value: object, what: str) -> None:
        for v in _leaves(value):
            if isinstance(v, TensorRef):
                if v.buffer not in self.program.buffers:
                    self._raise("buffer", f"{what} {v.buffer}, which there is not", None)
                if v.buffer not in self.defined:
                    self.fail("defined", f"{what} {v.buffer} before anything writes it")
                self.layout(v.buffer, v.shape, v.strides)
                self.unread.pop(self.program.root(v.buffer), None)
                for e in (*v.shape, *v.strides, v.offset):
                    self.known_symbols(e, None)
            elif isinstance(v, Expr):
                self.known_symbols(v, None)
            elif isinstance(v, HostFloat) and v not in self.symbols:
                self.fail("symbol", f"{what} {v.name}, to which nothing gives a value")


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    else:
        yield value


def _differ(a: Expr, b: Expr) -> bool:
    """Whether two sizes surely do; guards may have found equal what is written otherwise."""
    return a is not b and a.is_const and b.is_const


def _elements(b: Buffer) -> int | None:
    """The number of elements from the first of a buffer to its last, where it is known."""
    last = 0
    for extent, stride in zip(b.shape, b.strides, strict=True):
        if extent is as_expr(0):
            return 0
        if extent.hi is None or stride.hi is None or stride.lo != stride.hi:
            return None
        last += (extent.hi - 1) * stride.hi
    return last + 1


def _exact_range(index: Expr, indirect: bool) -> tuple[int, int] | None:
    """The least and greatest value that ``index`` takes, where its loops reach every corner."""
    if indirect:
        return None
    variables = [v for v in index.free if isinstance(v, Var)]
    split = split_linear(index, variables)
    if split is None or not isinstance(split[1], Const):
        return None
    lo = hi = split[1].value
    for v, coef in split[0].items():
        if not (isinstance(coef, Const) and isinstance(v, Var) and isinstance(v.extent, Const)):
            return None
        span = coef.value * (v.extent.value - 1)
        lo, hi = lo + min(span, 0), hi + max(span, 0)
    return lo, hi


def _unmasked(stores: Sequence[Store]) -> Iterator[Node]:
    """The nodes that are evaluated at every point, masks or no masks."""
    stack = [r for s in stores if s.mask is None for r in (s.value, *(v for _, v in s.indirect))]
    stack += [s.mask for s in stores if s.mask is not None]
    seen: set[Node] = set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        yield n
        stack += n.args[:1] if isinstance(n, Masked) else n.args


def _covers(s: Store, n: Nest, b: Buffer) -> bool:
    """Whether the store writes all of a dense buffer."""
    space = (*n.axes, *n.reduce_axes)
    points = as_expr(1)
    for v in space:
        if isinstance(v, Var) and v in s.index.free:
            points = points * v.extent
    size = _elements(b)
    if size is None or points is not as_expr(size):
        return False
    loops = [v for v in space if isinstance(v, Var) and v in s.index.free]
    radix = mixed_radix(s.index, loops)
    # Only where no two points share an element: a user may write twice to one.
    return radix is not None and radix.injective


# --- the error's text ----------------------------------------------------------------------------


def _around(
    steps: Sequence[Step], at: int, message: str, culprit: Culprit, values: ValuePrinter
) -> str:
    """The steps next to ``at``, the message under the line that it is about."""
    out: list[str] = []
    for i in range(max(at - 1, 0), min(at + 2, len(steps))):
        lines = node_lines(steps[i], values)
        if i != at:
            lines = [*lines[:1], "  ..."] if len(lines) > 3 else lines
            out += ["    " + line for line in lines]
            continue
        out += marked(lines, _line_of(steps[i], culprit) if len(lines) > 1 else 0, message)
    return "\n".join(out)


def _line_of(step: Step, culprit: Culprit) -> int:
    """The line of a nest's text that gives ``culprit``; the head for anything else."""
    if not isinstance(step, Nest) or culprit is None:
        return 0
    namer, line = Namer(), 1
    for s in step.stores:
        for text in namer.lines(s.roots()):
            if isinstance(culprit, Node) and text.startswith(f"{namer.names.get(culprit)}:"):
                return line
            line += 1
        if s is culprit:
            return line
        line += 1
    return 0
