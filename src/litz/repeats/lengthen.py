"""The schedule of a shortened graph with the copies that were left out.

What a copy's steps are, their memory says: the latest copy whose inputs or results they read, or
whose nodes they compute.  The second copy's steps have to be the third's but for the names of
buffers, which gives what a name becomes from one copy to the next; the second's then stand for
each copy that was left out, renamed as often.  A copy reads what the one before it left, and what
all share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from typing import Any

from litz.graph.calls import is_random
from litz.graph.short import Short
from litz.index import Const, Expr, const
from litz.ir import body
from litz.ir.body import Node, Op, Rewriter, Store, op, walk
from litz.ir.ops import RANDOM
from litz.ir.program import (
    Buffer,
    Extern,
    Loops,
    Program,
    ProgramNode,
    Template,
    TensorRef,
    nest_roots,
    noted_reads,
    with_stores_later,
)
from litz.kernel.build import BoundKernel, KernelBuilder, drawn_at
from litz.lowering.bindings import Handed
from litz.lowering.random import STREAM_BITS
from litz.repeats.shorten import NotRepeating
from litz.schedule.groups import Group, Schedule, Step

Plans = Mapping[str, BoundKernel]
FIXED, FIRST, SECOND, THIRD = -1, 0, 1, 2
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
    """owner: the copy that fills a buffer, or alone reads an input.  copies: those of steps.

    nodes: what nodes of the second copy are called from one to all copies later; late: the last.
    used: the buffers of steps, by name.  inputs: those that stand for others in later copies.
    next: what the second copy's buffers, and those that it reads, are called in the third's place;
    before: the same backwards.
    drawing: the steps that draw.  draws: how many a copy has; drawn: those up to the second's end.
    """

    def __init__(self, scheduled: Scheduled, short: Short) -> None:
        schedule, plans, handed = scheduled
        self.schedule, self.plans, self.handed = schedule, dict(plans), dict(handed)
        self.short = short
        self.program = schedule.program
        self.buffers = dict(self.program.buffers)
        self.owner = {name: short.copy_of.get(name, FIXED) for name in self.program.inputs}
        self.used = {s.name: (*s.read_buffers(), *s.write_buffers()) for s in schedule.steps}
        self.inputs = {name for name in self.program.inputs if name in short.named}
        self.nodes = [
            {n: images[k] for n, images in short.named.items()} for k in range(short.copies)
        ]
        of = short.copy_of
        self.late = {n: m for n, m in self.nodes[-1].items() if of.get(n) == SECOND}
        self.copies = [self._copy(s) for s in schedule.steps]
        self.next: dict[str, str] = {}
        self.before: dict[str, str] = {}
        random = [n.name for n in short.gm.graph.nodes if is_random(n.target)]
        counts = [short.copy_of.get(name, FIXED) for name in random]
        self.drawing = {s.name for s in schedule.steps if random and _draws(s)}
        self.draws = counts.count(SECOND)
        if self.draws != counts.count(THIRD):
            raise NotRepeating("copies draw differently many numbers")
        self.drawn = next((i for i, k in enumerate(counts) if k > SECOND), len(counts))

    def run(self) -> Scheduled:
        count = self.short.copies
        kept = list(zip(self.schedule.steps, self.copies, strict=True))
        second, third = ([s for s, c in kept if c == k] for k in (SECOND, THIRD))
        if not second or len(second) != len(third):
            raise NotRepeating("copies have other steps than their neighbours")
        for a, b in zip(second, third, strict=True):
            self._compare(a, b)
        self._check_order(second)
        self._add_buffers()
        steps: list[Step] = []
        part: list[Step] = []  # of the second copy, that follow each other

        def copied() -> None:
            for k in range(1, count + 1):
                steps.extend(self._moved(s, k) for s in part)
            part.clear()

        for s, c in kept:
            if c == SECOND:
                part.append(s)
            else:
                copied()
            steps.append(self._stays(s, c))
        copied()
        program = self._program(steps)
        self._check_made(program, steps)
        schedule = replace(self.schedule, program=program, steps=tuple(steps))
        return schedule, self.plans, self.handed

    # --- which copy a step belongs to ---

    def _copy(self, s: Step) -> int:
        found = [self.owner.get(self.program.root(b), FIXED) for b in s.read_buffers()]
        found += [self.short.copy_of.get(n, FIXED) for n in s.origins]
        copy = max(found, default=FIXED)
        for b in s.write_buffers():
            self.owner.setdefault(self.program.root(b), copy)
            self.owner.setdefault(b, copy)
        return copy

    def _compare(self, a: Step, b: Step) -> None:
        """See that a step of the second copy becomes one of the third, and how."""
        if isinstance(a, Extern):
            same = isinstance(b, Extern) and self._is_next_call(a, b)
        else:
            same = not isinstance(b, Extern) and self._is_next_nest(a, b)
        of = self.short.copy_of
        moved = [self.short.named[n][0 if of[n] == FIRST else -1] for n in a.origins if n in of]
        if not same or moved != [n for n in b.origins if n in of]:
            raise NotRepeating(f"{a.name} and {b.name} of neighbouring copies differ")

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
        owners = self.owner.get(a, FIXED), self.owner.get(b, FIXED)
        if a == b:
            fits = owners[0] < SECOND  # all share it
        elif a in self.inputs:
            fits = self.short.named[a][-1] == b
        else:
            fits = owners in ((FIRST, SECOND), (SECOND, THIRD)) and self._alike(a, b)
        return fits and self.next.setdefault(a, b) == b and self.before.setdefault(b, a) == a

    def _alike(self, a: str, b: str) -> bool:
        one, other = self.buffers[a], self.buffers[b]
        if a in self.next:
            return True
        if one.alias is not None and not self._is_next_name(one.alias, other.alias):
            return False
        return replace(one, name=b, alias=other.alias) == other

    def _check_order(self, second: Sequence[Step]) -> None:
        """What copies write besides their own may not be in use by a copy that is under way."""
        together = [k for k, _ in groupby(self.copies)].count(SECOND) == 1
        for s in second:
            for b in s.write_buffers():
                root = self.program.root(b)
                if self.next.get(root, root) == root or not together and self.owner[root] != SECOND:
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
        """What stands for a buffer of the second copy, or that it uses, ``k`` copies later."""
        owner = self.owner.get(name, FIXED)
        if self.next.get(name) == name or k == 0 and owner != THIRD:
            return name
        if name in self.inputs:
            return self.short.named[name][k - 1]
        if owner == SECOND:
            return f"{name}_{k}" if k <= self.short.copies else self.next[name]
        if owner == FIRST and name in self.next:
            return self._image(self.next[name], k - 1)
        if owner == THIRD and name in self.before:
            return self._image(self.before[name], k + 1)
        raise NotRepeating(f"{name} is no buffer of a copy")

    def _moved(self, s: Step, k: int) -> Step:
        """A step of the second copy, ``k`` copies later."""
        names = {b: self._image(b, k) for b in self.used[s.name]}
        nodes = self.nodes[k - 1]
        origins = tuple(nodes.get(n, n) for n in s.origins)
        later = (self.draws * k, 0) if s.name in self.drawing else None
        made = renamed(s, names, f"{s.name}_{k}", origins, later)
        self._note(s, made, names, nodes, later)
        return made

    def _stays(self, s: Step, copy: int) -> Step:
        """A step that the short graph has, behind the copies that it leaves out or before them."""
        late = copy > SECOND
        names = {b: b for b in self.used[s.name]}
        moving = [
            b for b in names if late and self.owner.get(b) == SECOND and self.next.get(b) != b
        ]
        if moving and copy != THIRD:
            raise NotRepeating(f"{s.name} reads what an early copy has left")
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
            self.plans[made.name] = BoundKernel(plan.plan, buffers, ints)

    def _add_buffers(self) -> None:
        own = [
            b
            for name, b in self.program.buffers.items()
            if self.owner.get(name) == SECOND and (name in self.next or name in self.inputs)
        ]
        taken = {*self.buffers, *self.short.inputs}
        for k in range(1, self.short.copies + 1):
            for b in own:
                new = self._image(b.name, k)
                if b.name not in self.inputs and new in taken:
                    raise NotRepeating(f"{new} is the name of two buffers")
                alias = None if b.alias is None else self._image(b.alias, k)
                self.buffers[new] = Buffer(
                    new, b.dtype, b.shape, b.strides, b.device, b.kind, alias
                )

    def _program(self, steps: Sequence[Step]) -> Program:
        old = self.program
        at = {name: i for i, name in enumerate(self.short.inputs)}
        outputs = []
        for place, k in self.short.outputs:
            x, copy = old.outputs[place], self.short.results[place]
            outputs.append(self._result(x, copy, k) if isinstance(x, TensorRef) else x)
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

    def _result(self, x: TensorRef, copy: int, k: int) -> TensorRef:
        """A result of a copy of the short graph, or of the ``k``-th after it."""
        owner, b = self.owner.get(x.buffer, FIXED), x.buffer
        if k or (copy, owner) == (SECOND, THIRD):
            b = self._image(b, k)
        elif owner == SECOND and copy > SECOND:
            b = self._image(b, self.short.copies)
        elif owner == SECOND and copy == FIXED or owner > SECOND and copy in (FIRST, SECOND):
            raise NotRepeating("a result is made in another copy than its own")
        return replace(x, buffer=b)


def renamed(
    s: Step,
    names: Mapping[str, str],
    name: str,
    origins: tuple[str, ...],
    later: Later | None = None,
) -> Step:
    """A step on other buffers; a group's stores are written down once somebody looks at them."""
    reads = tuple([names[b] for b in s.read_buffers()])
    if isinstance(s, Extern):
        call = replace(
            s,
            name=name,
            origins=origins,
            args=_on(s.args, names),
            kwargs=_on(s.kwargs, names) if s.kwargs else (),
            outputs=tuple(None if o is None else names[o] for o in s.outputs),
            mutates=tuple(names[m] for m in s.mutates),
        )
        noted_reads(call, reads)
        return call
    rewrite = Rewriter(buffers=names, replace=partial(_draw_later, *later) if later else None)

    def stores() -> tuple[Store, ...]:
        return tuple(map(rewrite.store, s.stores))

    if isinstance(s, Template):
        skeleton = replace(s.skeleton, slots=tuple(map(rewrite, s.skeleton.slots)))
        made = replace(s, name=name, origins=origins, stores=stores(), skeleton=skeleton)
        noted_reads(made, reads)
        return made
    group = Group(name, s.axes, s.reduce_axes, (), s.device, nodes=s.nodes, origins=origins)
    return with_stores_later(group, stores, reads, [names[b] for b in s.write_buffers()])


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
        return TensorRef(names[x.buffer], x.dtype, x.shape, x.strides, x.offset)
    if isinstance(x, tuple | list):
        return type(x)([_on(e, names) for e in x])
    return x


def node_of(s: Step) -> ProgramNode:
    """A step as a node of the program."""
    if not isinstance(s, Group):
        return s
    made = Loops(s.name, s.axes, s.reduce_axes, (), s.device, s.origins)
    return with_stores_later(made, lambda: s.stores, s.read_buffers(), s.write_buffers())
