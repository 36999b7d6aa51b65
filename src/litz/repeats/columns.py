"""The schedule of a graph on lists, from that of one column of each kind.

Nothing goes from one column to another, so that the steps of a column stand for those of each like
it, with other names of buffers; what all share runs once.
"""

from __future__ import annotations

from dataclasses import replace

from litz.graph.columns import Columns
from litz.ir.program import Buffer, Extern
from litz.repeats.lengthen import Scheduled, node_of, renamed
from litz.repeats.shorten import NotRepeating
from litz.schedule.groups import Step

SHARED = -1


def with_all_columns(scheduled: Scheduled, columns: Columns, inputs: tuple[str, ...]) -> Scheduled:
    """What the whole graph's would be, from that of ``columns.gm``.  inputs: the whole graph's.

    Raises NotRepeating where a step belongs to several columns, or is a call of an operator.
    """
    schedule, plans, handed = scheduled
    program = schedule.program
    if program.symbols or program.outputs:
        raise NotRepeating("lists of open sizes, or with results")
    owner = dict(columns.kind_of)
    copies: dict[tuple[str, int], str] = {}  # of buffers that a column has for itself
    steps: list[Step] = []
    bound = dict(plans)
    buffers: dict[str, Buffer] = dict(program.buffers)
    row: dict[int, Step] = {}  # steps that follow each other, of one column of each kind

    def image(name: str, kind: int, c: int) -> str:
        """What stands for a buffer in another column of its kind."""
        if c == kind or owner.get(program.root(name), SHARED) != kind:
            return name
        if (name, c) not in copies:
            new = columns.named[kind][c][name] if name in columns.kind_of else f"{name}_column{c}"
            if new in buffers:
                raise NotRepeating(f"{new} is the name of two buffers")
            b = program.buffers[name]
            alias = None if b.alias is None else image(b.alias, kind, c)
            buffers[new] = replace(b, name=new, alias=alias)
            copies[name, c] = new
        return copies[name, c]

    def follow() -> None:
        for c, kind in sorted((c, k) for k in row for c in columns.named[k]):
            s, named = row[kind], columns.named[kind][c]
            names = {b: image(b, kind, c) for b in (*s.read_buffers(), *s.write_buffers())}
            name = s.name if c == kind else f"{s.name}_{c}"
            steps.append(renamed(s, names, name, tuple(named.get(n, n) for n in s.origins)))
            own = plans[s.name]
            bound[name] = replace(own, buffers=tuple(names[b] for b in own.buffers))
        row.clear()

    for s in schedule.steps:
        if isinstance(s, Extern):
            raise NotRepeating(f"{s.name} calls an operator")
        used = (*s.read_buffers(), *s.write_buffers())
        kind, *others = {owner.get(program.root(b), SHARED) for b in used} - {SHARED} or {SHARED}
        wrote = {owner.setdefault(program.root(b), kind) for b in s.write_buffers()}
        if others or wrote != {kind}:
            raise NotRepeating(f"{s.name} belongs to several columns")
        if kind in row or kind == SHARED:
            follow()
        if kind == SHARED:
            steps.append(s)
        else:
            row[kind] = s
    follow()
    if len({s.name for s in steps}) < len(steps):
        raise NotRepeating("two steps have one name")
    for name, kind in columns.kind_of.items():
        for c in columns.named[kind] if name in program.buffers else ():
            image(name, kind, c)
    given = {n: buffers[n] for n in inputs if n in buffers}
    whole = replace(
        program,
        inputs=inputs,
        buffers={**given, **buffers},
        nodes=tuple(map(node_of, steps)),
        bindings=(),
    )
    return replace(schedule, program=whole, steps=tuple(steps)), bound, handed
