"""``python -m benchmarks.layers``: what equal layers cost to compile, against fewer of them.

A transformer encoder's training step is compiled with ``--few`` layers (1) and with ``--layers`` of
them: wall time, the fastest of several rounds, with C++ kernels from the cache after the first;
Dynamo apart.  What the columns mean:

stage    a stage of the compiler; "total" is all of them, "around" what the backend takes beside
         them, AOTAutograd with equal layers traced once; "aot_eager": what that backend takes
few ms   with few layers, forward and backward together
many ms  with many layers
ratio    many over few
a layer  milliseconds for each further layer
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from benchmarks.arguments import described
from benchmarks.report import align
from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages

HEADER = ("stage", "few ms", "many ms", "ratio", "a layer")


def encoder(layers: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()


def compiled_stages(layers: int) -> tuple[dict[str, float], int, int]:
    """Seconds of each stage; kernel calls; distinct kernels."""
    found: list[Stages] = []
    seconds: dict[str, float] = {}

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            found.append(stages)

        start = time.perf_counter()
        call = compile_with(gm, inputs, make_options({}), observe)
        own = sum(s.seconds["total"] for s in found)
        seconds["around"] = time.perf_counter() - start - own
        return call

    def eager(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        start = time.perf_counter()
        call = lookup_backend("aot_eager")(gm, list(inputs))
        seconds["aot_eager"] = time.perf_counter() - start
        return call

    step(layers, backend)
    for s in found:
        for stage, spent in s.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    beside = {"around": seconds.pop("around")}
    step(layers, eager)
    beside["aot_eager"] = seconds.pop("aot_eager")
    calls = sum(len(k.groups) for s in found for k in s.kernels)
    return {**seconds, **beside}, calls, sum(len(s.kernels) for s in found)


def step(layers: int, backend: Any) -> None:
    """A compiled training step."""
    torch.compiler.reset()
    gc.collect()
    gc.disable()  # as the backend does when PyTorch calls it
    try:
        torch.compile(encoder(layers), backend=backend)(torch.randn(4, 16, 64)).sum().backward()
    finally:
        gc.enable()


def fastest(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {stage: min(r[stage] for r in runs) for stage in runs[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = described("layers", __doc__)
    parser.add_argument("--layers", type=int, default=12, help="how many equal layers")
    parser.add_argument("--few", type=int, default=1, help="against how many of them")
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each, after a first")
    options = parser.parse_args(arguments)
    one: list[dict[str, float]] = []
    many: list[dict[str, float]] = []
    for k in range(options.rounds + 1):
        a, b = compiled_stages(options.few), compiled_stages(options.layers)
        if k:
            one.append(a[0])
            many.append(b[0])
    first, last = fastest(one), fastest(many)
    rows = [HEADER]
    for stage in first:
        x, y = 1e3 * first[stage], 1e3 * last[stage]
        each = (y - x) / max(1, options.layers - options.few)
        rows.append((stage, f"{x:.1f}", f"{y:.1f}", f"{y / max(x, 1e-3):.2f}", f"{each:.2f}"))
    print(align(rows))
    print(f"{a[1]} kernel calls of {a[2]} kernels; {b[1]} of {b[2]} with {options.layers} layers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
