"""Packing: several buffers with disjoint lifetimes share memory at fixed offsets."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    something else.  placed: by offset.  extent: bytes in use.
    """

    name: str
    capacity: int | None
    busy: tuple[int, int] | None = None
    placed: list[tuple[int, Item]] = field(default_factory=list)
    extent: int = 0

    def put(self, offset: int, item: Item) -> None:
        insort(self.placed, (offset, item), key=lambda p: p[0])
        self.extent = max(self.extent, offset + aligned(item.nbytes))

    def free(self, item: Item) -> bool:
        """Whether the memory serves nothing else while ``item`` lives."""
        return not (self.busy and item.birth <= self.busy[1] and self.busy[0] <= item.death)

    def find(self, item: Item, limit: int | None) -> int | None:
        """The lowest offset where ``item`` fits below ``limit`` bytes; None where there is none."""
        if not self.free(item):
            return None
        offset = 0
        for start, other in self.placed:
            if item.birth <= other.death and other.birth <= item.death:
                if start - offset >= aligned(item.nbytes):
                    break
                offset = max(offset, start + aligned(other.nbytes))
        return offset if limit is None or offset + item.nbytes <= limit else None


Places = dict[str, tuple[str, int]]


def pack(items: Sequence[Item], hosts: Sequence[MemoryRegion]) -> tuple[Places, int]:
    """Place every item: ((region, offset) by name, bytes of scratch memory).

    Greedy by size, the largest first, and among equals in the order of birth or in that of death
    from the end: hosts that are free late go well with the one, hosts that are free early with the
    other, so the better is kept.  The scratch memory goes by the empty name.
    """
    forth = sorted(items, key=lambda i: (-i.nbytes, i.birth))
    back = sorted(items, key=lambda i: (-i.nbytes, -i.death))
    return min((_place(order, hosts) for order in (forth, back)), key=lambda found: found[1])


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
        tries = [(scratch, scratch.extent), *((r, r.capacity) for r in rooms), (scratch, None)]
        for region, limit in tries:
            offset = region.find(item, limit)
            if offset is not None:
                region.put(offset, item)
                places[item.name] = (region.name, offset)
                break
    return places, scratch.extent
