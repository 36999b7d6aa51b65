"""Which memory lives when, read off the host lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import accumulate

from litz.dataclass import dataclass
from litz.host.aliasing import taken_by_value, touched
from litz.host.lines import (
    Allocate,
    CallExtern,
    CallKernel,
    Free,
    HostProgram,
    Line,
    Return,
)
from litz.host.sizes import byte_size, hinted_bytes
from litz.index import Expr
from litz.ir.program import Buffer, TensorRef

Span = tuple[int, int, int]
"""The first and the last step at which memory is held, and its bytes."""


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
    visible: buffers that something other than a kernel sees, or one that takes them by value, hence
        need a tensor of their own.
    ends: the last step that may use a buffer's memory, by the names of those that are no alias.
    """

    steps: list[CallKernel | CallExtern] = field(default_factory=list)
    kept: dict[int, list[Line]] = field(default_factory=dict)
    frees: dict[int, list[str]] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    visible: frozenset[str] = frozenset()
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.steps)


def lifetimes(host: HostProgram) -> Lifetimes:
    """Steps and blocks of a plain program (no segments, no reuse yet): one block a temporary."""
    out = Lifetimes(visible=frozenset(_visible(host)))
    freed: dict[str, int] = {}
    for line in host.lines:
        step = len(out.steps)
        match line:
            case Allocate(name):
                out.blocks[name] = _block(host.buffers[name], step)
            case Free(name) if step > 0:
                freed[name] = step - 1
            case CallExtern(extern):
                for result in extern.outputs:
                    if result is not None and host.buffers[result].kind == "fresh":
                        out.blocks[result] = _block(host.buffers[result], step)
                        out.blocks[result].given = True
                out.steps.append(line)
            case CallKernel():
                out.steps.append(line)
            case _:
                out.kept.setdefault(step, []).append(line)
    for name, step in freed.items():
        if name not in out.blocks:
            out.frees.setdefault(step, []).append(name)
    out.ends = _ends(host, out, freed)
    for name, block in out.blocks.items():
        block.death = out.ends[name]
    return out


def _block(b: Buffer, birth: int) -> Block:
    return Block([b.name], byte_size(b), hinted_bytes(b), birth, -1, b.device)


def _ends(host: HostProgram, out: Lifetimes, freed: Mapping[str, int]) -> dict[str, int]:
    """The last step of each buffer's memory, which lives as long as any alias of it."""
    end, known = out.end, {name for step in out.steps for name in _touched(step)}
    ends = {name: freed.get(name, end) for name, b in host.buffers.items() if b.alias is None}
    for name, b in host.buffers.items():
        if b.alias is not None:
            root, last = host.root(name), freed.get(name, end if name in known else -1)
            ends[root] = max(ends.get(root, last), last)
    return ends


def _touched(step: CallKernel | CallExtern) -> tuple[str, ...]:
    return step.buffers if isinstance(step, CallKernel) else touched(step.extern)


def _visible(host: HostProgram) -> Iterable[str]:
    for line in host.lines:
        if isinstance(line, CallExtern):
            yield from _touched(line)
        elif isinstance(line, Return):
            yield from (o.buffer for o in line.outputs if isinstance(o, TensorRef))
        elif isinstance(line, CallKernel):
            values = taken_by_value(line.buffers, host.buffers)
            yield from (b for b, v in zip(line.buffers, values, strict=True) if v)
    for b in host.buffers.values():
        if b.alias is not None:
            yield host.root(b.name)


def _extern_bytes(host: HostProgram, times: Lifetimes) -> list[Span]:
    """The memory that extern calls allocate themselves."""
    out = []
    for i, step in enumerate(times.steps):
        if isinstance(step, CallExtern):
            for name in step.extern.outputs:
                b = None if name is None else host.buffers[name]
                if b is not None and b.name not in times.blocks and b.alias is None:
                    out.append((i, times.ends[b.name], hinted_bytes(b)))
    return out


def _saved_bytes(host: HostProgram, times: Lifetimes) -> list[Span]:
    """What a forward graph has saved for this one, which holds it last.

    AOTAutograd's names tell: a backward graph also takes gradients and what the caller holds.
    """
    if not any(name.startswith("tangents_") for name in host.inputs):
        return []
    freed = {name: step for step, names in times.frees.items() for name in names}
    names = [n for n in host.inputs if n in freed and not n.startswith(("primals_", "tangents_"))]
    return [(0, times.ends[n], hinted_bytes(host.buffers[n])) for n in names]


def given_bytes(host: HostProgram, times: Lifetimes) -> list[Span]:
    """The memory that is neither input nor a block: what externs and a forward graph bring."""
    return [*_extern_bytes(host, times), *_saved_bytes(host, times)]


def summed(spans: Iterable[Span], end: int) -> list[int]:
    """The bytes held at each step before ``end``."""
    change = [0] * (end + 1)
    for first, last, number in spans:
        if first <= last:
            change[min(first, end)] += number
            change[min(last + 1, end)] -= number
    return list(accumulate(change[:end]))
