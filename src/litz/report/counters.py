"""Figures of a compile, as counters: for a line of a file, and for who adds them up."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping

from torch.fx import GraphModule

from litz.graph.calls import count_calls
from litz.host.lines import CallKernel
from litz.logs import events
from litz.runtime.meeting import rank
from litz.stages import Stages
from litz.targets.traffic import call_bytes, kernel_bytes

__all__ = ["append", "counted"]


def counted(kind: str, graph: GraphModule, stages: Stages) -> Mapping[str, int | float]:
    """What one compile adds to each counter; of a graph from the cache, what its artifact knows.

    graphs, and ``graphs.KIND``; operators: of compiled graphs; cache_hits; recompiles; fallbacks:
    whole graphs that ATen runs; kernels: distinct in a graph; kernel_calls and aten_calls in a call
    of it; fusions: merges of loop nests; bytes: that its steps move in a call; ``seconds`` and
    ``seconds.STAGE``: of compiling.
    """
    found: dict[str, int | float] = {"graphs": 1, f"graphs.{kind}": 1}
    found["recompiles"] = int(bool(stages.recompile))
    found["fallbacks"] = int(bool(stages.fallback))
    hit = stages.artifact is not None and stages.program is None
    found["cache_hits"] = int(hit)
    if not stages.fallback and stages.artifact is not None:
        kernels = stages.artifact.kernels
        found["kernels"] = len(kernels)
        found["kernel_calls"] = sum(len(k.groups) for k in kernels)
        found["aten_calls"] = len(stages.artifact.externs)
    if not hit:
        found["operators"] = count_calls(graph)
        for part in () if stages.fallback else stages.parts():
            for name, n in _of_part(part):
                found[name] = found.get(name, 0) + n
    for stage, seconds in stages.seconds.items():
        found["seconds" if stage == "total" else f"seconds.{stage}"] = seconds
    return found


def _of_part(s: Stages) -> Iterator[tuple[str, int]]:
    """The fusions and bytes of a graph, or of a body in it."""
    if s.schedule is None or s.host is None or s.program is None:
        return
    yield "fusions", sum(len(getattr(x, "nodes", ())[1:]) for x in s.schedule.steps)
    kernels = {k.name: k for k in s.kernels}
    buffers = s.program.buffers
    yield (
        "bytes",
        sum(
            kernel_bytes(kernels[c.kernel], c, buffers)
            if isinstance(c, CallKernel)
            else call_bytes(c.extern, buffers)
            for c in s.host.calls()
        ),
    )


def append(file: str, kind: str, graph: GraphModule, stages: Stages) -> None:
    """Write a compile's counters to a file as a line of JSON; the log has why that fails.

    Beside the counters stand the time (seconds since 1970), the process, its rank where it is not
    alone, and the reasons of what is a recompile or runs in ATen.
    """
    line: dict[str, object] = {"time": time.time(), "process": os.getpid(), "kind": kind}
    if (mine := rank()) is not None:
        line["rank"] = mine
    reasons = {"recompile": stages.recompile, "fallback": stages.fallback}
    line |= {k: v for k, v in reasons.items() if v}
    line |= {"counters": counted(kind, graph, stages)}
    try:
        with open(os.path.expanduser(file), "a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")  # at once: processes share the file
    except OSError as e:
        events.warning("no metrics are written: %s", e)
