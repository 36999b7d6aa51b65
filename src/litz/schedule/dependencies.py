"""Which program nodes must run before which, as bit sets that survive merging."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from litz.graph.calls import is_random, takes_objects
from litz.index import Const, Expr, Var, split_linear
from litz.ir.program import (
    Extern,
    Loops,
    Nest,
    Program,
    ProgramNode,
    made_numbers,
    used_numbers,
)
from litz.runtime.collectives import is_start, is_wait
from litz.schedule.groups import Group, Step

Touched = tuple[dict[str, None], dict[str, None]]  # memory that is read, and that is written
_Slice = tuple[list[tuple[int, int]], int]  # (stride, extent) of each loop, and the offset


class Dependencies:
    """A partial order over node numbers; ``ancestors`` are transitive, ``direct`` are not.

    What has been merged is one node.  ``direct`` and ``users`` name it by its one live number,
    while ``ancestors`` may have the number of any of its ``members``.
    """

    def __init__(self, count: int) -> None:
        self.alive: dict[int, None] = dict.fromkeys(range(count))
        self.direct: list[int] = [0] * count
        self.users: list[int] = [0] * count
        self.ancestors: list[int] = [0] * count
        self.members: list[int] = [1 << k for k in range(count)]

    def add(self, before: int, after: int) -> None:
        """To be called with ``after`` rising: ancestors of ``before`` must be complete."""
        self.direct[after] |= 1 << before
        self.users[before] |= 1 << after
        self.ancestors[after] |= self.ancestors[before] | (1 << before)

    def before(self, a: int, b: int) -> bool:
        return bool(self.ancestors[b] & self.members[a])

    def path_between(self, a: int, b: int) -> bool:
        """Whether some third node must run after ``a`` and before ``b``."""
        return any(self.before(a, p) for p in _numbers(self.direct[b] & ~(1 << a)))

    def merge(self, a: int, b: int) -> None:
        """``b`` becomes part of ``a``."""
        ends = ~(1 << a | 1 << b)
        for found, back in ((self.direct, self.users), (self.users, self.direct)):
            for k in _numbers(found[b] & ends):
                back[k] = back[k] & ~(1 << b) | 1 << a
            found[a] = (found[a] | found[b]) & ends
        self.members[a] |= self.members[b]
        self.ancestors[a] = (self.ancestors[a] | self.ancestors[b]) & ~self.members[a]
        del self.alive[b]
        # Who runs behind either runs behind the ancestors of both; few did not before.
        todo = [a]
        while todo:
            k = todo.pop()
            for user in _numbers(self.users[k]):
                if self.ancestors[k] & ~self.ancestors[user]:
                    self.ancestors[user] |= self.ancestors[k]
                    todo.append(user)

    def topological(self, place: Mapping[int, int]) -> list[int]:
        """All live nodes, dependencies first; among free ones the smallest ``place`` goes first."""
        waiting = {k: self.direct[k].bit_count() for k in self.alive}
        ready = [(place[k], k) for k, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, k = heapq.heappop(ready)
            order.append(k)
            for u in _numbers(self.users[k]):
                waiting[u] -= 1
                if waiting[u] == 0:
                    heapq.heappush(ready, (place[u], u))
        if len(order) != len(self.alive):
            raise AssertionError("the fused groups depend on each other in a cycle")
        return order


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of a bit set, rising."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


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

    def before(self, k: int, n: ProgramNode | Nest) -> set[int]:
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

    Plain stores to provably different places of one buffer (the parts of a concatenation) need no
    order.  Calls with effects beyond their arguments keep their order, and who
    uses a number runs behind who gives it and behind what asserts something of it.
    """
    deps = Dependencies(len(program.nodes))
    writers: defaultdict[str, _Writers] = defaultdict(lambda: _Writers(roots.__getitem__))
    readers: dict[str, list[int]] = {}
    last: dict[str, int] = {}  # of each kind of effect
    numbers = Numbers(program)
    for k, n in enumerate(program.nodes):
        reads = {roots[b]: None for b in n.read_buffers()}
        writes = {roots[b]: None for b in n.write_buffers()}
        before: set[int] = set()
        for b in reads:
            before.update(writers[b].older, writers[b].parts)
        for b in writes:
            before.update(readers.get(b, ()), writers[b].add(k, n, b))
        for kind in effects_of(n, program):
            before.add(last.get(kind, k))
            last[kind] = k
        before.update(numbers.before(k, n))
        before.discard(k)
        for p in sorted(before):
            deps.add(p, k)
        for b in reads:
            readers.setdefault(b, []).append(k)
    return deps


def touched(
    program: Program, steps: Sequence[Step], memory: Mapping[str, Touched] | None = None
) -> Mapping[str, Touched]:
    """The memory that each step reads and that it writes, by its owners, for each by name.

    memory: ``memory_of`` each, where that is known.
    Of a memory that several write first, each a part apart from the others, each part is one by
    itself; who writes behind them writes all of it.
    """
    plain = memory or {s.name: memory_of(program, s) for s in steps}
    times = Counter(b for _, writes in plain.values() for b in writes)
    writers: defaultdict[str, _Writers] = defaultdict(lambda: _Writers(program.root))
    for k, step in enumerate(steps):
        for b in plain[step.name][1]:
            if times[b] > 1:
                writers[b].add(k, step, b)
    parts = {
        b: {steps[k].name: f"{b}[{i}]" for i, k in enumerate(first)}
        for b, w in writers.items()
        if len(first := w.begun if w.older else w.parts) > 1
    }
    if not parts:
        return plain

    def whole(names: Iterable[str]) -> Iterator[str]:
        return (p for b in names for p in (b, *parts.get(b, {}).values()))

    out: dict[str, Touched] = {}
    for name, (reads, writes) in plain.items():
        written = ([parts[b][name]] if name in parts.get(b, ()) else whole((b,)) for b in writes)
        out[name] = dict.fromkeys(whole(reads)), dict.fromkeys(p for own in written for p in own)
    return out


def memory_of(program: Program, step: Step) -> Touched:
    """The memory that a step reads and that it writes, by its owners."""
    reads = dict.fromkeys(map(program.root, step.read_buffers()))
    return reads, dict.fromkeys(map(program.root, step.write_buffers()))


def hazards(
    touched: Iterable[tuple[Iterable[str], Iterable[str]]],
) -> Iterator[dict[int, None]]:
    """For each step those before it that it has to follow, by number.

    touched: the memory that each reads and that it writes.  What follows from others is left out:
    of who wrote a memory the last alone counts, of who read it those since.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for k, (reads, writes) in enumerate(touched):
        found = {writer[b]: None for b in (*reads, *writes) if b in writer}
        found.update((r, None) for b in writes for r in readers.pop(b, ()))
        yield found
        for b in reads:
            readers.setdefault(b, []).append(k)
        writer.update(dict.fromkeys(writes, k))


def peak(used: Sequence[Collection[str]], sizes: Mapping[str, int], stays: Collection[str]) -> int:
    """The most bytes that live at once of what steps use, each from its first use to its last.

    used: by each step in order, no memory twice; stays: what lives on behind all of them.
    """
    last = {b: i for i, names in enumerate(used) for b in names}
    seen: set[str] = set()
    now = most = 0
    for i, names in enumerate(used):
        now += sum(sizes[b] for b in names if b not in seen)
        seen.update(names)
        most = max(most, now)
        now -= sum(sizes[b] for b in names if last[b] == i and b not in stays)
    return most


def effects_of(n: ProgramNode | Nest, program: Program) -> tuple[str, ...]:
    """The kinds of effects that a step has beyond its arguments, its bodies' too.

    Those of a kind keep their order: collectives, and random draws, calls that return nothing and
    those of script objects.
    """
    if not isinstance(n, Extern) or n.is_number:
        return ()
    if is_wait(n.target):
        return ()
    if is_start(n.target):
        return ("collective",)
    found: dict[str, None] = {}
    for body in (program.bodies[b.name] for b in n.bodies):
        found.update(dict.fromkeys(kind for m in body.nodes for kind in effects_of(m, body)))
    draws = is_random(n.target) or takes_objects(n.target)
    if draws or not (n.symbols or any(o is not None for o in n.outputs)):
        found["other"] = None
    return (*found,)


class _Writers:
    """Who writes a buffer: ``older`` nodes, and ``parts`` of it that lie apart from each other.

    Each part lies behind those before it in one row-major layout, as the parts of a concatenation
    do, so that one look tells a new one apart from all.  ``begun``: with which its writers began.
    """

    def __init__(self, root: Callable[[str], str]) -> None:
        self.root = root  # of a buffer
        self.older: list[int] = []
        self.parts: list[int] = []
        self.begun: list[int] = []
        self.first: _Slice | None = None
        self.outer: list[tuple[int, int]] | None = None
        self.end = 0

    def add(self, k: int, n: ProgramNode | Step, root: str) -> list[int]:
        """The writers that ``n``, the node of number ``k``, has to follow."""
        found = None
        if isinstance(n, Loops | Group):
            first, *others = (s for s in n.stores if self.root(s.buffer) == root)
            if not others and first.buffer == root and not first.indirect:
                found = _digits(first.index, n.axes)
        if found is None or self.first is None or not self._behind(found, *self.first):
            self.begun = self.begun if self.older else self.parts
            self.older += self.parts
            self.parts, self.first, self.outer = [], found, None
        follows = self.older.copy()
        (self.older if found is None else self.parts).append(k)
        return follows

    def _behind(self, found: _Slice, first: list[tuple[int, int]], start: int) -> bool:
        """Whether a slice lies behind all parts: equal outer loops, and inner ranges in a row."""
        if self.outer is None:
            self.outer = [d for d in first if d[0] >= found[1] - start]
            self.end = start + _reach([d for d in first if d not in self.outer])
        inner = [d for d in found[0] if d not in self.outer]
        last, self.end = self.end, found[1] + _reach(inner)
        same = len(inner) + len(self.outer) == len(found[0]) and found[1] > last
        return same and _nested(self.outer, self.end - start)


def lie_apart(a: Expr, b: Expr) -> bool:
    """Whether two places are never the same, at whatever points their loops are.

    Proven where both have outer loops alike and inner ranges, within one step of those, of which
    one ends before the other begins: as parts of a concatenation do.
    """
    found = _slice(a), _slice(b)
    if found[0] is None or found[1] is None:
        return False
    (first, start), (second, after) = sorted((found[0], found[1]), key=lambda s: s[1])
    for k in range(min(len(first), len(second)) + 1):
        if first[:k] != second[:k]:
            return False
        last = after + _reach(second[k:])
        if start + _reach(first[k:]) < after and _nested(first[:k], last - start):
            return True
    return False


def _reach(digits: Sequence[tuple[int, int]]) -> int:
    """How far the last place of loops lies from their first."""
    return sum(stride * max(extent - 1, 0) for stride, extent in digits)


def _nested(outer: Sequence[tuple[int, int]], reach: int) -> bool:
    """Whether each step of a loop leads beyond all the inner ones, the innermost of ``reach``."""
    for stride, extent in sorted(outer):
        if stride <= reach:
            return False
        reach += _reach([(stride, extent)])
    return True


@lru_cache(maxsize=4096)
def _slice(i: Expr) -> _Slice | None:
    """The places of an index over all its loops: the largest stride first, no loop in two."""
    found = _digits(i, [v for v in i.free if isinstance(v, Var)])
    if found is None:
        return None
    digits: list[tuple[int, int]] = []
    for stride, extent in sorted(found[0], reverse=True):
        if digits and digits[-1][0] == stride * extent:
            digits[-1] = stride, digits[-1][1] * extent
        else:
            digits.append((stride, extent))
    return digits, found[1]


def _digits(i: Expr, loops: Sequence[Expr]) -> _Slice | None:
    """(stride, extent) of each loop in a constant-strided index, and its offset."""
    split = split_linear(i, loops)
    if split is None or not isinstance(split[1], Const):
        return None
    digits: list[tuple[int, int]] = []
    for v in loops:
        c = split[0].get(v)
        extent = v.extent  # type: ignore[attr-defined]
        if not isinstance(c, Const) or not isinstance(extent, Const) or c.value <= 0:
            return None
        digits.append((c.value, extent.value))
    return digits, split[1].value
