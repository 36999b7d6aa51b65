"""A process that measures cases on request; ``benchmarks.worker`` says how it is asked.

``python -m benchmarks.sweep.worker DEVICE PLACE PEER``: PLACE is a GPU (``gpu0``) or the cores it
runs on with a thread each, numbers between commas.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import EventClock
from benchmarks.sweep.cases import Group, build, groups
from benchmarks.sweep.timing import Bench
from benchmarks.worker import serve


def observed(fn: Callable[..., Any], row: dict[str, Any]) -> Callable[..., Any]:
    """What Litz compiles; ``row`` gets the kernels, and the calls of ATen with their reasons."""
    from litz.backend import compile_with
    from litz.options import make_options

    row |= {"kernels": 0, "externs": {}}

    def observe(kind: str, graph: Any, stages: Any) -> None:
        row["kernels"] += len(stages.artifact.kernels) if stages.artifact else 0
        row["externs"] |= {x.target_name: x.reason for x in stages.externs()}
        if stages.fallback:
            row["externs"]["(whole graph)"] = stages.fallback

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_with(gm, inputs, make_options({}, None), observe)

    return torch.compile(fn, backend=backend, dynamic=False)


class Sweeper:
    """Measures cases by name."""

    def __init__(self, device: str, place: str, peer: bool) -> None:
        self.device, self.place = device, place
        self.groups: dict[str, tuple[Group, int]] = {
            g.case(size): (g, size) for g in groups(device) for size in g.sizes
        }
        clock = EventClock() if device == "cuda" else None
        self.bench = Bench(device, peer, 0.0, observed, self.quiet, clock)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """On a GPU, one process at a time for each."""
        if self.device == "cpu":
            yield
            return
        with Path(os.environ["XDG_CACHE_HOME"], f"quiet-{self.place}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
                torch.cuda.synchronize()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def case(self, name: str, seconds: float) -> dict[str, Any]:
        """The figures of a case; seconds: about how long each side is timed."""
        group, size = self.groups[name]
        self.bench.seconds = seconds
        try:
            return self.bench.measure(lambda: build(group, size, self.device))
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()


def visible(place: str) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` is for a GPU of those that the parent sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = place.removeprefix("gpu")
    return number if seen is None else seen.split(",")[int(number)]


def main() -> None:
    device, place, peer = sys.argv[1:4]
    if place.startswith("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(place)
    else:
        chosen = [int(core) for core in place.split(",")]
        os.sched_setaffinity(0, chosen)
        torch.set_num_threads(len(chosen))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # other processes have the other cores
    serve(partial(Sweeper, device, place, peer == "1"))


if __name__ == "__main__":
    main()
