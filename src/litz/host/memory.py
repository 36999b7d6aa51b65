"""Memory planning: a rewrite of host lines that shares memory and forms segments.

In order: an output takes over the memory of an input that dies in its kernel, where the caller
allows it; consecutive kernel calls become segments; buffers that live inside one segment share a
workspace; temporaries lie in one arena and in results that are written later (on GPUs small ones
that kernels alone see, in an arena); what is left, a dead buffer's memory serves for a later one of
equal size.  None of this may lift the peak above what freeing everything at once would need (an
arena by a little): a segment that would is cut.

Memory that a kernel needs during its call alone is planned likewise (``CallKernel.temporaries``),
but for what depends on the number of threads (parts of a reduction that they divide, a thread's own
scratch) and for scratch that Triton's compiler asks for: kernels take that themselves.

Memory of inputs and of externs' results is never taken over (but for results that are known to
be fresh memory), nor is memory that escapes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from operator import add

from litz.dataclass import dataclass
from litz.host.arena import Arena, lay_out
from litz.host.lifetimes import Block, Lifetimes, Span, given_bytes, lifetimes, summed
from litz.host.lines import (
    Allocate,
    CallKernel,
    CallSegment,
    Free,
    HostProgram,
    Line,
    Place,
    Reuse,
    View,
    Workspace,
)
from litz.host.pool import Item, MemoryRegion, pack
from litz.host.sizes import LARGE_BYTES
from litz.index import Expr

Pairs = tuple[tuple[str, str], ...]
SLACK = 1 << 18
HEAP = 16 << 20
SMALL = 1 << 20  # bytes below which PyTorch's allocator for GPUs has blocks of 2 MiB
ARENA = "arena"


@dataclass
class _Plan:
    """A host program while its memory is being planned.

    given: memory that is no block.  live: the bytes held at each step, as far as is decided.
    """

    host: HostProgram
    times: Lifetimes
    blocks: list[Block]
    given: list[Span]
    live: list[int] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)
    around: dict[int, tuple[int, int]] = field(default_factory=dict)
    places: dict[int, dict[str, tuple[str, int]]] = field(default_factory=dict)
    scratch: dict[int, int] = field(default_factory=dict)
    arena: Arena = Arena({}, (), 0, ())
    lenders: dict[str, Block] = field(default_factory=dict)

    @property
    def arena_device(self) -> str:
        """Where temporaries share an arena: a GPU where all memory is there."""
        found = {b.device for b in self.blocks}
        return found.pop() if len(found) == 1 else "cpu"

    @property
    def peak(self) -> int:
        return max(self.live)

    def held(self, birth: int, death: int) -> tuple[int, int]:
        """When memory is held that is used from ``birth`` to ``death``: during whole segments."""
        return self.around.get(birth, (birth, birth))[0], self.around.get(death, (death, death))[1]

    def count(self, pooled: Container[str] = ()) -> None:
        """Count what is held at each step: blocks that lie in no segment, and segments' scratch."""
        spans = [
            *self.given,
            *((b.birth, b.death, b.nbytes) for b in self.blocks if b.members[0] not in pooled),
        ]
        held: list[Span] = [(*self.held(first, last), n) for first, last, n in spans]
        held += [(*self.held(first, first), n) for first, n in self.scratch.items()]
        self.live = summed(held, self.times.end) or [0]


def plan_memory(
    host: HostProgram,
    inplace: Mapping[str, Pairs] | None = None,
    *,
    segments: bool = True,
    slack: int = SLACK,
) -> HostProgram:
    """Plan the memory of a plain host program (``litz.host.plan.plan``).

    inplace: for a group (output, input) pairs where the output may lie in the input's memory.
    segments: whether consecutive CPU kernels run as one native call.
    slack: bytes by which a segment may exceed the peak before it is cut; an arena may exceed it by
    a part of it too, unless slack is 0.
    """
    times = lifetimes(host)
    p = _Plan(host, times, list(times.blocks.values()), given_bytes(host, times))
    _take_over(p, inplace or {})
    p.count()
    p.segments = list(_cut(p, slack)) if segments else [(i, i) for i in range(times.end)]
    p.around = {i: s for s in p.segments if s[0] < s[1] for i in range(s[0], s[1] + 1)}
    pooled = {m for places in p.places.values() for m in places}
    p.count(pooled)
    _lay_out(p, pooled, slack)
    _reuse(p, pooled)
    return host.with_lines(tuple(_emit(p)))


# --- in place ------------------------------------------------------------------------------------


def _take_over(p: _Plan, inplace: Mapping[str, Pairs]) -> None:
    """Join the block of an output to that of an input that dies in the same kernel."""
    owner = {m: b for b in p.blocks for m in b.members}
    gone: set[int] = set()
    for i, step in enumerate(p.times.steps):
        if not isinstance(step, CallKernel):
            continue
        for out, old in inplace.get(step.group, ()):
            a, b = owner.get(old), owner.get(out)
            if a is None or b is None or a is b or a.death != i or b.birth != i:
                continue
            if a.members[-1] == old and _may_follow(p, a, b):
                _join(a, b, gone)
                owner.update(dict.fromkeys(b.members, a))
    _drop(p, gone)


def _may_follow(p: _Plan, a: Block, b: Block) -> bool:
    """Whether the buffers of ``b`` can live in the memory of ``a`` after those of ``a``."""
    if b.given or a.size is not b.size or a.device != b.device:
        return False
    seen = [m for m in (*a.members, *b.members) if m in p.times.visible]
    return len({p.host.buffers[m].dtype for m in seen}) <= 1


def _join(a: Block, b: Block, gone: set[int]) -> None:
    a.members += b.members
    a.death = b.death
    gone.add(id(b))


def _drop(p: _Plan, gone: set[int]) -> None:
    """Forget the blocks that others have taken in, all at once."""
    p.blocks = [b for b in p.blocks if id(b) not in gone]


# --- segments --------------------------------------------------------------------------------


def _runs(p: _Plan) -> Iterator[tuple[int, int]]:
    """Maximal runs of steps that one native call can do; any other step alone."""
    start = 0
    for i in range(p.times.end):
        last = i + 1 == p.times.end
        if last or not (_native(p, i) and _native(p, i + 1)) or i + 1 in p.times.kept:
            yield start, i
            start = i + 1


def _native(p: _Plan, i: int) -> bool:
    step = p.times.steps[i]
    if not isinstance(step, CallKernel):
        return False
    return all(p.host.buffers[b].device.startswith("cpu") for b in step.buffers)


def _cut(p: _Plan, slack: int) -> Iterator[tuple[int, int]]:
    """The segments, small enough that allocating ahead and freeing late keeps to the peak."""
    todo = list(_runs(p))[::-1]
    spans = _Spans(p)
    given, limit = summed(p.given, p.times.end), p.peak + slack
    while todo:
        first, last = todo.pop()
        if first == last and not _native(p, first):
            yield first, last
            continue
        inside, scratch, places = _pool(p, spans.at(first, last), first, last)
        held = spans.held(first, last) - sum(b.nbytes for b in inside)
        if last > first and held + scratch + given[first] > limit:
            middle = (first + last) // 2
            todo += [(middle + 1, last), (first, middle)]
            continue
        p.places[first], p.scratch[first] = places, scratch
        yield first, last


class _Spans:
    """The blocks by the steps at which they begin and end: what a segment asks for, not all."""

    def __init__(self, p: _Plan) -> None:
        self.blocks = p.blocks
        self.edges: dict[int, list[int]] = {}
        end = p.times.end
        begun, ended = ([0] * (end + 1) for _ in range(2))
        for k, b in enumerate(p.blocks):
            for step in {b.birth, b.death}:
                self.edges.setdefault(step, []).append(k)
            begun[min(max(b.birth, 0), end)] += b.nbytes
            ended[min(max(b.death + 1, 0), end)] += b.nbytes
        self.begun, self.ended = list(accumulate(begun)), list(accumulate(ended))

    def held(self, first: int, last: int) -> int:
        """Bytes of the blocks that live during any of these steps."""
        return self.begun[last] - self.ended[first]

    def at(self, first: int, last: int) -> Iterator[Block]:
        """The blocks that begin or end within these steps, in order."""
        found = {k for step in range(first, last + 1) for k in self.edges.get(step, ())}
        return (self.blocks[k] for k in sorted(found))


def _pool(
    p: _Plan, blocks: Iterable[Block], first: int, last: int
) -> tuple[list[Block], int, dict[str, tuple[str, int]]]:
    """Place the blocks that live inside these steps: (blocks, bytes of scratch, places).

    blocks: those that begin or end within the steps.
    """
    inside: list[Block] = []
    hosts: list[MemoryRegion] = []
    for b in blocks:
        if b.birth > last or b.death < first:  # one that nobody uses ends before it begins
            continue
        if _poolable(p, b, first, last):
            inside.append(b)
        elif (host := _host(b, first, last)) is not None:
            hosts.append(host)
    items = [Item(b.members[0], b.nbytes, b.birth, b.death) for b in inside]
    places, scratch = pack(items, hosts)
    return inside, scratch, places


def _poolable(p: _Plan, b: Block, first: int, last: int) -> bool:
    only_kernels = not any(m in p.times.visible for m in b.members)
    # A segment without scratch memory has no workspace for what takes no bytes to lie in.
    known = b.size.is_const and b.nbytes > 0
    return first <= b.birth and b.death <= last and only_kernels and known


def _host(b: Block, first: int, last: int) -> MemoryRegion | None:
    """A block that is allocated during all of the segment and empty for a part of it."""
    if not b.size.is_const or (b.birth <= first and b.death >= last):
        return None
    return MemoryRegion(b.members[0], b.nbytes, (b.birth, b.death))


# --- the arena ------------------------------------------------------------------------------------


def _lay_out(p: _Plan, pooled: set[str], slack: int) -> None:
    """Give the temporaries of known size places in one arena and in results that come later.

    On a GPU the small ones that kernels alone see, in an arena: to allocate each takes time.  Large
    ones PyTorch's allocator serves, which keeps them for what other programs need.
    """
    device = p.arena_device
    mine = [
        b
        for b in p.blocks
        if b.size.is_const and b.nbytes and b.device == device and not b.given
        if b.members[0] not in pooled
    ]
    lent = _lent(p)
    if device != "cpu":
        small = [b for b in mine if b.death < p.times.end and b.nbytes <= SMALL]
        hidden = [b for b in small if not any(m in p.times.visible for m in b.members)]
        _share(p, [_item(b, lent) for b in hidden], (), SMALL)
        return
    items = [_item(b, lent) for b in mine if b.death < p.times.end]
    items += [
        Item(_workspace(first), p.scratch[first], first, last)
        for first, last in p.segments
        if p.scratch.get(first)
    ]
    results = [_item(b, lent) for b in mine if b.death >= p.times.end]
    # At first all of them, then what is not recycled by itself anyway.
    for some in (items, [i for i in items if i.nbytes < LARGE_BYTES]):
        if _share(p, some, results, _margin(p, slack)):
            return


def _share(p: _Plan, items: Sequence[Item], results: Sequence[Item], margin: int) -> bool:
    """Lay out an arena for several items, if that lifts the peak by no more than the margin."""
    if len(items) < 2:
        return False
    inside = {i.name for i in items}
    spans: list[Span] = [
        (*p.held(b.birth, b.death), -b.nbytes) for b in p.blocks if b.members[0] in inside
    ]
    spans += [
        (first, last, -p.scratch[first])
        for first, last in p.segments
        if _workspace(first) in inside
    ]
    others = list(map(add, p.live, summed(spans, len(p.live))))
    found = lay_out(items, results, others, p.peak + margin)
    if found is not None:
        p.arena, p.live = found, list(found.live)
    return found is not None


def _margin(p: _Plan, slack: int) -> int:
    """What an arena may cost: less than the C library's heap loses between mid-size buffers."""
    return max(slack, p.peak // 16, min(p.peak // 4, HEAP)) if slack else 0


def _lent(p: _Plan) -> dict[str, tuple[int, int]]:
    """The first and the last step of the segments in which a block lends memory, by its name."""
    out: dict[str, tuple[int, int]] = {}
    for first, last in p.segments:
        for owner, _ in p.places.get(first, {}).values():
            out[owner] = (out.get(owner, (first, last))[0], last)
    return out


def _item(b: Block, lent: Mapping[str, tuple[int, int]]) -> Item:
    """A block as an item: one that lends memory within a segment is needed during all of it."""
    first, last = lent.get(b.members[0], (b.birth, b.death))
    return Item(b.members[0], b.nbytes, min(b.birth, first), max(b.death, last))


# --- equal sizes ----------------------------------------------------------------------------------


def _reuse(p: _Plan, pooled: set[str]) -> None:
    """Give a block the memory of a dead one of equal size, where holding it is free."""
    hosting = {owner for places in p.places.values() for owner, _ in places.values()}
    fixed = {*pooled, *hosting, *p.arena.places, *p.arena.lenders}
    loose = sorted(
        (b for b in p.blocks if b.members[0] not in fixed),
        key=lambda b: b.birth,
    )
    ends: dict[tuple[Expr, str], list[Block]] = {}
    gone: set[int] = set()
    for block in loose:
        # By their ends; those behind this one's beginning are of no use yet.
        others = ends.setdefault((block.size, block.device), [])
        dead = bisect_left(others, block.birth, key=lambda b: b.death)
        found = next((a for a in reversed(others[:dead]) if _can_reuse(p, a, block)), None)
        if found is not None:
            for t in _between(p, found, block):
                p.live[t] += block.nbytes
            others.remove(found)
            _join(found, block, gone)
        insort(others, found or block, key=lambda b: b.death)
    _drop(p, gone)


def _can_reuse(p: _Plan, a: Block, b: Block) -> bool:
    if not _may_follow(p, a, b):
        return False
    gap = _between(p, a, b)
    return not gap or max(p.live[gap.start : gap.stop]) + a.nbytes <= p.peak


def _between(p: _Plan, a: Block, b: Block) -> range:
    """The steps at which neither of two blocks is held."""
    return range(p.held(a.birth, a.death)[1] + 1, p.held(b.birth, b.death)[0])


# --- lines ----------------------------------------------------------------------------------------


def _emit(p: _Plan) -> Iterator[Line]:
    count = 0
    placed = {m: first for first, places in p.places.items() for m in places}
    loose = {b.members[0]: b for b in p.blocks if b.members[0] not in placed}
    pooled: dict[int, list[Block]] = {}
    for block in p.blocks:
        if block.members[0] in placed:
            pooled.setdefault(placed[block.members[0]], []).append(block)
    p.lenders = {name: loose[name] for name in p.arena.lenders}
    born: dict[int, list[tuple[Block, str]]] = {}
    dying: dict[int, list[Block]] = {}
    for block in loose.values():
        dying.setdefault(block.death, []).append(block)
        for m in block.members:
            born.setdefault(_birth(p, m), []).append((block, m))
    if p.times.end:  # sizes are read, and inputs that nothing uses die, before all else
        yield from p.times.kept.get(0, ())
    yield from (Allocate(_tensors(p, loose[name])[0]) for name in p.arena.lenders)
    arena = _arena_span(p)
    for first, last in p.segments:
        steps = range(first, last + 1)
        yield from (line for i in steps if i for line in p.times.kept.get(i, ()))
        if first <= arena[0] <= last:
            yield Workspace(ARENA, p.arena.extent, p.arena_device)
        if p.scratch.get(first):
            yield _scratch(p, first)
        for block, m in (x for i in steps for x in born.get(i, ())):
            yield from _bring_up(p, block, m)
        if first in p.places:
            yield from _places(p, pooled.get(first, ()), loose, first)
            calls = p.times.steps[first : last + 1]
            yield CallSegment(
                f"segment_{count}", tuple(c for c in calls if isinstance(c, CallKernel))
            )
            count += 1
        else:
            yield p.times.steps[first]
        if p.scratch.get(first) and _workspace(first) not in p.arena.places:
            yield Free(_workspace(first))
        dead = [b for i in steps for b in dying.get(i, ()) if not _placed(p, b)]
        yield from (Free(_tensor(p, b, last)) for b in dead)
        yield from (Free(name) for i in steps for name in p.times.frees.get(i, ()))
        if first <= arena[1] <= last:
            yield Free(ARENA)
    yield from p.times.kept.get(p.times.end, ())


def _arena_span(p: _Plan) -> tuple[int, int]:
    """The first and the last step that use the arena's own memory."""
    inside = {name for name, (owner, _) in p.arena.places.items() if owner == ""}
    spans = [(b.birth, b.death) for b in p.blocks if b.members[0] in inside]
    spans += [(first, last) for first, last in p.segments if _workspace(first) in inside]
    return min((b for b, _ in spans), default=-1), max((d for _, d in spans), default=-1)


def _placed(p: _Plan, block: Block) -> bool:
    """Whether a block lies in the arena and is no tensor, so that nothing frees it."""
    inside = block.members[0] in p.arena.places
    return inside and not any(m in p.times.visible for m in block.members)


def _scratch(p: _Plan, first: int) -> Line:
    name = _workspace(first)
    if name in p.arena.places:
        return Place(name, *_in_arena(p, name))
    return Workspace(name, p.scratch[first], "cpu")


def _in_arena(p: _Plan, name: str) -> tuple[str, int]:
    owner, offset = p.arena.places[name]
    if not owner:
        return ARENA, offset
    return _tensors(p, p.lenders[owner])[0], offset


def _workspace(first: int) -> str:
    return f"workspace_{first}"


def _places(
    p: _Plan, blocks: Iterable[Block], loose: Mapping[str, Block], first: int
) -> Iterator[Line]:
    """Where the buffers of a segment lie that share memory."""
    for b in blocks:
        name, offset = p.places[first][b.members[0]]
        host = loose.get(name)
        owner = _workspace(first) if host is None else _tensor(p, host, first - 1)
        yield from (Place(m, owner, offset) for m in b.members)


def _bring_up(p: _Plan, block: Block, member: str) -> Iterator[Line]:
    tensor = _tensors(p, block)[0]
    if member == block.members[0] and not block.given and member not in p.arena.lenders:
        place = p.arena.places.get(member)
        if place is None:
            yield Allocate(tensor)
        elif _placed(p, block):
            yield Place(member, *_in_arena(p, member))
        else:
            yield View(tensor, *_in_arena(p, member))
    if member in p.times.visible:
        if member != tensor:
            yield Reuse(member, _tensor(p, block, _birth(p, member) - 1))
    elif member != tensor:
        yield Place(member, _tensor(p, block, _birth(p, member)), 0)


def _birth(p: _Plan, member: str) -> int:
    return p.times.blocks[member].birth


def _tensors(p: _Plan, block: Block) -> list[str]:
    """The buffers of a block that are tensors: those that more than kernels see, at least one."""
    return [m for m in block.members if m in p.times.visible] or block.members[:1]


def _tensor(p: _Plan, block: Block, step: int) -> str:
    """The tensor that holds a block's memory behind ``step``."""
    tensors = _tensors(p, block)
    return next((m for m in reversed(tensors) if _birth(p, m) <= step), tensors[0])
