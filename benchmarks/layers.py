"""``python -m benchmarks.layers``: what equal layers cost to compile, against fewer of them.

A transformer encoder is compiled with as many layers as ``--layers`` says each time, its training
step or with ``--inference`` its forward pass alone: seconds of the processor, the least of several
rounds, with kernels from the cache after the first; Dynamo apart.  What the lines mean:

stage    a stage of the compiler, forward and backward together; "total" is all of them
find     the search for equal parts of Dynamo's graph; trace: one of them, which AOTAutograd's
         tracer takes; place: putting parts into traced graphs; cut: the proof that PyTorch's
         partitioner would part the whole graph alike; copy: the parts that it was not shown
around   all that the backend takes beside its stages, AOTAutograd with equal layers traced once
litz     what is Litz's own: its stages, and the lines from find to copy
aot_eager  with ``--beside``, what that backend takes for the whole graph

The columns are milliseconds with so many layers, the largest number's over the least's, and
milliseconds for each further layer between the last two.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import attrgetter
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from benchmarks.arguments import described, names
from benchmarks.report import align
from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages

AROUND = {  # functions that run between Dynamo's graph and the stages, by their line
    "find": (("litz.regions", "repeats"),),
    "trace": (("litz.regions.place", "record"),),
    "place": (
        ("litz.regions.few", "with_few_parts"),
        ("litz.regions.place", "place"),
        ("litz.regions.split", "place"),
    ),
    "cut": (("litz.regions.split", "check_cut"),),
    "copy": (("litz.regions.split", "_Lengthening.run"),),
}


def encoder(layers: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()


@contextmanager
def timed_around(seconds: dict[str, float]) -> Iterator[None]:
    """Where the lines of ``AROUND`` and the stages count the processor's time."""

    def timing(line: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **more)
            finally:
                seconds[line] += time.process_time() - start

        return run

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Stages, "clock", staticmethod(time.process_time)))
        for line, places in AROUND.items():
            for module, name in places:
                old = attrgetter(name)(import_module(module))
                stack.enter_context(mock.patch(f"{module}.{name}", timing(line, old)))
        yield


def compiled_stages(
    layers: int, device: str, training: bool, beside_eager: bool
) -> tuple[dict[str, float], int, int]:
    """Seconds of each line; kernel calls; distinct kernels."""
    found: list[Stages] = []
    around = dict.fromkeys(AROUND, 0.0)
    beside = {"around": 0.0, "litz": 0.0}

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            found.append(stages)

        start = time.process_time()
        call = compile_with(gm, inputs, make_options({}), observe)
        own = sum(s.seconds["total"] for s in found)
        beside["around"] = time.process_time() - start - own
        return call

    def eager(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        start = time.process_time()
        call = lookup_backend("aot_eager")(gm, list(inputs))
        beside["aot_eager"] = time.process_time() - start
        return call

    with timed_around(around):
        step(layers, backend, device, training)
    seconds: dict[str, float] = {}
    for s in found:
        for stage, spent in s.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    beside["litz"] = sum(around.values()) + sum(v for k, v in seconds.items() if k != "total")
    if beside_eager:
        step(layers, eager, device, training)
    calls = sum(len(k.groups) for s in found for k in s.kernels)
    return {**seconds, **around, **beside}, calls, sum(len(s.kernels) for s in found)


def step(layers: int, backend: Any, device: str, training: bool) -> None:
    """A compiled training step, or forward pass."""
    torch.compiler.reset()
    gc.collect()
    gc.disable()  # as the backend does when PyTorch calls it
    try:
        model = encoder(layers).to(device)  # in training mode: else one operator is a layer
        with torch.set_grad_enabled(training):
            out = torch.compile(model, backend=backend)(torch.randn(4, 16, 64, device=device))
        if training:
            out.sum().backward()
    finally:
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = described("layers", __doc__)
    parser.add_argument("--layers", default="1,12,48", help="how many equal layers, ascending")
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each, after a first")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--inference", action="store_true", help="no gradients")
    parser.add_argument("--beside", action="store_true", help="aot_eager too, which takes long")
    options = parser.parse_args(arguments)
    counts = [int(n) for n in names(options.layers)]
    least: list[dict[str, float]] = [{} for _ in counts]
    for k in range(options.rounds + 1):
        how = options.device, not options.inference, options.beside
        made = [compiled_stages(n, *how) for n in counts]
        for best, (seconds, _, _) in zip(least, made, strict=True):
            for stage, spent in seconds.items() if k else ():
                best[stage] = min(spent, best.get(stage, spent))
    rows = [("stage", *(f"{n} ms" for n in counts), "ratio", "a layer")]
    for stage in least[-1]:
        ms = [1e3 * best.get(stage, 0.0) for best in least]
        each = (ms[-1] - ms[-2:][0]) / max(1, counts[-1] - counts[-2:][0])
        ratios = [f"{x / max(ms[0], 1e-3):.2f}" for x in ms[1:]]
        rows.append((stage, *(f"{x:.1f}" for x in ms), " ".join(ratios), f"{each:.2f}"))
    print(align(rows))
    for n, (_, calls, kernels) in zip(counts, made, strict=True):
        print(f"{n} layers: {calls} kernel calls of {kernels} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
