"""Packing: several buffers with disjoint lifetimes share memory at fixed offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field
from itertools import chain

from litz.dataclass import dataclass

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Item:
    """Something to place: alive during the steps birth..death, both inclusive."""

    name: str
    nbytes: int
    birth: int
    death: int


@dataclass
class MemoryRegion:
    """Memory to place items in.

    capacity: bytes, None: as much as it takes.  busy: (first, last) steps in which it serves
    something else.  used: (start, end) of what lies in it, by step, and born: of what begins to at
    it; taken: bytes that are used.  extent: bytes in use.
    """

    name: str
    capacity: int | None
    busy: tuple[int, int] | None = None
    used: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    born: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    extent: int = 0

    def put(self, offset: int, item: Item) -> None:
        end = offset + aligned(item.nbytes)
        self.born.setdefault(item.birth, []).append((offset, end))
        for step in range(item.birth, item.death + 1):
            self.used.setdefault(step, []).append((offset, end))
            self.taken[step] = self.taken.get(step, 0) + item.nbytes
        self.extent = max(self.extent, end)

    def free(self, item: Item) -> bool:
        """Whether the memory serves nothing else while ``item`` lives."""
        return not (self.busy and item.birth <= self.busy[1] and self.busy[0] <= item.death)

    def find(self, item: Item, limit: int | None) -> int | None:
        """The lowest offset where ``item`` fits below ``limit`` bytes; None where there is none.

        The memory is ``free`` for it.
        """
        if limit is not None:  # mostly there is none, which a look at two steps says
            held = max(self.taken.get(item.birth, 0), self.taken.get(item.death, 0))
            if held + item.nbytes > limit:
                return None
        offset, need = 0, aligned(item.nbytes)
        beside = [*self.used.get(item.birth, ())]  # and what is born while it lives
        for step in range(item.birth + 1, item.death + 1):
            beside += self.born.get(step, ())
        for start, end in sorted(beside):
            if start - offset >= need:
                break
            offset = max(offset, end)
        return offset if limit is None or offset + item.nbytes <= limit else None


Places = dict[str, tuple[str, int]]


def pack(items: Sequence[Item], hosts: Sequence[MemoryRegion]) -> tuple[Places, int]:
    """Place every item: ((region, offset) by name, bytes of scratch memory).

    hosts: of known capacity.  Greedy by size, the largest first, and among equals in the order of
    birth or in that of death from the end: hosts that are free late go well with the one, hosts
    that are free early with the other, so the better is kept.  The scratch memory goes by the empty
    name.
    """
    if not items:
        return {}, 0
    forth = sorted(items, key=lambda i: (-i.nbytes, i.birth))
    back = sorted(items, key=lambda i: (-i.nbytes, -i.death))
    found = _place(forth, hosts)
    if found[1] and back != forth:  # else the other order cannot do better
        found = min(found, _place(back, hosts), key=lambda found: found[1])
    return found


def _place(items: Sequence[Item], hosts: Sequence[MemoryRegion]) -> tuple[Places, int]:
    """An item goes where no memory has to be added: into the scratch memory as far as that has
    grown, then into the smallest host with room; only then the scratch memory grows."""
    places: Places = {}
    scratch = MemoryRegion("", None)
    rooms = [
        MemoryRegion(h.name, h.capacity, h.busy)
        for h in sorted(hosts, key=lambda h: h.capacity or 0)
    ]
    for item in items:
        larger = bisect_left(rooms, item.nbytes, key=lambda r: r.capacity or 0)
        some = ((r, r.capacity) for r in rooms[larger:] if r.free(item))
        for region, limit in chain(((scratch, scratch.extent),), some, ((scratch, None),)):
            offset = region.find(item, limit)
            if offset is not None:
                region.put(offset, item)
                places[item.name] = (region.name, offset)
                break
    return places, scratch.extent
