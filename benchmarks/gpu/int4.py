"""Forms of a product with 4-bit weights in groups, beside what Litz makes of it now.

``OUT=FOLDER python -m benchmarks.gpu.int4`` writes ``int4.json`` there: microseconds of 16 rows by
8192 x 8192 weights, each call with weights that no cache holds, and errors against float64.  Forms:
weights as the left factor, whose rows are many, so that matrix units take them from registers;
scales of groups on weights (``inside``) or on sums of a group (``outside``).
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.gpu.matmul import int4
from litz.runtime.triton.packed import small_float, times16

Tensor = torch.Tensor
M, N, K, GROUP = 16, 8192, 8192, 128
COPIES = 8  # of the weights, 32 MiB each: more than caches hold
SECONDS = 100.0  # after which no other form is begun


@triton.jit  # type: ignore[untyped-decorator]
def upright(  # type: ignore[no-untyped-def]
    x, w, s, part, n_all, half, length,
    NB: tl.constexpr, RB: tl.constexpr, MB: tl.constexpr, OUTSIDE: tl.constexpr,
    PLAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Parts of ``w' @ x'``.  x: pairs of bf16 as int32 [MB, half]; w: bytes [n_all, half];
    s: [n_all, half / RB]; part: f32 [parts, MB, n_all]; length: bytes of a row in a part."""
    n = tl.program_id(0) * NB + tl.arange(0, NB)[:, None]
    m = tl.arange(0, MB)[None, :]
    first = tl.program_id(1) * length
    acc = tl.zeros([NB, MB], tl.float32)
    for r in tl.range(0, length, RB, num_stages=STAGES):
        both = tl.load(x + m * half + first + r + tl.arange(0, RB)[:, None])
        even = (both & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        odd = (both >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        b = tl.load(w + n * half + first + r + tl.arange(0, RB)[None, :])
        scale = tl.load(s + n * (half // RB) + (first + r) // RB)
        if PLAIN:  # for the interpreter, which multiplies no blocks of bf16
            even, odd = even.to(tl.float32), odd.to(tl.float32)
            scale = scale.to(tl.float32)
            low = ((b & 15).to(tl.int8) - 8).to(tl.float32)
            high = ((b >> 4).to(tl.int8) - 8).to(tl.float32)
        else:
            low = small_float(b, 0, 15, 0, 8, tl.bfloat16)
            high = small_float(b, 4, 15, 0, 8, tl.bfloat16)
        if OUTSIDE:
            own = tl.dot(high, odd, tl.dot(low, even))
            acc += own * scale.to(tl.float32)
        elif PLAIN:
            acc = tl.dot(high * scale, odd, tl.dot(low * scale, even, acc))
        else:
            acc = tl.dot(times16(low, scale), even, acc)
            acc = tl.dot(times16(high, scale), odd, acc)
    tl.store(part + (tl.program_id(1) * MB + m) * n_all + n, acc)


def forms() -> Iterator[dict[str, Any]]:
    """Rows of weights in a block, warps, stages, parts of the sum, where scales stand."""
    blocks = ((64, 4), (128, 4), (128, 8))
    for (rows, warps), stages, parts, outside in itertools.product(
        blocks, (4, 6), (2, 4, 8), (True, False)
    ):
        yield {
            "rows": rows, "warps": warps, "stages": stages, "parts": parts, "outside": outside,
        }  # fmt: skip


def call(form: dict[str, Any], x: Tensor, w: Tensor, s: Tensor, plain: bool = False) -> Tensor:
    """The product in a form; the parts are added by a kernel of PyTorch's."""
    (m, _), (n, half) = x.shape, w.shape
    step = half // s.shape[1]
    part = torch.empty(form["parts"], m, n, dtype=torch.float32, device=x.device)
    upright[n // form["rows"], form["parts"]](
        x.view(torch.int32), w, s, part, n, half, half // form["parts"],
        form["rows"], step, m, form["outside"], plain, form["stages"],
        num_warps=form["warps"],
    )  # fmt: skip
    return part.sum(0).to(x.dtype)


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Of one call, in a graph that goes through all weights; the best of 20 replays."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in calls:
            one()
    best = float("inf")
    for _ in range(20):
        start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, 1e3 * start.elapsed_time(end) / len(calls))
    return best


def inputs(m: int, n: int, k: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(m, k, device=device).bfloat16()
    w = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    return x, w, (torch.rand(n, k // GROUP, device=device) + 0.5).bfloat16()


def error(found: Tensor, x: Tensor, w: Tensor, s: Tensor) -> float:
    exact = int4(x.double(), w, s.double())
    return float((found.double() - exact).norm() / exact.norm())


def main() -> None:
    began = time.perf_counter()
    x, w, s = inputs(M, N, K, "cuda")
    copies = [w.clone() for _ in range(COPIES)]
    rows: list[dict[str, Any]] = [{"form": "eager", "error": error(int4(x, w, s), x, w, s)}]
    for tuned in (False, True):
        torch._dynamo.reset()
        own = torch.compile(int4, backend="litz", options={"autotune": 20 if tuned else 0})
        rows.append({"form": "litz", "tuned": tuned, "error": error(own(x, w, s), x, w, s)})
        rows[-1]["us"] = microseconds([partial(own, x, c, s) for c in copies])
    for form in forms():
        if time.perf_counter() - began > SECONDS:
            break
        row: dict[str, Any] = {"form": "upright", **form}
        try:
            row["error"] = error(call(form, x, w, s), x, w, s)
            row["us"] = microseconds([partial(call, form, x, c, s) for c in copies])
        except (RuntimeError, triton.TritonError) as e:
            row["failed"] = f"{type(e).__name__}: {e}"[:200]
        rows.append(row)
    rows.sort(key=lambda r: r.get("us", 1e9))
    found = {"device": torch.cuda.get_device_name(), "rows": rows}
    (Path(os.environ.get("OUT", ".")) / "int4.json").write_text(json.dumps(found, indent=1))
    for r in rows[:12]:
        print(r)


if __name__ == "__main__":
    main()
