"""Which memory lives when, read off the host lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import accumulate

from litz.dataclass import dataclass
from litz.host.aliasing import touched
from litz.host.lines import (
    Allocate,
    CallExtern,
    CallKernel,
    Free,
    HostProgram,
    Line,
    Return,
)
from litz.host.sizes import byte_size, hinted
from litz.index import Expr
from litz.ir.program import Buffer, TensorRef


@dataclass(eq=False)
class Block:
    """One piece of memory and the buffers that live in it one after the other.

    birth, death: first and last step that uses it (inclusive); death is the number of steps for
    memory that outlives the program.  nbytes: size at the hints.  given: the first member is the
    result of an extern call, which brings the memory along.
    """

    members: list[str]
    size: Expr
    nbytes: int
    birth: int
    death: int
    device: str
    given: bool = False


@dataclass
class Lifetimes:
    """A host program taken apart: calls are steps, other lines stand before a step.

    kept: lines other than calls, allocations and frees of blocks, by the step that they precede.
    frees: buffers to free after a step that are no block (inputs, results of externs).
    visible: buffers that something other than a kernel sees, hence need a tensor of their own.
    """

    steps: list[CallKernel | CallExtern] = field(default_factory=list)
    kept: dict[int, list[Line]] = field(default_factory=dict)
    frees: dict[int, list[str]] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    visible: frozenset[str] = frozenset()

    @property
    def end(self) -> int:
        return len(self.steps)


def lifetimes(host: HostProgram, hints: Mapping[Expr, int] | None = None) -> Lifetimes:
    """Steps and blocks of a plain program (no segments, no reuse yet): one block a temporary."""
    out = Lifetimes(visible=frozenset(_visible(host)))
    freed: dict[str, int] = {}
    for line in host.lines:
        step = len(out.steps)
        match line:
            case Allocate(name):
                out.blocks[name] = _block(host.buffers[name], step, hints)
            case Free(name) if step > 0:
                freed[name] = step - 1
            case CallExtern(extern):
                for result in extern.outputs:
                    if result is not None and host.buffers[result].kind == "fresh":
                        out.blocks[result] = _block(host.buffers[result], step, hints)
                        out.blocks[result].given = True
                out.steps.append(line)
            case CallKernel():
                out.steps.append(line)
            case _:
                out.kept.setdefault(step, []).append(line)
    for name, step in freed.items():
        if name not in out.blocks:
            out.frees.setdefault(step, []).append(name)
    for name, block in out.blocks.items():
        block.death = freed.get(name, out.end)
    _extend_by_aliases(host, out, freed)
    return out


def _block(b: Buffer, birth: int, hints: Mapping[Expr, int] | None) -> Block:
    size = byte_size(b)
    return Block([b.name], size, max(hinted(size, hints), 0), birth, -1, b.device)


def _extend_by_aliases(host: HostProgram, out: Lifetimes, freed: Mapping[str, int]) -> None:
    """Memory lives as long as any alias of it."""
    known = {name for step in out.steps for name in _touched(step)}
    for name, b in host.buffers.items():
        root = host.root(name)
        if b.alias is not None and root in out.blocks:
            block = out.blocks[root]
            block.death = max(block.death, freed.get(name, out.end if name in known else -1))


def _touched(step: CallKernel | CallExtern) -> tuple[str, ...]:
    return step.buffers if isinstance(step, CallKernel) else touched(step.extern)


def _visible(host: HostProgram) -> Iterable[str]:
    for line in host.lines:
        if isinstance(line, CallExtern):
            yield from _touched(line)
        elif isinstance(line, Return):
            yield from (o.buffer for o in line.outputs if isinstance(o, TensorRef))
    for b in host.buffers.values():
        if b.alias is not None:
            yield host.root(b.name)


def extern_bytes(
    host: HostProgram, times: Lifetimes, hints: Mapping[Expr, int] | None = None
) -> list[tuple[int, int, int]]:
    """(birth, death, bytes) of the memory that extern calls allocate themselves."""
    freed = {name: step for step, names in times.frees.items() for name in names}
    out = []
    for i, step in enumerate(times.steps):
        if isinstance(step, CallExtern):
            for name in step.extern.outputs:
                b = None if name is None else host.buffers[name]
                if b is not None and b.name not in times.blocks and b.alias is None:
                    nbytes = max(hinted(byte_size(b), hints), 0)
                    out.append((i, freed.get(b.name, times.end), nbytes))
    return out


def _saved_bytes(
    host: HostProgram, times: Lifetimes, hints: Mapping[Expr, int] | None
) -> list[tuple[int, int, int]]:
    """(birth, death, bytes) of what a forward graph has saved for this one, which holds it last.

    AOTAutograd's names tell: a backward graph also takes gradients and what the caller holds.
    """
    if not any(name.startswith("tangents_") for name in host.inputs):
        return []
    freed = {name: step for step, names in times.frees.items() for name in names}
    names = [n for n in host.inputs if n in freed and not n.startswith(("primals_", "tangents_"))]
    return [(0, freed[n], max(hinted(byte_size(host.buffers[n]), hints), 0)) for n in names]


def live_bytes(
    host: HostProgram, times: Lifetimes, hints: Mapping[Expr, int] | None = None
) -> tuple[list[int], list[int]]:
    """Bytes alive during each step when everything is freed at once: (of externs, of all)."""
    own = [(b.birth, b.death, b.nbytes) for b in times.blocks.values()]
    theirs = extern_bytes(host, times, hints)
    spans = [*own, *_saved_bytes(host, times, hints), *theirs]
    return summed(theirs, times.end) or [0], summed(spans, times.end) or [0]


def summed(spans: Iterable[tuple[int, int, int]], end: int) -> list[int]:
    """The sum, at each step before ``end``, over spans (first, last, number) that it lies in."""
    change = [0] * (end + 1)
    for first, last, number in spans:
        if first <= last:
            change[min(first, end)] += number
            change[min(last + 1, end)] -= number
    return list(accumulate(change[:end]))
