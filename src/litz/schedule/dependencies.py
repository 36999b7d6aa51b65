"""Which program nodes must run before which, as bit sets that survive merging."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from litz.index import Const, Expr, split_linear
from litz.ir.program import (
    Extern,
    Loops,
    Program,
    ProgramNode,
    made_numbers,
    used_numbers,
)


class Dependencies:
    """A partial order over node numbers; ``ancestors`` are transitive, ``direct`` are not."""

    def __init__(self, count: int) -> None:
        self.alive: dict[int, None] = dict.fromkeys(range(count))
        self.direct: list[int] = [0] * count
        self.ancestors: list[int] = [0] * count

    def add(self, before: int, after: int) -> None:
        """To be called with ``after`` rising: ancestors of ``before`` must be complete."""
        self.direct[after] |= 1 << before
        self.ancestors[after] |= self.ancestors[before] | (1 << before)

    def before(self, a: int, b: int) -> bool:
        return bool(self.ancestors[b] >> a & 1)

    def path_between(self, a: int, b: int) -> bool:
        """Whether some third node must run after ``a`` and before ``b``."""
        todo = self.direct[b] & ~(1 << a)
        while todo:
            low = todo & -todo
            p = low.bit_length() - 1
            if self.ancestors[p] >> a & 1:
                return True
            todo ^= low
        return False

    def merge(self, a: int, b: int) -> None:
        """``b`` becomes part of ``a``."""
        bit_a, bit_b = 1 << a, 1 << b
        self.direct[a] = (self.direct[a] | self.direct[b]) & ~(bit_a | bit_b)
        both = (self.ancestors[a] | self.ancestors[b]) & ~(bit_a | bit_b)
        self.ancestors[a] = both
        del self.alive[b]
        for k in self.alive:
            if self.direct[k] & bit_b:
                self.direct[k] = (self.direct[k] & ~bit_b) | bit_a
            if k != a and self.ancestors[k] & (bit_a | bit_b):
                self.ancestors[k] = (self.ancestors[k] & ~bit_b) | both | bit_a

    def topological(self, place: Mapping[int, int]) -> list[int]:
        """All live nodes, dependencies first; among free ones the smallest ``place`` goes first."""
        waiting = {k: self.direct[k].bit_count() for k in self.alive}
        users: dict[int, list[int]] = {k: [] for k in self.alive}
        for k in self.alive:
            todo = self.direct[k]
            while todo:
                low = todo & -todo
                users[low.bit_length() - 1].append(k)
                todo ^= low
        ready = [(place[k], k) for k, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, k = heapq.heappop(ready)
            order.append(k)
            for u in users[k]:
                waiting[u] -= 1
                if waiting[u] == 0:
                    heapq.heappush(ready, (place[u], u))
        if len(order) != len(self.alive):
            raise AssertionError("the fused groups depend on each other in a cycle")
        return order


class Numbers:
    """Order by numbers that are known only while the program runs: sizes of results, reads."""

    def __init__(self, program: Program) -> None:
        self.buffers = program.buffers
        externs = [n for n in program.nodes if isinstance(n, Extern)]
        # Most programs know all their numbers from their inputs.
        self.any = any(n.symbols or n.sizes for n in externs)
        self.given: dict[str, int] = {}
        # What a number was computed from, down to what comes from data.
        self.leaves: dict[str, tuple[str, ...]] = {}
        self.asserted: dict[str, list[int]] = {}

    def before(self, k: int, n: ProgramNode) -> set[int]:
        """The nodes that give or assert numbers that ``n`` uses; ``k`` rises from call to call."""
        if not self.any:
            return set()
        used = used_numbers(n, self.buffers)
        leaves = {x: None for u in used for x in self.leaves.get(u, ())}
        before = {self.given[u] for u in used if u in self.given}
        for x in leaves:
            before.update(self.asserted.get(x, ()))
        if isinstance(n, Extern):
            for name in made_numbers(n):
                self.given[name] = k
                self.leaves[name] = tuple(leaves) if n.is_number else (name,)
            if not (n.symbols or n.mutates or any(o is not None for o in n.outputs)):
                for x in leaves:
                    self.asserted.setdefault(x, []).append(k)
        return before


def dependencies(program: Program, roots: Mapping[str, str]) -> Dependencies:
    """Order by memory: read after write, write after read, write after write, by owning buffer.

    Two plain stores to provably different places of one buffer (the parts of a concatenation) need
    no order.  Calls with effects beyond their arguments keep their order, and who
    uses a number runs behind who gives it and behind what asserts something of it.
    """
    deps = Dependencies(len(program.nodes))
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    last_effect: int | None = None
    numbers = Numbers(program)
    for k, n in enumerate(program.nodes):
        reads = {roots[b]: None for b in n.read_buffers()}
        writes = {roots[b]: None for b in n.write_buffers()}
        before: set[int] = set()
        for b in reads:
            before.update(writers.get(b, ()))
        for b in writes:
            before.update(readers.get(b, ()))
            before.update(w for w in writers.get(b, ()) if not _apart(program.nodes[w], n, b))
        if isinstance(n, Extern) and _has_effect(n):
            if last_effect is not None:
                before.add(last_effect)
            last_effect = k
        before.update(numbers.before(k, n))
        before.discard(k)
        for p in sorted(before):
            deps.add(p, k)
        for b in reads:
            readers.setdefault(b, []).append(k)
        for b in writes:
            writers.setdefault(b, []).append(k)
    return deps


def _has_effect(n: Extern) -> bool:
    """Random draws and calls that return nothing must keep their order."""
    tags = getattr(n.target, "tags", ())
    if n.is_number:
        return False
    return not (n.symbols or any(o is not None for o in n.outputs)) or any(
        getattr(t, "name", "") == "nondeterministic_seeded" for t in tags
    )


def _apart(a: ProgramNode, b: ProgramNode, root: str) -> bool:
    """Whether two loop nests store to provably disjoint ranges of one buffer."""
    if not isinstance(a, Loops) or not isinstance(b, Loops):
        return False
    for s in a.stores:
        for t in b.stores:
            if s.buffer != root or t.buffer != root or s.indirect or t.indirect:
                return False
            if not _disjoint(s.index, a, t.index, b):
                return False
    return True


def _disjoint(i: Expr, a: Loops, j: Expr, b: Loops) -> bool:
    """Slices of one row-major layout: equal outer loops, and inner ranges that do not meet."""
    one, two = _digits(i, a), _digits(j, b)
    if one is None or two is None:
        return False
    (low, start), (high, end) = sorted((one, two), key=lambda d: d[1])
    gap = end - start
    outer = [d for d in low if d[0] >= gap]
    inner_low = sum(stride * (n - 1) for stride, n in low if stride < gap)
    inner_high = [d for d in high if d not in outer]
    if sorted(d for d in high if d in outer) != sorted(outer):
        return False
    reach = gap + sum(stride * (n - 1) for stride, n in inner_high)
    return 0 < gap and inner_low < gap and all(reach < stride for stride, _ in outer)


def _digits(i: Expr, n: Loops) -> tuple[list[tuple[int, int]], int] | None:
    """(stride, extent) of each loop in a constant-strided index, and its offset."""
    split = split_linear(i, n.axes)
    if split is None or not isinstance(split[1], Const):
        return None
    digits: list[tuple[int, int]] = []
    for v in n.axes:
        c = split[0].get(v)
        extent = v.extent  # type: ignore[attr-defined]
        if not isinstance(c, Const) or not isinstance(extent, Const) or c.value <= 0:
            return None
        digits.append((c.value, extent.value))
    return digits, split[1].value
