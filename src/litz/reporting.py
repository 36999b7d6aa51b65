"""What a compilation tells: the log of it, and the record that listeners in the process get.

Listeners are handlers of the logger ``litz.compiles``: who listens is kept where Python keeps who
reads a log, and Litz itself holds nothing.  They are handed objects, not lines of text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from torch.fx import GraphModule

from litz.logs import events
from litz.options import Options
from litz.runtime.torch_private import traced
from litz.stages import Compiled, Stages, Watcher

Observer = Callable[[str, GraphModule, Stages], None]
_compiles: Final = logging.getLogger("litz.compiles")
_compiles.propagate = False  # its records are for listeners; ``litz`` has what people read


class Listener(logging.NullHandler):
    """Hears of each graph that the process compiles, while it is entered as a context.

    stages: it wants what all stages made, so that graphs are compiled and none is looked for in the
    cache.  timer: gives who takes the time of each graph's runs; that graph is as it is compiled.
    """

    def __init__(
        self,
        hear: Callable[[Compiled], None],
        *,
        stages: bool = False,
        timer: Callable[[GraphModule], Watcher] | None = None,
    ) -> None:
        super().__init__()
        self.hear, self.stages, self.timer = hear, stages, timer

    def __enter__(self) -> Listener:
        _compiles.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _compiles.removeHandler(self)


def _listeners() -> tuple[Listener, ...]:
    return tuple(h for h in _compiles.handlers if isinstance(h, Listener))


def wants_stages() -> bool:
    """Whether somebody listens who wants what all stages made."""
    return any(h.stages for h in _listeners())


def timer_of(graph: GraphModule) -> Watcher | None:
    """Who takes the time of a graph's runs, if somebody wants it."""
    timers = (h.timer for h in _listeners() if h.timer is not None)
    return next((timer(graph) for timer in timers), None)


def telling(options: Options, observe: Observer | None) -> Observer:
    """Tells of a compile: ``observe``, all who listen, the file of metrics, PyTorch's trace."""

    def tell(kind: str, graph: GraphModule, stages: Stages) -> None:
        if observe is not None:
            observe(kind, graph, stages)
        for listener in _listeners():
            listener.hear(Compiled(kind, graph, stages))
        if options.metrics:
            from litz.report.counters import append  # only who asks for it pays

            append(options.metrics, kind, graph, stages)
        if traced():
            from litz.report.trace import trace

            trace(Compiled(kind, graph, stages))

    return tell


def report_recompile(reason: str) -> None:
    """The guard that failed, where a program comes again."""
    if reason:
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
    for note in stages.artifact.notes:
        events.info("%s", note)


def report_fallback(kind: str, reason: str) -> None:
    """A graph that runs through ATen as a whole."""
    events.info("the %s graph runs through ATen: %s", kind, reason)


def report_guards(before: int, guards: Callable[[], Sequence[object]]) -> None:
    """Guards that compiling has added to those of the trace."""
    if events.isEnabledFor(logging.INFO):
        for guard in guards()[before:]:
            events.info("the code holds only while %s", guard)
