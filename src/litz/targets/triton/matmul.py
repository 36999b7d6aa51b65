"""Printing matrix products: the loop along the sum, between whose loads and stores bodies stand.

Both factors are bodies of their own over blocks of two axes: rows and sum, sum and columns.  Along
the sum each has its own axis, r and q, since it lies across the other's.  What changes only from
block to block along the sum, such as scales of groups, is read once a block (axis s).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from litz.index import Substitution, ceildiv, const, floordiv, var
from litz.ir import matmul
from litz.ir.body import Const, Load, Node, Op, Reduce, Rewriter
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.matmul import groups
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import extent
from litz.kernel.values import Value, Values
from litz.targets.triton.layout import Scope, decoded
from litz.targets.triton.printer import Printer

SPREAD: Final = {"y": "[:, None]", "q": "[:, None]", "x": "[None, :]", "r": "[None, :]"}
BLOCKS: Final = {"y": "YBLOCK", "x": "XBLOCK", "r": "RBLOCK", "q": "RBLOCK"}
INNER: Final = ("r", "q", "s")  # axes that the loop along the sum binds
# Ops that give zero for an operand that is.
KEEP_ZERO: Final = ("cast", "round_to", "neg", "and_", "shl", "shr")


class MatmulPrinter(Printer):
    """Prints a plan whose stores are a product's."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.loop: Scope | None = None
        p = self.parts = matmul.parts(self.plan.stores, self.plan.parallel)
        own = {v: var(f"q{i}", extent(v)) for i, v in enumerate(p.inner)}
        self.q = Axis("q", tuple(own.values()))
        # What the sum's position is divided by, where all blocks divide that in turn.
        longest = max(c.block("r") for c in made.configs)
        self.steps = tuple(g for g in groups(p) if g % longest == 0)
        at = {g: var(f"s{g}", ceildiv(extent(p.inner[0]), const(g))) for g in self.steps}
        self.values = Values({**self.axes.of_dims, **dict.fromkeys(own.values(), "q"),
                              **dict.fromkeys(at.values(), "s")})  # fmt: skip
        dims = {v: e for a in (*self.axes.all, self.q) for v, e in decoded(a)}
        self.flat = Substitution(dims)
        self.at = at
        uniform = Rewriter(Substitution({floordiv(p.inner[0], g): v for g, v in at.items()}))
        self.left = uniform(p.left)
        self.right = Rewriter(Substitution(own))(uniform(p.right))

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

    # --- the product --------------------------------------------------------------------------

    def body(self) -> None:
        kind = TRITON_TYPES[self.parts.product.dtype.name]
        self.top.emit(f"acc = tl.zeros([YBLOCK, XBLOCK], {kind})")
        axis = self.axes.reduced
        assert axis is not None
        size = self.index(axis.size)
        wide = ".to(tl.int64)" if self.made.wide else ""
        child = Scope(2, self.top)
        for name, a in (("r", axis), ("q", self.q)):
            child.emit(f"{name}index = rstart + tl.arange(0, RBLOCK){SPREAD[name]}{wide}")
            if not self.is_covered(name):
                child.emit(f"{name}mask = {name}index < {size}")
            self.decode(child, a)
        for g, v in self.at.items():
            child.emit(f"{v} = rstart // {g}{wide}")
        self.scope = self.loop = child
        left, right = self.factor(self.left, "yr"), self.factor(self.right, "qx")
        child.emit(f"acc = litz.dot({left}, {right}, acc)")
        self.scope, self.loop = self.top, None
        self.top.emit(f"for rstart in range(0, {size}, RBLOCK):")
        self.top.lines += child.lines
        self.stores(self.plan.stores)

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

    def operands(self, v: Value) -> tuple[Value, ...]:
        return () if isinstance(v.node, Reduce) else super().operands(v)

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
