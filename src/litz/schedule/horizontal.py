"""Horizontal groups: independent kernels of a schedule that one launch runs.

Steps between two calls of operators form a run; where that saves many launches, with those calls
among them that do no more than fill memory, as products of matrices do.  Each step has a depth in
its run: the longest chain of steps before it that it has to follow.  Steps of one depth need
nothing of each other; who can share a launch among them is the target's to say.  Its members then
run one after the other, in the place of the first, behind all that any of them follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from litz.dataclass import dataclass
from litz.errors import VerifyError
from litz.ir.program import Extern, made_numbers, used_numbers
from litz.schedule.dependencies import Touched, effects_of, hazards, memory_of, peak, touched
from litz.schedule.groups import Group, HorizontalGroup, Schedule, Step, bytes_hint

Share = Callable[[Sequence[Group], bool], Iterable[tuple[Sequence[Group], str]]]
"""Of independent groups those that one launch can run, two or more, and why; the second argument
says that the user wants them to share it."""
Needs = Sequence[Mapping[int, None]]
"""For each step of a run those that it has to follow, by number."""
SLACK = 1 << 20  # bytes of temporaries that more may live at once than without horizontal groups
PART = 16  # or this part of all memory
MANY = 8  # launches saved, for which a step may run far from the call whose result it finds cached


def arrange(schedule: Schedule, share: Share, numbers: Mapping[str, int] | None = None) -> Schedule:
    """The schedule with horizontal groups, their members next to each other.

    numbers: a user's partition: groups of different numbers share no launch; those without a number
    are apart from all that have one.  A run that would need much more memory than before is cut in
    halves until it does not.
    """
    memory = _Memory(schedule)
    used = _needed(schedule, memory.memory)
    steps: list[Step] = []
    launches: list[HorizontalGroup] = []

    def find(run: Sequence[Step]) -> tuple[Needs, list[HorizontalGroup]]:
        needs = [*hazards(used[step.name] for step in run)]
        return needs, [] if len(run) < 2 else _find(run, needs, share, numbers or {})

    free = {s.name for s in schedule.steps if isinstance(s, Extern) and _only_fills(s, schedule)}
    todo = list(_runs(_gathered(schedule.steps, used), free))[::-1]
    while todo:
        run = todo.pop()
        needs, found = find(run)
        short = list(_runs(run)) if not free.isdisjoint(s.name for s in run) else []
        if len(short) > 1:
            saved = _saved(found) - MANY
            if saved < 0 or saved < sum(_saved(find(part)[1]) for part in short):
                todo += short[::-1]
                continue
        if not found:
            steps += run
            continue
        order = _ordered(run, needs, [x.groups for x in found])
        if not memory.bears(run, order):
            middle = len(run) // 2
            todo += [run[middle:], run[:middle]]
            continue
        steps += [step for some in order for step in some]
        launches += found
    return replace(schedule, steps=tuple(steps), horizontal=tuple(launches))


def verify_launches(before: Schedule, after: Schedule) -> None:
    """Raise VerifyError where horizontal groups would change what is computed.

    Their members are there, stand next to each other on one device, and none reads or writes what
    another writes; and all steps of ``after`` see of every memory what they saw in ``before``.
    """
    used = _needed(before)
    steps = {s.name: s for s in after.steps}
    place = {s.name: i for i, s in enumerate(after.steps)}
    taken: set[str] = set()
    for x in after.horizontal:
        members = [steps[n] for n in x.groups if isinstance(steps.get(n), Group)]
        head = f"one launch of {', '.join(x.groups)}: "
        if len(members) < len(x.groups) or len(members) < 2:
            raise VerifyError(f"{head}there are not two or more groups of these names")
        if not taken.isdisjoint(x.groups) or len(set(x.groups)) < len(x.groups):
            raise VerifyError(f"{head}a group runs once")
        taken.update(x.groups)
        first = place[x.groups[0]]
        if [place[n] for n in x.groups] != list(range(first, first + len(members))):
            raise VerifyError(f"{head}they do not follow each other")
        if len({m.device for m in members}) > 1:
            raise VerifyError(f"{head}they run on different devices")
        _verify_apart(used, members, head)
    old, new = (_versions(used, s.steps) for s in (before, after))
    for name, seen in old.items():
        if new.get(name) != seen:
            raise VerifyError(f"{name} meets other values where launches are shared")
    if len(new) != len(old) or len(after.steps) != len(before.steps):
        raise VerifyError("the steps are not those from before launches were shared")


def _verify_apart(used: Mapping[str, Touched], members: Sequence[Step], head: str) -> None:
    reads, writes = zip(*(used[m.name] for m in members), strict=True)
    writer: dict[str, int] = {}
    for i, own in enumerate(writes):
        for b in own:
            if writer.setdefault(b, i) != i:
                both = f"{members[writer[b]].name} and {members[i].name}"
                raise VerifyError(f"{head}{both} write {b}")
    for i, own in enumerate(reads):
        for b in own:
            if writer.get(b, i) != i:
                wrote = members[writer[b]].name
                raise VerifyError(f"{head}{members[i].name} reads {b}, which {wrote} writes")


def _versions(used: Mapping[str, Touched], steps: Iterable[Step]) -> dict[str, object]:
    """For each step how often all that it touches was written before it."""
    count: dict[str, int] = {}
    out: dict[str, object] = {}
    for step in steps:
        reads, writes = used[step.name]
        out[step.name] = tuple((b, count.get(b, 0)) for b in (*reads, *writes))
        count.update((b, count.get(b, 0) + 1) for b in writes)
    return out


def _needed(
    schedule: Schedule, memory: Mapping[str, Touched] | None = None
) -> Mapping[str, Touched]:
    """``touched``, and the numbers that calls give as if they were memory too."""
    program, steps = schedule.program, schedule.steps
    used = touched(program, steps, memory)
    made = {s.name: dict.fromkeys(made_numbers(s)) for s in steps if isinstance(s, Extern)}
    given = {x for own in made.values() for x in own}
    if not given:
        return used
    out: dict[str, Touched] = {}
    for s in steps:
        reads, writes = used[s.name]
        numbers = (x for x in used_numbers(s, program.buffers) if x in given)
        out[s.name] = reads | dict.fromkeys(numbers), writes | made.get(s.name, {})
    return out


def _gathered(steps: Sequence[Step], used: Mapping[str, Touched]) -> list[Step]:
    """The steps, those behind the first one that update numbers which no other step touches, by
    none that a call gives.

    As counters of calls are, in a model's every norm: calls of operators stand between them.
    """
    users = Counter(b for s in steps for b in {*used[s.name][0], *used[s.name][1]})
    numbers = [
        s for s in steps
        if isinstance(s, Group) and not (s.axes or s.reduce_axes)
        if all(users[b] == 1 for own in used[s.name] for b in own)
    ]  # fmt: skip
    later = {s.name for s in numbers[1:]}
    out: list[Step] = []
    for s in steps:
        if s.name not in later:
            out += numbers if numbers and s is numbers[0] else [s]
    return out


def _runs(steps: Sequence[Step], inside: Collection[str] = ()) -> Iterator[list[Step]]:
    """The steps between calls of operators, and each of these.  inside: calls that end no run."""
    run: list[Step] = []
    for step in steps:
        if isinstance(step, Extern) and step.name not in inside:
            yield from ([run] if run else [])
            run = []
            yield [step]
        else:
            run.append(step)
    yield from ([run] if run else [])


def _only_fills(call: Extern, schedule: Schedule) -> bool:
    """Whether a call does nothing but fill memory that the program allocated."""
    numbers = call.symbols or call.sizes or call.checks
    return (
        call.out_variant
        and not (numbers or call.mutates or call.bodies)
        and not effects_of(call, schedule.program)
    )


def _saved(found: Iterable[HorizontalGroup]) -> int:
    return sum(len(x.groups) - 1 for x in found)


def _find(
    run: Sequence[Step], needs: Needs, share: Share, numbers: Mapping[str, int]
) -> list[HorizontalGroup]:
    """The horizontal groups of a run."""
    depths: list[int] = []
    alike: dict[tuple[int, str, int | None], list[Group]] = {}
    for step, before in zip(run, needs, strict=True):
        depth = 1 + max((depths[i] for i in before), default=-1)
        depths.append(depth)
        if isinstance(step, Group):
            key = (depth, step.device, numbers.get(step.name))
            alike.setdefault(key, []).append(step)
    out = []
    number = {step.name: i for i, step in enumerate(run)}
    for (depth, _, given), some in alike.items():
        for members, why in share(some, given is not None) if len(some) > 1 else ():
            apart = f"they need nothing of each other at depth {depth}"
            chosen = "" if given is None else f", number {given} of the user's partition"
            names = sorted((m.name for m in members), key=number.__getitem__)
            out.append(HorizontalGroup(tuple(names), f"{why}; {apart}{chosen}"))
    return out


def _ordered(
    run: Sequence[Step], needs: Needs, together: Iterable[Sequence[str]]
) -> list[list[Step]]:
    """The steps of a run in launches, each as early as before where nothing stands against it."""
    number = {step.name: i for i, step in enumerate(run)}
    first = {n: number[names[0]] for names in together for n in names}
    owner = [first.get(step.name, i) for i, step in enumerate(run)]
    launches: dict[int, list[Step]] = {}
    follows: dict[int, dict[int, None]] = {}
    for step, own, before in zip(run, owner, needs, strict=True):
        launches.setdefault(own, []).append(step)
        follows.setdefault(own, {}).update((owner[i], None) for i in before)
    out: dict[int, None] = {}
    for top in launches:
        stack = [top]
        while stack:
            left = [k for k in follows[stack[-1]] if k not in out and k != stack[-1]]
            stack += reversed(left)
            if not left:
                out[stack.pop()] = None
    return [launches[k] for k in out]


@dataclass
class _Memory:
    """What steps touch, by their names, and what orders of a run's steps need of temporaries."""

    schedule: Schedule

    def __post_init__(self) -> None:
        program = self.schedule.program
        self.memory = {step.name: memory_of(program, step) for step in self.schedule.steps}

    @cached_property
    def last(self) -> Mapping[str, str]:
        """The last step that uses a temporary."""
        program = self.schedule.program
        found: dict[str, str] = {}
        for name, both in self.memory.items():
            for own in both:
                found.update(dict.fromkeys(own, name))
        for name in {program.root(r.buffer) for r in program.output_refs()}:
            found.pop(name, None)
        return found

    @cached_property
    def bytes_of(self) -> Mapping[str, int]:
        buffers = self.schedule.program.buffers
        return {n: bytes_hint(b) for n, b in buffers.items() if b.alias is None}

    @cached_property
    def temps(self) -> Mapping[str, int]:
        buffers = self.schedule.program.buffers
        return {n: k for n, k in self.bytes_of.items() if buffers[n].kind == "temp"}

    @property
    def given(self) -> int:
        return sum(self.bytes_of.values()) - sum(self.temps.values())

    def bears(self, run: Sequence[Step], order: Sequence[Sequence[Step]]) -> bool:
        """Whether launches in this order need little more memory than the steps one by one."""
        before, after = self.peak([[step] for step in run]), self.peak(order)
        return after <= before + max(SLACK, (self.given + before) // PART)

    def peak(self, order: Sequence[Sequence[Step]]) -> int:
        inside = {step.name for some in order for step in some}
        used = []
        for some in order:
            touches = (self.memory[step.name] for step in some)
            used.append({b for own in touches for part in own for b in part if b in self.temps})
        stays = {b for names in used for b in names if self.last.get(b) not in inside}
        return peak(used, self.temps, stays)
