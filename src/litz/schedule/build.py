"""From a program to a schedule: fuse, drop buffers that stay inside a group, order."""

from __future__ import annotations

from dataclasses import replace

from litz.ir.program import Extern, Program, Template
from litz.schedule.fuse import Fusion, FusionSettings
from litz.schedule.groups import Group, Schedule, Step
from litz.schedule.merge import FusionGroup


def schedule(
    program: Program, settings: FusionSettings | None = None, keep: frozenset[str] = frozenset()
) -> Schedule:
    """Group the loop nests of ``program`` and order all steps.

    keep: buffers to store even if only their own group reads them.
    """
    fusion = Fusion(program, settings or FusionSettings())
    fused = fusion.run()
    names: dict[int, str] = {}
    kept = _wanted(program, fused)
    kept[-1] |= keep
    steps: list[Step] = []
    for d in fused:
        if isinstance(d, Extern | Template):
            steps.append(d)
            continue
        stores = tuple(s for s in d.stores if s.buffer in kept[d.first] or s.buffer in kept[-1])
        if stores and d.template is not None:
            names[fusion.number(d)] = d.template.name
            steps.append(replace(d.template, stores=stores))
        elif stores:
            names[fusion.number(d)] = f"group{len(steps)}"
            steps.append(
                Group(
                    f"group{len(steps)}",
                    d.space.axes,
                    d.space.reduce_axes,
                    stores,
                    d.device,
                    d.nodes,
                    d.origins,
                )
            )
    apart = sorted((p, why) for p, why in fusion.apart().items() if p[0] in names and p[1] in names)
    pairs = ((names[a], names[b], why) for (a, b), why in apart)
    return Schedule(program, tuple(steps), tuple(pairs))


def _wanted(program: Program, fused: list[FusionGroup | Extern | Template]) -> dict[int, set[str]]:
    """Buffers whose stores must stay: under -1 those that anybody may read.

    A temp that is read by its own group alone is a value, not memory.
    """
    escape = {program.root(o.buffer) for o in program.output_refs()}
    escape |= {name for name, b in program.buffers.items() if b.kind != "temp"}
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for k, d in enumerate(fused):
        if isinstance(d, Extern | Template):
            reads, writes = d.read_buffers(), d.write_buffers()
        else:
            reads, writes = tuple(d.reads), tuple(d.writes)
        for x in reads:
            readers.setdefault(program.root(x), []).append(k)
        for x in writes:
            writers.setdefault(program.root(x), []).append(k)
    wanted = {x for x in program.buffers if program.root(x) in escape}
    own: dict[int, set[str]] = {-1: wanted}
    for k, d in enumerate(fused):
        if isinstance(d, Extern | Template):
            continue
        mine = own.setdefault(d.first, set())
        for x in d.writes:
            root = program.root(x)
            if any(r != k for r in readers.get(root, ())) or any(w != k for w in writers[root]):
                mine.add(x)
            elif x in d.reads or any(s.buffer == x and s.mode != "set" for s in d.stores):
                mine.add(x)
    return own
