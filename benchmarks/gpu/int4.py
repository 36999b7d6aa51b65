"""Forms of a product with 4-bit weights in groups, beside what Litz makes of it now.

``python -m benchmarks.gpu.int4``: microseconds of 16 rows by 8192 x 8192 weights, in replays of
CUDA graphs that go through more weights than caches hold, and errors against float64.  Forms:
weights as the left factor, whose rows are many, so that matrix units take them from registers;
scales of groups on weights (``inside``) or on sums of a group (``outside``).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.arguments import described
from benchmarks.gpu.clock import Clock, clock_of, replay_us
from benchmarks.gpu.matmul import distance, double, int4, kinds
from litz.runtime.triton.packed import small_float, times16

Tensor = torch.Tensor
M, N, K = 16, 8192, 8192
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


def microseconds(calls: Sequence[Callable[[], Any]], clock: Clock) -> float:
    """Of one call, in a graph of all."""
    return replay_us(lambda: [call() for call in calls], clock, 0.02, 20) / len(calls)


def main() -> None:
    parser = described("gpu.int4", __doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="rows as JSON, one a line")
    args, clock, began = parser.parse_args(), clock_of("cuda"), time.monotonic()
    given = x, w, s = kinds(M, N, K)["int4"].make("cuda")
    exact = int4(*double(given))
    copies = [w.clone() for _ in range(COPIES)]
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any], fn: Callable[..., Tensor]) -> None:
        try:
            row["error"] = distance(fn(*given), exact)
            row["us"] = microseconds([partial(fn, x, c, s) for c in copies], clock)
        except (RuntimeError, triton.TritonError) as e:
            row["failed"] = f"{type(e).__name__}: {e}"[:200]
        rows.append(row)

    note({"form": "eager"}, int4)
    for tuned in (False, True):
        torch._dynamo.reset()
        mode = "max-autotune-no-cudagraphs" if tuned else None
        note({"form": "litz", "tuned": tuned}, torch.compile(int4, backend="litz", mode=mode))
    for form in forms():
        if time.monotonic() - began > SECONDS:
            break
        note({"form": "upright", **form}, partial(call, form))
    rows.sort(key=lambda r: r.get("us", 1e9))
    if args.out:
        args.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for r in rows:
        print(r)


if __name__ == "__main__":
    main()
