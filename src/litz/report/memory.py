"""What a graph holds over its steps, read off the host program as its memory was planned."""

from __future__ import annotations

from collections.abc import Mapping

from litz.host.aliasing import touched
from litz.host.lifetimes import summed
from litz.host.lines import (
    Allocate,
    CallExtern,
    CallKernel,
    Free,
    HostProgram,
    Return,
    Reuse,
    Workspace,
    calls_of,
)
from litz.host.sizes import hinted_bytes
from litz.ir.program import TensorRef
from litz.report.record import Living, Memory


def memory_of(host: HostProgram, prefix: str, lines: Mapping[str, str]) -> Memory | None:
    """The memory of a graph; None where it has no steps.

    prefix: of ids.  lines: that make buffers, by their names.
    """
    held = _held(host)
    if not held:
        return None
    used = _used(host, len(held))
    now = summed(((*u, hinted_bytes(host.buffers[b])) for b, u in used.items()), len(held))
    peak = max(range(len(held)), key=lambda i: (now[i], held[i]))
    taken = {line.new: line.old for line in host.lines if isinstance(line, Reuse)}
    living = [
        Living(f"{prefix}.{b}", hinted_bytes(of), lines.get(b, ""), of.kind == "input")
        for b, (first, last) in used.items()
        if first <= peak <= last and not _live(used, taken.get(b), peak)
        for of in (host.buffers[b],)
    ]
    living.sort(key=lambda x: (x.argument, -x.bytes))
    return Memory(tuple(held), peak, tuple(living))


def _live(used: Mapping[str, tuple[int, int]], buffer: str | None, at: int) -> bool:
    """Whether a buffer is in use at a step: one that takes over its memory does not count again."""
    first, last = used.get(buffer or "", (1, 0))
    return first <= at <= last


def _held(host: HostProgram) -> list[int]:
    """Bytes that the host program holds during each call, arguments and constants left out."""
    now: dict[str, int] = {}
    held: list[int] = []
    for line in host.lines:
        match line:
            case Allocate(name):
                now[name] = hinted_bytes(host.buffers[name])
            case Workspace(name, nbytes, _):
                now[name] = nbytes
            case Reuse(new, old):
                now[new] = now.pop(old, 0)
            case Free(name):
                now.pop(name, None)
            case CallExtern(extern):
                for result in extern.outputs:
                    b = None if result is None else host.buffers[result]
                    if b is not None and b.alias is None and b.name not in now:
                        now[b.name] = hinted_bytes(b) if b.kind in ("extern", "fresh") else 0
        held += [sum(now.values())] * len(calls_of(line))
    return held


def _used(host: HostProgram, steps: int) -> Mapping[str, tuple[int, int]]:
    """The first and the last call that touches each buffer with memory of its own.

    Arguments are there all the time, results until the end.
    """
    used = {n: (0, steps) for n in host.inputs if n in host.buffers}
    at = 0
    for line in host.lines:
        for call in calls_of(line):
            names = call.buffers if isinstance(call, CallKernel) else touched(call.extern)
            for root in {host.root(n) for n in names if n in host.buffers}:
                used[root] = (used.get(root, (at, at))[0], max(at, used.get(root, (at, at))[1]))
            at += 1
        if isinstance(line, Return):
            for root in {host.root(o.buffer) for o in line.outputs if isinstance(o, TensorRef)}:
                used[root] = (used.get(root, (0, 0))[0], steps)
    return used
