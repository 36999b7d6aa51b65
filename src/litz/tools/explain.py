"""``litz.explain``: what a compilation made of a function, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from litz.backend import compile_with
from litz.dataclass import dataclass
from litz.ir.program import Extern
from litz.options import make_options
from litz.runtime.cuda_graphs import CudaGraphs
from litz.runtime.tune import Choice
from litz.stages import Stages
from litz.targets.kernels import Kernel


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph: ``inference``, ``forward`` or ``backward``."""

    kind: str
    graph: GraphModule
    stages: Stages


@dataclass(frozen=True)
class ExternReport:
    """An operator that ATen runs: its name, why, and how often it is called."""

    op: str
    reason: str
    calls: int


@dataclass(frozen=True)
class Explanation:
    """All graphs of one run.  result: what the function returned.  ``str`` gives the report."""

    graphs: tuple[GraphReport, ...]
    result: Any

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels of all graphs."""
        found = {k.name: k for g in self.graphs for s in g.stages.parts() for k in s.kernels}
        return tuple(found.values())

    @property
    def externs(self) -> tuple[ExternReport, ...]:
        """Operators left to ATen, each with its reason, most calls first."""
        count: dict[tuple[str, str], int] = {}
        for g in self.graphs:
            for e in (e for s in g.stages.parts() for e in s.externs()):
                key = (_plain_name(e), e.reason)
                count[key] = count.get(key, 0) + 1
            if g.stages.fallback:
                key = (f"the whole {g.kind} graph", g.stages.fallback)
                count[key] = count.get(key, 0) + 1
        rows = [ExternReport(op, why, n) for (op, why), n in count.items()]
        return tuple(sorted(rows, key=lambda r: (-r.calls, r.op)))

    def __str__(self) -> str:
        lines: list[str] = []
        for n, g in enumerate(self.graphs):
            lines += _graph_lines(n, g)
        lines.append("extern calls:" if self.externs else "extern calls: none")
        lines += [f"  {r.calls:4} x {r.op}: {r.reason}" for r in self.externs]
        return "\n".join(lines)


def _plain_name(e: Extern) -> str:
    name = e.target_name
    return f"{name[:-4]}.default" if e.out_variant and name.endswith(".out") else name


def _graph_lines(n: int, g: GraphReport) -> list[str]:
    s = g.stages
    calls = sum(1 for node in g.graph.graph.nodes if node.op == "call_function")
    lines = [f"graph {n} ({g.kind}): {calls} operator calls; {s.regions}".removesuffix("; ")]
    if s.fallback:
        return [*lines, f"  runs through ATen: {s.fallback}"]
    if s.repeats:
        lines.append(f"  {s.repeats}")
    for part in s.parts():
        lines += _part_lines(part, "" if part is s else "in a body: ", s.choices)
    if s.cuda_graphs is not None:
        lines.append(f"  {_recording_text(s.cuda_graphs)}")
    times = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in s.seconds.items())
    lines.append(f"  {times}")
    return lines


def _part_lines(s: Stages, where: str, choices: Mapping[str, Choice]) -> list[str]:
    assert s.schedule is not None
    apart = sum(len(x.groups) - 1 for x in s.schedule.horizontal)
    launches = sum(len(k.groups) for k in s.kernels) - apart
    lines = [
        f"  {where}{launches} kernel calls of {len(s.kernels)} distinct kernels, "
        f"{len(s.externs())} extern calls"
    ]
    plan = "" if s.artifact is None else s.artifact.host.plan
    if isinstance(plan, str) and plan:
        lines.append(f"  {where}Python runs the host program: {plan}")
    origins = {step.name: step.origins for step in s.schedule.steps}
    for k in s.kernels:
        what = ", ".join(origins[k.groups[0]])
        lines.append(f"  {k.name} x{len(k.groups)}: {what}")
        if k.ways is not None:
            found = choices.get(k.name)
            table = k.ways.lines(found.index, found.seconds) if found else k.ways.lines()
            lines += [f"    {line}" for line in table]
    return lines


def _recording_text(graphs: CudaGraphs | str) -> str:
    if isinstance(graphs, str):
        return f"not a CUDA graph: {graphs}"
    return f"CUDA graphs: {graphs.recorded} recorded" + (graphs.reason and f"; {graphs.reason}")


def explain(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """Compile and run ``fn`` once, and its backward if the result wants gradients."""
    graphs: list[GraphReport] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: GraphModule, stages: Stages) -> None:
            graphs.append(GraphReport(kind, graph, stages))

        return compile_with(gm, inputs, make_options(options), observe)

    torch.compiler.reset()
    try:
        compiled: Any = torch.compile(fn, backend=backend)
        result = compiled(*args, **kwargs)
    finally:
        torch.compiler.reset()
    return Explanation(tuple(graphs), result)
