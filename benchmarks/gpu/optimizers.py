"""``python -m benchmarks.gpu.optimizers``: a step of every optimizer over many tensors, on a GPU.

For each: whether Litz's step is eager's, kernels that one step starts, seconds to compile, and the
time of a replayed CUDA graph beside the bytes that the step must move at the speed of a copy, and
beside eager's lists (and fused kernels, where there are any).  ``--peer`` adds PyTorch's compiler.

Most of the time goes to tracing: ``--jobs`` processes do that beside each other, and measure one at
a time.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu.backends import backend_called

O = torch.optim  # noqa: E741
CAPTURABLE = {"capturable": True}
# Reads numbers back from tensors, at which Dynamo ends its graph if it is not told to go on; and
# once there is state, Dynamo moves its counts of steps to the GPU, where PyTorch lets it trace
# optimizers with the argument ``capturable`` alone.
READING = "Adafactor"
# Optimizer, its arguments, and how many tensors of a parameter's size a step reads and writes.
CASES: dict[str, tuple[Any, Mapping[str, Any], int]] = {
    "Adam": (O.Adam, CAPTURABLE, 7),
    "AdamW": (O.AdamW, CAPTURABLE, 7),
    "AMSGrad": (O.AdamW, {**CAPTURABLE, "amsgrad": True}, 9),
    "SGD momentum": (O.SGD, {"momentum": 0.9}, 5),
    "SGD Nesterov": (O.SGD, {"momentum": 0.9, "nesterov": True}, 6),  # it changes gradients
    "RMSprop": (O.RMSprop, CAPTURABLE, 5),
    "Adagrad": (O.Adagrad, {}, 5),
    "Adadelta": (O.Adadelta, CAPTURABLE, 7),
    "NAdam": (O.NAdam, CAPTURABLE, 7),
    "RAdam": (O.RAdam, CAPTURABLE, 7),
    "Adamax": (O.Adamax, CAPTURABLE, 7),
    "ASGD": (O.ASGD, CAPTURABLE, 5),
    "Rprop": (O.Rprop, CAPTURABLE, 7),
    # Numbers of whole tensors stand between what it reads, so that it reads parameters twice and
    # gradients three times.
    "Adafactor": (O.Adafactor, {}, 6),
    "Muon": (O.Muon, {}, 5),  # and its products, which are timed by themselves
}
FUSED = ("Adam", "AdamW", "AMSGrad", "SGD momentum", "SGD Nesterov", "Adagrad")
BASE = [(1024, 1024), (1024,), (4096, 512), (4096,), (511, 1021), (129,), (64, 3, 7, 7), (1,)]


def shapes(count: int) -> list[tuple[int, ...]]:
    """Sizes that differ from layer to layer, some of them odd."""
    return [
        tuple(d + 4 * (k // len(BASE)) if d > 100 else d for d in BASE[k % len(BASE)])
        for k in range(count)
    ]


def make(name: str, count: int, **how: Any) -> tuple[list[torch.nn.Parameter], Any]:
    kind, args, _ = CASES[name]
    g = torch.Generator("cuda").manual_seed(0)
    sizes = [s for s in shapes(count) if kind is not O.Muon or len(s) == 2]
    params = [torch.nn.Parameter(torch.randn(s, generator=g, device="cuda")) for s in sizes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=g, device="cuda")
    return params, kind(params, **args, **({} if kind is O.Muon else how))


def products(params: list[torch.nn.Parameter], steps: int = 5) -> Callable[[], None]:
    """The products of Muon's iterations alone."""
    given = [p.detach().bfloat16().clone() for p in params]
    given = [x.T if x.shape[0] > x.shape[1] else x for x in given]

    def run() -> None:
        for x in given:
            for _ in range(steps):
                gram = x @ x.T
                gram = torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
                x = torch.addmm(x, gram, x, beta=3.4445)

    return run


def recorded(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream: Any = torch.cuda.Stream
    side = stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def replay(name: str, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step as a CUDA graph; as it is where it reads numbers back, as no graph can."""
    return step if name == READING else recorded(step).replay


@contextmanager
def alone(lock: str) -> Iterator[None]:
    """While it runs no other process that names the same file is in one; of none nobody is."""
    if not lock:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def milliseconds(run: Callable[[], Any], lock: str = "") -> float:
    with alone(lock):
        return _milliseconds(run)


def _milliseconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(12):
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times[2:]))


def kernels(run: Callable[[], Any]) -> int:
    cuda: Any = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda]) as found:
        run()
        torch.cuda.synchronize()
    events: Any = found.events()
    return sum(e.device_type.name == "CUDA" for e in events)


def speed(lock: str) -> float:
    """Bytes a millisecond that a copy reads and writes."""
    a, b = (torch.empty(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * a.nbytes / milliseconds(lambda: b.copy_(a), lock)


def worst(mine: list[torch.nn.Parameter], eager: list[torch.nn.Parameter]) -> float:
    return max(
        float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))
        for a, b in zip(mine, eager, strict=True)
    )


def timed(name: str, count: int, backend: str, like: list[torch.nn.Parameter], lock: str) -> str:
    torch.compiler.reset()
    backend_called(backend)
    params, optimizer = make(name, count, foreach=True)
    compiled: Any = torch.compile
    step = compiled(optimizer.step, backend=backend)
    start = time.perf_counter()
    reading = torch._dynamo.config.patch(capture_scalar_outputs=name == READING)
    with torch.no_grad(), reading:
        # State is made; the compiled step is the second.
        (step if name == READING else optimizer.step)()
        step()
        torch.cuda.synchronize()
    first = time.perf_counter() - start
    off = worst(params, like)
    started = kernels(step)
    ms = milliseconds(replay(name, step), lock)
    return f"{ms:8.4f} ms, {started:4} kernels, {first:5.1f} s to compile, off by {off:.1e}"


def report(name: str, count: int, rate: float, peer: bool, lock: str) -> None:
    params, optimizer = make(name, count, foreach=True)
    floor = CASES[name][2] * sum(p.nbytes for p in params) / rate
    if name == "Muon":
        floor += milliseconds(recorded(products(params)).replay, lock)
    for _ in range(2):
        optimizer.step()
    print(f"{name}: floor {floor:.4f} ms", flush=True)
    for backend in ("litz", "inductor") if peer else ("litz",):
        try:
            print(f"  {backend:9}{timed(name, count, backend, params, lock)}", flush=True)
        except Exception as e:
            print(f"  {backend:9}{type(e).__name__}: {str(e)[:300]}", flush=True)
    for kind in ("foreach", "fused") if name in FUSED else ("foreach",):
        try:
            _, eager = make(name, count, **{kind: True})
            eager.step()
            run = replay(name, eager.step)
            print(f"  {kind:9}{milliseconds(run, lock):8.4f} ms", flush=True)
        except Exception as e:
            print(f"  {kind:9}{type(e).__name__}: {str(e)[:100]}", flush=True)


def in_processes(names: list[str], jobs: int, arguments: list[str]) -> None:
    """A process for each optimizer, ``jobs`` of them at a time."""
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(jobs) as pool:
        command = [sys.executable, "-m", "benchmarks.gpu.optimizers", *arguments]

        def run(name: str) -> str:
            one = [*command, "--just", name, "--lock", lock.name]
            return subprocess.run(one, stdout=subprocess.PIPE, text=True, check=False).stdout

        for said in pool.map(run, names):
            print(said, end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=500)
    parser.add_argument("--only", default="", help="optimizers whose names have this in them")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--just", choices=(*CASES,), help=argparse.SUPPRESS)
    parser.add_argument("--lock", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [args.just] if args.just else [n for n in CASES if args.only in n]
    if args.jobs > 1:
        rest = ["--tensors", str(args.tensors), *(["--peer"] if args.peer else [])]
        in_processes(names, args.jobs, rest)
        return
    rate = speed(args.lock)
    if not args.just:
        print(f"{torch.cuda.get_device_name()}: a copy moves {rate / 1e6:.0f} GB/s")
    for name in names:
        report(name, args.tensors, rate, args.peer, args.lock)


if __name__ == "__main__":
    main()
