"""``python -m benchmarks.gpu.sorts``: sorts of short rows beside eager mode and the peer.

Milliseconds of CUDA-graph replays, GB/s of the bytes that have to move, the first call, and whether
results are exact: values in eager's order of float64, places of equal elements in order if stable.
``--peer`` measures the peer too; one process, some two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import EventClock, Replay

SECONDS = 0.05
ELEMENTS = 131072 * 128
WIDTHS = (16, 64, 128, 256, 512, 1024, 2048)
OPS: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: torch.sort(x, stable=True),
    "values": lambda x: torch.sort(x).values,
    "argsort": lambda x: torch.argsort(x, stable=True),
    "topk": lambda x: torch.topk(x, 8),
    "median": lambda x: torch.median(x, 1),
}


def parts(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def exact(name: str, x: Tensor, found: tuple[Tensor, ...]) -> bool:
    """Against float64 (which 16 and 32 bits are exact in); places must be those of the values."""
    wanted = parts(OPS[name](x.double()))
    if name in ("sort", "argsort"):
        return all(torch.equal(a.double(), b.double()) for a, b in zip(found, wanted, strict=True))
    if not torch.equal(found[0].double(), wanted[0]):
        return False
    if len(found) < 2:
        return True
    values, places = (t if t.ndim == x.ndim else t[:, None] for t in found)
    return torch.equal(x.gather(1, places), values)


def measured(name: str, x: Tensor, backend: str) -> str:
    torch._dynamo.reset()
    fn = OPS[name]
    backend_called(backend)
    call = fn if backend == "eager" else torch.compile(fn, backend=backend, dynamic=False)
    start = time.perf_counter()
    out = parts(call(x))
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    seconds = median(EventClock().measure(Replay(lambda: call(x)), SECONDS))
    moved = sum(t.numel() * t.element_size() for t in (x, *out)) / seconds / 1e9
    right = "exact" if exact(name, x, out) else "WRONG"
    return f"{backend} {seconds * 1e3:.4f} ms {moved:.0f} GB/s first {first:.2f} s {right}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--only", default="", help="ops, with commas between them")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    args = parser.parse_args()
    backends = ("litz", "eager", *(("inductor",) if args.peer else ()))
    print(torch.cuda.get_device_name(), torch.__version__)
    for dtype in (torch.float32, torch.bfloat16):
        for width in map(int, args.widths.split(",")):
            torch.manual_seed(width)
            x = torch.randn(ELEMENTS // width, width, device="cuda").to(dtype)
            for name in args.only.split(",") if args.only else OPS:
                texts = []
                for backend in backends:
                    try:
                        texts.append(measured(name, x, backend))
                    except Exception as e:
                        texts.append(f"{backend} failed: {str(e)[-200:]}")
                print(f"{name:8} {width:5} {str(dtype)[6:]:9}", " | ".join(texts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
