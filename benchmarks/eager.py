"""Single operators under ``litz.eager.use``: what a call costs beside eager, and first calls.

``python -m benchmarks.eager``: microseconds of processor time a call of tiny tensors on one thread
(medians of rounds that take turns), and the seconds of each first call in two fresh processes that
share an empty cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import litz

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten::gelu": functional.gelu,
    "aten::add.Tensor": lambda x: x + x,
    "aten::mul.Tensor": lambda x: x * 2.5,
    "aten::sum.dim_IntList": lambda x: x.sum([1]),
    "aten::_softmax": lambda x: x.softmax(1),
    "aten::native_layer_norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "aten::mm": lambda x: x @ x.t(),  # which Litz leaves to ATen
}
ROUNDS, COUNT = 9, 2000


def cost(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
    """Microseconds of a call."""
    call(x)
    start = time.process_time()
    for _ in range(COUNT):
        call(x)
    return (time.process_time() - start) / COUNT * 1e6


def beside_eager(name: str, host: str, x: torch.Tensor) -> tuple[float, float]:
    eager, own = [], []
    for _ in range(ROUNDS):
        eager.append(cost(CALLS[name], x))
        with litz.eager.use(name, options={"host": host}):
            own.append(cost(CALLS[name], x))
    return statistics.median(eager), statistics.median(own)


def first_calls() -> dict[str, float]:
    """Seconds of the first call of each operator in this process."""
    found = {}
    with litz.eager.use(*CALLS):
        for name, call in CALLS.items():
            x = torch.randn(64, 64)
            start = time.perf_counter()
            call(x)
            found[name] = time.perf_counter() - start
    return found


def main() -> None:
    if sys.argv[1:] == ["--first"]:
        print(json.dumps(first_calls()))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.eager", "--first"]
        env = {**os.environ, "LITZ_CACHE_DIR": folder}
        runs = [
            subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True) for _ in range(2)
        ]
    first, second = (json.loads(run.stdout) for run in runs)
    print("operator                  eager, us   litz   native   first call, s   second process")
    x = torch.randn(8, 16)
    for name in CALLS:
        eager, own = beside_eager(name, "python", x)
        _, native = beside_eager(name, "native", x)
        times = f"{first[name]:12.3f} {second[name]:16.4f}"
        print(f"{name:25} {eager:9.2f} {own:6.2f} {native:8.2f} {times}")


if __name__ == "__main__":
    main()
