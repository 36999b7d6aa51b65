"""Printing matrix products: the loop along the sum, between whose loads and stores bodies stand.

Both factors are bodies of their own over blocks of two axes: rows and sum, sum and columns.  Along
the sum each has its own axis, r and q, since it lies across the other's.  What changes only from
block to block along the sum, such as scales of groups, is read once a block (axis s).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from litz.index import (
    TRITON,
    Expr,
    Substitution,
    coefficient,
    const,
    floordiv,
    min_,
    render,
    var,
)
from litz.ir import body, matmul
from litz.ir.body import Const, Load, Node, Op, Reduce, Rewriter, walk
from litz.ir.dtype import BOOL, F8E4, F8E5
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.matmul import pair_of_bytes, positions, scaled, sum_end
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import extent, int_value
from litz.kernel.values import Value, Values
from litz.targets.triton import packed
from litz.targets.triton.layout import Scope, decoded
from litz.targets.triton.printer import Printer

SPREAD: Final = {"y": "[:, None]", "q": "[:, None]", "x": "[None, :]", "r": "[None, :]"}
BLOCKS: Final = {"y": "YBLOCK", "x": "XBLOCK", "r": "RBLOCK", "q": "RBLOCK"}
COMPARE: Final[Mapping[str, Callable[..., bool]]] = {
    n: getattr(operator, n) for n in ("lt", "le", "gt", "ge", "eq", "ne")
}
NEIGHBOURS: Final = {"r": "w", "q": "u"}  # all places along the sum that turns take one each of
INNER: Final = ("r", "q", "s")  # axes that the loop along the sum binds
SMALL: Final = {F8E4: "tl.float8e4nv", F8E5: "tl.float8e5"}
# Ops that give zero for an operand that is.
KEEP_ZERO: Final = ("cast", "round_to", "neg", "and_", "shl", "shr")


class MatmulPrinter(Printer):
    """Prints a plan whose stores are a product's."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.loop: Scope | None = None
        self.neighbours: dict[Node, list[str]] = {}  # names, by what is loaded at once
        p = self.parts = matmul.parts(self.plan.stores, self.plan.parallel)
        (*outer,) = self.axes.all[-1].dims
        own: dict[Expr, Expr] = {v: var(f"q{i}", extent(v)) for i, v in enumerate(outer)}
        self.q = Axis("q", tuple(own.values()))
        longest, k = max(c.block("r") for c in made.configs), p.inner[0]
        self.at = positions(p, longest)
        known = {**self.axes.of_dims, **dict.fromkeys(made.unrolled, "r")}
        known |= dict.fromkeys(own.values(), "q") | dict.fromkeys(self.at.values(), "s")
        known |= {v: "group" for v in (p.group, p.which) if v is not None}
        self.values = Values(known)
        dims = {v: e for a in (*self.axes.all, self.q) for v, e in decoded(a)}
        self.flat = Substitution(dims)
        uniform = Substitution({floordiv(k, g): v for g, v in self.at.items()})
        turns = _turns(made.unrolled)
        self.along = {a: var(f"{w}index", extent(k) * len(turns)) for a, w in NEIGHBOURS.items()}
        self.several: dict[Node, tuple[Load, int]] = {}
        self.bytes: dict[Node, tuple[Load, int]] = {}
        found = [scaled(n, p, longest) for n in (p.left, p.right)]
        left, right = (f[0] if f else n for n, f in zip((p.left, p.right), found, strict=True))
        self.scale = None if made.scale is None else Rewriter(uniform)(made.scale)
        self.factors = [
            (self.one(left, uniform, turn), self.one(right, uniform, {**turn, **own}))
            for turn in turns
        ]

    def one(self, n: Node, uniform: Substitution, turn: Mapping[Expr, Expr]) -> Node:
        """A factor with dims replaced, and what is known then."""
        n = Rewriter(uniform)(n)
        move = Rewriter(Substitution(turn), replace=_known)
        for x in walk((n,)) if len(self.made.unrolled) == 1 else ():
            if isinstance(x, Load) and not x.indirect:
                self.note(x, move(x), int_value(turn[self.made.unrolled[0]]))
        return move(n)

    def note(self, n: Load, moved: Node, turn: int) -> None:
        """A load of neighbours that turns take one of each, or of a byte of a pair."""
        (inner,), (outer,) = self.made.unrolled, self.axes.all[-1].dims
        count = int_value(extent(inner))
        rest = n.index - outer * count - inner
        if not {inner, outer} & {*rest.free} and count & (count - 1) == 0:
            axis = "r" if outer in moved.vars else "q"
            self.several[moved] = body.load(n.dtype, n.buffer, rest + self.along[axis]), turn
        elif (at := pair_of_bytes(n, inner, outer)) is not None and outer in moved.vars:
            self.bytes[moved] = body.load(n.dtype, n.buffer, at), turn // (count // 2)

    # --- blocks of two axes -------------------------------------------------------------------

    def home(self, v: Value) -> Scope:
        inside = self.loop is not None and any(a in v.axes for a in INNER)
        return self.loop if inside and self.loop is not None else self.top

    def spread(self, axis: str) -> str:
        return SPREAD[axis]

    def extents(self, axes: Iterable[str]) -> str:
        names = tuple(axes)
        return f"[{', '.join(BLOCKS[a] if a in names else '1' for a in ('y', 'x'))}]"

    def mask(self, axes: Iterable[str], conds: Sequence[str] = ()) -> str:
        wanted = set(axes)
        parts = [f"{a}mask" for a in BLOCKS if a in wanted and not self.is_covered(a)]
        return " & ".join([*parts, *conds])

    def is_covered(self, axis: str) -> bool:
        return ("r" if axis == "q" else axis) in self.covered

    def program_ids(self, axes: tuple[Axis, ...]) -> dict[str, str]:
        pids = super().program_ids(axes)
        if self.made.together == 1:
            return pids
        y, x = (f"tl.cdiv({self.index(a.size)}, {a.block})" for a in self.axes.parallel[1:])
        at = f"{pids['y']}, {pids['x']}, {y}, {x}, {self.made.together}"
        self.top.emit(f"yblock, xblock = tl.swizzle2d({at})")
        return {**pids, "y": "yblock", "x": "xblock"}

    def stretch(self, axis: Axis, pid: str) -> tuple[str, str]:
        """Of rows in groups: where its block begins in its group, and where that ends."""
        p = self.parts
        if axis.name != "y" or p.group is None:
            return super().stretch(axis, pid)
        assert p.ends is not None and p.which is not None
        step = coefficient(p.ends.index, p.which)
        assert step is not None
        at = self.pointer(p.ends.buffer, self.index(p.ends.index - p.which * step))
        given = f"{at}, {render(step, TRITON)}, {pid}, {extent(p.which)}, YBLOCK"
        self.top.emit(f"{p.group}, first, end = litz.rows_of_group({given})")
        if self.made.wide:
            self.top.emit(f"{p.group} = {p.group}.to(tl.int64)")
        return "first", "end"

    # --- the product --------------------------------------------------------------------------

    def body(self) -> None:
        kind = TRITON_TYPES[self.parts.product.dtype.name]
        self.top.emit(f"acc = tl.zeros([YBLOCK, XBLOCK], {kind})")
        axis = self.axes.reduced
        assert axis is not None
        size = self.index(axis.size)
        if (end := sum_end(self.parts, self.made.unrolled)) is not None:
            self.top.emit(f"rend = {self.index(min_(axis.size, end))}")
            size = "rend"
        wide = ".to(tl.int64)" if self.made.wide else ""
        child = Scope(2, self.top)
        for name, a in (("r", axis), ("q", self.q)):
            child.emit(f"{name}index = rstart + tl.arange(0, RBLOCK){SPREAD[name]}{wide}")
            if not self.is_covered(name):
                child.emit(f"{name}mask = {name}index < {size}")
            self.decode(child, a)
        count = len(self.factors)
        for name, w in NEIGHBOURS.items():
            if self.along[name] in {i for n, _ in self.several.values() for i in n.vars}:
                steps = f"tl.arange(0, {count} * RBLOCK){SPREAD[name]}"
                child.emit(f"{w}index = {count} * rstart + {steps}{wide}")
                if not self.is_covered("r"):
                    child.emit(f"{w}mask = {w}index < {count} * ({size})")
        for g, v in self.at.items():
            group = f"rstart // {g}"
            child.emit(f"{v} = litz.i64({group})" if self.made.wide else f"{v} = {group}")
        self.scope = self.loop = child
        scale = None if self.scale is None else self.values(self.scale)
        sums = "own" if scale is not None and "s" in scale.axes else "acc"
        if sums == "own":
            child.emit(f"own = tl.zeros([YBLOCK, XBLOCK], {kind})")
        for one, other in self.factors:
            left, right = self.operand(one, "yr"), self.operand(other, "qx")
            child.emit(f"{sums} = litz.dot({left}, {right}, {sums})")
        if scale is not None and sums == "own":
            child.emit(f"acc = litz.fma(own, litz.of_sums({self.value(scale)}), acc)")
        self.scope, self.loop = self.top, None
        last = size if self.parts.group is None else f"tl.where(first < end, {size}, 0)"
        self.top.emit(f"for rstart in range(0, {last}, RBLOCK):")
        self.top.lines += child.lines
        if scale is not None and sums == "acc":
            self.top.emit(f"acc = acc * litz.of_sums({self.value(scale)})")
        self.stores(self.plan.stores)

    def operand(self, n: Node, axes: str) -> str:
        """A block of a factor, of the type that matrix units take."""
        small = SMALL.get(n.dtype)
        text = self.factor(n, axes)
        return f"({text}).to({small}, bitcast=True)" if small else text

    def factor(self, n: Node, axes: str) -> str:
        """A block of a factor, zero beyond the end of the sum."""
        v = self.values(n)
        text = self.value(v)
        inner = "r" if "r" in axes else "q"
        if not self.is_covered(inner) and not self.keeps_zero(n, inner):
            text = f"tl.where({inner}mask, {text}, 0)"
        if not all(a in v.axes for a in axes):
            text = f"tl.broadcast_to({text}, [{', '.join(BLOCKS[a] for a in axes)}])"
        return text

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        if v.conds or args:
            return super().load(v, node, args)
        if node in self.several:
            return self.one_of(v, *self.several[node])
        if node in self.bytes:
            number = self.bytes[node][1]
            return f"({self.pair(v)} >> {8 * number}).to({TRITON_TYPES[node.dtype.name]})"
        return super().load(v, node, args)

    def one_of(self, v: Value, whole: Load, which: int) -> str:
        """Of neighbours all at once: one place after the other is what memory is fast at."""
        names = self.neighbours.get(whole)
        if names is None:
            name = "r" if "r" in v.axes else "q"
            own = () if self.is_covered("r") else (f"{NEIGHBOURS[name]}mask",)
            mask = self.mask(v.axes - {name}, own)
            at = self.pointer(whole.buffer, self.index(whole.index))
            names, home = [self.fresh("pair")], self.home(v)
            home.emit(f"{names[0]} = tl.load({at}{f', {mask}, other=0' if mask else ''})")
            side, n = "y" if name == "r" else "x", len(self.factors)
            other = BLOCKS[side] if side in v.axes else "1"
            while n > 1:  # halves of even and odd places: what stands there in the end is in order
                n //= 2
                rows = f"{n} * RBLOCK" if n > 1 else "RBLOCK"
                shape = f"{other}, {rows}, 2" if name == "r" else f"{rows}, 2, {other}"
                halves = [(self.fresh(), self.fresh()) for _ in names]
                for x, (even, odd) in zip(names, halves, strict=True):
                    apart = f"tl.reshape({x}, [{shape}])"
                    apart = apart if name == "r" else f"tl.permute({apart}, (0, 2, 1))"
                    home.emit(f"{even}, {odd} = tl.split({apart})")
                names = [even for even, _ in halves] + [odd for _, odd in halves]
            self.neighbours[whole] = names
        return names[which]

    def pair(self, v: Value) -> str:
        """Two neighbouring bytes as a word."""
        whole, _ = self.bytes[v.node]
        if whole not in self.neighbours:
            self.asks_alignment = True
            names = self.neighbours[whole] = [self.fresh("pair")]
            given = f"{whole.buffer}, {self.index(whole.index)}, {self.mask(v.axes) or None}"
            self.home(v).emit(f"{names[0]} = litz.word({given}, ALIGNED)")
        return self.neighbours[whole][0]

    def is_byte(self, v: Value) -> bool:
        """Whether a value is one of two neighbouring bytes that are read at once."""
        return v.node in self.bytes and not v.conds

    def operands(self, v: Value) -> tuple[Value, ...]:
        if isinstance(v.node, Reduce):
            return ()
        if self.loop is not None:
            if (bits := packed.small(v)) is not None:
                return () if self.is_byte(bits.source) else (bits.source,)
            if (both := packed.factors(v)) is not None:
                return both
        return super().operands(v)

    def spelled(self, v: Value) -> str:
        if self.loop is None:
            return super().spelled(v)
        kind = TRITON_TYPES[v.node.dtype.name]
        if (b := packed.small(v)) is not None:
            numbers = f"{b.mask}, {b.flip}, {b.minus}, {kind}"
            if self.is_byte(b.source):
                shift = b.shift + 8 * self.bytes[b.source.node][1]
                return f"litz.small_word({self.pair(b.source)}, {shift}, {numbers})"
            return f"litz.small_float({self.value(b.source)}, {b.shift}, {numbers})"
        if (both := packed.factors(v)) is not None:
            return f"litz.times16({', '.join(map(self.value, both))})"
        return super().spelled(v)

    def reduced(self, v: Value) -> str:
        return "acc"

    def keeps_zero(self, n: Node, inner: str) -> bool:
        """Whether a factor is zero where what it loads along the sum is."""
        if isinstance(n, Load):
            return inner in self.values(n).axes
        if not isinstance(n, Op):
            return False
        if n.name == "mul":
            a, b = n.args
            return isinstance(b, Const) and math.isfinite(b.value) and self.keeps_zero(a, inner)
        return n.name in KEEP_ZERO and self.keeps_zero(n.args[0], inner)


def _turns(unrolled: Sequence[Expr]) -> list[dict[Expr, Expr]]:
    """All values of some dims."""
    counts = [range(int_value(extent(v))) for v in unrolled]
    return [dict(zip(unrolled, map(const, at), strict=True)) for at in itertools.product(*counts)]


def _known(_: Node, n: Node) -> Node:
    """Comparisons of numbers as what they are."""
    if not isinstance(n, Op) or n.name not in COMPARE:
        return n
    a, b = (x.value if isinstance(x, Const) else None for x in n.args)
    return n if a is None or b is None else body.const(BOOL, COMPARE[n.name](a, b))
