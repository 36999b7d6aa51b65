"""Gathers the record of a program while it is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from litz.binding import versions
from litz.options import Options
from litz.report.findings import findings
from litz.report.gather import Gathered
from litz.report.lines import line, lines_of, sources_of, users_line
from litz.report.record import Break, Graph, Kernel, Line, Recompile, Report, Roofline, Step
from litz.stages import Compiled

_PLACE = re.compile(r"Graph break (?:\(user stack .+?\) )?in user code at (.+):(\d+)\n")
_GUARD = re.compile(r"^\d+/\d+: ")


class Collector:
    """Is told of graphs and of graph breaks, and gives the report of what it was told."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self._breaks: list[str] = []

    def hear(self, found: Compiled) -> None:
        """A graph that was compiled (see ``litz.reporting.Listener``)."""
        self.compiled.append(found)

    def hear_break(self, text: str) -> None:
        """What Dynamo's log says of a graph break."""
        self._breaks.append(text)

    def report(
        self,
        title: str,
        options: Options,
        roofline: Roofline | None = None,
        measured: Callable[[Step], Step] = lambda step: step,
    ) -> Report:
        """All of it.  measured: a step with the time that it takes."""
        lines: dict[str, Line] = {}
        kernels: dict[str, Kernel] = {}
        graphs: list[Graph] = []
        recompiles: list[Recompile] = []
        for n, c in enumerate(self.compiled):
            g = Gathered(f"g{n}", c.kind, c.graph, c.stages)
            lines |= g.lines
            kernels |= g.kernels
            graphs.append(replace(g.graph, steps=tuple(map(measured, g.graph.steps))))
            if c.stages.recompile and c.kind != "backward":
                recompiles.append(_recompile(graphs[-1], c.stages.recompile, lines))
        breaks: list[Break] = []
        stopped: dict[str, Line | None] = {}
        for text in self._breaks:
            breaks.append(_break(text, stopped))
        lines |= {x.id: x for x in stopped.values() if x is not None}
        return Report(
            title,
            versions(),
            _given(options),
            findings(graphs, breaks, recompiles, roofline),
            tuple(breaks),
            tuple(recompiles),
            tuple(graphs),
            tuple(kernels.values()),
            tuple(lines.values()),
            sources_of(lines.values()),
            roofline,
        )


def _given(options: Options) -> Mapping[str, str | int | bool]:
    """All options that differ from their defaults, those too that no code depends on."""
    values = ((f.name, getattr(options, f.name), f.default) for f in fields(options))
    return {
        name: v if isinstance(v, str | int | bool) else ", ".join(map(str, v))
        for name, v, default in values
        if v != default
    }


def _break(text: str, stopped: dict[str, Line | None]) -> Break:
    """The reason is the first line of what stopped Dynamo first.

    stopped: the user's line by the place where Dynamo stopped, of which it tells the stack once.
    """
    place = _PLACE.match(text)
    head, _, trace = text.partition("User code traceback:")
    at = line(place[1], int(place[2])) if place else None
    frames = lines_of(trace)
    known = next((x for x in reversed(frames) if at is not None and x.id == at.id), at)
    own = users_line((*frames, *([known] if known else [])))
    stop = at or own
    at = stopped.setdefault(stop.id, own) if stop is not None else None
    _, _, said = head.partition("Graph Break Reason: ")
    reason = said.partition("\n  Explanation:")[0].strip().rpartition("\n")[2]
    if "Skipping the function" in said or "frame skipped" in said:
        reason += "; the whole function runs without Litz"
    detail = "\n".join(x for x in said.strip().splitlines() if "debug context" not in x)
    return Break(at.id if at else "", reason or "unknown", detail)


def _recompile(g: Graph, said: str, lines: dict[str, Line]) -> Recompile:
    text, _, trace = said.partition("User stack trace:")
    guard = _GUARD.sub("", text.strip()).partition("  #")[0].strip()
    at = users_line(lines_of(trace))
    # Older versions of PyTorch name the end of the file's path alone.
    if at is None and (place := re.search(r"# (\S+):(\d+) in (\w+)", text)):
        file = next((x.file for x in lines.values() if x.file.endswith(place[1])), None)
        at = line(file, int(place[2]), place[3]) if file else None
    if at is not None:
        lines[at.id] = at
    return Recompile(g.id, guard, at.id if at else g.line)
