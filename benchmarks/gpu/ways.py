"""``python -m benchmarks.gpu.ways``: ways to reduce beside each other, and which one is chosen.

For each operator and shape, in one process: the milliseconds of a replay on a cold last-level cache
of each way that is possible (option ``reduction``), which of them the model takes first, which ones
it measures where it is unsure, and what the first run then chose.  ``lost``: the time of the
model's first over the quickest's, and of the choice's.  Results are compared with float64.
``--out`` keeps rows, a line of JSON each, and a second run goes on where the first was cut off.
``--quick``: tiny shapes under Triton's interpreter (TRITON_INTERPRET=1), to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import litz
from benchmarks.arguments import add_only, described
from benchmarks.gpu.clock import EventClock, HostClock, Replay

WAYS = ("persistent", "looped", "split")
SECONDS, ROUNDS = 0.05, 3

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "argmax": lambda x: x.argmax(-1),
    "columns": lambda x: x.sum(0),
}
SHAPES = [
    (1, 1 << 24), (4, 1 << 22), (16, 1 << 19), (64, 1 << 14), (64, 1 << 17), (128, 50257),
    (256, 8192), (256, 32768), (512, 16384), (512, 65536), (1024, 8192), (4096, 16384),
    (8192, 4096), (16384, 32768), (1 << 17, 1024), (1 << 20, 16),
]  # fmt: skip
QUICK = [(2, 5000), (64, 100)]


def call_of(fn: Callable[[Tensor], Tensor], options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", dynamic=False, options=options)


def choice_of(fn: Callable[[Tensor], Tensor], x: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """The ways of the kernel that has them: candidates with their estimates, times, the choice."""
    (graph,) = litz.explain(fn, x, options=options).graphs
    kernels = [k for k in graph.stages.kernels if k.ways is not None and k.ways.candidates[0].name]
    if not kernels:
        return {"candidates": []}
    ways, found = kernels[0].ways, graph.stages.choices.get(kernels[0].name)
    assert ways is not None
    return {
        "candidates": [w.name for w in ways.candidates],
        "estimates": [1e3 * w.estimate.likely for w in ways.candidates],
        "times": [t and 1e3 * t for t in found.seconds] if found else [],
        "choice": ways.candidates[found.index if found else 0].name,
    }


def measured(op: str, rows: int, size: int, quick: bool) -> dict[str, Any]:
    fn, device = OPS[op], "cpu" if quick else "cuda"
    base = {"target": "triton"} if quick else {}
    torch.manual_seed(1)
    x = torch.randn(rows, size, device=device)
    exact = fn(x.double())
    auto = choice_of(fn, x, base)
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for way in WAYS:
        options = {**base, "autotune": 0, "reduction": way}
        if choice_of(fn, x, options)["candidates"] != [way]:
            continue
        call = call_of(fn, options)
        errors[way] = float((call(x).double() - exact).norm() / exact.double().norm())
        calls[way] = partial(call, x) if quick else Replay(partial(call, x))
    clock = HostClock() if quick else EventClock()
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(1 if quick else ROUNDS):
        for way, run in calls.items():
            times[way] += clock.measure(run, SECONDS, least=1 if quick else 5)
    return {
        "case": f"{op} {rows}x{size}",
        "device": device if quick else torch.cuda.get_device_name(),
        "ms": {way: 1e3 * median(t) for way, t in times.items()},
        "errors": errors,
        **auto,
    }


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['case']:26} failed: {row['failed'][-300:]}"
    ms = row["ms"]
    cells = [f"{ms[way]:9.4f}" if way in ms else f"{'-':>9}" for way in WAYS]
    first = row["candidates"][0] if row["candidates"] else "-"
    unsure = ",".join(row["candidates"][1:]) or "-"
    best = min(ms.values(), default=0.0)
    lost = [f"{ms[w] / best:5.2f}" if w in ms else "    -" for w in (first, row.get("choice", "-"))]
    error = max(row["errors"].values(), default=0.0)
    named = f"{first:10} {unsure:18} {row.get('choice', '-'):10}"
    return f"{row['case']:26}{''.join(cells)}  {named} {' '.join(lost)}  {error:.1e}"


def main(arguments: list[str] | None = None) -> int:
    parser = described("gpu.ways", __doc__)
    add_only(parser, OPS)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("ways.jsonl"))
    args = parser.parse_args(arguments)
    rows = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []
    have = {r["case"]: r for r in rows}
    heads = "".join(f"{way:>9.9}" for way in WAYS)
    print(f"{'ms':26}{heads}  {'first':10} {'measured too':18} {'chosen':10} lost        error")
    for rows_, size in QUICK if args.quick else SHAPES:
        for op in args.only or OPS:
            name = f"{op} {rows_}x{size}"
            if name not in have:
                try:
                    have[name] = measured(op, rows_, size, args.quick)
                except Exception as e:
                    have[name] = {"case": name, "failed": f"{type(e).__name__}: {e}"}
                with args.out.open("a") as file:
                    file.write(json.dumps(have[name]) + "\n")
            print(line(have[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
