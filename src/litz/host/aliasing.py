"""How a program's buffers are looked at, and which memory it writes.

Who owns a buffer's memory its ``alias`` says (``litz.ir.program.root_of``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litz.host.lines import CallExtern, HostProgram, Return
from litz.ir.program import Buffer, Extern, Program, ProgramNode, TensorRef
from litz.ir.text import is_whole


def touched(node: ProgramNode) -> tuple[str, ...]:
    """The buffers that running a node reads or writes, each once."""
    return tuple(dict.fromkeys((*node.read_buffers(), *node.write_buffers())))


def written(program: Program) -> frozenset[str]:
    """The buffers that own the memory that a program writes."""
    return frozenset(program.root(b) for n in program.nodes for b in n.write_buffers())


def read_by_strides(
    kernels: Iterable[str],
    externs: Iterable[Extern],
    outputs: Iterable[object],
    buffers: Mapping[str, Buffer],
) -> frozenset[str]:
    """The buffers that kernels read or write, or that someone takes a view of."""
    refs = [r for e in externs for r in e.refs()]
    refs += [o for o in outputs if isinstance(o, TensorRef)]
    return frozenset((*kernels, *(r.buffer for r in refs if not is_whole(r, buffers))))


def looked_into(host: HostProgram) -> frozenset[str]:
    """``read_by_strides`` of a host program."""
    if host.strided is not None:
        return host.strided
    kernels = [b for call in host.kernel_calls() for b in call.buffers]
    externs = [line.extern for line in host.lines if isinstance(line, CallExtern)]
    outputs = [o for line in host.lines if isinstance(line, Return) for o in line.outputs]
    found = read_by_strides(kernels, externs, outputs, host.buffers)
    object.__setattr__(host, "strided", found)
    return found


def taken_by_value(names: Sequence[str], buffers: Mapping[str, Buffer]) -> list[bool]:
    """Which of a kernel's arguments lie in the host's memory while others lie elsewhere.

    A kernel on another device takes those by value, as one number each.
    """
    there = [n in buffers and buffers[n].device != "cpu" for n in names]
    return [any(there) and not on_device for on_device in there]


def holder(buffer: str, owners: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """The tensor or workspace in whose memory a buffer lies, and the byte it begins at.

    owners: what each buffer that is no tensor lies in, and from which byte on (``Place``).
    """
    offset = 0
    while buffer in owners:
        buffer, more = owners[buffer]
        offset += more
    return buffer, offset
