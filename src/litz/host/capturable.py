"""Whether a program may be recorded as a CUDA graph, and what a recording must know of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from litz.artifact import Recording
from litz.graph.calls import takes_objects
from litz.host.aliasing import touched, written
from litz.ir.program import Buffer, Extern, Program
from litz.runtime.collectives import group_name, is_start


def recording(program: Program, by_steps: bool = False) -> Recording:
    """What recording a program as a CUDA graph needs, or why it cannot be.

    by_steps: whether somebody looks at each call.
    """
    reason = "its kernels are looked at one by one" if by_steps else why_not_recorded(program)
    if reason:
        return Recording(reason)
    return Recording("", gpu_of(program), *varying_and_written(program), groups_of(program))


def why_not_recorded(program: Program) -> str:
    """The reason against recording; "" where there is none."""
    on_gpu = any(b.device.startswith("cuda") for b in program.buffers.values())
    devices = {b.device: b.name for b in _used(program)} if on_gpu else {}
    gpus = [d for d in devices if d.startswith("cuda")]
    if not gpus:
        return "no tensor is on a GPU"
    others = [d for d in devices if d not in gpus]
    if others:
        return f"{devices[others[0]]} is on {others[0]}"
    if len(gpus) > 1:
        return f"tensors are on {' and '.join(sorted(gpus))}"
    for n in program.nodes:
        if isinstance(n, Extern) and (why := _why_not_called(n)):
            return why
    return ""


def gpu_of(program: Program) -> int:
    """The index of the one GPU of a program that may be recorded."""
    device = next(b.device for b in _used(program) if b.device.startswith("cuda"))
    return int(device.partition(":")[2] or 0)


def groups_of(program: Program) -> tuple[str, ...]:
    """The names of the process groups that a program communicates with."""
    calls = (n for n in program.nodes if isinstance(n, Extern) and is_start(n.target))
    names = (group_name(n.target, n.args, dict(n.kwargs)) for n in calls)
    return tuple(dict.fromkeys(names))


def varying_and_written(program: Program) -> tuple[tuple[int, ...], frozenset[int]]:
    """What a recording must know of the arguments: see ``Recording``."""
    writes = written(program)
    varying = [k for k, name in enumerate(program.inputs) if _varies(program.buffers.get(name))]
    return tuple(varying), frozenset(k for k, name in enumerate(program.inputs) if name in writes)


def _varies(b: Buffer | None) -> bool:
    """Whether an argument is another one for other sizes; a number (no buffer) always is."""
    if b is None or b.kind == "opaque":
        return True
    return not all(e.is_const for e in (*b.shape, *b.strides))


def _used(program: Program) -> Iterator[Buffer]:
    """The buffers that running the program touches, each once."""
    names = dict.fromkeys(n for n in program.inputs if n in program.buffers)
    for node in program.nodes:
        names.update(dict.fromkeys(touched(node)))
    names.update(dict.fromkeys(o.buffer for o in program.output_refs()))
    yield from (program.buffers[n] for n in names)


def _why_not_called(n: Extern) -> str:
    name = n.target_name
    if n.is_number or n.is_assertion:
        return ""  # computed from numbers among the arguments: the same for the same shapes
    if n.symbols:
        return f"{name} reads a number back"
    if n.sizes or n.checks:
        return f"the result of {name} has a size that depends on data"
    if any(isinstance(v, torch.Generator) for v in (*n.args, *(v for _, v in n.kwargs))):
        return f"{name} draws from a random generator of its own"
    if takes_objects(n.target):
        return f"{name} calls a script object"
    target: Any = n.target
    if n.bodies:
        return f"{name} calls what is compiled by itself"
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    if unsafe is not None and unsafe in getattr(target, "tags", ()):
        return f"{name} says that it cannot be recorded"
    return ""
