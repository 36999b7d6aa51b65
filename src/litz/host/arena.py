"""One arena for all temporaries of a program, laid out ahead of time.

The C library's heap keeps what mid-size buffers leave behind, so that a program which frees each
buffer at once still grows beyond its plan.  An arena is one allocation.  Results of the program
that are written late lend it their memory until then: the hidden states of a language model lie
where its logits will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub

from litz.dataclass import dataclass
from litz.host.lifetimes import summed
from litz.host.pool import Item, MemoryRegion, Places, pack

WIDEST = 16  # bytes of the largest type of element


@dataclass(frozen=True)
class Arena:
    """places: (owner, offset) by item; "" is the arena itself.  lenders: results allocated at once.

    extent: bytes of the arena itself.  live: bytes of the whole program at each step.
    """

    places: Places
    lenders: tuple[str, ...]
    extent: int
    live: tuple[int, ...]


def lay_out(
    items: Sequence[Item], results: Sequence[Item], others: Sequence[int], limit: int
) -> Arena | None:
    """Place the items so that the program never holds more than ``limit`` bytes; None: cannot be.

    items: the temporaries.  results: what the program allocates and never frees; ``others`` counts
    them from their birth on.  others: bytes at each step that are no items.
    """
    lent = _lenders(results, others, limit)
    found = _try(items, *lent, limit) if lent[0] else None
    return found or _try(items, (), tuple(others), limit)


def _lenders(
    results: Sequence[Item], others: Sequence[int], limit: int
) -> tuple[tuple[Item, ...], tuple[int, ...]]:
    """The results that can be allocated from the start, and the live bytes if they are.

    Of a size that is whole in elements of any type: some of ATen's operators count on that.
    """
    most = _Most(others)
    chosen = []
    for item in sorted(results, key=lambda i: -i.nbytes):
        whole = item.nbytes % WIDEST == 0
        if whole and item.birth > 0 and most.before(item.birth) + item.nbytes <= limit:
            chosen.append(item)
            most.add(item.birth, item.nbytes)
    return tuple(chosen), tuple(map(add, others, _early(chosen, len(others))))


def _early(lenders: Sequence[Item], end: int) -> list[int]:
    """What results that are allocated from the start take at each step before they are made."""
    return summed([(0, i.birth - 1, i.nbytes) for i in lenders], end)


class _Most:
    """The most that is held at the first steps, while more is held at first steps.

    A binary tree, its root at 1: what is below a node; more: by how much all of that has grown.
    """

    def __init__(self, live: Sequence[int]) -> None:
        self.width = 1 << len(live).bit_length()
        self.most = [*[0] * self.width, *live, *[0] * (self.width - len(live))]
        self.more = [0] * self.width * 2
        for node in range(self.width - 1, 0, -1):
            self._look(node)

    def _look(self, node: int) -> None:
        self.most[node] = max(self.most[2 * node : 2 * node + 2]) + self.more[node]

    def before(self, step: int) -> int:
        """The most held at any step before one, which is not the first."""
        node, found = step + self.width, 0
        while node > 1:
            if node % 2:
                found = max(found, self.most[node - 1])
            node //= 2
            found += self.more[node]
        return found

    def add(self, step: int, nbytes: int) -> None:
        """Hold so many bytes more at all steps before one."""
        node = step + self.width
        while node > 1:
            if node % 2:
                self.most[node - 1] += nbytes
                self.more[node - 1] += nbytes
            node //= 2
            self._look(node)


def _try(
    items: Sequence[Item], lenders: Sequence[Item], live: Sequence[int], limit: int
) -> Arena | None:
    end = len(live)
    hosts = [MemoryRegion(i.name, i.nbytes, (i.birth, end)) for i in lenders]
    places, extent = pack(items, hosts)
    used = {owner for owner, _ in places.values()}
    inside = [i for i in items if places[i.name][0] == ""]
    first = min((i.birth for i in inside), default=0)
    last = max((i.death for i in inside), default=-1)
    # One that lends nothing is allocated when it is needed.
    total = list(map(sub, live, _early([i for i in lenders if i.name not in used], end)))
    for t in range(first, min(last + 1, end)):
        total[t] += extent
    if max(total, default=0) > limit:
        return None
    return Arena(places, tuple(i.name for i in lenders if i.name in used), extent, tuple(total))
