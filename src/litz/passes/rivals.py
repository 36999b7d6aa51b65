"""Ways to compute a part of a program, as programs of their own between which a clock chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from litz.dataclass import dataclass
from litz.ir.body import loads
from litz.ir.program import Loops, Nest, Program, ProgramNode, nest_roots, used_numbers
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
    p, made = uses.program, dict.fromkeys(b for n in nodes for b in n.write_buffers())
    behind = (x for b in made for x in uses.readers.get(p.root(b), {}).values())
    own = {
        n.name: n for n in (*nodes, *(x for x in behind if isinstance(x, Loops) and x.reduce_axes))
    }
    made = dict.fromkeys(b for n in own.values() for b in n.write_buffers())
    read = sorted({b for n in own.values() for b in n.read_buffers()} - made.keys())
    buffers = {b: p.buffers[b] for b in (*read, *made)}
    loaded = (x for n in own.values() if isinstance(n, Nest) for x in loads(nest_roots(n)))
    if (
        any(used_numbers(n, buffers) for n in own.values())
        or any(
            b.alias is not None or not all(s.is_const for s in (*b.shape, *b.strides))
            for b in buffers.values()
        )
        or any(x.indirect for x in loaded)
    ):
        return None
    kept = [
        b
        for b in made
        if p.root(b) in uses.shown or not uses.readers.get(b, {}).keys() <= own.keys()
    ]
    given = {b: replace(x, kind="input" if b in read else "temp") for b, x in buffers.items()}
    return Program(tuple(read), given, tuple(own.values()), tuple(given[b].whole for b in kept))
