"""What to look at first: the record's findings, those that cost most at the top."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from litz.lowering.control_flow import REASON
from litz.report.record import Break, Finding, FindingKind, Graph, Recompile, Roofline, Step

USUAL: Final = 10e9
"""Bytes a second by which costs are ranked where nothing was measured."""
FAR: Final = 0.5
"""Kernels that reach less than this part of the roofline are slow."""
SMALL: Final = 20e-6
"""Seconds that a slow kernel loses at least, to be worth a look."""
_ORDER: Final[Mapping[FindingKind, int]] = {
    "graph break": 0,
    "recompile": 0,
    "fallback": 1,
    "transposed copy": 1,
    "slow kernel": 1,
    "no CUDA graph": 2,
}


def findings(
    graphs: Sequence[Graph],
    breaks: Sequence[Break],
    recompiles: Sequence[Recompile],
    roofline: Roofline | None = None,
) -> tuple[Finding, ...]:
    """All findings: what stops or repeats compiling, then what costs most time, then the rest."""
    speed = roofline.bytes_per_second if roofline else USUAL
    steps = [s for g in graphs for s in g.steps]
    found = [
        *_breaks(breaks),
        *_recompiles(graphs, recompiles),
        *_whole(graphs),
        *_fallbacks(steps, speed),
        *_copies(steps, speed),
        *(_slow(steps, roofline) if roofline else ()),
        *_recordings(graphs),
    ]
    return tuple(sorted(found, key=lambda f: (_ORDER[f.kind], -f.cost, f.line, f.step)))


def _breaks(breaks: Sequence[Break]) -> Iterator[Finding]:
    for b in {(b.line, b.reason): b for b in reversed(breaks)}.values():
        hints = (x.strip() for x in b.detail.splitlines())
        advice = next((x[6:] for x in hints if x.startswith("Hint: ")), "")
        yield Finding("graph break", b.line, b.reason, advice, 1.0)


def _recompiles(graphs: Sequence[Graph], recompiles: Sequence[Recompile]) -> Iterator[Finding]:
    seconds = {g.id: g.seconds.get("total", 0.0) for g in graphs}
    by_line: dict[str, list[Recompile]] = {}
    for r in recompiles:
        by_line.setdefault(r.line, []).append(r)
    for line, again in by_line.items():
        times = "once" if len(again) == 1 else f"{len(again)} times"
        yield Finding(
            "recompile",
            line,
            f"compiled again {times}, because this failed: {again[-1].guard}",
            "make what changes a tensor or a size (dynamic=True), or keep it the same",
            1.0 + sum(seconds.get(r.graph, 0.0) for r in again),
        )


def _whole(graphs: Iterable[Graph]) -> Iterator[Finding]:
    for g in graphs:
        if g.fallback:
            what = f"ATen runs the whole {g.kind} graph ({g.operators} calls): {g.fallback}"
            yield Finding("fallback", g.line, what, "", 1.0)


def _fallbacks(steps: Iterable[Step], speed: float) -> Iterator[Finding]:
    """Operators left to ATen; products, convolutions, attention are what libraries are for."""
    alike: dict[tuple[str, str, str], list[Step]] = {}
    for s in steps:
        if s.kind == "aten" and not s.ops and s.reason != REASON:
            alike.setdefault((s.name, s.reason, _last(s)), []).append(s)
    for (name, reason, line), some in alike.items():
        moved = sum(s.bytes for s in some)
        many = f"{len(some)} calls" if len(some) > 1 else "1 call"
        what = f"ATen runs {name} ({many}, {size(moved)}): {reason}"
        advice = "nothing is fused with it; another formulation may be"
        yield Finding("fallback", line, what, advice, _cost(some, speed), some[0].id)


def _copies(steps: Iterable[Step], speed: float) -> Iterator[Finding]:
    for s in steps:
        if s.transposed:
            what = f"lays out {size(s.bytes)} anew across dimensions: {s.name}"
            advice = "keep the layout that is read later: no .contiguous(), channels last as given"
            yield Finding("transposed copy", s.transposed, what, advice, _cost([s], speed), s.id)


def _slow(steps: Iterable[Step], roofline: Roofline) -> Iterator[Finding]:
    """Kernels that take long for what they move and compute."""
    for s in steps:
        best = roof_seconds(s.kind, s.bytes, s.ops, roofline)
        if s.kind == "kernel" and s.seconds and best < FAR * s.seconds:
            if (lost := s.seconds - best) >= SMALL:
                what = f"{s.name} reaches {best / s.seconds:.0%} of the roofline, {time(lost)} lost"
                yield Finding("slow kernel", _last(s), what, "", lost, s.id)


def roof_seconds(kind: str, moved: int, ops: int, roofline: Roofline) -> float:
    """The least time for a step that the machine could take; kind, moved, ops: as ``Step`` has.

    Arithmetic counts for products alone.
    """
    moving = moved / roofline.bytes_per_second
    return max(moving, ops / roofline.ops_per_second if kind == "aten" else 0.0)


def _recordings(graphs: Iterable[Graph]) -> Iterator[Finding]:
    for g in graphs:
        if g.cuda_graph.startswith("not a CUDA graph"):
            yield Finding("no CUDA graph", g.line, f"{g.id}: {g.cuda_graph}", "", 0.0)


def _cost(steps: Iterable[Step], speed: float) -> float:
    return sum(s.bytes / speed if s.seconds is None else s.seconds for s in steps)


def _last(s: Step) -> str:
    return s.lines[-1] if s.lines else ""


def size(n: float) -> str:
    """Bytes for people: ``1.2 MB``."""
    return f"{count(n)}B"


def count(n: float) -> str:
    """A number for people, with a space and a unit's prefix behind it: ``12.3 k``, ``7 ``."""
    if abs(n) < 1000:
        return f"{n:.0f} "
    power = min(int(math.log10(abs(n)) / 3), 5)
    scaled = n / 1000**power
    return f"{scaled:.0f} {' kMGTP'[power]}" if scaled >= 100 else f"{scaled:.1f} {' kMGTP'[power]}"


def time(seconds: float) -> str:
    """Seconds for people: ``12.3 us``."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"
