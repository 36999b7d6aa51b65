"""Products of libraries: ATen's call, the ways that cuBLASLt offers, and a kernel of Litz's own.

``python -m benchmarks.gpu.library``: microseconds of replays of CUDA graphs, errors against
float64, over shapes with and without an epilogue.  Rows: ``aten`` as eager calls it (an activation
by a kernel of its own), ``fused`` ATen's own epilogue, ``lt 0`` the heuristics' first way, ``lt``
the quickest of all, and which that was, ``template`` a kernel of Litz's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from benchmarks.arguments import described
from benchmarks.gpu.clock import Clock, clock_of, replay_us
from benchmarks.gpu.matmul import Take
from litz.runtime.cublaslt import CublasLt, libraries
from litz.runtime.products import Operands, problem_of

Tensor = torch.Tensor
BF16 = torch.bfloat16
SHAPES = (
    (16, 4096, 4096), (64, 11008, 4096), (128, 4096, 4096), (512, 3072, 768), (1024, 1024, 1024),
    (2048, 4096, 1024), (4096, 4096, 4096), (8192, 3072, 768), (8192, 768, 3072),
    (8192, 8192, 1024), (8192, 50304, 768), (65536, 256, 64),
)  # fmt: skip
EPILOGUES = ("", "row", "relu", "gelu")
SECONDS = 160.0  # after which no other shape is begun
MOST = 16  # ways of cuBLASLt


def operands(m: int, n: int, k: int, epilogue: str) -> Operands:
    right = torch.randn(n, k, device="cuda").to(BF16).t() / k**0.5
    row = torch.randn(n, device="cuda").to(BF16) if epilogue else None
    left, out = torch.randn(m, k, device="cuda").to(BF16), torch.empty(m, n, device="cuda").to(BF16)
    return Operands(left, right, row, out)


def activation(epilogue: str) -> Callable[[Tensor], Tensor]:
    if epilogue == "gelu":
        return partial(F.gelu, approximate="tanh")
    return torch.relu if epilogue == "relu" else lambda x: x


def eager(epilogue: str, left: Tensor, right: Tensor, *row: Tensor) -> Tensor:
    value = torch.addmm(row[0], left, right) if row else left @ right
    return activation(epilogue)(value)


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def ways(o: Operands, activated: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls that compute a product, by their names; they give it, or fill ``o.out``."""
    given = (o.left, o.right, *(() if o.added is None else (o.added,)))
    yield "aten", lambda: eager(activated, *given)
    p = problem_of(o, epilogue=activated)
    for library in libraries(o.out.device):
        for k, way in enumerate(library.instances(p, MOST)):
            if isinstance(library, CublasLt) or activated:
                label = f"lt {k}" if isinstance(library, CublasLt) else "fused"
                yield label, partial(library.bind(p, way), o)

    def fn(left: Tensor, right: Tensor, *row: Tensor) -> Tensor:
        return eager(activated, left, right, *row)

    options: dict[str, Any] = {"before_program_passes": Take(True), "graph_cache": False}
    torch._dynamo.reset()
    own = torch.compile(fn, backend="litz", options=options, dynamic=False)
    yield "template", lambda: own(*given)


def case(m: int, n: int, k: int, epilogue: str, clock: Clock) -> dict[str, Any]:
    torch.manual_seed(0)
    o = operands(m, n, k, epilogue)
    wide = [x.double() for x in (o.left, o.right, *(() if o.added is None else (o.added,)))]
    exact = eager(epilogue, *wide)
    del wide
    us: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name, call in ways(o, epilogue if epilogue != "row" else ""):
        try:
            o.out.zero_()
            made = call()
            errors[name] = distance(made if isinstance(made, Tensor) else o.out, exact)
            us[name] = replay_us(call, clock, 0.01, 8)
        except RuntimeError as e:
            print(f"{m}x{n}x{k} {epilogue} {name}: {e}"[:200])
    ours = {x: t for x, t in us.items() if x.startswith("lt ")}
    best = min(ours, key=lambda x: ours[x], default="")
    row: dict[str, Any] = {x: us[x] for x in ("aten", "fused", "lt 0", "template") if x in us}
    worst = max(errors.values(), default=math.nan) / errors["aten"]
    return {
        "case": f"{m}x{n}x{k} {epilogue}", **row, "lt": ours.get(best, math.nan), "way": best,
        "ways": len(ours), "worst error": worst,
    }  # fmt: skip


def parse() -> argparse.Namespace:
    parser = described("gpu.library", __doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="rows as JSON, one a line")
    return parser.parse_args()


def main() -> None:
    args, clock, began = parse(), clock_of("cuda"), time.monotonic()
    rows = []
    with mock.patch("litz.passes.choose.opened", lambda *_: None):
        for shape in SHAPES:
            if time.monotonic() - began > SECONDS:
                print(f"out of time before {shape}")
                break
            rows += [case(*shape, e, clock) for e in EPILOGUES]
    if args.out:
        args.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for r in rows:
        print(
            "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items())
        )
    for name in ("fused", "lt 0", "lt", "template"):
        ratios = [math.log(r["aten"] / r[name]) for r in rows if r.get(name, math.nan) > 0]
        if ratios:
            print(f"{name}: times ATen's speed, in geometric mean of {len(ratios)}:", end=" ")
            print(f"{math.exp(statistics.fmean(ratios)):.3f}")


if __name__ == "__main__":
    main()
