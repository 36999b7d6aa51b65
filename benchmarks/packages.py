"""What packages cost: ``python -m benchmarks.packages``.

Size and times of making, loading and first call, each loading in a process of its own (imports
apart); microseconds of the processor's time a call on one thread beside eager mode,
``torch.compile`` and the peer's package, medians of turns; calls a second of 1 to 8 threads that
call one loaded program, medians of turns.  ``python -m benchmarks.soak`` is for memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, export

import litz
from benchmarks.host import microseconds

_LOADS = """
import json, sys, time, torch, litz.loading.loaded as l
x = torch.load(sys.argv[2])
t = [time.perf_counter()]
p = l.load(sys.argv[1], check=bool(int(sys.argv[3]))); t.append(time.perf_counter())
p(x); t.append(time.perf_counter())
p(x); t.append(time.perf_counter())
print(json.dumps([1e3 * (b - a) for a, b in zip(t, t[1:])]))
"""


class Encoder(nn.Module):
    """Layers of a transformer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        made = (nn.TransformerEncoderLayer(width, width // 64, 4 * width) for _ in range(layers))
        self.layers = nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one kernel": (lambda: nn.Sequential(nn.GELU(), nn.LayerNorm(64)), (8, 64)),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)),
        (8, 64),
    ),
    "encoder": (lambda: Encoder(256, 4), (8, 4, 256)),
    "large encoder": (lambda: Encoder(1024, 12), (8, 1, 1024)),
}


THREADS = (1, 2, 4, 8)
SECONDS = 0.1
"""Of the calls in a turn of the throughput, for whom they cost least."""


def peer(module: nn.Module, x: torch.Tensor, shapes: Any, folder: Path) -> Callable[..., Any]:
    """The peer's package of a module, loaded to be called by as many threads as there are."""
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.package.package import load_package

    path = str(folder / "program.pt2")
    with torch.no_grad():
        program = export(module, (x,), dynamic_shapes=shapes)
        aoti_compile_and_package(program, package_path=path)
    loaded: Callable[..., Any] = load_package(path, num_runners=max(THREADS))
    return loaded


def built(folder: Path) -> Path:
    """The program that calls a package from C++."""
    run, native, library = folder / "throughput", litz.native_folder(), f"{torch.__path__[0]}/lib"
    sources = [str(Path(__file__).with_name("throughput.cpp")), f"{native}/litz.cpp"]
    torch_libraries = [f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch_cpu", "-lc10", "-ldl"]
    command = ["g++", "-std=c++17", "-O2", f"-I{native}", *sources, "-Wl,--no-as-needed"]
    subprocess.run([*command, *torch_libraries, "-pthread", "-o", str(run)], check=True)
    return run


def from_cpp(run: Path, package: Path, x: torch.Tensor, count: int) -> list[float]:
    """Calls a second of each of THREADS, from C++."""
    numbers = ("x".join(map(str, x.shape)), str(count), *map(str, THREADS))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([run, package, *numbers], capture_output=True, check=True, env=env)
    return [float(line) for line in done.stdout.split()]


def loads(path: Path, x: torch.Tensor, check: bool) -> list[float]:
    """Milliseconds of loading, of the first and of the second call, in another process."""
    torch.save(x, path.with_suffix(".pt"))
    given = [str(path), str(path.with_suffix(".pt")), str(int(check))]
    done = subprocess.run([sys.executable, "-c", _LOADS, *given], capture_output=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def throughput(call: Callable[..., Any], x: torch.Tensor, threads: int, count: int) -> float:
    """Calls a second."""

    def run() -> None:
        with torch.no_grad():
            for _ in range(count):
                call(x)

    made = [threading.Thread(target=run) for _ in range(threads)]
    start = time.perf_counter()
    for t in made:
        t.start()
    for t in made:
        t.join()
    return threads * count / (time.perf_counter() - start)


def measure(
    name: str, module: nn.Module, x: torch.Tensor, folder: Path, asked: argparse.Namespace
) -> None:
    """Print the figures of one program."""
    shapes: Any = ({0: Dim("b", max=4096)},)
    path = folder / "program.litz"
    start = time.perf_counter()
    litz.package(module, path, (x,), dynamic_shapes=shapes)
    made = time.perf_counter() - start
    size = os.path.getsize(path)
    weights = sum(p.nbytes for p in module.parameters())
    checked, quick = (loads(path, x, check) for check in (True, False))
    sides: dict[str, Callable[..., Any]] = {"eager": module, "package": litz.load(path)}
    held = f"{size / 2**20:.2f} MiB ({weights / 2**20:.2f} of constants)"
    print(f"{name}: {held}, {made:.2f} s")
    print(f"  load {checked[0]:.1f} ms ({quick[0]:.1f} unchecked),", end=" ")
    print(f"first call {checked[1]:.2f}")
    if asked.peer:
        sides["peer's package"] = peer(module, x, shapes, folder)
    dynamic = x.clone()
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(dynamic, 0)
    for host in ("python", "native"):
        compiled = torch.compile(module, backend="litz", options={"host": host})
        sides[f"compiled, {host}"] = compiled
    with torch.no_grad():
        for call in sides.values():
            call(dynamic)
        once = microseconds(module, (x,), 3)
        times: dict[str, list[float]] = {n: [] for n in sides}
        for _ in range(asked.turns):
            for n, call in sides.items():
                times[n].append(microseconds(call, (x,), max(3, int(2e4 / once))))
    medians = {n: statistics.median(t) for n, t in times.items()}
    print("  us a call: ", {n: round(t, 1) for n, t in medians.items()})
    print("  calls a second of threads: " + "".join(f"{k:9}" for k in THREADS))
    count = max(4, int(1e6 * SECONDS / min(medians.values())))
    rates: dict[tuple[str, int], list[float]] = {}
    run = built(folder)
    for _ in range(asked.rounds):
        for k, found in zip(THREADS, from_cpp(run, path, x, count), strict=True):
            rates.setdefault(("package, from C++", k), []).append(found)
        for k in THREADS:
            for n in [s for s in sides if s != "compiled, python"]:
                found = throughput(sides[n], x, k, max(3, count // k))
                rates.setdefault((n, k), []).append(found)
    for n in dict.fromkeys(n for n, _ in rates):
        cells = "".join(f"{statistics.median(rates[n, k]):9.0f}" for k in THREADS)
        print(f"  {n:27}{cells}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3, help="turns of the throughput")
    parser.add_argument("--only", choices=list(PROGRAMS))
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, (make, shape) in PROGRAMS.items():
        if asked.only not in (None, name):
            continue
        torch.manual_seed(0)
        module, x = make().eval(), torch.randn(shape)
        with tempfile.TemporaryDirectory() as folder:
            measure(name, module, x, Path(folder), asked)


if __name__ == "__main__":
    main()
