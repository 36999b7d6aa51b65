"""Matrix products on GPUs whose sizes are no multiple of what the library's fast kernels take.

Those want every row of a 16-bit matrix, and every size that is contiguous somewhere, to be a
multiple of 16 bytes; a product without that takes several times as long.  So a product of uneven
sizes becomes one of larger sizes, over matrices with zeros behind their rows, and its result is a
part of what that one computes.  A matrix that one loop nest stores, and that nests and products
alone read, is stored with the zeros; another is copied where the product gains more than it costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Const, Expr, Substitution, Var, const, mod, split_linear, var
from litz.ir import body
from litz.ir.body import Node, Rewriter, Store
from litz.ir.matmul import SHORT, WHOLE, padded_size
from litz.ir.program import Buffer, Contraction, Loops, Program, ProgramNode, TensorRef
from litz.passes.costs import Costs
from litz.passes.relay import Ints, Relaying, relaying

# Of what matrix units can do: what libraries reach on rows of whole 16 bytes, and on others.
FAST, SLOW = 0.55, 0.13


@dataclass(frozen=True)
class PadContractions:
    """costs: of devices whose kernels run over blocks, as GPUs' do, by their kinds."""

    costs: Mapping[str, Costs]
    name: ClassVar[str] = "pad contractions"

    def __call__(self, program: Program) -> Program:
        uneven = [n.name for n in program.nodes if self._wanted(program, n)]
        behind: Mapping[str, _Behind] = {}
        for name in uneven:
            trial = _Trial(program, dict(behind), name, self.costs)
            if trial.grow():
                program, behind = trial.program, trial.behind
        return program

    def _wanted(self, program: Program, n: ProgramNode) -> bool:
        if not isinstance(n, Contraction) or kind_of(n) not in self.costs:
            return False
        dtype, sizes = program.buffers[n.out].dtype, _ints(tuple(n.axes.values()))
        if sizes is None or not (dtype.is_float and dtype.bits == 16):
            return False
        vector = n.bias is None or (len(n.bias.shape) == 1 and (n.alpha, n.beta) == (1, 1))
        return vector and min(sizes[-3:]) >= SHORT and any(s % WHOLE for s in sizes[-3:])


def kind_of(c: Contraction) -> str:
    """The kind of device that a product runs on."""
    return c.device.partition(":")[0]


def _ints(sizes: Sequence[Expr]) -> Ints | None:
    """The numbers, if all are known."""
    known = tuple(e.value for e in sizes if isinstance(e, Const))
    return known if len(known) == len(sizes) else None


def _exprs(sizes: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(map(const, sizes))


def _row_major(sizes: Sequence[int]) -> Ints:
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


@dataclass(frozen=True)
class _Behind:
    """What a buffer has behind its rows.

    row: elements of a row in front of it.  zeros: whether it is known to be zeros.
    """

    row: int
    zeros: bool


@dataclass
class _Trial:
    """One product of a program while it grows.

    behind: of buffers that are wider than they were.  moved: bytes that copies move.
    """

    program: Program
    behind: dict[str, _Behind]
    name: str
    costs: Mapping[str, Costs]
    moved: float = 0.0

    @property
    def product(self) -> Contraction:
        found = next(n for n in self.program.nodes if n.name == self.name)
        assert isinstance(found, Contraction)
        return found

    def grow(self) -> bool:
        """Make the product larger; False where that is not needed or would not pay."""
        c = self.product
        *batch, m, n, k = _ints(tuple(c.axes.values())) or ()
        a_last, b_last = c.left.strides[-1] is ONE, c.right.strides[-1] is ONE
        if not (a_last or c.left.strides[-2] is ONE) or not (b_last or c.right.strides[-2] is ONE):
            return False
        # A size has to be even where it is contiguous in a matrix; in the result it is the last.
        m2 = m if a_last else padded_size(m)
        k2 = padded_size(k) if a_last or not b_last else k
        n2 = padded_size(n)
        if (m2, n2, k2) == (m, n, k):
            return False
        if not self.grow_result((*batch, m2, n2)):
            return False
        self.widen(c.left.buffer)
        self.widen(c.right.buffer)
        left = self.operand(self.product.left, (m2, k2), 1)
        right = self.operand(self.product.right, (k2, n2), 0)
        work = 2.0 * math.prod(batch) * m * n * k
        costs = self.costs[kind_of(c)]
        if self.moved / costs.memory > work / costs.matrix * (1 / SLOW - 1 / FAST):
            return False
        bias = self.product.bias
        if bias is not None and n2 != n:
            shape = (const(n),)
            if bias.shape != shape:  # one number for all
                bias = replace(bias, shape=shape, strides=(ZERO,))
            bias = self.copy(bias, (n2,), (1,))
        sizes = (("m", m, m2), ("n", n, n2), ("k", k, k2))
        larger = ", ".join(f"{axis} {new} for {old}" for axis, old, new in sizes if new != old)
        why = f"{larger}, so that rows are of whole 16 bytes"
        why = f"{c.reason}; {why}" if c.reason else why
        self.put(self.name, replace(self.product, left=left, right=right, bias=bias, reason=why))
        return True

    def put(self, at: str, *nodes: ProgramNode) -> None:
        """Nodes in the place of the one called ``at``."""
        found = self.program.nodes
        made = tuple(x for n in found for x in (nodes if n.name == at else (n,)))
        self.program = replace(self.program, nodes=made)

    def relaid(self, how: Relaying, shape: Ints, strides: Ints) -> bool:
        """Lay a buffer out otherwise; False where somebody who touches it cannot follow."""
        p = self.program
        nodes = [how.node(n) for n in p.nodes]
        kept = [n for n in nodes if n is not None]
        if len(kept) != len(nodes):
            return False
        old = p.buffers[how.buffer]
        wide = replace(old, name=how.name, shape=_exprs(shape), strides=_exprs(strides))
        bindings = (how.binding(b) for b in p.bindings)
        self.program = replace(
            p,
            buffers={**p.buffers, how.name: wide},
            nodes=tuple(kept),
            bindings=tuple(b for b in bindings if b is not None),
        )
        return True

    # --- the result -----------------------------------------------------------------------------

    def grow_result(self, grown: Ints) -> bool:
        """A result of more elements, of which who reads it takes a part; False: nobody could."""
        p, c = self.program, self.product
        out, strides = p.buffers[c.out], _row_major(grown)
        sizes = _ints(out.shape)
        if sizes is None or _is_alias(p, c.out):
            return False
        if strides == _ints(out.strides):  # more rows behind the last
            self.program = replace(
                p, buffers={**p.buffers, c.out: replace(out, shape=_exprs(grown))}
            )
            return True
        returned = any(r.buffer == c.out for r in p.output_refs())
        name = f"{c.out}_wide" if returned else c.out
        how = relaying(p, c.out, name, lambda *_: strides)
        if how is None or not self.relaid(how, grown, strides):
            return False
        if grown[-1] != sizes[-1]:
            self.behind[name] = _Behind(sizes[-1], zeros=False)  # if no operand is infinite
        if returned:
            self.moved += 2.0 * math.prod(sizes)
            part = TensorRef(name, out.dtype, out.shape, _exprs(strides), ZERO)
            nest = self.nest(c.out, part, sizes)
            self.put(self.name, self.product, nest)
        return True

    # --- operands -------------------------------------------------------------------------------

    def widen(self, buffer: str) -> None:
        """Have the one nest that fills a temp store zeros behind its rows, where all can follow."""
        p = self.program
        writers = [n for n in p.nodes if buffer in n.write_buffers()]
        seen = any(r.buffer == buffer for r in p.output_refs())
        if seen or _is_alias(p, buffer) or len(writers) != 1:
            return
        old, nest, how = p.buffers[buffer], writers[0], relaying(p, buffer, buffer, _wider)
        if how is None or how.wide == how.steps or not isinstance(nest, Loops):
            return
        sizes, steps = _ints(old.shape) or (), _ints(old.strides) or ()
        row = _row(sizes, steps)
        store, split = nest.stores[0], split_linear(nest.stores[0].index, nest.axes)
        plain = store.mode == "set" and store.mask is None and not store.indirect
        if len(nest.stores) > 1 or not plain or nest.reduce_axes or split is None:
            return
        inner = next((v for v in nest.axes if split[0][v] is ONE), None)
        if not isinstance(inner, Var) or inner.extent is not const(row):
            return
        wide = padded_size(row)
        shape = tuple(wide if (s, n) == (1, row) else n for s, n in zip(steps, sizes, strict=True))
        if not self.relaid(how, shape, _wider(sizes, steps)):
            return
        self.behind[buffer] = _Behind(row, zeros=True)
        longer = var(str(inner), wide)
        rewrite = Rewriter(Substitution({inner: longer}))
        moved = next(n for n in self.program.nodes if n.name == nest.name)
        assert isinstance(moved, Loops)
        value = _or_zero([(longer, row)], rewrite(moved.stores[0].value))
        store = Store(buffer, rewrite.expr(moved.stores[0].index), value)
        axes = tuple(longer if v is inner else v for v in nest.axes)
        self.put(nest.name, replace(moved, axes=axes, stores=(store,)))

    def operand(self, ref: TensorRef, grown: tuple[int, int], zeros: int) -> TensorRef:
        """A matrix of the sizes ``grown``; zeros: along which what is added has to be that."""
        *batch, rows, columns = _ints(ref.shape) or ()
        if grown == (rows, columns):
            return ref
        shape, inner = (*batch, *grown), 1 if ref.strides[-1] is ONE else 0
        if self.at_hand(ref, (rows, columns), grown, inner, zeros):
            return replace(ref, shape=_exprs(shape))
        self.moved += 4.0 * math.prod(shape)
        strides = _row_major(shape)
        if not inner:
            *outer, _, _ = strides
            strides = (*outer, 1, grown[0])
        return self.copy(ref, shape, strides)

    def at_hand(self, ref: TensorRef, sizes: Ints, grown: Ints, inner: int, zeros: int) -> bool:
        """Whether memory holds what a matrix grows by.  inner: which size is contiguous."""
        behind = self.behind.get(ref.buffer)
        if behind is None or grown[1 - inner] != sizes[1 - inner]:
            return False
        row = ref.strides[-1 - inner]
        fits = row is const(grown[inner]) and mod(ref.offset, row) is ZERO
        # Behind a part of a row lies what is left of it.
        clean = behind.zeros and sizes[inner] == behind.row
        return fits and (clean or inner != zeros)

    def copy(self, ref: TensorRef, shape: Ints, strides: Ints) -> TensorRef:
        """What ``ref`` views in a new buffer, with zeros behind it up to ``shape``."""
        p = self.program
        name = f"buf{len(p.buffers)}"
        device = p.buffers[ref.buffer].device
        new = Buffer(name, ref.dtype, _exprs(shape), _exprs(strides), device)
        self.program = replace(p, buffers={**p.buffers, name: new})
        self.put(self.name, self.nest(name, ref, shape), self.product)
        return new.whole

    def nest(self, out: str, ref: TensorRef, shape: Ints) -> Loops:
        """The nest that copies ``ref`` to ``out``, of ``shape``, with zeros behind it."""
        axes = tuple(ZERO if n == 1 else var(f"i{k}", n) for k, n in enumerate(shape))
        sizes = _ints(ref.shape) or ()
        ends = [(v, n) for v, n, m in zip(axes, sizes, shape, strict=True) if n != m]
        store = self.program.buffers[out].whole.store(axes, _or_zero(ends, ref.load(axes)))
        kept = tuple(v for v in axes if v is not ZERO)
        c = self.product
        return Loops(f"copy_{out}", kept, (), (store,), c.device, c.origins)


def _or_zero(ends: Sequence[tuple[Expr, int]], value: Node) -> Node:
    """``value`` where each variable is less than its end, else 0."""
    conds = [body.op("lt", body.index(v), body.index(const(n))) for v, n in ends]
    if not conds:
        return value
    cond = functools.reduce(lambda a, b: body.op("and_", a, b), conds)
    return body.masked(cond, value, body.const(value.dtype, 0))


def _row(sizes: Ints, steps: Ints) -> int:
    """The contiguous size; 0 where there is none."""
    return next((n for n, s in zip(sizes, steps, strict=True) if s == 1 and n > 1), 0)


def _wider(sizes: Ints, steps: Ints) -> Ints:
    """The strides of what is wide enough, if its rows are long."""
    row = _row(sizes, steps)
    if row < SHORT:
        return steps
    return tuple(s // row * padded_size(row) if s >= row else s for s in steps)


def _is_alias(p: Program, name: str) -> bool:
    own = p.buffers[name]
    return (
        own.kind != "temp"
        or own.alias is not None
        or any(b.alias == name for b in p.buffers.values())
    )
