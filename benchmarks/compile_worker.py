"""A process that compiles workloads and says how long each stage took; asked a line at a time.

``python -m benchmarks.compile_worker DEVICE BACKEND QUICK``; see ``benchmarks.worker`` for
requests.
"""

from __future__ import annotations

import importlib
import sys
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import compilation_time_metrics

from benchmarks.step import Step
from benchmarks.worker import serve
from benchmarks.workloads import Workload, build
from litz.runtime.collector import uncollected

OPTIMIZER = "adamw"  # a step of AdamW over 200 tensors of four shapes
SHAPES = ((768,), (768, 768), (3072, 768), (3072,))


def optimizer(device: str, quick: bool) -> Workload:
    """A workload that is on its device; its state is there."""
    count = 20 if quick else 200
    weights = [
        nn.Parameter(torch.ones(SHAPES[k % len(SHAPES)], device=device)) for k in range(count)
    ]
    for w in weights:
        w.grad = torch.ones_like(w)
    made = torch.optim.AdamW(weights, foreach=True)
    made.step()
    return Workload(made.step, ())


def small(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y) * 2


def on(device: str, workload: Workload) -> Workload:
    """The workload on a device."""
    if isinstance(workload.fn, nn.Module):
        workload.fn.to(device)
    given = (t.detach().to(device).requires_grad_(t.requires_grad) for t in workload.inputs)
    return Workload(workload.fn, tuple(given), workload.training)


class CompileRunner:
    """One backend on a device."""

    def __init__(self, device: str, backend: str, quick: bool) -> None:
        self.device, self.backend, self.quick = device, backend, quick
        self.litz: list[tuple[str, Any]] = []  # kind and stages of each graph that Litz compiled
        if device == "cuda":
            torch.zeros(1, device=device)  # the driver's start is nobody's

    def ahead(self) -> dict[str, Any]:
        """Compile something else first: what only a process's first graph costs is paid."""
        self.compiled(Workload(small, (torch.ones(64), torch.ones(64))), False)
        return {}

    def first(self, name: str, dynamic: bool) -> dict[str, Any]:
        """Build a workload, compile it and call it once: seconds of that call, and of stages."""
        if name == OPTIMIZER:
            return self.compiled(optimizer(self.device, self.quick), dynamic)
        return self.compiled(build(name, self.quick), dynamic)

    def compiled(self, given: Workload, dynamic: bool) -> dict[str, Any]:
        workload = on(self.device, given)
        compilation_time_metrics.clear()
        self.litz.clear()
        start = time.perf_counter()
        if self.backend == "litz":
            with uncollected():  # as its entry point does
                self.watch()
        elif self.backend == "inductor":
            importlib.import_module("torch._inductor.compile_fx")
        imported = time.perf_counter() - start
        Step(workload, torch.compile(workload.fn, backend=self.backend, dynamic=dynamic))()
        if self.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        spent = self.stages(given.training)
        spent["import"] = spent.get("import", 0.0) + imported
        return {"seconds": seconds, "stages": spent}

    def watch(self) -> None:
        """Have the backend's reports come here as well."""
        backend: Any = importlib.import_module("litz.backend")
        report = backend.report_compiled
        if isinstance(report, partial):
            return

        def note(report: Any, kind: str, stages: Any) -> None:
            self.litz.append((kind, stages))
            report(kind, stages)

        backend.report_compiled = partial(note, report)

    def stages(self, training: bool) -> dict[str, float]:
        """Seconds of Dynamo, of AOTAutograd, and of what the backend does.

        A backward graph is compiled when it is run, outside of AOTAutograd.
        """
        spent = {name: sum(times) for name, times in compilation_time_metrics.items()}
        whole = spent.get("_compile.compile_inner", 0.0)
        below = spent.get("OutputGraph.call_user_compiler", 0.0)
        own: dict[str, float] = {}
        inside = 0.0
        for kind, s in self.litz:
            inside += s.seconds.get("total", 0.0) if kind != "backward" else 0.0
            for stage, seconds in s.seconds.items():
                own[stage] = own.get(stage, 0.0) + seconds
        own.pop("total", None)
        if peers := compilation_time_metrics.get("compile_fx_inner"):
            inside = sum(peers[: -1 if training else None])
            own = {"backend": sum(peers)}
        aot = spent.get("create_aot_dispatcher_function", below)
        return {"Dynamo": whole - below, "AOTAutograd": max(aot - inside, 0.0), **own}


def main() -> None:
    device, backend, quick = sys.argv[1:4]
    serve(partial(CompileRunner, device, backend, quick == "1"))


if __name__ == "__main__":
    main()
