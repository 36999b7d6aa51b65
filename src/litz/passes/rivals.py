"""Ways to compute a part of a program, as programs of their own between which a clock chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from litz.dataclass import dataclass
from litz.ir.body import loads
from litz.ir.program import (
    Buffer,
    Extern,
    Loops,
    Nest,
    Program,
    ProgramNode,
    nest_roots,
    used_numbers,
)
from litz.passes.uses import Uses
from litz.runtime.tune import Choice

Pass = Callable[[Program], Program]


class Rivals(Protocol):
    """Measures programs that take and give the same; it knows what it has measured before."""

    def __call__(self, programs: Sequence[Program], passes: Sequence[Pass], /) -> Choice | None:
        """Which is the quickest behind ``passes``; the first unless another is so by more than
        noise.  None where nobody can tell: no device is at hand, or no time is left.
        """


@dataclass(frozen=True)
class Behind:
    """The rivals of one pass.  passes: those that follow it."""

    rivals: Rivals
    passes: tuple[Pass, ...]

    def __call__(self, *programs: Program | None) -> Choice | None:
        known = [p for p in programs if p is not None]
        same = len({(p.inputs, p.outputs) for p in known}) == 1
        return self.rivals(known, self.passes) if same and len(known) == len(programs) else None


def part(uses: Uses, nodes: Sequence[ProgramNode]) -> Program | None:
    """Some nodes of a program as one: what others make is given, what others read is returned.

    Kernels that reduce what the nodes make are part of it: apart, they would read it once more.
    None where sizes are open, or memory is not plain: what is measured has no data.
    """
    p, own = uses.program, {n.name: n for n in nodes}
    for b in [b for n in nodes for b in n.write_buffers()]:
        behind = uses.readers.get(p.root(b), {})
        own |= {k: n for k, n in behind.items() if isinstance(n, Loops) and n.reduce_axes}
    kinds = {b: _kind(n) for n in own.values() for b in n.write_buffers()}
    read = sorted({b for n in own.values() for b in n.read_buffers()} - kinds.keys())
    kinds |= dict.fromkeys(read, "input")
    buffers = {b: replace(p.buffers[b], kind=kind) for b, kind in kinds.items()}
    if not all(map(_is_plain, buffers.values())):
        return None
    if any(used_numbers(n, buffers) or _looks_up(n) for n in own.values()):
        return None
    kept = [
        buffers[b].whole
        for b, kind in kinds.items()
        if kind != "input" and (b in uses.shown or not uses.readers.get(b, {}).keys() <= own.keys())
    ]
    return Program(tuple(read), buffers, tuple(own.values()), tuple(kept))


def _kind(n: ProgramNode) -> str:
    """The kind of buffers that a node fills."""
    return "extern" if isinstance(n, Extern) and not n.out_variant else "temp"


def _is_plain(b: Buffer) -> bool:
    return b.alias is None and all(s.is_const for s in (*b.shape, *b.strides))


def _looks_up(n: ProgramNode) -> bool:
    """Whether data says where a node reads."""
    return isinstance(n, Nest) and any(x.indirect for x in loads(nest_roots(n)))
