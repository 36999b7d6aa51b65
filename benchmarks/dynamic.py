"""``python -m benchmarks.dynamic``: one compilation for all sizes beside one for each size.

All in one process.  What the columns mean:

static ms   median of a steady call, compiled for exactly that size (``dynamic=False``)
dynamic ms  the same call of what was compiled once for all sizes (``dynamic=True``)
ratio       dynamic over static, the median over paired rounds: above 1 the static one is faster
sizes       how many sizes the dynamic one was called with
graphs      how many graphs that compiled: one (two in training) is what is wanted
+           what the same sizes compile beyond that through ``aot_eager``, which adds no guards
automatic   graphs when Dynamo makes sizes dynamic by itself, one at a time, as they change
right       ok: near eager at every size, roundings apart (``benchmarks.cpu`` judges in float64)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend

from benchmarks.arguments import add_only, described
from benchmarks.report import align, geometric_mean
from benchmarks.step import Step
from benchmarks.workloads import WORKLOADS, Workload, build

NAMES = (
    "norm_gelu_softmax",
    "softmax",
    "layer_norm_bf16",
    "sum_rows",
    "sum_columns",
    "rotary_bf16",
    "group_norm_silu",
    "bert",
    "gpt2",
    "llama",
    "resnet50",
    "vit",
    "bert_training",
    "gpt2_training",
)
QUICK = ("norm_gelu_softmax", "layer_norm_bf16", "sum_columns", "bert", "bert_training")
HEADER = (
    "workload",
    "size",
    "static ms",
    "dynamic ms",
    "ratio",
    "sizes",
    "graphs",
    "+",
    "automatic",
    "right",
)


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self, name: str) -> None:
        self.backend: Callable[..., Any] = lookup_backend(name)
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.graphs += 1
        return self.backend(gm, inputs)


def resized(workload: Workload, k: int) -> Workload:
    """The workload at its k-th size: another batch, and another length for tokens."""
    four = [t.shape[2] for t in workload.inputs if t.dim() == 4]
    rows = [t.shape[0] for t in workload.inputs if t.dim() == 2]
    positions = bool(rows) and set(rows) == set(four)  # angles of a sequence: their rows are its

    def change(t: Tensor) -> Tensor:
        if t.dim() == 1:
            return t
        shape = list(t.shape)
        if t.is_floating_point() and positions:
            shape[-2] -= 17 * k
            return torch.randn(shape).to(t.dtype)
        if t.is_floating_point():
            shape[0] = shape[0] + k if t.dim() == 4 else shape[0] - 17 * k
            return torch.randn(shape).to(t.dtype).requires_grad_(t.requires_grad)
        shape[0] += k % 4
        shape[1] -= 5 * k
        return torch.randint(int(t.max()) + 1, shape)

    if k == 0:
        return workload
    changed = tuple(map(change, workload.inputs))
    if len(changed) == 2 and torch.equal(*workload.inputs[:2]):
        changed = (changed[0], changed[0])
    return replace(workload, inputs=changed)


def errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The greatest relative distance in norm."""
    found = 0.0
    for a, b in zip(got, want, strict=True):
        below = b.double().norm().item()
        found = max(found, (a.double() - b.double()).norm().item() / (below or 1.0))
    return found


@dataclass
class Line:
    """What was measured of one workload."""

    name: str
    size: str
    static: float
    dynamic: float
    ratio: float
    sizes: int
    graphs: int
    extra: int
    automatic: int
    right: bool

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.size,
            f"{1e3 * self.static:.3f}",
            f"{1e3 * self.dynamic:.3f}",
            f"{self.ratio:.3f}",
            str(self.sizes),
            str(self.graphs),
            str(self.extra),
            str(self.automatic),
            "ok" if self.right else "WRONG",
        )


def compiled(workload: Workload, backend: Any, dynamic: bool | None) -> Callable[..., Any]:
    torch.compiler.reset()
    fn: Callable[..., Any] = torch.compile(workload.fn, backend=backend, dynamic=dynamic)
    return fn


def graphs_over(sizes: Sequence[Workload], name: str, dynamic: bool | None) -> int:
    """How many graphs a backend compiles over all sizes."""
    backend = Counting(name)
    fn = compiled(sizes[0], backend, dynamic)
    for w in sizes:
        Step(w, fn)()
    return backend.graphs


def right_everywhere(sizes: Sequence[Workload], fn: Callable[..., Any]) -> bool:
    """Whether every result is eager's but for roundings."""
    for w in sizes:
        eager, actual = Step(w, w.fn).outcome()["out"], Step(w, fn).outcome()["out"]
        half = any(t.dtype in (torch.bfloat16, torch.float16) for t in eager)
        if not errors(actual, eager) <= (2e-2 if half else 1e-4):
            return False
    return True


def paired(first: Step, second: Step, rounds: int) -> tuple[float, float, float]:
    """Medians of both and of their ratios, calls in turn."""
    times: list[tuple[float, float]] = []
    for _ in range(3):
        first(), second()
    for _ in range(rounds):
        pair = []
        for step in (first, second):
            start = time.perf_counter()
            step()
            pair.append(time.perf_counter() - start)
        times.append((pair[0], pair[1]))
    a, b = (statistics.median(t[i] for t in times) for i in (0, 1))
    return a, b, statistics.median(t[1] / t[0] for t in times)


def measure(name: str, quick: bool, count: int, rounds: int) -> Line:
    """Compile for all sizes and for one, and time both at that one."""
    base = build(name, quick)
    sizes = [resized(base, k) for k in range(count)]
    baseline = graphs_over(sizes, "aot_eager", True)
    automatic = graphs_over(sizes, "litz", None)
    backend = Counting("litz")
    dynamic = compiled(base, backend, True)
    right = right_everywhere(sizes, dynamic)
    # A compilation of its own code object, so that both live side by side.
    static = compiled_apart(base)
    a, b, ratio = paired(Step(base, static), Step(base, dynamic), rounds)
    shape = "x".join(map(str, base.inputs[0].shape))
    extra = backend.graphs - baseline
    return Line(name, shape, a, b, ratio, count, backend.graphs, extra, automatic, right)


def compiled_apart(workload: Workload) -> Callable[..., Any]:
    """``dynamic=False`` without touching what Dynamo holds for the same code already."""
    fn = workload.fn

    def static(*args: Any) -> Any:
        return fn(*args)

    made: Callable[..., Any] = torch.compile(static, backend="litz", dynamic=False)
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("dynamic", __doc__)
    add_only(parser, WORKLOADS)
    parser.add_argument("--quick", action="store_true", help="fewer, smaller, shorter")
    parser.add_argument("--sizes", type=int, default=10, help="how many sizes to call with")
    parser.add_argument("--rounds", type=int, help="timed calls of each")
    options = parser.parse_args(arguments)
    options.only = options.only or (QUICK if options.quick else NAMES)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 1 where a result is wrong or Litz compiled again."""
    options = parse(arguments)
    rounds = options.rounds or (15 if options.quick else 40)
    lines: list[Line] = []
    for name in options.only:
        lines.append(measure(name, options.quick, options.sizes, rounds))
        print(f"{name}: ratio {lines[-1].ratio:.3f}", file=sys.stderr, flush=True)
    print(align([HEADER, *(line.cells() for line in lines)]))
    mean = geometric_mean([line.ratio for line in lines])
    print(f"dynamic takes {mean:.3f} of the static time (geometric mean of {len(lines)})")
    return int(any(not line.right or line.extra > 0 for line in lines))


if __name__ == "__main__":
    sys.exit(main())
