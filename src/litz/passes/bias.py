"""What is added to a product, added by the kernels that read it.

On a CPU ATen writes what is added into the result before it multiplies: one more walk over that,
and three more operators, which for small products cost as much as the product itself.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Expr, coefficient, var
from litz.ir.body import Node, load
from litz.ir.dtype import F32, F64
from litz.ir.program import Extern, Loops, Program, TensorRef
from litz.passes.opened import element
from litz.passes.uses import Uses

aten = torch.ops.aten
PLAIN: Final[dict[object, object]] = {
    aten.addmm.out: aten.mm.out,
    aten.baddbmm.out: aten.bmm.out,
}


@dataclass(frozen=True)
class SeparateBias:
    """A product's bias becomes a nest of its own where nests alone read the result.

    It joins them, and they each other: no bytes move that did not, and no second buffer is held.
    Of 16-bit floats ATen rounds the sum of both once.
    """

    name: ClassVar[str] = "separate bias"

    def __call__(self, program: Program) -> Program:
        calls = [n for n in program.nodes if isinstance(n, Extern) and n.target in PLAIN]
        uses = Uses(program) if calls else None
        names = (x for n in count(len(program.buffers)) if (x := f"buf{n}") not in program.buffers)
        apart = [n for n in calls if uses and _is_apart(uses, n)]
        found = {n.name: _parts(program, n, made) for n, made in zip(apart, names, strict=False)}
        if not found:
            return program
        nodes = (found.get(n.name, (n,)) for n in program.nodes)
        buffers = dict(program.buffers)
        for call, nest in found.values():
            (made,), (out,) = call.write_buffers(), nest.write_buffers()
            buffers[made] = replace(buffers[out], name=made)
        bindings = (
            replace(b, behind=found[b.behind][1].name) if b.behind in found else b
            for b in program.bindings
        )
        return replace(
            program, nodes=tuple(x for n in nodes for x in n), buffers=buffers,
            bindings=tuple(bindings),
        )  # fmt: skip


def _is_apart(uses: Uses, n: Extern) -> bool:
    """Whether a call on a CPU fills a temporary that nests alone read."""
    p, numbers = uses.program, dict(n.kwargs)
    (out,) = n.write_buffers()
    own, scale = p.buffers[out], numbers.get("beta", 1)
    plain = own.kind == "temp" and own.alias is None and out not in uses.shown and n.part is None
    known = type(scale) in (int, float) and scale != 0 and numbers.get("alpha", 1) == 1
    readers = uses.readers.get(out, {}).values()
    nests = [r for r in readers if isinstance(r, Loops)]
    joined = len({_summed(uses, r, out) for r in nests} - {frozenset()}) <= 1
    alone = bool(nests) and len(nests) == len(readers) and joined
    return n.device == "cpu" and own.dtype in (F32, F64) and plain and known and alone


def _summed(uses: Uses, n: Loops, out: str) -> frozenset[Expr | None]:
    """Over which strides of a buffer a nest reduces: nests that do over others stay apart."""
    reads = [x.index for x in n.reads() if uses.program.root(x.buffer) == out]
    return frozenset(coefficient(e, v) for e in reads for v in n.reduce_axes if v in e.free)


def _parts(p: Program, n: Extern, made: str) -> tuple[Extern, Loops]:
    """The product alone, into the buffer ``made``, and the nest that adds."""
    bias, left, right = (a for a in n.args if isinstance(a, TensorRef))
    (out,) = n.write_buffers()
    own, target = p.buffers[out], PLAIN[n.target]
    at = tuple(ZERO if s is ONE else var(f"i{k}", s) for k, s in enumerate(own.shape))
    more: Node = element(bias, *at[len(at) - len(bias.shape) :])
    scale = dict(n.kwargs).get("beta", 1)
    if scale != 1:
        more = more * float(scale)  # type: ignore[arg-type]
    place = own.whole.place(at)
    store = own.whole.store(at, load(own.dtype, made, place) + more)
    call = replace(
        n, target=target, target_name=str(target), args=(left, right), kwargs=(), outputs=(made,)
    )
    axes = tuple(v for v in at if v is not ZERO)
    return call, Loops(f"{n.name}_bias", axes, (), (store,), n.device, n.origins)
