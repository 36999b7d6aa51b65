"""The report as text: what to look at first, then each graph with its steps in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from litz.report.findings import count, size, time
from litz.report.record import Graph, Report, Step

MOST = 10
"""Findings, and rows of each other list, that the text shows; the page and JSON have them all."""
WIDE = 48


def report_text(r: Report, most: int = MOST) -> str:
    """The whole report; lists are cut to ``most`` rows, which says how many more there are."""
    return "\n".join((*_head(r), "", *_first(r, most), *_graphs(r, most), *_rest(r, most)))


def totals(r: Report) -> dict[str, int | float]:
    """Figures of the whole program, by name."""
    steps = [s for g in r.graphs for s in g.steps]
    kernels = [s for s in steps if s.kind == "kernel"]
    return {
        "graphs": len(r.graphs),
        "graph breaks": len(r.breaks),
        "recompiles": len(r.recompiles),
        "kernel calls": len(kernels),
        "distinct kernels": len(r.kernels),
        "ATen calls": len(steps) - len(kernels),
        "bytes": sum(s.bytes for s in steps),
        "bytes apart": sum(s.apart for s in steps),
        "seconds": sum(g.seconds.get("total", 0.0) for g in r.graphs),
        "peak": max((max(g.memory.held) for g in r.graphs if g.memory), default=0),
    }


def place(r: Report, line: str) -> str:
    """A line as people write it: file:number; a module by its name."""
    known = r.by_line.get(line)
    if known is None:
        return ""
    return f"{Path(known.file).name}:{known.number}" if known.number else known.file


def _head(r: Report) -> Iterator[str]:
    t = totals(r)
    versions = ", ".join(f"{k} {v}" for k, v in r.versions.items())
    yield f"{r.title}  ({versions})"
    yield (
        f"{_many(t['graphs'], 'graph')}, {_many(t['graph breaks'], 'graph break')}, "
        f"{_many(t['recompiles'], 'recompile')}; "
        f"{_many(t['kernel calls'], 'kernel call')} of "
        f"{_many(t['distinct kernels'], 'distinct kernel')}, {t['ATen calls']} in ATen"
    )
    yield (
        f"moves {size(t['bytes'])}, operator by operator {size(t['bytes apart'])}; "
        f"holds {size(t['peak'])} at most; compiled in {time(t['seconds'])}"
    )
    if r.options:
        yield "options: " + ", ".join(f"{k}={v!r}" for k, v in r.options.items())


def nothing(r: Report) -> str:
    """What is to be said where there are no findings."""
    return "nothing stands out" if r.graphs else "nothing was compiled"


def _many(n: float, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _first(r: Report, most: int) -> Iterator[str]:
    if not r.findings:
        yield f"What to look at first: {nothing(r)}"
        return
    yield "What to look at first"
    shown = r.findings[:most]
    wide = max(len(place(r, f.line)) for f in shown)
    for n, f in enumerate(shown, 1):
        code = r.by_line[f.line].text if f.line in r.by_line else ""
        yield f"{n:3}. {f.kind:15}  {place(r, f.line):{wide}}  {code}".rstrip()
        yield f"{'':22}{f.what}"
    yield from _more(r.findings, most)


def _more(rows: Sequence[object], most: int) -> Iterator[str]:
    if len(rows) > most:
        yield f"     ... and {len(rows) - most} more"


def _graphs(r: Report, most: int) -> Iterator[str]:
    for g in r.graphs:
        yield ""
        head = f"graph {g.id} ({g.kind}"
        yield f"{head}{', ' + place(r, g.line) if g.line else ''}): {g.operators} operator calls"
        if g.fallback:
            yield f"  runs through ATen: {g.fallback}"
            continue
        yield from table(_rows(r, g.steps[: 4 * most], r.roofline is not None))
        yield from _more(g.steps, 4 * most)
        yield from _notes(r, g, most)


def _rows(r: Report, steps: Iterable[Step], timed: bool) -> Iterator[tuple[str, ...]]:
    yield (
        "step",
        "runs",
        "bytes",
        "saved",
        "ops",
        *(("time",) if timed else ()),
        "line",
        "computes",
    )
    for s in steps:
        line = place(r, s.lines[-1]) if s.lines else ""
        if len(s.lines) > 1:
            line += f" +{len(s.lines) - 1}"
        what = ", ".join(n.rpartition(".")[2] for n in s.nodes)
        saved = size(s.apart - s.bytes) if s.apart > s.bytes else ""
        ops = count(s.ops).rstrip() if s.ops else ""
        spent = () if not timed else ("" if s.seconds is None else time(s.seconds),)
        yield (
            s.id.partition(".")[2],
            s.name,
            size(s.bytes),
            saved,
            ops,
            *spent,
            line,
            what if len(what) <= WIDE else f"{what[: WIDE - 3]}...",
        )


def table(rows: Iterable[tuple[str, ...]], indent: str = "  ") -> Iterator[str]:
    """Rows in columns: figures to the right, words to the left."""
    found = list(rows)
    wide = [max(len(row[i]) for row in found) for i in range(len(found[0]))]
    words = [found[0][i] in WORDS for i in range(len(wide))]
    for row in found:
        cells = (
            f"{x:{w}}" if left else f"{x:>{w}}" for x, w, left in zip(row, wide, words, strict=True)
        )
        yield f"{indent}{'  '.join(cells)}".rstrip()


WORDS = frozenset({"step", "runs", "line", "computes", "which", ""})


def _notes(r: Report, g: Graph, most: int) -> Iterator[str]:
    inner = sum(s.id.count(".") > 1 for s in g.steps)
    if inner:
        yield f"  in a body of control flow: {_many(inner, 'step')}, its number before their names"
    if g.memory is not None and g.memory.living:
        own = [x for x in g.memory.living if not x.argument][:3]
        held = size(max(g.memory.held))
        named = (f"{x.buffer.rpartition('.')[2]} {size(x.bytes)} {place(r, x.line)}" for x in own)
        what = ", ".join(map(str.rstrip, named))
        yield f"  holds {held} at most, beside arguments" + (f": {what}" if what else "")
    for x in sorted(g.refused, key=lambda x: -x.bytes)[:3]:
        a, b = x.one.rpartition(".")[2], x.other.rpartition(".")[2]
        yield f"  {a} and {b} stay apart ({size(x.bytes)}): {x.reason}"
    for text in (g.cuda_graph, g.regions):
        if text:
            yield f"  {text}"
    if g.host:
        yield f"  Python runs the host program: {g.host}"
    total = g.seconds.get("total", 0.0)
    rest = sorted(((v, k) for k, v in g.seconds.items() if k != "total"), reverse=True)
    slow = ", ".join(f"{k} {time(v)}" for v, k in rest[:5])
    yield f"  compiled in {time(total)}: {slow}"


def _rest(r: Report, most: int) -> Iterator[str]:
    for k in (k for k in r.kernels if k.ways):
        yield f"{k.id}:"
        yield from (f"  {line}" for line in k.ways)
    calls = _calls(r)
    yield ""
    kinds = [g.kind for g in r.graphs]
    if "forward" in kinds and "backward" not in kinds:
        yield "a backward graph is compiled when it first runs: litz.explain(..., backward=True)"
    yield "extern calls:" if calls else "extern calls: none"
    yield from (f"  {n:4} x {name}: {why}" for name, why, n in calls)


def _calls(r: Report) -> list[tuple[str, str, int]]:
    """Operators that ATen runs, why, and how often, most calls first."""
    found: dict[tuple[str, str], int] = {}
    for g in r.graphs:
        for s in (s for s in g.steps if s.kind == "aten"):
            found[s.name, s.reason] = found.get((s.name, s.reason), 0) + 1
        if g.fallback:
            key = (f"the whole {g.kind} graph", g.fallback)
            found[key] = found.get(key, 0) + 1
    return sorted(((op, why, n) for (op, why), n in found.items()), key=lambda x: (-x[2], x[0]))
