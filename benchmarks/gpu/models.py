"""``python -m benchmarks.gpu.models``: models as they are trained and served, beside the peer.

Weights and batches in bfloat16; with gradients ("train") and without ("infer"), no optimizer.  Each
model and backend has a process of its own, ``--jobs`` of them side by side, of which one at a time
is timed; rows are kept in ``--out`` as they come, and what it holds is not run again.  Columns:

first s   the first call, compilation included, after one of a small function, while others compile
ms        a call, between CUDA events, on a cold last-level cache
replay    the same of replays of the call as a CUDA graph
busy      milliseconds in which the GPU's kernels run, by PyTorch's profiler; and how many start
peak      GiB allocated at most during a call, above what lies there before (weights, the batch)
error     from eager mode in float32: of logits, or of all gradients together
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import add_only, described, names
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import EventClock, Replay
from benchmarks.gpu.models_zoo import MODELS, Batch
from benchmarks.report import PEER, SUBJECT, align, geometric_mean, number

BF16 = torch.bfloat16
BACKENDS = ("eager", PEER, SUBJECT)
MODES = ("infer", "train")
SECONDS = 0.25
PROFILED = 3  # calls
NAMED = 25  # kernels of a row
Row = dict[str, Any]


class Served(nn.Module):
    """A model's first result; in training its loss, or one that all of its results are in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """batch: keyword arguments of the model; of labels only training knows."""
        if not self.training:
            batch = {k: x for k, x in batch.items() if k != "labels"}
        out = self.model(**batch)
        if isinstance(out, Tensor):
            out = (out,)
        if self.training and "labels" in batch:
            return out["loss"]
        result: Tensor = out["logits"] if "logits" in out else out[0]
        return result.float().square().mean() if self.training else result


def build(name: str, quick: bool) -> tuple[nn.Module, Batch]:
    """The same weights and batch in every process."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, batch = MODELS[name](quick)
        generator = torch.Generator("cuda").manual_seed(1)
        for p in model.parameters():
            if p.dim() > 1 and not p.any():  # behind zeros nothing would have a gradient
                nn.init.normal_(p, std=0.02, generator=generator)
    batch = {k: x.to(BF16) if x.is_floating_point() else x for k, x in batch.items()}
    if name == "t5" or name == "whisper":  # the decoder's input is made of the labels
        batch["decoder_input_ids"] = batch["labels"]
    return Served(model.to(BF16)), batch


def step_of(module: nn.Module, call: Callable[..., Tensor], batch: Batch) -> Callable[[], Tensor]:
    """A call without gradients, or a loss and its gradients."""
    if not module.training:

        def infer() -> Tensor:
            with torch.no_grad():
                return call(batch)

        return infer

    leaves = [*module.parameters()]

    def train() -> Tensor:
        for p in leaves:
            p.grad = None
        loss = call(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return train


def outcome(module: nn.Module, step: Callable[[], Tensor]) -> list[Tensor]:
    """A result, or all gradients; of a model in bfloat16 as it left them."""
    result = step()
    if not module.training:
        return [result]
    return [p.grad for p in module.parameters() if p.grad is not None]


def exact(module: nn.Module, batch: Batch) -> list[Tensor]:
    """The same by eager mode in float32."""
    wide = copy.deepcopy(module).float()
    more = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    return outcome(wide, step_of(wide, wide, more))


def distance(mine: list[Tensor], theirs: list[Tensor]) -> float:
    """Of all together, relative."""
    pairs = zip(mine, theirs, strict=True)
    off = sum(float((a.float() - b).square().sum(dtype=torch.float64)) for a, b in pairs)
    return (off / sum(float(b.square().sum(dtype=torch.float64)) for b in theirs)) ** 0.5


def kernels(step: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """Name, starts a call and milliseconds a call of each, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in found.events():
        if str(event.device_type).endswith("CUDA"):
            sums[event.name][0] += 1 / PROFILED
            sums[event.name][1] += event.device_time / 1e3 / PROFILED
    return sorted(((k, n, ms) for k, (n, ms) in sums.items()), key=lambda row: -row[2])


def measured(name: str, mode: str, backend: str, quick: bool, lock: Path) -> Row:
    """One row, in a process that has compiled something before."""
    torch.compiler.reset()
    module, batch = build(name, quick)
    module.train(mode == "train")
    call = module if backend == "eager" else torch.compile(module, backend=backend)
    step = step_of(module, call, batch)
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    row: Row = {"case": name, "mode": mode, "backend": backend}
    row["first"] = time.perf_counter() - start
    for _ in range(2):
        step()
    row["error"] = distance(outcome(module, step), exact(module, batch))
    module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        row["peak"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        clock = EventClock()
        row["ms"] = 1e3 * statistics.median(clock.measure(step, SECONDS))
        found = kernels(step)
        row["busy"], row["starts"] = sum(k[2] for k in found), sum(k[1] for k in found)
        row["kernels"] = found[:NAMED]
        try:
            row["replay"] = 1e3 * statistics.median(clock.measure(Replay(step), SECONDS))
        except Exception as e:  # what waits for the device cannot be captured
            row["refused"] = f"{type(e).__name__}: {e}"[:200]
    return row


def process(args: argparse.Namespace) -> None:
    """Both rows of a model and a backend, printed as they come."""
    (name,), (backend,) = args.only, args.backends
    if backend != "eager":
        backend_called(backend)
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8, device="cuda"))
    for mode in args.modes:
        try:
            row = measured(name, mode, backend, args.quick, args.lock)
        except Exception as e:
            failed = f"{type(e).__name__}: {e}"
            row = {"case": name, "mode": mode, "backend": backend, "failed": failed[:2000]}
        print(json.dumps(row), flush=True)


def run(args: argparse.Namespace, write: Callable[[Row], None], have: set[tuple[str, ...]]) -> None:
    """Let processes measure what is not known yet, until the time is over."""
    start = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.models", "--lock", f"{args.lock}"]
    command += ["--quick"] * args.quick

    def one(pair: tuple[str, str]) -> None:
        name, backend = pair
        modes = [m for m in args.modes if (name, m, backend) not in have]
        left = args.seconds - (time.monotonic() - start)
        if not modes or left < 0:
            return
        mine = [*command, "--here", "--only", name, "--backends", backend, "--modes"]
        with subprocess.Popen(
            [*mine, ",".join(modes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            try:
                said, error = running.communicate(timeout=left + args.grace)
            except subprocess.TimeoutExpired:
                running.kill()
                said, error = running.communicate()
                error = "late"
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        for row in rows:
            write(row)
        if not rows and error != "late":
            write({"case": name, "mode": modes[0], "backend": backend, "failed": error[-2000:]})

    pairs = [(n, b) for n in args.only or MODELS for b in args.backends]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, pairs))


HEADER = (
    *("model", "mode", "backend", "first s", "ms", "replay", "busy", "starts", "peak", "error"),
    *("busy x peer", "peak x peer", "first x peer"),
)


def table(rows: list[Row]) -> str:
    """Rows beside the peer's: how many times its time, memory and first call Litz takes."""
    by = {(r["case"], r["mode"], r["backend"]): r for r in rows}
    order = [(n, m, b) for n in MODELS for m in MODES for b in BACKENDS if (n, m, b) in by]
    lines = [HEADER]
    ratios: dict[str, list[float]] = defaultdict(list)
    failed = []
    for n, m, b in order:
        r = by[n, m, b]
        if "failed" in r:
            failed.append(f"{n} {m} {b}: {r['failed'].strip()[-300:]}")
            continue
        peer = by.get((n, m, PEER), {})
        cells = []
        for key in ("busy", "peak", "first"):
            beside = r[key] / peer[key] if b == SUBJECT and peer.get(key) else None
            if beside is not None:
                ratios[key].append(beside)
            cells.append("" if beside is None else f"{beside:.2f}")
        cells = [
            *(n, m, b, number(r["first"], 1), number(r["ms"], 2)),
            *("" if "replay" not in r else number(r["replay"], 2), number(r["busy"], 2)),
            *(f"{r['starts']:.0f}", number(r["peak"], 2), f"{r['error']:.1e}", *cells),
        ]
        lines.append(tuple(cells))
    text = align(lines)
    means = ", ".join(f"{k} {number(geometric_mean(x), 3)}" for k, x in ratios.items())
    return "\n".join([text, f"geometric means beside the peer: {means}", *failed])


def main() -> int:
    parser = described("gpu.models", __doc__)
    add_only(parser, MODELS)
    parser.add_argument("--backends", type=names, default=BACKENDS)
    parser.add_argument("--modes", type=names, default=MODES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=3600, help="begin nothing after so long")
    parser.add_argument("--grace", type=float, default=40, help="and then for what is under way")
    parser.add_argument("--out", type=Path, default=Path("models.jsonl"))
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.lock = args.lock or args.out.with_suffix(".lock")
    if args.here:
        process(args)
        return 0
    rows = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []

    def write(row: Row) -> None:
        rows.append(row)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    run(args, write, {(r["case"], r["mode"], r["backend"]) for r in rows})
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
