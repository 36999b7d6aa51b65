"""What the log says of a compilation: the graph, what runs in ATen and why, guards, recompiles."""

from __future__ import annotations

import logging
from collections.abc import Callable

from litz.logs import events
from litz.stages import Stages

__all__ = [
    "report_compiled",
    "report_fallback",
    "report_graph",
    "report_guards",
    "report_recompile",
]


def report_recompile(reason: str | None) -> None:
    """The guard that failed, where a program comes again."""
    if reason is not None:
        events.info("recompiling, because %s", " ".join(reason.split()))


def report_graph(kind: str, calls: int) -> None:
    """A graph that arrives."""
    events.info("%s graph of %d operator calls", kind, calls)


def report_compiled(kind: str, stages: Stages) -> None:
    """A graph that is compiled: its kernels, and each operator that is left to ATen."""
    if not events.isEnabledFor(logging.INFO):
        return
    assert stages.artifact is not None
    kernels, externs = stages.artifact.kernels, stages.artifact.externs
    events.info(
        "%s graph %s in %.3f s: %d kernel calls of %d distinct kernels, %d calls in ATen",
        kind,
        "compiled" if stages.program else "found in the cache",
        stages.seconds.get("total", 0.0),
        sum(len(k.groups) for k in kernels),
        len(kernels),
        len(externs),
    )
    count: dict[tuple[str, str], int] = {}
    for e in externs:
        key = (e.op, e.reason)
        count[key] = count.get(key, 0) + 1
    for (name, reason), n in count.items():
        events.info("%s (%d x) runs in ATen: %s", name, n, reason)


def report_fallback(kind: str, reason: str) -> None:
    """A graph that runs through ATen as a whole."""
    events.info("the %s graph runs through ATen: %s", kind, reason)


def report_guards(before: int, guards: Callable[[], list[str]]) -> None:
    """Guards that compiling has added to those of the trace."""
    if events.isEnabledFor(logging.INFO):
        for guard in guards()[before:]:
            events.info("the code holds only while %s", guard)
