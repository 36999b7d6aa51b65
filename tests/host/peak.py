"""How much memory a host program holds at most."""

from __future__ import annotations

from litz.host.lines import Allocate, CallExtern, Free, HostProgram, Reuse, View, Workspace
from litz.host.sizes import hinted_bytes


class _Memory:
    """Allocations, each held by the names that refer to it."""

    def __init__(self) -> None:
        self.holders: dict[int, set[str]] = {}
        self.sizes: dict[int, int] = {}
        self.of: dict[str, int] = {}
        self.live = self.peak = 0

    def allocate(self, name: str, nbytes: int) -> None:
        self.drop(name)
        place = len(self.sizes)
        self.sizes[place] = nbytes
        self.holders[place] = {name}
        self.of[name] = place
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def share(self, name: str, other: str) -> None:
        place = self.of.get(other)
        if place is not None:
            self.of[name] = place
            self.holders[place].add(name)

    def drop(self, name: str) -> None:
        place = self.of.pop(name, None)
        if place is None:
            return
        self.holders[place].discard(name)
        if not self.holders[place]:
            self.live -= self.sizes[place]


def peak_bytes(host: HostProgram) -> int:
    """Bytes that the program holds at its fullest moment, beyond its inputs.

    Counts what it allocates and what extern calls return, not what they need inside.
    """
    memory = _Memory()
    for line in host.lines:
        match line:
            case Allocate(name):
                memory.allocate(name, hinted_bytes(host.buffers[name]))
            case Workspace(name, nbytes, _):
                memory.allocate(name, nbytes)
            case View(name, owner):
                memory.drop(name)
                memory.share(name, owner)
            case Reuse(new, old):
                memory.share(new, old)
                memory.drop(old)
            case Free(name):
                memory.drop(name)
            case CallExtern(extern):
                for output in extern.outputs:
                    if output is None or output in memory.of:
                        continue
                    b = host.buffers[output]
                    if b.alias is None:
                        memory.allocate(output, hinted_bytes(b))
                    else:
                        memory.share(output, b.alias)
    return memory.peak
