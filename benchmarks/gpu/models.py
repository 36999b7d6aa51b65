"""``python -m benchmarks.gpu.models``: models as they are trained and served, beside the peer.

Weights and batches in bfloat16; without gradients (``NAME_infer``) and with them (``NAME_train``),
no optimizer.  Each case and backend has a process of its own, one after another; what ``--out``
holds is not run again.  ``--mode quick`` takes tiny sizes.  Columns:

first s   the first call, compilation included, after one of a small function
ms        a call, between CUDA events, on a cold last-level cache
replay    the same of replays of the call as a CUDA graph, where it can be captured
busy      milliseconds in which the GPU's kernels run, by PyTorch's profiler; and how many start
peak      GiB allocated at most during a call, above what lies there before (weights, the batch)
error     from eager mode in float32: of logits, or of all gradients together

and what Litz takes beside the peer: busy time, peak, first call, and their geometric means.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.apart import measured_apart
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.busy import kernels
from benchmarks.gpu.clock import EventClock, Replay
from benchmarks.gpu.judge import distance
from benchmarks.gpu.models_zoo import MODELS, Batch
from benchmarks.report import PEER, SUBJECT, align, geometric_mean, number

BF16 = torch.bfloat16
BACKENDS = ("eager", PEER, SUBJECT)
CASES = tuple(f"{name}_{mode}" for name in MODELS for mode in ("infer", "train"))
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
            loss: Tensor = out["loss"]
            return loss
        result: Tensor = out["logits"] if "logits" in out else out[0]
        return result.float().square().mean() if self.training else result


def build(case: str, device: str, quick: bool) -> tuple[Served, Batch]:
    """The same weights and batch in every process, ready to train or to serve."""
    name, _, mode = case.rpartition("_")
    torch.manual_seed(0)
    with torch.device(device):
        model, batch = MODELS[name](quick)
        generator = torch.Generator(device).manual_seed(1)
        for p in model.parameters():
            if p.dim() > 1 and not p.any():  # behind zeros nothing would have a gradient
                nn.init.normal_(p, std=0.02, generator=generator)
    batch = {k: x.to(BF16) if x.is_floating_point() else x for k, x in batch.items()}
    if name in ("t5", "whisper"):  # the decoder's input is made of the labels
        batch["decoder_input_ids"] = batch["labels"]
    module = Served(model.to(BF16))
    module.train(mode == "train")
    return module, batch


def step_of(module: nn.Module, call: Callable[..., Any], batch: Batch) -> Callable[[], Tensor]:
    """A call without gradients, or a loss and its gradients."""

    def infer() -> Tensor:
        with torch.no_grad():
            result: Tensor = call(batch)
        return result

    def train() -> Tensor:
        module.zero_grad(set_to_none=True)
        loss: Tensor = call(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return train if module.training else infer


def outcome(module: nn.Module, step: Callable[[], Tensor]) -> list[Tensor]:
    """A result, or all gradients."""
    result = step()
    if not module.training:
        return [result]
    return [p.grad for p in module.parameters() if p.grad is not None]


def exact(module: nn.Module, batch: Batch) -> list[Tensor]:
    """The same by eager mode in float32."""
    wide = copy.deepcopy(module).float()
    more = {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}
    return outcome(wide, step_of(wide, wide, more))


def measured(case: str, backend: str, mode: str | None) -> Row:
    """One row, in a process that has compiled something before."""
    module, batch = build(case, "cuda", mode == "quick")
    call: Callable[..., Any] = module
    if backend != "eager":
        backend_called(backend)
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8, device="cuda"))
        call = torch.compile(module, backend=backend)
    step = step_of(module, call, batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    row: Row = {"case": case, "backend": backend, "device": torch.cuda.get_device_name()}
    row["first"] = time.perf_counter() - start
    row["error"] = distance(outcome(module, step), exact(module, batch)).error
    found = kernels(step, PROFILED)
    row["busy"] = sum(ms for _, ms in found.values())
    row["starts"] = sum(calls for calls, _ in found.values())
    row["kernels"] = sorted(found.items(), key=lambda kernel: -kernel[1][1])[:NAMED]
    module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    row["peak"] = (torch.cuda.max_memory_allocated() - before) / 2**30
    clock = EventClock()
    row["ms"] = 1e3 * statistics.median(clock.measure(step, SECONDS))
    try:
        row["replay"] = 1e3 * statistics.median(clock.measure(Replay(step), SECONDS))
    except Exception as e:  # what waits for the device cannot be captured
        row["refused"] = f"{type(e).__name__}: {e}"[:200]
    return row


HEADER = (
    *("model", "backend", "first s", "ms", "replay", "busy", "starts", "peak", "error"),
    *("busy x peer", "peak x peer", "first x peer"),
)


def table(rows: list[Row]) -> str:
    """Rows beside the peer's: how many times its time, memory and first call Litz takes."""
    by = {(r["case"], r["backend"]): r for r in rows}
    lines: list[tuple[str, ...]] = [HEADER]
    ratios: dict[str, list[float]] = defaultdict(list)
    failed = []
    for case, backend in [(c, b) for c in CASES for b in BACKENDS if (c, b) in by]:
        r = by[case, backend]
        if "failed" in r:
            failed.append(f"{case} {backend} failed: {r['failed'].strip()[-300:]}")
            continue
        peer = by.get((case, PEER), {})
        beside = ["", "", ""]
        if backend == SUBJECT and "busy" in peer:
            for i, key in enumerate(("busy", "peak", "first")):
                ratios[key].append(r[key] / peer[key])
                beside[i] = f"{r[key] / peer[key]:.2f}"
        times = (r["first"], 1), (r["ms"], 2), (r.get("replay"), 2), (r["busy"], 2)
        sizes = f"{r['starts']:.0f}", number(r["peak"], 2), f"{r['error']:.1e}"
        lines.append((case, backend, *(number(x, n) for x, n in times), *sizes, *beside))
    text = [align(lines)]
    if ratios:
        means = (f"{k} {number(geometric_mean(x), 3)}" for k, x in ratios.items())
        text.append(f"geometric means beside the peer: {', '.join(means)}")
    return "\n".join([*text, *failed])


def main() -> int:
    rows = measured_apart("gpu.models", __doc__, CASES, BACKENDS, measured)
    if rows is not None:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
