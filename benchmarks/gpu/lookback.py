"""``python -m benchmarks.gpu.lookback``: scans of few long rows, by looking back and otherwise.

First results, each way's own: errors against float64 beside eager mode's, and whether 50 runs have
the same bits while another stream keeps more or less of the machine busy, and in replays of a CUDA
graph.  Then times: GB/s of the bytes that have to move, of each way that is possible (option
``reduction``) and of eager mode, in turns in one process, beside a copy's.  Ends with 1 where a
result is wrong or changes.  ``--quick``: tiny shapes under Triton's interpreter
(TRITON_INTERPRET=1), to see that it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import litz
from benchmarks.arguments import add_only, described
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import EventClock, Replay
from benchmarks.gpu.scans import error, results
from litz.kernel.blocks import lookback
from litz.kernel.blocks.recipe import Axes, Config
from litz.kernel.plan import KernelPlan

WAYS = ("lookback", "split", "looped")
RUNS, SECONDS, ROUNDS = 50, 0.1, 3
LOOKING = {"reduction": "lookback", "graph_cache": False}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A function of a random tensor; shapes to check, and one to time."""

    fn: Callable[[Tensor], Any]
    checked: tuple[Shape, ...]
    timed: Shape
    dtype: torch.dtype = torch.float32


def linear(a: Tensor, x: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The function of two states of ``h = a * h + x``."""
    return a * b, b * x + y


def recurrence(x: Tensor) -> Any:
    return torch.ops.higher_order.associative_scan(linear, (torch.sigmoid(x), x), ())[1]


def turned(x: Tensor) -> Any:
    return recurrence(x.flip(0)).flip(0)


def flipped(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).cumsum(-1)


ODD: tuple[Shape, ...] = ((1 << 20,), (1_000_003,), (3, 300_001), (100, 20_000))
DOWN: tuple[Shape, ...] = ((1 << 18, 4), (100_003, 7), (50_001, 100))
LONG: Shape = (1 << 26,)
CASES: dict[str, Case] = {
    "cumsum": Case(lambda x: x.cumsum(-1), (*ODD, LONG), LONG),
    "cumsum_rows": Case(lambda x: x.cumsum(-1), ODD[2:], (64, 1 << 20)),
    "cumsum_bf16": Case(lambda x: x.cumsum(-1), ODD, LONG, torch.bfloat16),
    "cumsum_i64": Case(lambda x: (x * 9).long().cumsum(-1), ODD, (1 << 25,)),
    "cumsum_f64": Case(lambda x: x.cumsum(-1), ODD, (1 << 25,), torch.float64),
    "counts": Case(lambda x: (x > 0).cumsum(-1), ODD, (1 << 25,)),
    "cumprod": Case(lambda x: (1 + x / 4096).cumprod(-1), ODD, LONG),
    "cummax": Case(lambda x: torch.cummax(x, -1), ODD, (1 << 25,)),
    "cummin": Case(lambda x: torch.cummin(x, -1), ODD, (1 << 25,)),
    "logcumsumexp": Case(lambda x: torch.logcumsumexp(x, -1), ODD, (1 << 25,)),
    "recurrence": Case(recurrence, ODD[:2], (1 << 25,)),
    "fused": Case(lambda x: x.sigmoid().cumsum(-1) * x, ODD, LONG),
    "flipped": Case(flipped, ODD, LONG),
    "flipped_recurrence": Case(turned, ODD[:2], (1 << 25,)),
    "softmax": Case(softmax, ODD[2:], (64, 128256)),
    "columns": Case(lambda x: x.cumsum(0), DOWN, (1 << 20, 64)),
    "columns_cummax": Case(lambda x: torch.cummax(x, 0), DOWN, (1 << 19, 64)),
    "columns_recurrence": Case(recurrence, DOWN, (1 << 19, 64)),
}


def draw(case: Case, shape: Shape, device: str) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(shape, device=device).to(case.dtype)


def call_of(case: Case, options: dict[str, Any]) -> Callable[[Tensor], Any]:
    torch._dynamo.reset()
    return torch.compile(case.fn, backend="litz", dynamic=False, options=options)


def load_of(device: str) -> Callable[[int], None]:
    """What another stream does meanwhile: products whose size goes by a number."""
    if device == "cpu":
        return lambda i: None
    other: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    a = torch.randn(4096, 4096, device=device)

    def load(i: int) -> None:
        n = 64 << (i % 7)
        with torch.cuda.stream(other):
            for _ in range(i % 5):
                a[:n, :n] @ a[:n, :n]

    return load


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call as a replay of one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def checked(name: str, shape: Shape, device: str, options: dict[str, Any], runs: int) -> str:
    """What is wrong, of each way; empty where nothing is."""
    case, load, wrong = CASES[name], load_of(device), []
    x = draw(case, shape, device)
    exact, eager = results(case.fn(x.double())), results(case.fn(x))
    for way in WAYS[:2]:
        call = call_of(case, {**options, "reduction": way})
        first = [t.clone() for t in results(call(x))]
        for a, b, e in zip(first, eager, exact, strict=True):
            own, theirs = error(a, e), error(b, e)
            if own > 2 * theirs + (
                0 if not a.is_floating_point() else 2 * torch.finfo(a.dtype).eps
            ):
                wrong.append(f"{way}: an error of {own:.2e}, eager's is {theirs:.2e}")
        ways = [partial(call, x)] + ([recorded(partial(call, x))] if device != "cpu" else [])
        for again, kind in zip(ways, ("calls", "replays"), strict=False):
            differ = 0
            for i in range(runs):
                load(i)
                pairs = zip(first, results(again()), strict=True)
                differ += any(not torch.equal(a, b) for a, b in pairs)
            if differ:
                wrong.append(f"{way}: {differ} of {runs} {kind} have other bits")
    return "; ".join(wrong)


def by_config(name: str, clock: EventClock) -> str:
    """GB/s of looking back with each configuration in the default's place."""
    case, choose, found = CASES[name], lookback.configs_of, []
    x = draw(case, case.timed, "cuda")
    moved = sum(t.numel() * t.element_size() for t in (x, *results(case.fn(x))))
    for i in range(5):

        def one(plan: KernelPlan, axes: Axes, i: int = i) -> tuple[Config, ...]:
            configs = choose(plan, axes)
            return (configs[i % len(configs)],)

        with mock.patch.object(lookback, "configs_of", one):
            graphs = litz.explain(case.fn, x, options=LOOKING).graphs
            replay = Replay(partial(call_of(case, LOOKING), x))
        kernels = [k.triton for g in graphs for k in g.stages.kernels if k.triton is not None]
        config = kernels[-1].launches[-1].configs[0]
        seconds = median(clock.measure(replay, SECONDS))
        blocks = " ".join(f"{axis}{n}" for axis, n in config.blocks)
        found.append(f"{blocks} {config.warps} warps: {moved / seconds / 1e9:.0f}")
    return "; ".join(found)


def timed(name: str, clock: EventClock) -> str:
    case = CASES[name]
    x = draw(case, case.timed, "cuda")
    out = results(case.fn(x))
    moved = sum(t.numel() * t.element_size() for t in (x, *out))
    plain = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(plain)
    calls: dict[str, Replay] = {"copy": Replay(lambda: target.copy_(plain))}
    for way in WAYS:
        try:
            call = call_of(case, {"reduction": way})
            call(x)
            calls[way] = Replay(partial(call, x))
        except Exception as e:
            print(f"{name} {way}: {e}", file=sys.stderr)
    if "recurrence" not in name:
        calls["eager"] = Replay(lambda: case.fn(x))
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(ROUNDS):
        for way, replay in calls.items():
            times[way] += clock.measure(replay, SECONDS)
    return " ".join(f"{way} {moved / median(t) / 1e9:.0f}" for way, t in times.items())


def main(given: list[str] | None = None) -> int:
    parser = described("gpu.lookback", __doc__)
    add_only(parser, CASES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-check", action="store_true", help="times alone")
    parser.add_argument("--configs", action="store_true", help="times of each configuration too")
    args = parser.parse_args(given)
    backend_called("litz")
    options = {"target": "triton"} if args.quick else {}
    failed = False
    for name in args.only or CASES:
        case = CASES[name]
        shapes = ((3, 50),) if args.quick else case.checked
        for shape in () if args.no_check else shapes:
            device, runs = ("cpu", 1) if args.quick else ("cuda", RUNS)
            found = checked(name, shape, device, options, runs)
            failed = failed or bool(found)
            print(f"{name:20} {'x'.join(map(str, shape)):>12} {found or 'right'}", flush=True)
    if not args.quick:
        print(f"GB/s on one {torch.cuda.get_device_name()}")
        clock = EventClock()
        for name in args.only or CASES:
            print(f"{name:20} {timed(name, clock)}", flush=True)
            if args.configs:
                print(f"{'':20} {by_config(name, clock)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
