"""Who computes each matrix product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from heapq import heappop, heappush
from typing import ClassVar, Final, TypeVar

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Const, Expr, size_hint, symbol, var
from litz.ir import matmul
from litz.ir.body import Load, Node, Store, cast, cost, load, loads
from litz.ir.dtype import F32
from litz.ir.program import (
    Contraction,
    Extern,
    Loops,
    Program,
    ProgramNode,
    Skeleton,
    Template,
)
from litz.ir.skeletons import fault
from litz.passes.convolve import TakeConvolutions
from litz.passes.costs import Costs
from litz.passes.epilogues import MEASURED, PRODUCT, TakeEpilogues
from litz.passes.opened import Groups, Opened, arguments, element, opened
from litz.passes.rivals import Behind, part
from litz.passes.uses import Nodes, Uses
from litz.runtime import products

aten = torch.ops.aten
C = TypeVar("C", Contraction, Extern)

ATEN: Final = "a matrix product: ATen's libraries compute it"
NUMBERS: Final = {int, float}
# By whether it is of batches, and whether something is added.
OPERATORS: Final = {
    (False, False): aten.mm.out,
    (False, True): aten.addmm.out,
    (True, False): aten.bmm.out,
    (True, True): aten.baddbmm.out,
}
# Of what matrix units can do: what libraries reach in large products, and a kernel of Litz.
LIBRARY, OWN = 0.75, 0.58
PLAIN = 0.3  # the same of float32 without matrix units, in a kernel of Litz
AHEAD = 0.95  # of the time of libraries, below which a template has to stay
SPARING = 1.25  # the same of one without which memory holds a large result twice
DEPTH = 64  # elements of a turn of a product's loop, of 16 bits or more
HIGH, WIDE = 128, 256  # rows and columns of a block at most
HELD = 3.0  # registers of an element behind a product, beyond which blocks are half as wide
NEAR = 2.0  # times the other's, up to which an estimate is measured where somebody can
LONG = 2048  # elements of a sum beyond which programs share it, unless there are many sums


@dataclass(frozen=True)
class TakeTemplates:
    """Contractions become templates where that makes up for what libraries do better.

    It does where what a factor is computed from is less than the factor, and where the result need
    not go through memory.  costs: of devices whose kernels run over blocks, by their kinds.
    ahead: of the time that libraries take, below which a template's has to be (``SPARING`` times
    that where it spares a copy of the result).  epilogues, convolutions: what libraries compute
    with what is left.  rivals: where the estimates are near each other, what measures both ways.
    """

    costs: Mapping[str, Costs]
    ahead: float = field(default=AHEAD, repr=False)
    epilogues: TakeEpilogues = field(default=TakeEpilogues(), repr=False)
    convolutions: TakeConvolutions = field(default=TakeConvolutions(), repr=False)
    rivals: Behind | None = field(default=None, repr=False)
    name: ClassVar[str] = "take templates"

    def __call__(self, program: Program) -> Program:
        taken: set[str] = set()  # names of nests that templates count on
        buffers = dict(program.buffers)
        nodes: list[ProgramNode] = []
        uses = Uses(program) if any(map(self._costs, program.nodes)) else None
        for n in program.nodes:
            if uses and isinstance(n, Contraction):
                made = self._chosen(uses, n, taken)
                nodes.append(_with_reason(n, made) if isinstance(made, str) else made)
            elif uses and isinstance(n, Extern) and self._costs(n) and (call := opened(program, n)):
                inside = uses.opened(call.program, n, call.nodes)
                made = self._chosen(inside, call.product, taken, call)
                if isinstance(made, str):
                    nodes.append(_with_reason(n, made))
                    continue
                buffers |= call.buffers
                nodes += [made if x is call.product else x for x in call.nodes]
            else:
                nodes.append(n)
        return replace(program, nodes=tuple(nodes), buffers=buffers)

    def _costs(self, n: ProgramNode) -> Costs | None:
        return self.costs.get(n.device.partition(":")[0])

    def _chosen(
        self, uses: Uses, c: Contraction, taken: set[str], call: Opened | None = None
    ) -> Template | str:
        """A product as a template, or why not.  call: whose part it is."""
        program, costs = uses.program, self._costs(c)
        if costs is None or (why := _unfit(program, c, costs)):
            return "" if costs is None else why
        found = _Neighbours(uses, c, taken, self.epilogues, self.convolutions, call).look()
        if not found.factors and (not found.gains or _is_single(c)):
            return ""
        if not found.factors and not all(isinstance(s, Const) for s in c.axes.values()):
            return "libraries look at open sizes when they are known"
        own, other = found.seconds(costs)
        first, how = own < (SPARING if found.copied else 1.0) * self.ahead * other, ""
        near = self.rivals is not None and max(own, other) < NEAR * min(own, other)
        if first or near:
            made = template(program, c, call.groups if call else None)
            if why := fault(made):
                return why
            if self.rivals is not None and near:
                ways = found.part(made), found.part(c)
                tried = self.rivals(*(ways if first else ways[::-1]))
                known = [t for t in tried.seconds if t is not None] if tried else []
                if tried is not None and len(known) == len(ways):
                    own, other = known if first else known[::-1]
                    first, how = first == (tried.index == 0), "measured: "
        why = f"{how}a kernel of {1e6 * own:.0f} us against {1e6 * other:.0f} us"
        if not first:
            return f"{why} does not pay"
        taken.update(n.name for n in found.behind)
        return replace(made, reason=why)


@dataclass(frozen=True)
class ChooseContractions:
    """Every contraction that is left becomes a call of a library, with the reason.

    measured: kinds of devices on which all libraries are measured when the call first runs: those
    of others are ATen's.
    """

    measured: tuple[str, ...] = ()
    name: ClassVar[str] = "choose contractions"

    def __call__(self, program: Program) -> Program:
        nodes, buffers = list(program.nodes), dict(program.buffers)
        for k, n in enumerate(nodes):
            if isinstance(n, Contraction):
                nodes[k] = self._call(n)
            elif isinstance(n, Extern) and n.target is aten._scaled_mm.default:
                if n.device.partition(":")[0] in self.measured and (made := _scaled(n)):
                    (out,) = made.write_buffers()
                    nodes[k], buffers[out] = made, replace(buffers[out], kind="temp")
        return replace(program, nodes=tuple(nodes), buffers=buffers)

    def _call(self, c: Contraction) -> Extern:
        target: object = OPERATORS["b" in c.axes, c.bias is not None]
        text, given, reason = str(target), c.refs(), ATEN
        plain = {type(c.alpha), type(c.beta)} <= NUMBERS
        if plain and c.device.partition(":")[0] in self.measured:
            (*bias, left, right), target, text = c.refs(), products.product, PRODUCT
            given, reason = (left, right, *bias), MEASURED
        numbers = (("beta", c.beta), ("alpha", c.alpha))
        reason = f"{reason}; {c.reason}" if c.reason else reason
        return Extern(
            c.name, target, text, given, tuple((k, v) for k, v in numbers if v != 1),
            (c.out,), c.device, reason, out_variant=True, origins=c.origins,
        )  # fmt: skip


def _scaled(call: Extern) -> Extern | None:
    """A product of scaled 8-bit floats that libraries may be measured on."""
    given = arguments(call)
    (out,) = call.outputs
    if out is None or call.checks or call.sizes or given["scale_result"] is not None:
        return None
    scales, bias = (given["scale_a"], given["scale_b"]), given["bias"]
    args = (given["self"], given["mat2"], *(() if bias is None else (bias,)))
    named = (("scales", scales), ("fast", given["use_fast_accum"]))
    return replace(
        call, target=products.product, target_name=PRODUCT, args=args, kwargs=named,
        reason=MEASURED, out_variant=True,
    )  # fmt: skip


# --- a contraction as a template ------------------------------------------------------------------


def template(program: Program, c: Contraction, groups: Groups | None = None) -> Template:
    """A contraction as loops, which round where ATen does: the whole once, to the result's type.

    groups: of rows, if each has a right matrix of its own.
    """
    out = program.buffers[c.out]
    sizes = tuple(c.axes.values())
    *batch, m, n = (ZERO if s is ONE else var(f"i{j}", s) for j, s in enumerate(sizes[:-1]))
    k = var("r0", sizes[-1])
    right: Node = element(c.right, *batch, k, n)
    reduced: tuple[Expr, ...] = (k,)
    if groups is not None:
        right, which = _of_group(element(c.right, k, n), groups, m)
        reduced = (k, which)
    value = matmul.product(element(c.left, *batch, m, k), right, k, c.accumulate)
    places = (*batch, m, n)
    store = out.whole.store(places, added(c, value, places))
    axes = tuple(v for v in places if v is not ZERO)
    return Template(c.name, axes, reduced, (store,), c.device, Skeleton(matmul.KIND), c.origins)


def added(c: Contraction, value: Node, places: Sequence[Expr]) -> Node:
    """What a contraction makes of a sum: its factor times that, and what it adds there."""
    if c.alpha != 1:
        value = value * float(c.alpha)  # type: ignore[arg-type]
    if c.bias is not None and c.beta != 0:
        bias = cast(element(c.bias, *places[len(places) - len(c.bias.shape) :]), c.accumulate)
        value = value + (bias if c.beta == 1 else bias * float(c.beta))  # type: ignore[arg-type]
    return value


def _of_group(right: Load, groups: Groups, row: Expr) -> tuple[Node, Expr]:
    """An element of the matrix of a row's group, and the variable that runs over all groups."""
    ends = groups.ends
    (count,) = ends.shape
    which = var("r1", count)
    at = load(ends.dtype, ends.buffer, ends.offset + which * ends.strides[0])
    number = symbol("group", 0, size_hint(count) - 1)
    bound = ((number, matmul.number(at, which, row)),)
    return load(right.dtype, right.buffer, right.index + number * groups.step, bound), which


def _unfit(program: Program, c: Contraction, costs: Costs) -> str:
    """Why a contraction is none of the template's; "" where it may be."""
    dtype, sizes = c.left.dtype, c.axes
    if matmul.SUMS.get(dtype) is not c.accumulate or not costs.rate(dtype):
        return f"no matrix unit for {dtype}"
    if not all(isinstance(x, int | float) for x in (c.alpha, c.beta)):
        return "a factor is known only while it runs"
    if sizes["k"] is ONE or ZERO in sizes.values() or (sizes["m"] is ONE and sizes["n"] is ONE):
        return "it is too small"
    return ""


def _with_reason(c: C, why: str) -> C:
    return replace(c, reason="; ".join(x for x in (c.reason, why) if x))


def _is_whole(strides: Sequence[Expr]) -> bool:
    """Whether rows are of whole 16 bytes, of types of 16 bits."""
    return all(s is ONE or isinstance(s, Const) and s.value % matmul.WHOLE == 0 for s in strides)


def _is_single(c: Contraction) -> bool:
    return c.left.dtype is F32


# --- what it would take in ------------------------------------------------------------------------


@dataclass
class _Neighbours:
    """The nests around a contraction that a template would take in.

    factors: stores of what factors are read from, by the factor's buffer.  behind: nests that read
    the result, or each other's, at every point of it.  taken: nests that others count on.
    call: whose part the product is, with nests that libraries compute with it.
    """

    uses: Uses
    c: Contraction
    taken: Set[str]
    epilogues: TakeEpilogues
    convolutions: TakeConvolutions
    call: Opened | None = None
    factors: dict[str, Store] = field(default_factory=dict)
    behind: list[Loops] = field(default_factory=list)

    def look(self) -> _Neighbours:
        grouped = self.call is not None and self.call.groups is not None
        for ref in (self.c.left, *(() if grouped else (self.c.right,))):
            if (found := self.producer(ref.buffer)) is not None:
                self.factors[ref.buffer] = found
        self.follow()
        return self

    @property
    def program(self) -> Program:
        return self.uses.program

    @property
    def own(self) -> Set[str]:
        """Names of the nests that are part of the call."""
        return self.call.own if self.call else frozenset()

    @property
    def units(self) -> bool:
        """Whether libraries use matrix units."""
        return self.call is None or self.call.units

    @property
    def fuses(self) -> bool:
        """Whether a library computes all that is behind the product with it."""
        others = [n for n in self.behind if n.name not in self.own]
        if len(others) != 1:
            return False
        if self.call is None:
            own = self.epilogues.takes(self.uses, self.c)
            return own is not None and own.nest is others[0]
        made = self.convolutions.takes(self.uses, self.call.call)
        return made is not None and made.nest is others[0]

    @property
    def gains(self) -> bool:
        """Whether there is something behind the product that a library does not do with it."""
        return not self.units or self.copied or any(n.name not in self.own for n in self.behind)

    @property
    def copied(self) -> bool:
        """Whether a library's result has longer rows than what leaves, and is copied into it."""
        own, sizes = self.program.buffers[self.c.out], [*self.c.axes.values()][-3:]
        whole = all(isinstance(s, Const) and s.value >= matmul.SHORT for s in sizes)
        if self.call is not None or not whole or own.dtype.bits != 16 or not own.dtype.is_float:
            return False
        uneven = not _is_whole(own.strides) and all(
            _is_whole(r.strides[-2:]) for r in (self.c.left, self.c.right)
        )
        return uneven and any(r.buffer == self.c.out for r in self.program.output_refs())

    def part(self, product: Contraction | Template) -> Program | None:
        """The product and all around it, for who measures it.  product: what computes it."""
        made = (self.uses.maker(b) for b in self.factors)
        around = [*(n for n in made if n is not None), product, *self.behind]
        if self.call is None or product is not self.c:
            return part(self.uses, around)
        whole = (self.call.call if n is product else n for n in around if n.name not in self.own)
        return part(self.uses, [*whole])

    def readers(self, buffer: str) -> Nodes:
        return self.uses.readers.get(self.program.root(buffer), {})

    def leaves(self, buffer: str) -> bool:
        """Whether somebody outside of the program sees a buffer."""
        root = self.program.root(buffer)
        temporary = root == buffer and self.program.buffers[buffer].kind == "temp"
        return root in self.uses.shown or not temporary

    def producer(self, buffer: str) -> Store | None:
        """The one store that fills a factor's buffer, for this product alone."""
        if self.leaves(buffer) or [*self.readers(buffer)] != [self.c.name]:
            return None
        writer = self.uses.maker(buffer)
        if not isinstance(writer, Loops) or writer.reduce_axes:
            return None
        first = [self.uses.makers.get(self.program.root(x), {}) for x in writer.read_buffers()]
        if any(isinstance(n, Contraction) or _reduces(n) for made in first for n in made.values()):
            return None  # it is computed behind that product, or by the kernel that reduces, once
        stores = writer.stores
        plain = len(stores) == 1 and stores[0].mode == "set" and not stores[0].indirect
        if not plain or stores[0].mask is not None:
            return None
        return None if matmul.refused(stores[0], self.program.buffers) else stores[0]

    def follow(self) -> None:
        """The nests behind the product, as far as they need nothing else that runs behind it."""
        points = matmul.elements(template(self.program, self.c).axes)
        places, own, seen = self.uses.places, {self.c.out}, {self.c.name}
        todo: list[tuple[float, str]] = []

        def note(buffer: str) -> None:
            for name in self.readers(buffer).keys() - seen:
                if places[name] > places[self.c.name] and buffer in self.uses.reads[name]:
                    seen.add(name)
                    heappush(todo, (places[name], name))

        note(self.c.out)
        while todo:
            n = self.uses.nodes[heappop(todo)[1]]
            if (
                isinstance(n, Loops)
                and n.name not in self.taken
                and not n.reduce_axes
                and matmul.elements(n.axes) == points
                and all(s.mode == "set" for s in n.stores)
                and not self.waits(n, own)
            ):
                self.behind.append(n)
                for buffer in n.write_buffers():
                    own.add(buffer)
                    note(buffer)

    def waits(self, n: Loops, own: Set[str]) -> bool:
        """Whether a nest needs more that is computed from ``own``, by nodes between."""
        places, reads = self.uses.places, self.uses.reads
        first, last, seen = places[self.c.name], places[n.name], {x.name for x in self.behind}
        todo = [*(reads[n.name] - own)]
        while todo:
            for name in self.uses.makers.get(self.program.root(todo.pop()), ()):
                if first < places[name] < last and name not in seen:
                    seen.add(name)
                    if not reads[name].isdisjoint(own):
                        return True
                    todo += reads[name]
        return False

    def seconds(self, costs: Costs) -> tuple[float, float]:
        """How long a template takes, and how long libraries and kernels around them do."""
        c, p = self.c, self.program
        *batch, m, n, k = (size_hint(s) for s in c.axes.values())
        points = math.prod((*batch, m, n))
        work = 2.0 * points * k
        rate = costs.rate(c.left.dtype)
        own_rate = (PLAIN if _is_single(c) else OWN) * rate
        rate = LIBRARY * (rate if self.units else costs.single)
        sizes = {r.buffer: self.bytes(r.buffer) for r in c.refs()}
        taken: dict[str, int] = dict(sizes)
        apart = 0.0  # what nests around a library's product take
        for buffer, s in self.factors.items():
            taken[buffer] = sum(matmul.bytes_of(x, p.buffers) for x in loads((s.value,)))
            if not self.own.isdisjoint(self.uses.makers[self.program.root(buffer)]):
                sizes[buffer] = taken[buffer]
            else:
                apart += (taken[buffer] + sizes[buffer]) / costs.memory + costs.launch
        made = {x: self.bytes(x) for n in self.behind for x in n.write_buffers()}
        inside = {c.out, *made}
        extra = {x: self.bytes(x) for n in self.behind for x in n.read_buffers()}
        read = sum(size for x, size in extra.items() if x not in inside)
        written = sum(size for x, size in made.items() if self.is_kept(x))
        ours = [x for n in self.behind if n.name in self.own for x in n.write_buffers()]
        out = self.bytes(ours[-1] if ours else c.out)
        # Arithmetic behind a product's loop: nothing is left there that it could hide behind, while
        # blocks of a kernel of its own compute as others wait for memory.
        stores = [s for n in self.behind if n.name not in self.own for s in n.stores]
        behind = sum(cost(s.value) for s in stores) * points / (costs.single / 2)
        held = matmul.held([s for n in self.behind for s in n.stores])
        fuses = self.fuses
        if len(self.behind) > bool(ours) and not fuses:
            # Reductions behind them would be one kernel with them, and read what they make once.
            again = [x for x in made if any(map(_reduces, self.readers(x).values()))]
            theirs = out + read + written - sum(made[x] for x in again)
            apart += max(theirs / costs.memory, behind)
            apart += 0.0 if again else costs.launch
        if self.copied:  # as is the matrix whose rows become more
            apart += 2 * (out + sizes[c.right.buffer]) / costs.memory + 2 * costs.launch
        turns = min(k, LONG) / DEPTH / max(1, 16 // c.left.dtype.bits)
        library = max(work / rate, (sum(sizes.values()) + out + read * fuses) / costs.memory)
        library = max(library, turns * costs.turn / 2) + costs.launch + apart
        if self.is_kept(c.out):
            written += out
        moved = sum(taken.values()) + read + written
        # Each block of the result reads its rows and columns, which lie in the cache.
        side = math.sqrt(points / costs.programs)
        groups = self.call.groups if self.call else None
        rows = m / size_hint(groups.ends.shape[0]) if groups else m  # that read one matrix
        high = min(rows, side, HIGH)
        wide = min(n, side * side / high, WIDE if held <= HELD else WIDE // 2)
        cached = taken[c.left.buffer] * n / wide + taken[c.right.buffer] * rows / high
        own = max(
            work / own_rate, moved / costs.memory, cached / costs.cache, turns * costs.turn
        )  # fmt: skip
        return own + behind + costs.launch, library

    def is_kept(self, buffer: str) -> bool:
        """Whether what the product or a nest behind it makes has to be in memory."""
        return self.leaves(buffer) or not self.readers(buffer).keys() <= {
            n.name for n in self.behind
        }

    def bytes(self, buffer: str) -> int:
        b = self.program.buffers[buffer]
        total = b.dtype.bytes
        for s, step in zip(b.shape, b.strides, strict=True):
            total *= 1 if step is ZERO else size_hint(s)
        return total


def _reduces(n: ProgramNode) -> bool:
    return isinstance(n, Loops) and bool(n.reduce_axes)
