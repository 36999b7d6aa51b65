"""Attention written by hand: two products around a softmax, as one template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import (
    Const,
    Expr,
    const,
    floordiv,
    mod,
    product,
    provably_le,
    size_hint,
    var,
)
from litz.ir import attention, body
from litz.ir.body import Load, Node, Op, Reduce, Rewriter, loads, substitute, walk
from litz.ir.dtype import F32
from litz.ir.program import Contraction, Loops, Program, ProgramNode, Skeleton, Template, TensorRef
from litz.passes.choose import AHEAD, LIBRARY, PLAIN, added
from litz.passes.costs import Costs
from litz.passes.uses import Uses

WIDEST = 256  # elements of a query or a value that a block can hold whole
LEAST = 1 << 16  # scores of a call that are worth a kernel: fewer stay in the nearest caches
TYPES = ("f16", "bf16", "f32")
OWN = 0.3  # of what matrix units can do on 16-bit floats: what the template reaches


@dataclass(frozen=True)
class FindAttention:
    """A softmax of scores, between the products that make and weigh them, is their template.

    Where nobody else reads the scores, their body or the weights.  Between products of 16-bit
    floats there are no roundings then.
    costs: of devices whose kernels run over blocks, by their kinds: whether it pays there.
    """

    name: ClassVar[str] = "find attention"
    costs: Mapping[str, Costs]

    def __call__(self, program: Program) -> Program:
        wanted = [n for n in program.nodes if isinstance(n, Contraction) and _may_be(n)]
        if not wanted:
            return program
        finder = _Finder(program, self.costs)
        for n in wanted:
            finder.find(n)
        return finder.replaced() if finder.made else program


@dataclass(frozen=True)
class _Read:
    """A value that the template loads, and which node loaded it before."""

    node: Load
    by: ProgramNode


class _Finder:
    """Looks for attention in a program.

    uses: of the nodes that are left.
    made: the templates, by the products whose place they take.  gone: what nobody reads then.
    """

    def __init__(self, program: Program, costs: Mapping[str, Costs]) -> None:
        self.program, self.costs = program, costs
        self.uses = Uses(program)
        self.made: dict[str, Template] = {}
        self.gone: set[str] = set()

    def find(self, last: Contraction) -> None:
        """Note the template whose last product this is, if there is one."""
        if last.name in self.gone:
            return
        *batch, m, keys = last.left.shape
        points = (*(var(f"i{k}", s) for k, s in enumerate((*batch, m))), var("r0", keys))
        weight = last.left.load(points)
        score = self.softmax(weight, points)
        if score is not None:
            self.template(last, score, points)

    def softmax(self, weight: Load, points: tuple[Expr, ...]) -> _Scores | None:
        """The scores whose softmax over the last point a load is of."""
        made = _wide(self.value(weight, points))
        if made is None or not _is(made, "div") or not _is(made.args[0], "exp"):
            return None
        exp, total = made.args
        if not _is(exp.args[0], "sub"):
            return None
        score, top = exp.args[0].args
        rows = points[:-1]
        for n, kind, over in ((top, "max", score), (total, "sum", exp)):
            whole = self.value(n, rows) if isinstance(n, Load) else None
            if not isinstance(whole, Reduce) or whole.kind != kind or len(whole.axes) != 1:
                return None
            if substitute(whole.args[0], {whole.axes[0]: points[-1]}) is not over:
                return None
        return self.scores(score, self.maker(top), points)  # type: ignore[arg-type]

    def scores(self, n: Node, by: ProgramNode | None, points: tuple[Expr, ...]) -> _Scores | None:
        """Down to the product, through what only computes elements."""
        while by is not None:
            below = loads((n,))
            first = [x for x in below if isinstance(self.maker(x), Contraction)]
            if first:
                made = self.maker(first[0])
                assert isinstance(made, Contraction)
                out = self.program.buffers[made.out]
                same = first[0].index is out.whole.place(points)
                ok = len(first) == 1 and same and _known(made)
                return _Scores(n, first[0], made, by) if ok else None
            known: dict[Node, Node] = {}
            for x in below:
                if (v := self.value(x, points)) is not None:
                    known[x] = v
            makers = [self.maker(x) for x in below if x in known]
            by = min((k for k in makers if k), key=lambda k: self.uses.places[k.name], default=None)
            n = Rewriter(memo=known)(n)
        return None

    def template(self, c: Contraction, s: _Scores, points: tuple[Expr, ...]) -> None:
        first = s.product
        *outer, keys = points
        inner, column = var("r1", first.left.shape[-1]), var(f"i{len(outer)}", c.right.shape[-1])
        sizes = inner.extent, column.extent
        if not all(isinstance(x, Const) and 1 < x.value <= WIDEST for x in sizes):
            return
        if any(isinstance(n, Reduce) for n in walk((s.score,))):
            return
        query = self.operand(first.left, (*outer, inner), first)
        key = self.operand(first.right, (*outer[:-1], inner, keys), first)
        value = self.operand(c.right, (*outer[:-1], keys, column), c)
        dot = attention.dot(query.node, key.node, inner)
        whole = added(first, dot, points)
        made_of: dict[Node, Node] = {s.load: body.cast(whole, s.load.dtype)}
        score = attention.without_roundings(s.score, made_of)
        reads = [query, key, value, *(_Read(x, s.by) for x in loads((s.score,)) if x is not s.load)]
        reads += [_Read(x, first) for x in loads((whole,))]
        if any(self.changed(r, c) for r in reads) or not self.pays(c, s, reads):
            return
        out = attention.out_value(score, value.node, keys, c.left.dtype, guarded=False)
        axes = (*outer, column)
        made = Template(
            f"attention_{c.name}", axes, (keys, inner),
            (self.program.buffers[c.out].whole.store(axes, out),), c.device,
            Skeleton(attention.KIND), tuple(dict.fromkeys((*first.origins, *c.origins))),
        )  # fmt: skip
        idle = self.idle(made, c)
        weights = self.uses.makers[self.program.root(c.left.buffer)]
        if first.name in idle and weights.keys() <= idle.keys():
            self.take(made, c, idle)

    def idle(self, made: Template, last: Contraction) -> dict[str, ProgramNode]:
        """What nobody reads any more once a template stands for ``last``, by name."""
        read = {self.program.root(b) for b in made.read_buffers()}
        shown = self.uses.shown
        found: dict[str, ProgramNode] = {last.name: last}
        todo = [last.left.buffer, last.right.buffer]
        while todo:
            for n in self.uses.makers.get(self.program.root(todo.pop()), {}).values():
                names = n.write_buffers()
                if not isinstance(n, Loops | Contraction) or not all(map(self.temporary, names)):
                    continue
                kept = any(
                    b in read or b in shown or self.uses.readers.get(b, {}).keys() - found.keys()
                    for b in names
                )
                if not kept and n.name not in found:
                    found[n.name] = n
                    todo += n.read_buffers()
        return found

    def take(self, made: Template, last: Contraction, idle: Mapping[str, ProgramNode]) -> None:
        """Have a template stand for ``last``, and nothing for what is idle then."""
        for n in idle.values():
            self.uses.drop(n)
        self.uses.add(made)
        self.uses.places[made.name] = self.uses.places[last.name]
        self.made[last.name] = made
        self.gone.update(idle.keys())

    def replaced(self) -> Program:
        """The program with the templates, and without what nobody reads."""
        p, left, behind = self.program, list[ProgramNode](), dict[str | None, str | None]()
        for n in p.nodes:
            if n.name in self.made or n.name not in self.gone:
                left.append(self.made.get(n.name, n))
            behind[n.name] = left[-1].name if left else None
        lost = {b for n in p.nodes if n.name in self.gone for b in n.write_buffers()}
        lost -= {b for n in self.made.values() for b in n.write_buffers()}
        bindings = (
            replace(b, behind=behind.get(b.behind)) for b in p.bindings if b.ref.buffer not in lost
        )
        buffers = {k: b for k, b in p.buffers.items() if k not in lost}
        return replace(p, nodes=tuple(left), buffers=buffers, bindings=tuple(bindings))

    def pays(self, c: Contraction, s: _Scores, reads: Sequence[_Read]) -> bool:
        """Whether the template takes less time than two products and a kernel between them."""
        costs = self.costs.get(c.device.partition(":")[0])
        if costs is None:
            return True
        kind, scores = c.left.dtype, size_hint(product(c.left.shape))
        widths = s.product.left.shape[-1], c.right.shape[-1]
        work = [2.0 * scores * size_hint(x) for x in widths]
        whole = scores * kind.bytes
        rate = LIBRARY * costs.rate(kind)
        own = (PLAIN if kind is F32 else OWN) * costs.rate(kind)
        moved = sum(self.bytes(x) for x in {r.node.buffer: None for r in reads}) + self.bytes(c.out)
        # Each product moves the scores once, the kernel between them reads and writes them.
        library = sum(max(x / rate, whole / costs.memory) for x in work) + 2 * costs.launch
        library += (2 * whole + moved) / costs.memory
        return max(sum(work) / own, moved / costs.memory) < AHEAD * library

    def bytes(self, name: str) -> int:
        b = self.program.buffers[name]
        return b.dtype.bytes * size_hint(product(b.shape))

    # --- questions ------------------------------------------------------------------------------

    def temporary(self, name: str) -> bool:
        b = self.program.buffers[name]
        return b.kind == "temp" and b.alias is None and self.uses.maker(name) is not None

    def maker(self, n: Load) -> ProgramNode | None:
        """The node that makes a temporary."""
        return self.uses.maker(n.buffer) if self.temporary(n.buffer) else None

    def value(self, n: Load, points: Sequence[Expr]) -> Node | None:
        """What has been stored where ``n`` loads, computed at the same point of as many."""
        made = self.maker(n)
        if not isinstance(made, Loops) or len(made.stores) != 1 or n.indirect:
            return None
        (store,) = made.stores
        sizes = [v.extent for v in made.axes]  # type: ignore[attr-defined]
        if store.mode != "set" or store.mask is not None or store.indirect:
            return None
        if product(sizes) is not product(v.extent for v in points):  # type: ignore[attr-defined]
            return None
        same = dict(_unrolled(points, made.axes))
        if substitute(body.load(n.dtype, n.buffer, store.index), same) is not n:
            return None
        return substitute(store.value, same)

    def operand(self, ref: TensorRef, points: Sequence[Expr], by: ProgramNode) -> _Read:
        """An element of an operand: where it was copied from, if it was."""
        own = ref.load(points)
        source = self.value(own, points)
        if isinstance(source, Load) and source.dtype is ref.dtype and not source.indirect:
            made = self.maker(own)
            assert made is not None
            return _Read(source, made)
        return _Read(own, by)

    def changed(self, r: _Read, last: Contraction) -> bool:
        """Whether something is written, between a load and the template, to where it loads from."""
        places = self.uses.places
        writers = self.uses.makers.get(self.program.root(r.node.buffer), {})
        return any(places[r.by.name] < places[name] < places[last.name] for name in writers)


@dataclass(frozen=True)
class _Scores:
    """A body of scores over ``load``, an element of the product; by: the node that reads first."""

    score: Node
    load: Load
    product: Contraction
    by: ProgramNode


def _plain(c: Contraction) -> bool:
    return c.alpha == 1 and c.bias is None and _known(c)


def _known(c: Contraction) -> bool:
    """Whether a product is of types that the template has, by numbers that are known."""
    numbers = all(isinstance(x, int | float) for x in (c.alpha, c.beta))
    known = c.left.dtype.name in TYPES and c.left.dtype is c.right.dtype
    return numbers and known and c.accumulate is F32


def _may_be(c: Contraction) -> bool:
    """Whether a product may weigh values by a softmax of enough scores."""
    keys = c.left.shape[-1]
    several = _plain(c) and keys is not const(1) and provably_le(const(1), keys)
    return several and size_hint(product(c.left.shape), 0) >= LEAST


def _is(n: Node, name: str) -> bool:
    return isinstance(n, Op) and n.name == name


def _wide(n: Node | None) -> Node | None:
    """What is rounded, if float32 is."""
    return n.args[0] if n is not None and _is(n, "cast") and n.args[0].dtype is F32 else n


def _unrolled(points: Sequence[Expr], axes: Sequence[Expr]) -> Iterator[tuple[Expr, Expr]]:
    """Each of some axes at a point of others, by its position in row-major order."""
    at: Expr = const(0)
    for v in points:
        at = at * v.extent + v  # type: ignore[attr-defined]
    for v in reversed(axes):
        yield v, mod(at, v.extent)  # type: ignore[attr-defined]
        at = floordiv(at, v.extent)  # type: ignore[attr-defined]
