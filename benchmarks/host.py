"""What a call costs beside its kernels: ``python -m benchmarks.host``.

Small CPU programs on one thread, microseconds of the processor's time a call, in turns: eager mode,
Dynamo and AOTAutograd alone (a compiler that computes nothing: what all compiled columns have in
common), Litz's printed Python, its native executor, the peer.  Medians of the turns.
``--training``: a call and the gradient of its second argument.
``--device cuda``: see ``benchmarks.host_gpu``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from benchmarks.host_gpu import STEPS
from benchmarks.host_gpu import main as main_gpu
from litz.dynamo import boxed, real_tensors

Call = Callable[..., Any]


def one_kernel(x: Tensor, w: Tensor) -> Tensor:
    return (x * w + 1).relu()


def products(x: Tensor, w: Tensor) -> Tensor:
    """Ten operators of ATen with a kernel behind each."""
    for _ in range(10):
        x = torch.relu(torch.mm(x, w))
    return x


def layers(x: Tensor, w: Tensor) -> Tensor:
    """The same with a bias, which is a product with more arguments."""
    for _ in range(10):
        x = torch.relu(torch.addmm(w[0], x, w))
    return x


def reductions(x: Tensor, w: Tensor) -> Tensor:
    """Twenty kernels."""
    for i in range(20):
        x = x / (x.abs().sum(i % 2, keepdim=True) + w)
    return x


PROGRAMS: dict[str, Call] = {f.__name__: f for f in (one_kernel, products, layers, reductions)}


def compiled(fn: Call) -> dict[str, Call]:
    """The program on every side; each compiles a function of its own."""

    def nothing(gm: Any, inputs: Any, fresh: bool = False) -> Call:
        with real_tensors(), torch.no_grad():
            results = gm(*(torch.ones(x.shape) for x in inputs))

        def run(args: list[Any]) -> list[Any]:
            args.clear()
            return [r.detach() if fresh and r is not None else r for r in results]

        return boxed(run)

    again = partial(nothing, fresh=True)  # autograd wants tensors that have no history
    common = aot_autograd(fw_compiler=again, bw_compiler=again, inference_compiler=nothing)

    def own() -> Call:
        return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)

    def litz(host: str) -> Call:
        made: Call = torch.compile(own(), backend="litz", options={"host": host})
        return made

    return {
        "eager": fn,
        "common": torch.compile(own(), backend=common),
        "python": litz("python"),
        "native": litz("native"),
        "peer": torch.compile(own()),
    }


def training(call: Call) -> Call:
    """A call, and its gradient."""
    ones = torch.ones(4, 4)

    def step(x: Tensor, w: Tensor) -> None:
        call(x, w).backward(ones)
        w.grad = None

    return step


def microseconds(call: Call, args: tuple[Tensor, ...], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call(*args)
    return 1e6 * (time.process_time() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--count", type=int, default=1000, help="calls a turn")
    parser.add_argument("--only", help=", ".join((*PROGRAMS, "on a GPU: chain", *STEPS)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--training", action="store_true", help="on the CPU: gradients too")
    parser.add_argument("--quick", action="store_true", help="tiny models on a GPU")
    given = parser.parse_args()
    if given.device == "cuda":
        main_gpu(given.turns, given.count // 100, given.only, given.quick)
        return
    torch.set_num_threads(1)
    args = torch.randn(4, 4), torch.randn(4, 4, requires_grad=given.training)
    with torch.set_grad_enabled(given.training):
        for name in [given.only] if given.only else PROGRAMS:
            calls = compiled(PROGRAMS[name])
            if given.training:
                calls = {side: training(call) for side, call in calls.items()}
            for call in calls.values():
                microseconds(call, args, 3)
            turns = [
                [microseconds(c, args, given.count) for c in calls.values()]
                for _ in range(given.turns)
            ]
            cells = dict(zip(calls, map(statistics.median, zip(*turns, strict=True)), strict=True))
            share = (cells["native"] - cells["common"]) / (cells["peer"] - cells["common"])
            row = "  ".join(f"{side} {us:7.2f}" for side, us in cells.items())
            print(f"{name:12} {row}  beyond these, of the peer's: {share:.2f}", flush=True)


if __name__ == "__main__":
    main()
