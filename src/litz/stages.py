"""What a compilation makes, stage by stage; nothing here imports a stage."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from litz.dataclass import dataclass
from litz.logs import stage_logger
from litz.options import Options

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from litz.artifact import Artifact
    from litz.host.lines import HostProgram
    from litz.host.python import HostSource
    from litz.ir.program import Extern, Program
    from litz.runtime.cuda_graphs import CudaGraphs
    from litz.runtime.tune import Choice
    from litz.schedule.groups import Schedule
    from litz.targets.kernels import Kernel


class Watcher(Protocol):
    """Follows the runs of one compiled graph: checks them, or takes their time."""

    def wrap(self, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """``call`` as it is run from now on."""
        ...

    def probe(
        self, step: int, after: bool, places: Sequence[tuple[Any, int]], numbers: Sequence[int]
    ) -> None:
        """Called by the host program before and after each of its calls (``host.lines.Probe``)."""
        ...


@dataclass
class Stages:
    """What a compilation made, stage by stage; ``explain`` reads it.

    fallback: why ATen runs the graph, if it does.  wrong_metadata: that is why.
    cuda_graphs: the recorded graph, or why it is not recorded; None where nobody asked.
    not_kept: why its artifact has no key, if it was to have one.
    bodies: of control flow, compiled by themselves; graph: of one of them.
    choices: which of its ways each kernel runs, by name, as far as it was measured.
    regions: which parts of the graph were traced once, or why none were.
    timer: who takes the time of the graph's runs.  watch: it, or what checks them.
    recompile: the guard whose failure had the graph compiled, or ''.
    repeats: which of its copies were scheduled once, or why none were.
    pieces: for each transfer beside products, in how many pieces they are cut, and why.
    fused: of which calls stand for what was written, and why.
    at: the stage that runs, or the last that did.
    seconds: wall time of each stage, by ``clock``.  ``waiting`` is the time left to wait for the
    C++ compiler after all other stages ran beside it; ``load`` what binding takes then.
    """

    clock = staticmethod(time.perf_counter)

    program: Program | None = None
    schedule: Schedule | None = None
    kernels: tuple[Kernel, ...] = ()
    host: HostProgram | None = None
    source: HostSource | None = None
    artifact: Artifact | None = None
    at: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    wrong_metadata: bool = False
    not_kept: str = ""
    watch: Watcher | None = None
    timer: Watcher | None = None
    cuda_graphs: CudaGraphs | str | None = None
    graph: GraphModule | None = None
    bodies: list[Stages] = field(default_factory=list)
    choices: dict[str, Choice] = field(default_factory=dict)
    regions: str = ""
    recompile: str = ""
    repeats: str = ""
    pieces: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()

    def parts(self) -> Iterator[Stages]:
        """This graph, and the bodies in it."""
        yield self
        for body in self.bodies:
            yield from body.parts()

    def externs(self) -> tuple[Extern, ...]:
        """The calls of operators; the host's own arithmetic is none."""
        if self.program is None:
            return ()
        from litz.ir.program import Extern  # who binds what is kept does without it

        calls = (n for n in self.program.nodes if isinstance(n, Extern))
        return tuple(n for n in calls if not (n.is_number or n.is_assertion))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start, self.at = self.clock(), name
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - start


@dataclass(frozen=True)
class Compiled:
    """A graph that was compiled, found in the cache, or left to ATen as a whole.

    kind: inference, forward, backward or eager.  graph: as Litz's passes left it; of a program that
    was found in the cache, Dynamo's.
    """

    kind: str
    graph: GraphModule
    stages: Stages


def show(options: Options, stage: str, text: Callable[[], str]) -> None:
    if stage in options.shown or "all" in options.shown:
        print(f"# --- {stage} ---\n{text()}", file=sys.stderr)
    logger = stage_logger(stage)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s:\n%s", stage, text())
