"""What graphs of a kind cost to compile as they grow: the table of ``compile_time --growth``.

Each kind is compiled at a quarter, a half and all of its size, kernels unbuilt.  What the columns
mean:

n        ops of a chain, doublings, results, pieces, tensors of a list, equal layers
torch s  Dynamo and AOTAutograd: seconds of the processor
litz s   all stages of Litz up to the sources; x2: over the same at half the size, 2 is linear
regions to host  seconds of a stage, and times those at half the size; regions: the search for
         equal parts of Dynamo's graph, whose finds stay unused here
kernels  distinct kernels; KiB: of their sources together; longest: KiB of the longest
build s  wall time of the compiler for all of them on an empty cache, where it is asked for
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.layers import encoder
from benchmarks.report import align
from litz import dynamo
from litz.binding import Binder
from litz.compiler import compile_graph
from litz.options import make_options
from litz.regions.find import NotEqual, repeats
from litz.stages import Stages

STAGES = ("regions", "passes", "lowering", "schedule", "kernels", "host")
HEADER = ("graph", "n", "torch s", "litz s", "x2", *STAGES, "kernels", "KiB", "longest", "build s")
Made = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments


def chain(n: int) -> Made:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        for k in range(n):
            x = x.sin() if k % 2 else x + y
        return x

    return fn, (torch.randn(64), torch.randn(64))


def doubling(n: int) -> Made:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(n):
            a, b = a + b, a * b
        return a, b

    return fn, (torch.randn(64), torch.randn(64))


def results(n: int) -> Made:
    return lambda x: tuple(x + k for k in range(n)), (torch.randn(64),)


def results_of_a_chain(n: int) -> Made:
    def fn(x: Tensor) -> list[Tensor]:
        out = [x]
        for _ in range(n):
            out.append(out[-1].sin())
        return out[1:]

    return fn, (torch.randn(64),)


def pieces(n: int) -> Made:
    return lambda xs: torch.cat([x.sin() for x in xs]), (
        [torch.randn(3 + k % 5) for k in range(n)],
    )


def lists(n: int) -> Made:
    def fn(xs: list[Tensor], ys: list[Tensor]) -> Any:
        return torch._foreach_sqrt(torch._foreach_add(torch._foreach_mul(xs, ys), ys))

    return fn, ([torch.rand(16 + k) for k in range(n)], [torch.rand(16 + k) for k in range(n)])


def adamw(n: int) -> Made:
    weights = [torch.nn.Parameter(torch.randn(8 + k % 7, 5)) for k in range(n)]
    for w in weights:
        w.grad = torch.randn_like(w)
    optimizer = torch.optim.AdamW(weights, foreach=True)
    optimizer.step()  # its state is there from now on
    return optimizer.step, ()


def layers(n: int) -> Made:
    return encoder(n), (torch.randn(4, 16, 64),)


FAMILIES: dict[str, tuple[Callable[[int], Made], int]] = {
    "chain": (chain, 5000),
    "doubling": (doubling, 400),
    "results": (results, 1000),
    "results of a chain": (results_of_a_chain, 1000),
    "pieces of a concatenation": (pieces, 500),
    "foreach": (lists, 500),
    "adamw": (adamw, 200),
    "layers, training": (layers, 96),
}


class ProcessorTime(Stages):
    """Counts the seconds that the processor worked, whatever else the machine does."""

    clock = staticmethod(time.process_time)


@dataclass
class Point:
    """What was measured of one graph, its backward graph counted in."""

    n: int
    torch: float = 0.0
    litz: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    build: float | None = None


def measure(make: Callable[[int], Made], n: int, build: bool) -> Point:
    """Compile the graphs of one program."""
    point = Point(n)

    def compiler(inference: bool) -> dynamo.GraphCompiler:
        def one(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
            stages, start = ProcessorTime(), time.process_time()
            options = make_options({})
            artifact = compile_graph(gm, options, stages, inference=inference, guarded=True)
            point.litz += time.process_time() - start
            for name, seconds in stages.seconds.items():
                point.stages[name] = point.stages.get(name, 0.0) + seconds
            point.sources += [k.source for k in stages.kernels]
            if build:
                with tempfile.TemporaryDirectory(prefix="litz-growth-") as folder:
                    begin = time.perf_counter()
                    Binder(make_options({"cache_dir": folder})).wait(artifact)
                    point.build = (point.build or 0.0) + time.perf_counter() - begin
            return dynamo.boxed(dynamo.interpreted(gm))

        return one

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        start = time.process_time()
        with suppress(NotEqual):
            repeats(gm.graph)
        seconds = time.process_time() - start
        point.litz += seconds
        point.stages["regions"] = point.stages.get("regions", 0.0) + seconds
        return dynamo.compile_through_aot(
            gm,
            inputs,
            forward=compiler(False),
            backward=compiler(False),
            inference=compiler(True),
        )

    torch.compiler.reset()
    gc.collect()
    gc.disable()  # as the backend does when PyTorch calls it
    try:
        fn, given = make(n)
        start = time.process_time()
        out = torch.compile(fn, backend=backend, dynamic=False)(*given)
        if isinstance(out, Tensor) and out.requires_grad:
            out.sum().backward()  # type: ignore[no-untyped-call]
        point.torch = time.process_time() - start - point.litz
    finally:
        gc.enable()
    return point


def line(name: str, point: Point, half: Point | None) -> tuple[str, ...]:
    def beside(now: float, before: float | None) -> str:
        return f"{now / max(before, 1e-3):.1f}" if before is not None else ""

    stages = []
    for s in STAGES:
        now, then = point.stages.get(s, 0.0), half.stages.get(s, 0.0) if half else None
        stages.append(f"{now:.2f} {beside(now, then):>4}")
    lengths = [len(s) / 1024 for s in point.sources]
    return (
        name,
        f"{point.n}",
        f"{point.torch:.2f}",
        f"{point.litz:.2f}",
        beside(point.litz, half.litz if half else None),
        *stages,
        f"{len(lengths)}",
        f"{sum(lengths):.0f}",
        f"{max(lengths, default=0):.0f}",
        "" if point.build is None else f"{point.build:.1f}",
    )


def table(divisor: int, build: bool, say: Callable[[str], None]) -> str:
    """All kinds; ``divisor`` makes them smaller."""
    measure(chain, 4, False)  # what every first compilation has to import
    rows: list[tuple[str, ...]] = [HEADER]
    for name, (make, whole) in FAMILIES.items():
        half: Point | None = None
        for n in (whole // 4, whole // 2, whole):
            say(f"growth: {name}, {n // divisor}")
            point = measure(make, max(1, n // divisor), build)
            rows.append(line(name, point, half))
            say("  ".join(rows[-1]))
            half = point
    return align(rows)
