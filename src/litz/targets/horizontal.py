"""Which kernels share a launch, and the kernels of those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import permutations

from litz.dataclass import dataclass
from litz.host.lines import CallKernel
from litz.index import Expr, product, size_hint
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.build import BoundKernel
from litz.kernel.nodes import extent, int_value
from litz.kernel.opened import numbers, opened, sized
from litz.kernel.plan import KernelPlan
from litz.schedule.groups import Group, Schedule
from litz.schedule.horizontal import arrange, verify_launches
from litz.targets.kernels import Body, Joins, Kernel, Target, kernels_of, temporaries

TargetOf = Callable[[str], Target]
READERS = 6  # of one buffer: more share what is small


def arranged(
    schedule: Schedule,
    bound: Mapping[str, BoundKernel],
    target_of: TargetOf,
    numbers: Mapping[str, int],
    check: bool = False,
) -> Schedule:
    """The schedule with the horizontal groups that targets can launch.

    bound: the plan of each group, by name.  numbers: a user's partition.  check: verify them.
    """
    found = arrange(schedule, _Sharing(bound, target_of), numbers)
    if check:
        verify_launches(schedule, found)
    return found


@dataclass
class _Sharing:
    """Divides independent groups into launches, by the kinds that targets tell apart."""

    bound: Mapping[str, BoundKernel]
    target_of: TargetOf
    bodies: dict[KernelPlan, KernelPlan] = field(default_factory=dict)
    known: dict[tuple[KernelPlan, str], Joins | None] = field(default_factory=dict)
    divided: dict[object, list[tuple[list[int], str]]] = field(default_factory=dict)

    def __call__(self, groups: Sequence[Group], wanted: bool) -> Iterator[tuple[list[Group], str]]:
        like = wanted, _likeness(groups, self.bound)
        if like not in self.divided:  # of equal layers one is looked at
            place = {g.name: i for i, g in enumerate(groups)}
            found = self.launches(groups, wanted)
            self.divided[like] = [([place[g.name] for g in some], why) for some, why in found]
        for some, why in self.divided[like]:
            yield [groups[i] for i in some], why

    def launches(self, groups: Sequence[Group], wanted: bool) -> Iterator[tuple[list[Group], str]]:
        target = self.target_of(groups[0].device)
        pairs = list(_in_step(groups, self.bound, target))
        yield from (([a, b], "they read the same rows, in step") for a, b, _ in pairs)
        taken = {g.name for a, b, _ in pairs for g in (a, b)}
        alike: dict[KernelPlan, list[Group]] = {}
        for g in (g for g in groups if g.name not in taken):
            plan = self.bound[g.name].plan
            if plan not in self.bodies:
                self.bodies[plan] = opened(plan, target.blocks)
            alike.setdefault(self.bodies[plan], []).append(g)
        kinds: dict[str, list[tuple[Joins, list[Group]]]] = {}
        for members in alike.values():
            plan, _ = _body([self.bound[g.name] for g in members], target)
            if (plan, target.language) not in self.known:
                self.known[plan, target.language] = target.joins(plan)
            joins = self.known[plan, target.language]
            if joins is not None:
                kinds.setdefault(joins.kind, []).append((joins, members))
        for some in kinds.values():
            yield from self.packed(some, wanted)

    def packed(
        self, bodies: Sequence[tuple[Joins, list[Group]]], wanted: bool
    ) -> Iterator[tuple[list[Group], str]]:
        """Launches of one kind: a body with much to do has its own, which small ones may fill."""
        found: list[_Launch] = []
        small = []
        for joins, members in bodies:
            points = sum(_points(self.bound[g.name].plan) for g in members)
            if len(members) <= joins.most and (points < joins.large or wanted):
                small.append((joins, members))
                continue
            count = -(-len(members) // joins.most)
            for i in range(count):
                part = members[len(members) * i // count : len(members) * (i + 1) // count]
                found.append(_Launch().with_(part, joins))
        at = max(0, len(found) - 1)
        for joins, members in small:
            while at < len(found) and not found[at].takes(members, joins):
                at += 1
            found += [_Launch()] if at == len(found) else []
            found[at].with_(members, joins)
        for x in found:
            if len(x.groups) > 1:
                of = "one body" if x.bodies == 1 else f"{x.bodies} bodies"
                yield x.groups, f"{len(x.groups)} calls of {of}"


@dataclass
class _Launch:
    """A launch being filled.  room, source: the parts of it that are free."""

    groups: list[Group] = field(default_factory=list)
    bodies: int = 0
    room: float = 1.0
    source: float = 1.0

    def takes(self, members: Sequence[Group], joins: Joins) -> bool:
        return joins.part(len(members)) <= self.room and joins.body <= self.source

    def with_(self, members: Sequence[Group], joins: Joins) -> _Launch:
        self.groups += members
        self.bodies += 1
        self.room -= joins.part(len(members))
        self.source -= joins.body
        return self


def _likeness(groups: Sequence[Group], bound: Mapping[str, BoundKernel]) -> object:
    """What groups agree in that share launches in the same way, of the same kernels."""
    own = [bound[g.name] for g in groups]
    first: dict[str, int] = {}
    places = tuple(first.setdefault(n, len(first)) for b in own for n in b.buffers)
    return groups[0].device, places, *((b.plan, *_hints(b)) for b in own)


def _in_step(
    groups: Sequence[Group], bound: Mapping[str, BoundKernel], target: Target
) -> Iterator[tuple[Group, Group, int]]:
    """Kernels of rows, each with one that reduces their columns, and the rows of a block."""
    readers: dict[str, list[Group]] = {}
    for g in groups:
        if bound[g.name].plan.reduced:
            for name in dict.fromkeys(bound[g.name].buffers):
                readers.setdefault(name, []).append(g)
    few = (some for some in readers.values() if len(some) <= READERS)
    taken: set[str] = set()
    for a, b in dict.fromkeys(pair for some in few for pair in permutations(some, 2)):
        if taken.isdisjoint((a.name, b.name)):
            block = target.in_step(bound[a.name], bound[b.name])
            if block:
                taken |= {a.name, b.name}
                yield a, b, block


def _hints(b: BoundKernel) -> Iterator[int]:
    """What integers are taken for, but for places, whose symbols are taken for 0."""
    named = zip(b.plan.ints, b.ints, strict=True)
    return (min(size_hint(e), LIMIT) for s, e in named if size_hint(s) != 0)


def _points(plan: KernelPlan) -> int:
    return size_hint(product(extent(d.var) for d in plan.dims))


def _body(
    calls: Sequence[BoundKernel], target: Target, times: int = 1
) -> tuple[KernelPlan, tuple[tuple[Expr, ...], ...]]:
    """The plan of calls that differ in sizes alone, and what each takes as its integers.

    times: how often as large as they are to take them for.
    """
    rows = tuple(_numbers(b, target) for b in calls)
    most = LIMIT
    if sized(calls[0].plan, target.blocks):
        most = 1 << (max(int_value(row[-1]) for row in rows) - 1).bit_length()
    hints = [target.size([size_hint(e) for e in of]) * times for of in zip(*rows, strict=True)]
    hints = [min(h, LIMIT) for h in hints]
    return opened(calls[0].plan, target.blocks, most, hints), rows


def _numbers(call: BoundKernel, target: Target) -> tuple[Expr, ...]:
    """What a call takes as integers of its body, with those that are numbers."""
    return (*call.ints, *numbers(call.plan, target.blocks))


def joined(
    groups: Sequence[Group], bound: Mapping[str, BoundKernel], target: Target
) -> tuple[Kernel, tuple[tuple[int, Kernel | None], ...]]:
    """The kernel that one launch of some groups runs, as many as its bodies have parts.

    Gives the order too in which it takes the groups' buffers and integers, with the body of each
    whose memory between parts it takes behind those.
    """
    device = groups[0].device
    # Of more groups a pair would leave some out.
    pair = next(_in_step(groups, bound, target), None) if len(groups) == 2 else None
    if pair is not None:
        a, b, block = pair
        order: tuple[int, ...] = (groups.index(a), groups.index(b))
        of: dict[int, Kernel] = {}
        first, second = (target.kernel(bound[g.name].plan, device, "") for g in (a, b))
        kernel = target.stepped(first, second, block, _origins(groups, order))
    else:
        alike: dict[KernelPlan, list[int]] = {}
        for i, g in enumerate(groups):
            alike.setdefault(opened(bound[g.name].plan, target.blocks), []).append(i)
        order = tuple(i for members in alike.values() for i in members)
        bodies = [
            _shared([bound[groups[i].name] for i in m], device, target) for m in alike.values()
        ]
        of = {i: b.kernel for b, m in zip(bodies, alike.values(), strict=True) for i in m}
        kernel = target.joined(bodies, device, _origins(groups, order))
    plans = tuple(bound[groups[i].name].plan for i in order)
    return replace(kernel, members=plans), tuple((i, of.get(i)) for i in order)


def _shared(calls: Sequence[BoundKernel], device: str, target: Target) -> Body:
    """The body of calls that differ in sizes alone."""
    # A part of what may share a launch can be so little that it would be divided otherwise.
    tries = (_body(calls, target, n) for n in (1, 16, 256))
    can = ((x, target.joins(x[0])) for x in tries)
    plan, rows = next(x for x, joins in can if joins is not None and len(calls) <= joins.most)
    kernel = replace(target.kernel(plan, device, ""), ways=None)  # the others are not for many
    return Body(kernel, rows, len(numbers(calls[0].plan, target.blocks)))


def _origins(groups: Sequence[Group], order: Sequence[int]) -> str:
    return " ".join(dict.fromkeys(n for i in order for n in groups[i].origins))


def make_all(
    schedule: Schedule, bound: Mapping[str, BoundKernel], target_of: TargetOf
) -> tuple[dict[str, CallKernel], tuple[Kernel, ...]]:
    """The kernel call of each step that starts one, and the distinct kernels."""
    groups = {s.name: s for s in schedule.steps if isinstance(s, Group)}
    inside = {name for x in schedule.horizontal for name in x.groups}
    alone = (s for s in schedule.steps if s.name not in inside)
    calls, kernels = kernels_of(alone, bound, target_of)
    known: dict[object, tuple[Kernel, tuple[tuple[int, Kernel | None], ...]]] = {}
    made: dict[str, Kernel] = {}
    members: dict[str, list[str]] = {}
    for x in schedule.horizontal:
        some = [groups[name] for name in x.groups]
        like = _likeness(some, bound)
        if like not in known:
            known[like] = joined(some, bound, target_of(some[0].device))
        kernel, order = known[like]
        own = [bound[name] for name in x.groups]
        given = [_numbers(b, target_of(some[0].device)) for b in own]
        buffers = tuple(b for i, _ in order for b in own[i].buffers)
        ints = tuple(e for i, _ in order for e in own[i].ints)
        between = tuple(t for i, k in order if k for t in temporaries(k, given[i], some[i]))
        buffers += tuple(t.name for t in between)
        calls[x.groups[0]] = CallKernel(kernel.name, buffers, ints, x.groups[0], between)
        made.setdefault(kernel.name, kernel)
        members.setdefault(kernel.name, []).extend(x.groups)
    launches = (replace(k, groups=tuple(members[name])) for name, k in made.items())
    return calls, (*kernels, *launches)
