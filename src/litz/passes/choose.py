"""Who computes each matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Const, Expr, size_hint, var
from litz.ir import matmul
from litz.ir.body import Node, Store, cast, load, loads
from litz.ir.dtype import F32
from litz.ir.program import (
    Contraction,
    Extern,
    Loops,
    Program,
    ProgramNode,
    Skeleton,
    Template,
    TensorRef,
)
from litz.passes.costs import Costs

aten = torch.ops.aten

ATEN: Final = "a matrix product: ATen's libraries compute it"
# By whether it is of batches, and whether something is added.
_OPERATORS: Final = {
    (False, False): aten.mm.out,
    (False, True): aten.addmm.out,
    (True, False): aten.bmm.out,
    (True, True): aten.baddbmm.out,
}
# Of what matrix units can do: what libraries reach in large products, and a kernel of Litz.
LIBRARY, OWN = 0.75, 0.58
PLAIN = 0.3  # the same of float32 without matrix units, in a kernel of Litz
AHEAD = 0.95  # of the other's time, that a template has to stay below
DEPTH = 64  # elements of a turn of a product's loop
LONG = 2048  # elements of a sum beyond which programs share it, unless there are many sums


@dataclass(frozen=True)
class TakeTemplates:
    """Contractions become templates where that makes up for what libraries do better.

    It does where what a factor is computed from is less than the factor, and where the result need
    not go through memory.  costs: of devices whose kernels run over blocks, by their kinds.
    """

    costs: Mapping[str, Costs]
    name: ClassVar[str] = "take templates"

    def __call__(self, program: Program) -> Program:
        taken: set[str] = set()  # names of nests that templates count on
        nodes = tuple(
            self._chosen(program, n, taken) if isinstance(n, Contraction) else n
            for n in program.nodes
        )
        return replace(program, nodes=nodes)

    def _chosen(self, program: Program, c: Contraction, taken: set[str]) -> Contraction | Template:
        costs = self.costs.get(c.device.partition(":")[0])
        why = "no kernels over blocks" if costs is None else _unfit(program, c)
        if costs is None or why:
            return c
        found = _Neighbours(program, c, taken).look()
        if not found.factors and (not found.behind or _is_single(c)):
            return c
        if not found.factors and not all(isinstance(s, Const) for s in c.axes.values()):
            return _with_reason(c, "libraries look at open sizes when they are known")
        own, other = found.seconds(costs)
        if own >= AHEAD * other:
            said = f"a kernel of {1e6 * own:.0f} us against {1e6 * other:.0f} us does not pay"
            return _with_reason(c, said)
        taken.update(n.name for n in found.behind)
        return template(program, c)


@dataclass(frozen=True)
class ChooseContractions:
    """Every contraction that is left becomes a call of ATen, with the reason."""

    name: ClassVar[str] = "choose contractions"

    def __call__(self, program: Program) -> Program:
        if not any(isinstance(n, Contraction) for n in program.nodes):
            return program
        nodes = tuple(_call(n) if isinstance(n, Contraction) else n for n in program.nodes)
        return replace(program, nodes=nodes)


def _call(c: Contraction) -> Extern:
    target = _OPERATORS["b" in c.axes, c.bias is not None]
    numbers = (("beta", c.beta), ("alpha", c.alpha))
    reason = f"{ATEN}; {c.reason}" if c.reason else ATEN
    return Extern(
        c.name, target, str(target), c.refs(), tuple((k, v) for k, v in numbers if v != 1),
        (c.out,), c.device, reason, out_variant=True, origins=c.origins,
    )  # fmt: skip


# --- a contraction as a template ------------------------------------------------------------------


def template(program: Program, c: Contraction) -> Template:
    """A contraction as loops, which round where ATen does: the whole once, to the result's type."""
    out = program.buffers[c.out]
    sizes = tuple(c.axes.values())
    *batch, m, n = (ZERO if s is ONE else var(f"i{j}", s) for j, s in enumerate(sizes[:-1]))
    k = var("r0", sizes[-1])
    value = matmul.product(
        _at(c.left, (*batch, m, k)), _at(c.right, (*batch, k, n)), k, c.accumulate
    )
    if c.alpha != 1:
        value = value * float(c.alpha)  # type: ignore[arg-type]
    if c.bias is not None and c.beta != 0:
        shape = (*batch, m, n)[len(sizes) - 1 - len(c.bias.shape) :]
        bias = cast(_at(c.bias, shape), c.accumulate)
        value = value + (bias if c.beta == 1 else bias * float(c.beta))  # type: ignore[arg-type]
    places = (*batch, m, n)
    at = _linear(places, out.strides)
    store = Store(c.out, at, cast(value, out.dtype))
    axes = tuple(v for v in places if v is not ZERO)
    return Template(c.name, axes, (k,), (store,), c.device, Skeleton(matmul.KIND), c.origins)


def _at(ref: TensorRef, places: Sequence[Expr]) -> Node:
    moving = [ZERO if s is ONE else i for s, i in zip(ref.shape, places, strict=True)]
    return load(ref.dtype, ref.buffer, _linear(moving, ref.strides, ref.offset))


def _linear(places: Sequence[Expr], strides: Sequence[Expr], offset: Expr = ZERO) -> Expr:
    for i, s in zip(places, strides, strict=True):
        offset = offset + i * s
    return offset


def _unfit(program: Program, c: Contraction) -> str:
    """Why a contraction is none of the template's; "" where it may be."""
    dtype, sizes = program.buffers[c.out].dtype, c.axes
    if not dtype.is_float or dtype.bits > 32:
        return f"no matrix unit for {dtype}"
    if not all(isinstance(x, int | float) for x in (c.alpha, c.beta)):
        return "a factor is known only while it runs"
    if sizes["k"] is ONE or ZERO in sizes.values() or (sizes["m"] is ONE and sizes["n"] is ONE):
        return "it is too small"
    return ""


def _with_reason(c: Contraction, why: str) -> Contraction:
    return replace(c, reason=f"{c.reason}; {why}" if c.reason else why)


def _is_single(c: Contraction) -> bool:
    return c.left.dtype is F32


# --- what it would take in ------------------------------------------------------------------------


@dataclass
class _Neighbours:
    """The nests around a contraction that a template would take in.

    factors: stores of what factors are read from, by the factor's buffer.  behind: nests that read
    the result, or each other's, at every point of it.  taken: nests that others count on.
    """

    program: Program
    c: Contraction
    taken: Set[str]
    factors: dict[str, Store] = field(default_factory=dict)
    behind: list[Loops] = field(default_factory=list)

    def look(self) -> _Neighbours:
        for ref in (self.c.left, self.c.right):
            if (found := self.producer(ref.buffer)) is not None:
                self.factors[ref.buffer] = found
        self.follow()
        return self

    def readers(self, buffer: str) -> Iterator[ProgramNode]:
        root = self.program.root(buffer)
        for n in self.program.nodes:
            if any(self.program.root(x) == root for x in n.read_buffers()):
                yield n

    def by(self, buffer: str) -> list[ProgramNode]:
        """Who writes a buffer."""
        return [n for n in self.program.nodes if buffer in n.write_buffers()]

    def leaves(self, buffer: str) -> bool:
        """Whether somebody outside of the program sees a buffer."""
        p = self.program
        shown = any(p.root(r.buffer) == p.root(buffer) for r in p.output_refs())
        return shown or p.buffers[buffer].kind != "temp" or p.root(buffer) != buffer

    def producer(self, buffer: str) -> Store | None:
        """The one store that fills a factor's buffer, for this product alone."""
        if self.leaves(buffer) or [*self.readers(buffer)] != [self.c]:
            return None
        writers = self.by(buffer)
        if len(writers) != 1 or not isinstance(writers[0], Loops) or writers[0].reduce_axes:
            return None
        if any(isinstance(n, Contraction) for x in writers[0].read_buffers() for n in self.by(x)):
            return None  # it is computed behind that product, once
        stores = writers[0].stores
        plain = len(stores) == 1 and stores[0].mode == "set" and not stores[0].indirect
        if not plain or stores[0].mask is not None:
            return None
        return None if matmul.refused(stores[0], self.program.buffers) else stores[0]

    def follow(self) -> None:
        """The nests behind the product, as far as they need nothing else that runs behind it."""
        points = matmul.elements(template(self.program, self.c).axes)
        own, others = {self.c.out}, set[str]()
        started = False
        for n in self.program.nodes:
            started |= n is self.c
            reads = set(n.read_buffers())
            if not started or n is self.c or not reads & (own | others):
                continue
            if (
                isinstance(n, Loops)
                and n.name not in self.taken
                and not (n.reduce_axes or reads & others)
                and matmul.elements(n.axes) == points
                and all(s.mode == "set" for s in n.stores)
            ):
                self.behind.append(n)
                own.update(n.write_buffers())
            else:
                others.update(n.write_buffers())

    def seconds(self, costs: Costs) -> tuple[float, float]:
        """How long a template takes, and how long libraries and kernels around them do."""
        c, p = self.c, self.program
        *batch, m, n, k = (size_hint(s) for s in c.axes.values())
        work = 2.0 * m * n * k * (batch[0] if batch else 1)
        own_rate, rate = OWN * costs.matrix, LIBRARY * costs.matrix
        if _is_single(c):
            own_rate, rate = PLAIN * costs.single, LIBRARY * costs.single
        sizes = {r.buffer: self.bytes(r.buffer) for r in c.refs()}
        out = self.bytes(c.out)
        library = max(work / rate, (sum(sizes.values()) + out) / costs.memory)
        turns = min(k, LONG) / DEPTH
        library = max(library, turns * costs.turn / 2) + costs.launch
        taken: dict[str, float] = dict(sizes)
        for buffer, s in self.factors.items():
            taken[buffer] = sum(matmul.bytes_of(x, p.buffers) for x in loads((s.value,)))
            library += (taken[buffer] + sizes[buffer]) / costs.memory + costs.launch
        made = {x: self.bytes(x) for n in self.behind for x in n.write_buffers()}
        inside = {c.out, *made}
        extra = {x: self.bytes(x) for n in self.behind for x in n.read_buffers()}
        read = sum(size for x, size in extra.items() if x not in inside)
        written = sum(size for x, size in made.items() if self.is_kept(x))
        if self.behind:
            # Reductions behind them would be one kernel with them, and read what they make once.
            again = [x for x in made if any(_reduces(r) for r in self.readers(x))]
            library += (out + read + written - sum(made[x] for x in again)) / costs.memory
            library += 0.0 if again else costs.launch
        if self.is_kept(c.out):
            written += out
        moved = sum(taken.values()) + read + written
        own = max(work / own_rate, moved / costs.memory, turns * costs.turn)
        return own + costs.launch, library

    def is_kept(self, buffer: str) -> bool:
        """Whether what the product or a nest behind it makes has to be in memory."""
        return self.leaves(buffer) or any(n not in self.behind for n in self.readers(buffer))

    def bytes(self, buffer: str) -> int:
        b = self.program.buffers[buffer]
        total = b.dtype.bytes
        for s, step in zip(b.shape, b.strides, strict=True):
            total *= 1 if step is ZERO else size_hint(s)
        return total


def _reduces(n: ProgramNode) -> bool:
    return isinstance(n, Loops) and bool(n.reduce_axes)
