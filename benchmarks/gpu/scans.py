"""``python -m benchmarks.gpu.scans``: scans beside eager mode and the peer.

GB/s of the bytes that have to move, in CUDA-graph replays, errors against float64, launches' first
call.  Each case and backend has a process of its own; ``--out`` keeps what is measured, a line of
JSON each, and a second run goes on where the first was cut off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.apart import measured_apart
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import EventClock, Replay

SECONDS = 0.4


@dataclass(frozen=True)
class Case:
    """A function of a random tensor; moved: bytes of all results, and of the argument, once."""

    fn: Callable[[Tensor], Any]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def _sampled(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return torch.where(p.cumsum(-1) - p > 0.9, 0.0, p)


CASES: dict[str, Case] = {
    "rows": Case(lambda x: x.cumsum(-1), (8192, 8192)),
    "rows_bf16": Case(lambda x: x.cumsum(-1), (8192, 8192), torch.bfloat16),
    "short_rows": Case(lambda x: x.cumsum(-1), (1 << 18, 256)),
    "long": Case(lambda x: x.cumsum(0), (1 << 26,)),
    "columns": Case(lambda x: x.cumsum(0), (8192, 8192)),
    "few_columns": Case(lambda x: x.cumsum(0), (1 << 20, 64)),
    "cumprod": Case(lambda x: (1 + x / 4096).cumprod(-1), (8192, 8192)),
    "cummax": Case(lambda x: torch.cummax(x, -1), (8192, 8192)),
    "cummax_long": Case(lambda x: torch.cummax(x, 0), (1 << 25,)),
    "logcumsumexp": Case(lambda x: torch.logcumsumexp(x, -1), (8192, 8192)),
    "logcumsumexp_long": Case(lambda x: torch.logcumsumexp(x, 0), (1 << 25,)),
    "softmax_cumsum": Case(lambda x: torch.softmax(x, -1).cumsum(-1), (64, 128256)),
    "top_p": Case(_sampled, (64, 128256)),
    "counts": Case(lambda x: (x > 0).cumsum(1), (8192, 8192)),
    "times": Case(lambda x: x.cumsum(-1) * x, (8192, 8192)),
}


def results(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def error(found: Tensor, exact: Tensor) -> float:
    """The relative error of floats, the part of other elements that differ."""
    if not found.is_floating_point():
        return float((found != exact).double().mean())
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def measured(name: str, backend: str, mode: str | None) -> dict[str, Any]:
    case = CASES[name]
    torch.manual_seed(1)
    x = torch.randn(case.shape, device="cuda", dtype=case.dtype)
    backend_called(backend)
    call = case.fn if backend == "eager" else torch.compile(case.fn, backend=backend, mode=mode)
    start = time.perf_counter()
    out = results(call(x))
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    again = results(call(x))
    moved = sum(t.numel() * t.element_size() for t in (x, *out))
    clock = EventClock()
    seconds = median(clock.measure(Replay(lambda: call(x)), SECONDS))
    exact = results(case.fn(x.double()))
    return {
        "case": name,
        "backend": backend,
        "device": torch.cuda.get_device_name(),
        "first": first,
        "ms": seconds * 1e3,
        "gb_s": moved / seconds / 1e9,
        "errors": [error(a, b) for a, b in zip(out, exact, strict=True)],
        "repeatable": all(torch.equal(a, b) for a, b in zip(out, again, strict=True)),
    }


def show(rows: list[dict[str, Any]]) -> None:
    for r in sorted(rows, key=lambda r: list(CASES).index(r["case"])):
        if "failed" in r:
            print(f"{r['case']:18} {r['backend']:9} failed: {r['failed'][-300:]}")
            continue
        text = " ".join(f"{e:.1e}" for e in r["errors"])
        same = "" if r["repeatable"] else " other bits in a second run"
        times = f"{r['ms']:8.4f} ms {r['gb_s']:7.0f} GB/s first {r['first']:5.2f} s"
        print(f"{r['case']:18} {r['backend']:9} {times} {text}{same}")


def main() -> int:
    rows = measured_apart("gpu.scans", __doc__, CASES, ("litz", "inductor", "eager"), measured)
    if rows is not None:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
