"""A temporary buffer laid out otherwise: whoever touches it follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Const, Expr, as_expr, const, floordiv, mod, split_linear, var
from litz.ir.body import Load, Node, Rewriter, Store, load
from litz.ir.program import (
    Binding,
    Contraction,
    Extern,
    Program,
    ProgramNode,
    Template,
    TensorRef,
)

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Relaying:
    """What becomes of accesses to ``buffer``, whose elements lie ``steps`` apart by ``wide`` steps.

    sizes, steps: of the buffer as it is, dense; wide: its new strides.  All by falling ``steps``.
    name: of the buffer that takes its place.
    """

    buffer: str
    name: str
    sizes: Ints
    steps: Ints
    wide: Ints

    def index(self, e: Expr) -> Expr:
        """Where the element that lay at ``e`` lies."""
        rest, total = e, as_expr(0)
        for size, step, wide in zip(self.sizes, self.steps, self.wide, strict=True):
            if size > 1:
                total = total + floordiv(rest, const(step)) * wide
                rest = mod(rest, const(step))
        return total

    def ref(self, r: TensorRef) -> TensorRef | None:
        """The view ``r`` of the buffer; None where it is no strided view any more."""
        own = [var(f"d{k}", s) for k, s in enumerate(r.shape)]
        at = r.offset
        for v, s in zip(own, r.strides, strict=True):
            at = at + v * s
        split = split_linear(self.index(at), own)
        if split is None:
            return None
        strides = tuple(
            s if n.is_const and n.hi == 1 else split[0][v]
            for v, n, s in zip(own, r.shape, r.strides, strict=True)
        )
        return TensorRef(self.name, r.dtype, r.shape, strides, split[1])

    def node(self, n: ProgramNode) -> ProgramNode | None:
        """``n`` over the new layout; None where it cannot follow."""
        if self.buffer not in (*n.read_buffers(), *n.write_buffers()):
            return n
        if isinstance(n, Extern | Template):
            return None
        if isinstance(n, Contraction):
            refs = [r if r is None or r.buffer != self.buffer else self.ref(r) for r in _refs(n)]
            if refs[0] is None or refs[1] is None or (refs[2] is None) != (n.bias is None):
                return None
            out = self.name if n.out == self.buffer else n.out
            return replace(n, left=refs[0], right=refs[1], bias=refs[2], out=out)
        rewrite = Rewriter(replace=self._load)
        return replace(n, stores=tuple(self._store(s, rewrite) for s in n.stores))

    def _load(self, _: Node, n: Node) -> Node:
        if isinstance(n, Load) and n.buffer == self.buffer:
            return load(n.dtype, self.name, self.index(n.index), n.indirect)
        return n

    def _store(self, s: Store, rewrite: Rewriter) -> Store:
        s = rewrite.store(s)
        if s.buffer != self.buffer:
            return s
        return replace(s, buffer=self.name, index=self.index(s.index))

    def binding(self, b: Binding) -> Binding | None:
        if b.ref.buffer != self.buffer:
            return b
        ref = self.ref(b.ref)
        return None if ref is None else replace(b, ref=ref)


def _refs(c: Contraction) -> tuple[TensorRef, TensorRef, TensorRef | None]:
    return c.left, c.right, c.bias


def relaying(
    program: Program, buffer: str, name: str, widen: Callable[[Ints, Ints], Ints]
) -> Relaying | None:
    """How ``buffer`` is laid out with other strides; None: it is not dense, or of open sizes.

    widen: from sizes and strides, by falling strides, to the new strides.
    """
    b = program.buffers[buffer]
    sizes = tuple(e.value for e in b.shape if isinstance(e, Const))
    steps = tuple(e.value for e in b.strides if isinstance(e, Const))
    if len(sizes) != len(b.shape) or len(steps) != len(b.shape) or 0 in sizes:
        return None
    pairs = sorted(zip(steps, sizes, strict=True), key=lambda p: (-p[0], -p[1]))
    inside = 1
    for step, size in reversed(pairs):
        if step != inside and size > 1:
            return None
        inside *= size
    steps, sizes = (tuple(p[k] for p in pairs) for k in (0, 1))
    return Relaying(buffer, name, sizes, steps, widen(sizes, steps))
