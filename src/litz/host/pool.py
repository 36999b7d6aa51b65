"""Packing: several buffers with disjoint lifetimes share memory at fixed offsets."""

from __future__ import annotations

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
class Region:
    """Memory to place items in.

    capacity: bytes, None: as much as it takes.  busy: (first, last) steps in which it serves
    something else.
    """

    name: str
    capacity: int | None
    busy: tuple[int, int] | None = None
    placed: list[tuple[int, Item]] = field(default_factory=list)

    @property
    def extent(self) -> int:
        """Bytes in use."""
        return max((offset + aligned(i.nbytes) for offset, i in self.placed), default=0)

    def find(self, item: Item, limit: int | None) -> int | None:
        """The lowest offset where ``item`` fits below ``limit`` bytes; None where there is none."""
        if self.busy and item.birth <= self.busy[1] and self.busy[0] <= item.death:
            return None
        offset = 0
        for start, other in sorted(self.placed, key=lambda p: p[0]):
            if item.birth <= other.death and other.birth <= item.death:
                if start - offset >= aligned(item.nbytes):
                    break
                offset = max(offset, start + aligned(other.nbytes))
        return offset if limit is None or offset + item.nbytes <= limit else None


def pack(
    items: Sequence[Item], hosts: Sequence[Region], scratch: Region
) -> dict[str, tuple[str, int]]:
    """Place every item: (region, offset) by name.  Greedy by size, the largest first.

    An item goes where no memory has to be added: into ``scratch`` as far as that has grown, then
    into the smallest of the ``hosts`` with room; only then ``scratch`` grows.
    """
    places: dict[str, tuple[str, int]] = {}
    order = sorted(range(len(items)), key=lambda k: (-items[k].nbytes, items[k].birth, k))
    by_size = sorted(hosts, key=lambda r: r.capacity or 0)
    for k in order:
        item = items[k]
        tries = [(scratch, scratch.extent), *((r, r.capacity) for r in by_size), (scratch, None)]
        for region, limit in tries:
            offset = region.find(item, limit)
            if offset is not None:
                region.placed.append((offset, item))
                places[item.name] = (region.name, offset)
                break
    return places
