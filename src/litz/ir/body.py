"""Bodies: what one iteration of a loop nest computes, as an immutable DAG of typed nodes.

A body is data.  Views compose by substituting index expressions, inlining a producer is
substitution into its consumer, and every analysis is a walk.  Nodes are interned: two nodes with
equal structure are the same object, so common subexpressions need no pass of their own.

Loop variables are ``litz.index`` ``Var``s.  A ``Reduce`` binds the variables it reduces over: below
it they are free, above it they are not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, TypeVar

from litz.dataclass import dataclass
from litz.index import Const as IndexConst
from litz.index import Expr, Substitution, Var, size_hint, split_linear, substitution
from litz.index import const as index_const
from litz.index.interning import find, publish
from litz.ir.dtype import I64, DType, wrap
from litz.ir.ops import op as op_row
from litz.ir.ops import result_dtype
from litz.ir.reductions import Reduction, Result, of_function, reduction, result_of, scanned
from litz.ir.reductions import result_dtype as reduced_dtype

Scalar = bool | int | float
_N = TypeVar("_N", bound="Node")
StoreMode = Literal["set", "add", "max", "min", "mul"]
REDUCES, SCANS = 1, 2
_NONE: Final = index_const(0)
_result_dtype: Final = lru_cache(maxsize=1024)(result_dtype)


def _operator(name: str) -> Callable[[Node, Node | Scalar], Node]:
    """Python's operator that is an op; a number has the type of the node beside it."""
    return lambda a, b: op(name, a, b if isinstance(b, Node) else const(a.dtype, b))


def _reflected(name: str) -> Callable[[Node, Scalar], Node]:
    """The same with the number in front."""
    return lambda b, a: op(name, const(b.dtype, a), b)


class Node:
    """A value of one iteration.  ``dtype`` is its type, ``args`` are the nodes it is computed from.

    ``vars`` are the loop variables (and data-dependent index symbols) it depends on, as an
    insertion-ordered tuple; ``key`` is the interning key.  ``size``: how many nodes it is computed
    from, counted as often as they are used.  ``folds``: ``REDUCES`` and ``SCANS``, if one of
    them, or itself, does that.  ``read``: the loads below its arguments, if known yet.
    """

    __slots__ = ("__weakref__", "args", "dtype", "folds", "key", "read", "size", "vars")
    dtype: DType
    args: tuple[Node, ...]
    key: tuple[object, ...]
    vars: tuple[Expr, ...]
    size: int
    folds: int
    read: tuple[Load, ...] | None

    # Formulas are written in Python's operators; ``==`` is identity, though.
    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __and__, __or__ = _operator("and_"), _operator("or_")

    def __neg__(self) -> Node:
        return op("neg", self)

    def __repr__(self) -> str:
        """The definitions of what it is computed from, in order, its own last.  Never raises."""
        try:
            return "; ".join(Namer().lines((self,)))
        except Exception as e:  # it must serve debuggers on half-built nodes too
            return f"<{type(self).__name__}: {type(e).__name__}>"


class Load(Node):
    """``buffer[index]``; symbols in ``index`` named by ``indirect`` take the value of a node.

    index: offset in elements from the buffer's first element.
    """

    __slots__ = ("buffer", "index", "indirect")
    buffer: str
    index: Expr
    indirect: tuple[tuple[Expr, Node], ...]


class Const(Node):
    """A literal of type ``dtype``."""

    __slots__ = ("value",)
    value: Scalar

    def __repr__(self) -> str:
        value = self.value
        return f"{self.dtype}({float_text(value) if isinstance(value, float) else value})"


class Index(Node):
    """The value of an index expression, as i64."""

    __slots__ = ("expr",)
    expr: Expr


class Op(Node):
    """A primitive op of the op table; ``param`` is the dtype that ``round_to`` rounds through."""

    __slots__ = ("name", "param")
    name: str
    param: DType | None


class Masked(Node):
    """``args[1]`` where ``args[0]`` holds, else ``args[2]``.

    Loads under ``args[1]`` happen only where the condition holds.  args: (condition, value, other).
    """

    __slots__ = ()


class Reduce(Node):
    """Reduction of ``args[0]`` over the variables ``axes``.

    kind: a name of the table of reductions.  argmax/argmin give the linear position in the order
    of ``axes`` (i64); the two welford kinds give the mean and the sum of squared deviations.
    """

    __slots__ = ("axes", "kind")
    kind: str
    axes: tuple[Expr, ...]

    @property
    def row(self) -> Reduction:
        return reduction(self.kind)

    @property
    def gives(self) -> Result:
        """What of the state it gives."""
        return result_of(self.kind)


class Given(Node):
    """Within a function of two states: part ``number`` of both, those of the earlier one first."""

    __slots__ = ("number",)
    number: int


class Scan(Node):
    """The combination of elements over ``axis`` from 0 up to and with the position ``at``.

    Of a row that is ``whole``, a sort, the element that has that position in ascending order.
    kind: the name of a row of the table of reductions; part: which part of its state is given.
    args: an element's parts, over ``axis``; behind them, where there is one, those of a state that
    comes before all elements and does not depend on ``axis``.
    combine: of the kind ``function``, each part of two states together, in terms of ``Given``; such
    a scan has no state of no elements, and nothing comes before it.
    """

    __slots__ = ("at", "axis", "combine", "kind", "part")
    kind: str
    part: str
    axis: Expr
    at: Expr
    combine: tuple[Node, ...]

    @property
    def row(self) -> Reduction:
        return of_function(len(self.combine)) if self.combine else scanned(self.kind)

    @property
    def elements(self) -> tuple[Node, ...]:
        """The parts of an element."""
        return self.args[: len(self.row.state)]

    @property
    def start(self) -> tuple[Node, ...]:
        """The parts of what comes first, if anything does."""
        return self.args[len(self.row.state) :]

    def of(self, part: str) -> Scan:
        """The scan that gives another part of the same states."""
        return scan(self.kind, part, self.axis, self.at, self.args, self.combine)


def _union(parts: Iterable[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    seen: dict[Expr, None] = {}
    for part in parts:
        for v in part:
            seen[v] = None
    return tuple(seen)


_FOLDS: Final[Mapping[type, int]] = {Reduce: REDUCES, Scan: SCANS}


def _made(key: tuple[object, ...], n: _N) -> _N:
    """A new node with what is known below it, or the one that stands for it already."""
    n.folds, n.size, n.read = _FOLDS.get(type(n), 0), 1, None if n.args else ()
    for a in n.args:
        n.folds, n.size = n.folds | a.folds, n.size + a.size
    return publish(key, n)


def load(
    dtype: DType, buffer: str, index: Expr, indirect: tuple[tuple[Expr, Node], ...] = ()
) -> Load:
    key = ("load", dtype, buffer, index, indirect)
    found: Load | None = find(key)
    if found is not None:
        return found
    n = Load.__new__(Load)
    n.dtype, n.buffer, n.index, n.indirect, n.key = dtype, buffer, index, indirect, key
    n.args = tuple(v for _, v in indirect)
    bound = [s for s, _ in indirect]
    own = tuple(v for v in index.free if v not in bound)
    n.vars = _union([own, *(v.vars for _, v in indirect)]) if indirect else own
    return _made(key, n)


def const(dtype: DType, value: Scalar) -> Const:
    """A constant; an integer wraps around as it does in a cast to the type."""
    if dtype.kind == "float":
        value = float(value)
        bits: object = struct.pack("<d", value)
    else:
        value = bool(value) if dtype.kind == "bool" else wrap(value, dtype)
        bits = value
    key = ("const", dtype, bits)
    found: Const | None = find(key)
    if found is not None:
        return found
    n = Const.__new__(Const)
    n.dtype, n.value, n.key, n.args, n.vars = dtype, value, key, (), ()
    return _made(key, n)


def index(expr: Expr) -> Node:
    if isinstance(expr, IndexConst):
        return const(I64, expr.value)
    key = ("index", expr)
    found: Node | None = find(key)
    if found is not None:
        return found
    n = Index.__new__(Index)
    n.dtype, n.expr, n.key, n.args, n.vars = I64, expr, key, (), expr.free
    return _made(key, n)


def op(name: str, *args: Node, to: DType | None = None) -> Node:
    """Apply a primitive op.

    to: the target of ``cast`` and ``bitcast``, the parameter of ``round_to``.
    """
    key = ("op", name, to, args)
    found: Node | None = find(key)
    if found is not None:
        return found
    row = op_row(name)
    dtype = _result_dtype(name, tuple([a.dtype for a in args]), to)
    n = Op.__new__(Op)
    n.name, n.param, n.dtype, n.args, n.key = row.name, to, dtype, args, key
    n.vars = args[0].vars if len(args) == 1 else _union(a.vars for a in args)
    return _made(key, n)


def _same_op(n: Op, args: tuple[Node, ...]) -> Op:
    """``n`` of other arguments of the same types, over the same variables."""
    key = ("op", n.name, n.param, args)
    found: Op | None = find(key)
    if found is not None:
        return found
    new = Op.__new__(Op)
    new.name, new.param, new.dtype, new.vars = n.name, n.param, n.dtype, n.vars
    new.args, new.key = args, key
    return _made(key, new)


def cast(value: Node, to: DType) -> Node:
    """Convert to ``to``; the identity where the type already fits, folded for literals."""
    if value.dtype is to:
        return value
    if isinstance(value, Const) and not (value.dtype.is_float and not to.is_float):
        if to.kind == "bool":
            return const(to, value.value != 0)
        if not to.is_int or to.bits == 64 or 0 <= value.value < 128:
            if not (to.is_float and to.bits < 64):
                return const(to, value.value)
            # Floats of every type hold these, so that no number of more digits is kept.
            most = 256 if isinstance(value.value, int) else 16
            if abs(value.value) <= most and value.value == int(value.value):
                return const(to, value.value)
    return op("cast", value, to=to)


def masked(cond: Node, value: Node, other: Node) -> Node:
    if isinstance(cond, Const):
        return value if cond.value else other
    if value.dtype is not other.dtype:
        raise ValueError(f"masked: {value.dtype} and {other.dtype} differ")
    key = ("masked", cond, value, other)
    found: Node | None = find(key)
    if found is not None:
        return found
    n = Masked.__new__(Masked)
    n.dtype, n.args, n.key = value.dtype, (cond, value, other), key
    n.vars = _union(a.vars for a in n.args)
    return _made(key, n)


def reduce(kind: str, axes: tuple[Expr, ...], value: Node) -> Node:
    dtype = reduced_dtype(kind, value.dtype)
    if any(isinstance(a, Var) and a.extent is _NONE for a in axes):
        return const(dtype, result_of(kind).empty)
    key = ("reduce", kind, axes, value)
    found: Node | None = find(key)
    if found is not None:
        return found
    n = Reduce.__new__(Reduce)
    n.dtype = dtype
    n.kind, n.axes, n.args, n.key = kind, axes, (value,), key
    n.vars = tuple(v for v in value.vars if v not in axes)
    return _made(key, n)


def given(dtype: DType, number: int) -> Given:
    key = ("given", dtype, number)
    found: Given | None = find(key)
    if found is not None:
        return found
    n = Given.__new__(Given)
    n.dtype, n.number, n.key, n.args, n.vars = dtype, number, key, (), ()
    return _made(key, n)


def scan(
    kind: str,
    part: str,
    axis: Expr,
    at: Expr,
    args: tuple[Node, ...],
    combine: tuple[Node, ...] = (),
) -> Scan:
    """A scan; ``ValueError`` where ``args`` are no element's parts, with or without a start."""
    names = [p.name for p in (of_function(len(combine)) if combine else scanned(kind)).state]
    if part not in names or len(args) not in (len(names), 0 if combine else 2 * len(names)):
        raise ValueError(f"a scan of {len(args)} values gives no {part} of {kind}")
    key = ("scan", kind, part, axis, at, args, combine)
    found: Scan | None = find(key)
    if found is not None:
        return found
    n = Scan.__new__(Scan)
    n.kind, n.part, n.axis, n.at, n.args, n.key = kind, part, axis, at, args, key
    n.combine = combine
    n.dtype = args[names.index(part)].dtype
    inner = _union(a.vars for a in args)
    n.vars = _union([tuple(v for v in inner if v is not axis), at.free])
    return _made(key, n)


def scans(roots: Iterable[Node]) -> tuple[Scan, ...]:
    """All scans below ``roots``, each once, arguments first."""
    return tuple(n for n in walk(r for r in roots if r.folds & SCANS) if isinstance(n, Scan))


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[index] = value`` (or an atomic update, by ``mode``), once per iteration.

    mask: store only where it holds (None: always).
    """

    buffer: str
    index: Expr
    value: Node
    mode: StoreMode = "set"
    indirect: tuple[tuple[Expr, Node], ...] = ()
    mask: Node | None = None

    @property
    def updates(self) -> bool:
        """Whether it reads what it replaces."""
        return self.mode != "set"

    def roots(self) -> tuple[Node, ...]:
        """The nodes that this store evaluates."""
        extra = () if self.mask is None else (self.mask,)
        return (self.value, *(v for _, v in self.indirect), *extra)


def loops_of(s: Store, reduced: Sequence[Expr]) -> tuple[Expr, ...]:
    """The reduced loops that a group's store runs over: none if it runs once a parallel point.

    An update that depends on some of them runs over all.
    """
    used = dict.fromkeys(s.index.free)
    for n in s.roots():
        used.update(dict.fromkeys(n.vars))
    dims = tuple(v for v in reduced if v in used)
    return tuple(reduced) if dims and s.mode != "set" else dims


def is_even(stores: Sequence[Store], reduced: Sequence[Expr]) -> bool:
    """Whether each reduction runs over all reduced loops, and each store over all or none."""
    if not reduces_evenly(walk(r for s in stores for r in s.roots()), reduced):
        return False
    return all(len(loops_of(s, reduced)) in (0, len(reduced)) for s in stores)


def reduces_evenly(nodes: Iterable[Node], reduced: Sequence[Expr]) -> bool:
    """Whether each reduction among ``nodes`` runs over all reduced loops, within none of them."""
    loops = set(reduced)
    reduces = (n for n in nodes if isinstance(n, Reduce))
    return all(set(n.axes) == loops and loops.isdisjoint(n.vars) for n in reduces)


def walk(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node below ``roots`` once, arguments before users, in a deterministic order."""
    done: set[Node] = set()
    begun: set[Node] = set()
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node in done:
            continue
        if node.args and node not in begun:
            left = [a for a in node.args if a not in done]
            if left:
                begun.add(node)
                stack.append(node)
                stack += reversed(left)
                continue
        done.add(node)
        yield node


@dataclass
class Rewriter:
    """A map over a body's nodes, bottom up; memoised over all nodes that it is asked for.

    indices: substitution applied to every index expression (None: leave them).
    replace: from a node and what it has become to what takes its place (None: the latter).
    buffers: new names of all buffers (None: they keep theirs).
    memo: what nodes become; those that it begins with are replaced as they are found.
    """

    indices: Substitution | None = None
    replace: Callable[[Node, Node], Node] | None = None
    buffers: Mapping[str, str] | None = None
    memo: dict[Node, Node] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        return e if self.indices is None else self.indices(e)

    def __call__(self, root: Node) -> Node:
        memo = self.memo
        stack = [root]
        while stack:
            n = stack[-1]
            left = [] if n in memo else [a for a in n.args if a not in memo]
            if left:
                stack.extend(reversed(left))
                continue
            stack.pop()
            if n not in memo:
                new = self._rebuild(n)
                memo[n] = new if self.replace is None else self.replace(n, new)
        return memo[root]

    def _rebuild(self, n: Node) -> Node:
        memo = self.memo
        if isinstance(n, Load):
            return load(n.dtype, self.name(n.buffer), self.expr(n.index), self.bound(n.indirect))
        if isinstance(n, Const):
            return n
        if isinstance(n, Index):
            return index(self.expr(n.expr))
        args = tuple(memo[a] for a in n.args)
        if isinstance(n, Scan):
            (axis,) = self.reduce_axes((n.axis,))
            return scan(n.kind, n.part, axis, self.expr(n.at), args, n.combine)
        if args == n.args and not isinstance(n, Reduce):
            return n
        if isinstance(n, Op):
            pairs = zip(args, n.args, strict=True)
            alike = all(a.vars == b.vars and a.dtype is b.dtype for a, b in pairs)
            return _same_op(n, args) if alike else op(n.name, *args, to=n.param)
        if isinstance(n, Masked):
            return masked(*args)
        assert isinstance(n, Reduce)
        return reduce(n.kind, self.reduce_axes(n.axes), args[0])

    def name(self, buffer: str) -> str:
        return buffer if self.buffers is None else self.buffers[buffer]

    def bound(self, indirect: tuple[tuple[Expr, Node], ...]) -> tuple[tuple[Expr, Node], ...]:
        return tuple((self.expr(s), self(v)) for s, v in indirect)

    def reduce_axes(self, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The variables that stand for ``old``: factors of one that was split, merged ones once."""
        return tuple({v: None for a in old for v in _factors(self.expr(a))})

    def store(self, s: Store) -> Store:
        return Store(
            self.name(s.buffer),
            self.expr(s.index),
            self(s.value),
            s.mode,
            self.bound(s.indirect),
            None if s.mask is None else self(s.mask),
        )


def _factors(e: Expr) -> list[Expr]:
    """The loop variable of ``e``, or those of a mixed-radix sum, heaviest first."""
    loop_vars: list[Expr] = [v for v in e.free if isinstance(v, Var)]
    if len(loop_vars) < 2:
        return loop_vars
    split = split_linear(e, loop_vars)
    if split is None:
        raise ValueError(f"{e} is no mixed-radix sum of loops")
    steps = split[0]
    return sorted(loop_vars, key=lambda v: -size_hint(steps[v], default=1 << 10))


def replaced(stores: Iterable[Store], known: Mapping[Node, Node]) -> tuple[Store, ...]:
    """``stores`` with nodes replaced."""
    rewrite = Rewriter(memo=dict(known))
    return tuple(rewrite.store(s) for s in stores)


def substitute(root: Node, mapping: Mapping[Expr, Expr]) -> Node:
    """``root`` with the variables of ``mapping`` replaced in every index expression."""
    return Rewriter(substitution(mapping))(root)


def loads(roots: Iterable[Node]) -> tuple[Load, ...]:
    """All loads below ``roots``, each once, in order of first use."""
    found = [_loads(r) for r in roots]
    return found[0] if len(found) == 1 else tuple(dict.fromkeys(chain.from_iterable(found)))


def _loads(n: Node) -> tuple[Load, ...]:
    if n.read is None:
        known = all(a.read is not None for a in n.args)
        n.read = loads(n.args) if known else tuple(x for x in walk(n.args) if isinstance(x, Load))
    return (*n.read, n) if isinstance(n, Load) else n.read


def cost(root: Node) -> int:
    """Rough arithmetic cost of one evaluation, in additions (see the op table)."""
    return sum(op_row(n.name).cost for n in walk((root,)) if isinstance(n, Op))


# --- text (``litz.ir.text`` documents it) ---------------------------------------------------------

_NAN_BITS = struct.pack("<d", math.nan)


def float_text(value: float) -> str:
    """A float that reads back to the same bits: ``0.5``, ``float.inf``, ``float.nan``."""
    if math.isnan(value):
        bits = struct.pack("<d", value)
        return "float.nan" if bits == _NAN_BITS else f"float.bits_{bits[::-1].hex()}"
    if math.isinf(value):
        return "float.inf" if value > 0 else "-float.inf"
    return repr(value)


def symbol_text(symbol: Expr) -> str:
    """A symbol with all that tells it apart: ``s0 in [2, inf] hint 8``."""
    lo = "-inf" if symbol.lo is None else str(symbol.lo)
    hi = "inf" if symbol.hi is None else str(symbol.hi)
    hint = getattr(symbol, "hint", None)
    return f"{symbol} in [{lo}, {hi}]" + ("" if hint is None else f" hint {hint}")


class Namer:
    """Numbers nodes in order of first use; literals are written in place."""

    def __init__(self) -> None:
        self.names: dict[Node, str] = {}

    def __call__(self, n: Node) -> str:
        if isinstance(n, Const):
            return repr(n)
        found = self.names.get(n)
        if found is None:
            found = self.names[n] = f"%{len(self.names)}"
        return found

    def access(self, buffer: str, index: Expr, indirect: Sequence[tuple[Expr, Node]]) -> str:
        bound = "".join(f"; {symbol_text(s)} := {self(v)}" for s, v in indirect)
        return f"{buffer}[{index}{bound}]"

    def lines(self, roots: Iterable[Node]) -> list[str]:
        """The definitions that ``roots`` need and that have not been given yet."""
        out: list[str] = []
        for n in walk(roots):
            if isinstance(n, Const) or n in self.names:
                continue
            right = self.value(n)  # which numbers what it names
            out.append(f"{self(n)}: {n.dtype} = {right}")
        return out

    def value(self, n: Node) -> str:
        args = ", ".join(self(a) for a in n.args)
        if isinstance(n, Load):
            return "load " + self.access(n.buffer, n.index, n.indirect)
        if isinstance(n, Index):
            return f"index {n.expr}"
        if isinstance(n, Given):
            return f"given {n.number}"
        if isinstance(n, Op):
            to = "" if n.param is None else f" to {n.param}"
            return f"{n.name} {args}{to}"
        if isinstance(n, Reduce):
            return f"reduce {n.kind} [{', '.join(map(str, n.axes))}] {args}"
        if isinstance(n, Scan):
            args, start = (", ".join(map(self, some)) for some in (n.elements, n.start))
            args += f" from {start}" if start else ""
            by = f" by {function_text(n.combine)}" if n.combine else ""
            return f"scan {n.kind}.{n.part} [{n.axis} to {n.at}] {args}{by}"
        return f"{type(n).__name__.lower()} {args}"

    def store(self, s: Store) -> str:
        mode = "" if s.mode == "set" else f"{s.mode} "
        mask = "" if s.mask is None else f" if {self(s.mask)}"
        place = self.access(s.buffer, s.index, s.indirect)
        return f"store {mode}{place} = {self(s.value)}{mask}"


def function_text(combine: tuple[Node, ...]) -> str:
    """``{%0: f32 = given 0; %1: f32 = given 1; %2: f32 = mul %0, %1; give %2}``"""
    name = Namer()
    lines = [*name.lines(combine), f"give {', '.join(map(name, combine))}"]
    return f"{{{'; '.join(lines)}}}"


def stores_lines(stores: Iterable[Store], name: Namer | None = None) -> list[str]:
    """The lines of a nest's body: each node before its first use, then each store."""
    name = name or Namer()
    out: list[str] = []
    for s in stores:
        out += name.lines(s.roots())
        out.append(name.store(s))
    return out
