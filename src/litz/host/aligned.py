"""Operands that kernels of libraries read in vectors, wherever in memory arguments begin.

cuDNN's attention is wrong where an operand begins at no multiple of 16 bytes, flash attention's
fails.  Where memory from outside begins is known when the program runs: lines look, and copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from litz.host.lines import Align, CallExtern, Free, HostProgram, Line
from litz.ir.program import Buffer, Extern, TensorRef

aten = torch.ops.aten

IN_VECTORS: Final[frozenset[object]] = frozenset(
    getattr(aten, f"_scaled_dot_product_{kind}_attention{way}").default
    for kind in ("cudnn", "flash")
    for way in ("", "_backward")
)


def with_aligned(host: HostProgram) -> HostProgram:
    """``host`` with an ``Align`` for what such calls are handed of arguments.

    It comes after all other rewrites: what it names has no place in plans of memory.
    """
    if not any(isinstance(x, CallExtern) and x.extern.target in IN_VECTORS for x in host.lines):
        return host
    buffers = dict(host.buffers)
    lines: list[Line] = []
    for line in host.lines:
        if not isinstance(line, CallExtern) or line.extern.target not in IN_VECTORS:
            lines.append(line)
            continue
        made = {ref: _named(ref, buffers) for ref in _outside(host, line.extern)}
        lines += [Align(b.name, ref) for ref, b in made.items()]
        args = tuple(made[a].whole if a in made else a for a in line.extern.args)
        lines.append(CallExtern(replace(line.extern, args=args)))
        lines += [Free(b.name) for b in made.values()]
    return replace(host, buffers=buffers, lines=tuple(lines))


def _outside(host: HostProgram, e: Extern) -> Iterator[TensorRef]:
    """The floats among the arguments of a call that lie in memory from outside, each once."""
    refs = dict.fromkeys(a for a in e.args if isinstance(a, TensorRef) and a.dtype.is_float)
    return (r for r in refs if host.buffers[host.root(r.buffer)].kind == "input")


def _named(ref: TensorRef, buffers: dict[str, Buffer]) -> Buffer:
    name = f"aligned{len(buffers)}"
    device = buffers[ref.buffer].device
    buffers[name] = Buffer(name, ref.dtype, ref.shape, ref.strides, device, "extern", ref.buffer)
    return buffers[name]
