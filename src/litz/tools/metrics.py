"""``litz.metrics``: adds up what the process compiles, while somebody wants to know."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Final

from litz.dynamo import heard_breaks
from litz.logs import events
from litz.report.counters import counted
from litz.reporting import Listener
from litz.runtime.tune import Choice
from litz.stages import Compiled

SUMMED: Final = (
    "graphs", "cache_hits", "recompiles", "graph_breaks", "fallbacks", "kernels", "fusions",
    "kernel_calls", "aten_calls",
)  # fmt: skip
Ways = tuple[Mapping[str, Choice], Mapping[str, tuple[str, ...]]]


class Metrics:
    """Counters of all that is compiled between ``start`` and ``stop``, or within it as a context.

    They are names with numbers: those of ``litz.report.counters.counted``, ``graph_breaks``, and
    ``ways.NAME``: kernels that the clock had run in one way (persistent, looped, split) of several.
    """

    def __init__(self) -> None:
        self._found: dict[str, int | float] = {"graph_breaks": 0}
        self._ways: list[Ways] = []
        self._lock = Lock()
        self._listening = ExitStack()

    def start(self) -> Metrics:
        """Listen from now on."""
        self._listening.enter_context(Listener(self._hear))
        self._listening.enter_context(heard_breaks(lambda text: self._add({"graph_breaks": 1})))
        return self

    def stop(self) -> None:
        """Listen no more; the log of ``litz`` gets a summary, at INFO."""
        self._listening.close()
        events.info("%s", self.summary())

    def __enter__(self) -> Metrics:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _hear(self, c: Compiled) -> None:
        names = {
            k.name: tuple(w.name for w in k.ways.candidates)
            for k in c.stages.kernels
            if k.ways is not None
        }
        with self._lock:
            if names:
                self._ways.append((c.stages.choices, names))
        self._add(counted(c.kind, c.graph, c.stages))

    def _add(self, more: Mapping[str, int | float]) -> None:
        with self._lock:
            for name, n in more.items():
                self._found[name] = self._found.get(name, 0) + n

    @property
    def counters(self) -> Mapping[str, int | float]:
        """The counters so far, by name."""
        with self._lock:
            found = dict(self._found)
            for choices, names in self._ways:  # made when kernels run first
                for kernel in names.keys() & choices.keys():
                    way = f"ways.{names[kernel][choices[kernel].index]}"
                    found[way] = found.get(way, 0) + 1
        return dict(sorted(found.items()))

    def summary(self) -> str:
        """The most important of them in one line."""
        found = self.counters
        parts = [f"{found.get(n, 0)} {n.replace('_', ' ')}" for n in SUMMED]
        slow = sorted(((v, k) for k, v in found.items() if k.startswith("seconds.")), reverse=True)
        stages = ", ".join(f"{k.partition('.')[2]} {v:.2f} s" for v, k in slow[:3])
        total = f"compiled in {found.get('seconds', 0.0):.2f} s"
        return f"{', '.join(parts)}; {total}" + (f" ({stages})" if stages else "")

    def __str__(self) -> str:
        found = self.counters
        wide = max(map(len, found))
        return "\n".join(
            f"{k:{wide}}  {v:12.4f} s" if k.startswith("seconds") else f"{k:{wide}}  {v:12,}"
            for k, v in found.items()
        )
