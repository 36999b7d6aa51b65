"""The schedule of a shortened graph with the copies that were left out.

Where a step belongs, its memory says: the latest of what stands before the copy that stays, in it,
and behind it, whose inputs or results it reads, or whose nodes it computes.  Each of the copy's
steps has to be one of those behind it but for the names of buffers, or one of those before it has
to be it, which gives what a name becomes from one copy to the next; the copy's steps then stand for
each copy that was left out, renamed as often.  A copy reads what the one before it left, and what
all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from typing import Any

from litz.graph.calls import is_random
from litz.index import Const, Expr, const
from litz.ir import body
from litz.ir.body import Node, Op, Rewriter, op, walk
from litz.ir.ops import RANDOM
from litz.ir.program import (
    Extern,
    Loops,
    Program,
    ProgramNode,
    Template,
    TensorRef,
    nest_roots,
    noted_reads,
)
from litz.kernel.build import BoundKernel, KernelBuilder, drawn_at
from litz.lowering.bindings import Handed
from litz.lowering.random import STREAM_BITS
from litz.repeats.shorten import BEFORE, BEHIND, KEPT, NotRepeating, Short
from litz.schedule.groups import Group, Schedule, Step

Plans = Mapping[str, BoundKernel]
FIXED = -1
Later = tuple[int, int]
"""By how many places in the random stream draws move, and the first that does."""

Scheduled = tuple[Schedule, Plans, Mapping[str, Handed]]
"""A schedule, the plan of each group, and what operators are handed, as far as that is known."""


def lengthened(scheduled: Scheduled, short: Short) -> Scheduled:
    """What the whole graph's would be, from that of ``short``, whose graph went through its passes.

    Raises NotRepeating where copies are scheduled otherwise than their neighbours.
    """
    return _Lengthening(scheduled, short).run()


class _Lengthening:
    """owner: where what fills a buffer, or alone reads an input, stands.  places: those of steps.

    nodes: what nodes before or in the copy are called from one to all copies later; late: the last.
    used: the buffers of steps, by name.  inputs: those that others stand for a copy later.
    next: what the copy's buffers, and those that it reads, are called in the next one's place;
    before: the same backwards.  noted: what has been added to both.
    drawing: the steps that draw.  draws: how many a copy has; drawn: those up to the copy's end.
    """

    def __init__(self, scheduled: Scheduled, short: Short) -> None:
        schedule, plans, handed = scheduled
        self.schedule, self.plans, self.handed = schedule, dict(plans), dict(handed)
        self.short = short
        self.program = schedule.program
        self.buffers = dict(self.program.buffers)
        self.owner = {name: short.place.get(name, FIXED) for name in self.program.inputs}
        self.used = {s.name: (*s.read_buffers(), *s.write_buffers()) for s in schedule.steps}
        self.inputs = {name for name in self.program.inputs if name in short.named}
        self.nodes = [
            {n: images[k] for n, images in short.named.items()} for k in range(short.copies)
        ]
        of = short.place
        self.late = {n: m for n, m in self.nodes[-1].items() if of.get(n) == KEPT}
        self.places = [self._place(s) for s in schedule.steps]
        self.next: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.noted: list[tuple[str, str]] = []
        random = [n.name for n in short.gm.graph.nodes if is_random(n.target)]
        places = [of.get(name, FIXED) for name in random]
        self.drawing = {s.name for s in schedule.steps if random and _draws(s)}
        self.draws = places.count(KEPT)
        self.drawn = next((i for i, k in enumerate(places) if k > KEPT), len(places))

    def run(self) -> Scheduled:
        count = self.short.copies
        every = list(zip(self.schedule.steps, self.places, strict=True))
        own = [s for s, k in every if k == KEPT]
        self._compare(own)
        self._check_order(own)
        self._add_buffers()
        steps: list[Step] = []
        part: list[Step] = []  # of the copy, that follow each other

        def copied() -> None:
            for k in range(1, count + 1):
                steps.extend(self._moved(s, k) for s in part)
            part.clear()

        for s, place in every:
            if place == KEPT:
                part.append(s)
            else:
                copied()
            steps.append(self._stays(s, place))
        copied()
        program = self._program(steps)
        self._check_made(program, steps)
        schedule = replace(self.schedule, program=program, steps=tuple(steps))
        return schedule, self.plans, self.handed

    # --- where a step belongs, and what it is like ---

    def _place(self, s: Step) -> int:
        found = [self.owner.get(self.program.root(b), FIXED) for b in s.read_buffers()]
        found += [self.short.place.get(n, FIXED) for n in s.origins]
        place = max(found, default=FIXED)
        for b in s.write_buffers():
            self.owner.setdefault(self.program.root(b), place)
            self.owner.setdefault(b, place)
        return place

    def _compare(self, own: Sequence[Step]) -> None:
        """See that each of the copy's steps has its like a copy before or later.

        What is behind the copy computes nothing of it but in such a step: copies that were left
        out would have nobody to do that.
        """
        if not own:
            raise NotRepeating("nothing belongs to a copy alone")
        alike: set[str] = set()
        places = zip(self.schedule.steps, self.places, strict=True)
        beside: dict[tuple[int, tuple[str | None, ...]], list[Step]] = {}
        for s, k in places:
            beside.setdefault((k, self._origins(s, k < KEPT)), []).append(s)
        seen: Counter[tuple[str | None, ...]] = Counter()
        for s in own:
            here = self._origins(s)
            at = seen[here]
            seen[here] += 1
            same = len(beside[KEPT, here])
            for k, key in ((BEHIND, self._origins(s, True)), (BEFORE, here)):
                others = beside.get((k, key), ())
                pair = (s, others[at]) if len(others) == same else None
                if pair and self._are_next(*(pair if k == BEHIND else pair[::-1])):
                    alike.add(pair[1].name)
                    break
            else:
                raise NotRepeating(f"{s.name} and those of neighbouring copies differ")
        # What the copy's steps store may be of nodes before it, which do not move.
        first = [s for s in own if self._computes(s, BEFORE) and not isinstance(s, Extern)]
        mixed = {b for s in first for b in s.write_buffers()}
        for s, k in zip(self.schedule.steps, self.places, strict=True):
            if k == BEHIND and s.name not in alike:
                if self._computes(s, KEPT) or not mixed.isdisjoint(self.used[s.name]):
                    raise NotRepeating(f"{s.name} computes or reads what an early copy has left")

    def _computes(self, s: Step, place: int) -> bool:
        """Whether nodes that stand there are among those that a step comes from."""
        return any(self.short.place.get(n) == place for n in s.origins)

    def _origins(self, s: Step, later: bool = False) -> tuple[str | None, ...]:
        """Nodes that a step comes from, as far as copies have such, or those a copy later."""
        found = [n for n in s.origins if n in self.short.place]
        return tuple(map(self.short.following.get, found) if later else found)

    def _are_next(self, a: Step, b: Step) -> bool:
        """Whether a step becomes another a copy later; if so, notes how."""
        self.noted.clear()
        if isinstance(a, Extern):
            same = isinstance(b, Extern) and self._is_next_call(a, b)
        else:
            same = not isinstance(b, Extern) and self._is_next_nest(a, b)
        for x, y in () if same else self.noted:
            del self.next[x], self.before[y]
        return same

    def _is_next_call(self, a: Extern, b: Extern) -> bool:
        if a.symbols or a.sizes or a.checks or a.bodies:
            return False
        for f in fields(a):
            x, y = getattr(a, f.name), getattr(b, f.name)
            if f.name in ("outputs", "mutates"):
                if len(x) != len(y) or not all(map(self._is_next_name, x, y)):
                    return False
            elif f.compare and f.name not in ("name", "origins") and not self._is_next(x, y):
                return False
        return True

    def _is_next_nest(self, a: Group | Template, b: Group | Template) -> bool:
        one, other = self.plans[a.name], self.plans[b.name]
        if a.device != b.device or one.plan != other.plan:
            return False
        for x, y in (
            (a.read_buffers(), b.read_buffers()),
            (a.write_buffers(), b.write_buffers()),
            (one.buffers, other.buffers),
        ):
            if len(x) != len(y) or not all(map(self._is_next_name, x, y)):
                return False
        return _ints_later(one.ints, self.draws, 0) == other.ints

    def _is_next(self, x: object, y: object) -> bool:
        if isinstance(x, TensorRef) and isinstance(y, TensorRef):
            return self._is_next_name(x.buffer, y.buffer) and replace(x, buffer=y.buffer) == y
        if isinstance(x, tuple | list) and isinstance(y, tuple | list):
            return type(x) is type(y) and len(x) == len(y) and all(map(self._is_next, x, y))
        return x is y or (type(x) is type(y) and bool(x == y))

    def _is_next_name(self, a: str | None, b: str | None) -> bool:
        """Whether one buffer can take the place of the other a copy later."""
        if a is None or b is None:
            return a is b
        if a in self.next or b in self.before:
            return self.next.get(a) == b and self.before.get(b) == a
        owners = self.owner.get(a, FIXED), self.owner.get(b, FIXED)
        if a == b:
            fits = owners[0] < KEPT  # all share it
        elif a in self.program.inputs and b in self.program.inputs:
            fits = self.short.following.get(a) == b
        else:
            fits = owners in ((BEFORE, KEPT), (KEPT, BEHIND)) and self._alike(a, b)
        if fits:
            self.next[a], self.before[b] = b, a
            self.noted.append((a, b))
        return fits

    def _alike(self, a: str, b: str) -> bool:
        one, other = self.buffers[a], self.buffers[b]
        if one.alias is not None and not self._is_next_name(one.alias, other.alias):
            return False
        kind = other.kind if one.kind == "input" else one.kind  # the first may be given its own
        return replace(one, name=b, alias=other.alias, kind=kind) == other

    def _check_order(self, own: Sequence[Step]) -> None:
        """What copies write besides their own may not be in use by a copy that is under way."""
        together = [k for k, _ in groupby(self.places)].count(KEPT) == 1
        for s in own:
            for b in s.write_buffers():
                root = self.program.root(b)
                moves = self.next.get(root, self.before.get(root, root)) != root
                if not moves or not together and self.owner[root] != KEPT:
                    raise NotRepeating(f"{s.name} writes what copies share")
            if not together and isinstance(s, Extern) and is_random(s.target):
                raise NotRepeating(f"{s.name} has an effect while another copy is under way")

    def _check_made(self, program: Program, steps: Sequence[Step]) -> None:
        """Whether everything is there when it is read."""
        root = {name: program.root(name) for name in program.buffers}
        writes = [{root[b] for b in s.write_buffers()} for s in steps]
        missing = set[str]().union(*writes) - {*program.inputs, *program.constants}
        for s, written in zip(steps, writes, strict=True):
            read = s.read_buffers() if isinstance(s, Extern) else self.plans[s.name].buffers
            if late := missing.intersection(root[b] for b in read) - written:
                raise NotRepeating(f"{s.name} reads {min(late)} before it is made")
            missing -= written

    # --- copies ---

    def _image(self, name: str, k: int) -> str:
        """What stands for a buffer of the copy, or that it uses, ``k`` copies later."""
        owner = self.owner.get(name, FIXED)
        if self.next.get(name) == name or k == 0 and owner != BEHIND:
            return name
        if name in self.inputs:
            return self.short.named[name][k - 1]
        if owner == KEPT:
            return f"{name}_{k}" if k <= self.short.copies else self.next[name]
        if owner == BEFORE and name in self.next:
            return self._image(self.next[name], k - 1)
        if owner == BEHIND and name in self.before:
            return self._image(self.before[name], k + 1)
        raise NotRepeating(f"{name} is no buffer of a copy")

    def _moved(self, s: Step, k: int) -> Step:
        """A step of the copy, ``k`` copies later."""
        names = {b: self._image(b, k) for b in self.used[s.name]}
        nodes = self.nodes[k - 1]
        origins = tuple(nodes.get(n, n) for n in s.origins)
        later = (self.draws * k, 0) if s.name in self.drawing else None
        made = renamed(s, names, f"{s.name}_{k}", origins, later)
        self._note(s, made, names, nodes, later)
        return made

    def _stays(self, s: Step, place: int) -> Step:
        """A step that the short graph has, behind the copies that it leaves out or before them."""
        late = place > KEPT
        names = {b: b for b in self.used[s.name]}
        moving = [b for b in names if late and self.owner.get(b) == KEPT and self.next.get(b) != b]
        count = self.short.copies
        names |= {b: self._image(b, count) for b in moving}
        places = (self.draws * count, self.drawn - self.draws * late)
        later = places if s.name in self.drawing else None
        nodes = self.late if late else {}
        origins = tuple(nodes.get(n, n) for n in s.origins)
        if not moving and origins == s.origins and not later:
            return s
        made = renamed(s, names, s.name, origins, later)
        self._note(s, made, names, nodes, later)
        return made

    def _note(
        self,
        s: Step,
        made: Step,
        names: Mapping[str, str],
        nodes: Mapping[str, str],
        later: Later | None,
    ) -> None:
        """What is known of a step, of what was made of it."""
        if isinstance(made, Extern):
            if (known := self.handed.get(s.name)) is not None:
                tensors = tuple(
                    replace(
                        t,
                        node=nodes.get(t.node, t.node),
                        ref=replace(t.ref, buffer=names.get(t.ref.buffer, t.ref.buffer)),
                    )
                    for t in known.tensors
                )
                self.handed[made.name] = replace(known, tensors=tensors)
        elif later and isinstance(made, Template):  # whose plan has its draws' places in it
            self.plans[made.name] = KernelBuilder(self.buffers)(made)
        else:
            plan = self.plans[s.name]
            buffers = tuple(names[b] for b in plan.buffers)
            ints = _ints_later(plan.ints, *later) if later else plan.ints
            self.plans[made.name] = replace(plan, buffers=buffers, ints=ints)

    def _add_buffers(self) -> None:
        moving = {*self.next, *self.before, *self.inputs}
        own = [
            b
            for name, b in self.program.buffers.items()
            if self.owner.get(name) == KEPT and name in moving
        ]
        taken = {*self.buffers, *self.short.inputs}
        for k in range(1, self.short.copies + 1):
            for b in own:
                new = self._image(b.name, k)
                if b.name not in self.inputs and new in taken:
                    raise NotRepeating(f"{new} is the name of two buffers")
                alias = None if b.alias is None else self._image(b.alias, k)
                self.buffers[new] = replace(b, name=new, alias=alias)

    def _program(self, steps: Sequence[Step]) -> Program:
        old = self.program
        at = {name: i for i, name in enumerate(self.short.inputs)}
        outputs = []
        for place, k in self.short.outputs:
            x, made = old.outputs[place], self.short.results[place]
            outputs.append(self._result(x, made, k) if isinstance(x, TensorRef) else x)
        inputs = {n: self.buffers[n] for n in self.short.inputs if n in self.buffers}
        return replace(
            old,
            inputs=self.short.inputs,
            buffers={**inputs, **self.buffers},
            nodes=tuple(map(node_of, steps)),
            outputs=tuple(outputs),
            symbols=tuple((s, at[old.inputs[i]], dim) for s, i, dim in old.symbols),
            bindings=(),
        )

    def _result(self, x: TensorRef, made: int, k: int) -> TensorRef:
        """A result of the short graph, or of the ``k``-th copy after it.  made: where."""
        owner, b = self.owner.get(x.buffer, FIXED), x.buffer
        if k or (made, owner) == (KEPT, BEHIND):
            b = self._image(b, k)
        elif owner == KEPT and made > KEPT:
            b = self._image(b, self.short.copies)
        elif owner == KEPT and made == FIXED or owner > KEPT and made == BEFORE:
            raise NotRepeating("a result is made in another copy than its own")
        return replace(x, buffer=b)


def renamed(
    s: Step,
    names: Mapping[str, str],
    name: str,
    origins: tuple[str, ...],
    later: Later | None = None,
) -> Step:
    """A step on other buffers."""
    if isinstance(s, Extern):
        return replace(
            s,
            name=name,
            origins=origins,
            args=_on(s.args, names),
            kwargs=_on(s.kwargs, names) if s.kwargs else (),
            outputs=tuple(None if o is None else names[o] for o in s.outputs),
            mutates=tuple(names[m] for m in s.mutates),
        )
    rewrite = Rewriter(buffers=names, replace=partial(_draw_later, *later) if later else None)
    stores = tuple(map(rewrite.store, s.stores))
    made: Group | Template
    if isinstance(s, Template):
        skeleton = replace(s.skeleton, slots=tuple(map(rewrite, s.skeleton.slots)))
        made = replace(s, name=name, origins=origins, stores=stores, skeleton=skeleton)
    else:
        made = Group(name, s.axes, s.reduce_axes, stores, s.device, nodes=s.nodes, origins=origins)
    noted_reads(made, (names[b] for b in s.read_buffers()))
    return made


def _draws(s: Step) -> bool:
    if isinstance(s, Extern):
        return False
    return any(isinstance(n, Op) and n.name in RANDOM for n in walk(nest_roots(s)))


def _draw_later(count: int, first: int, _: Node, n: Node) -> Node:
    if not isinstance(n, Op) or n.name not in RANDOM:
        return n
    seed, at, *limits = n.args
    e, start = drawn_at(at)
    return op(n.name, seed, body.index(e + _distance(start, count, first)), *limits)


def _ints_later(ints: Sequence[Expr], count: int, first: int) -> tuple[Expr, ...]:
    """Integers of a call, of which constants are where draws begin."""
    return tuple(e + _distance(int(e), count, first) if isinstance(e, Const) else e for e in ints)


def _distance(start: int, count: int, first: int) -> Expr:
    return const(count << STREAM_BITS if start >> STREAM_BITS >= first else 0)


def _on(x: Any, names: Mapping[str, str]) -> Any:
    if isinstance(x, TensorRef):
        return replace(x, buffer=names[x.buffer])
    if isinstance(x, tuple | list):
        return type(x)([_on(e, names) for e in x])
    return x


def node_of(s: Step) -> ProgramNode:
    """A step as a node of the program."""
    if not isinstance(s, Group):
        return s
    made = Loops(s.name, s.axes, s.reduce_axes, s.stores, s.device, s.origins)
    noted_reads(made, s.read_buffers())
    return made
