"""What this machine can do at most: a copy's and a product's best speed, kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import torch

from litz.report.record import Roofline
from litz.report.timing import AHEAD, between, mark, queued
from litz.runtime.cache import Cache, content_key
from litz.runtime.cpu import detect_isa

KIND: Final = "roofline"  # of the cache's entries
VERSION: Final = "4"
COPIED: Final = 1 << 27
"""Bytes that are copied: more than caches hold."""
SIDE: Final = MappingProxyType({"cpu": 512, "cuda": 4096})
"""Of the square float32 matrices that are multiplied: a few milliseconds' work."""
AT_FIRST: Final = (20, 60)
"""How often what is not known is copied and multiplied."""
AGAIN: Final = (5, 5)
"""The same where it is known: something else may have kept the machine busy then."""


def roofline(device: str, cache: Cache) -> Roofline:
    """The roofline of ``cpu`` or ``cuda`` for as many threads as PyTorch uses now.

    The best that was ever measured on the machine.
    """
    key = content_key(KIND, VERSION, *_machine(device))
    kept = cache.get_text(KIND, key)
    best = (0.0, 0.0) if kept is None else json.loads(kept)
    copies, products = AT_FIRST if kept is None else AGAIN
    found = [max(best[0], _copy(device, copies)), max(best[1], _product(device, products))]
    if found != best:
        cache.put(KIND, key, json.dumps(found))
    return Roofline(device, float(found[0]), float(found[1]))


def _machine(device: str) -> tuple[str, ...]:
    if device == "cuda":
        return (device, torch.cuda.get_device_name(), torch.__version__)
    isa = detect_isa()
    return (device, isa.name, *_model(), str(torch.get_num_threads()), torch.__version__)


def _model() -> tuple[str, ...]:
    try:
        with open("/proc/cpuinfo") as f:
            return tuple(x.strip() for x in f if x.startswith("model name"))
    except OSError:
        return ()


def _copy(device: str, times: int) -> float:
    """Bytes a second, read and written."""
    x = torch.zeros(COPIED // 4, device=device)
    y = torch.zeros_like(x)
    return 2 * COPIED / _best(lambda: y.copy_(x), device, times)


def _product(device: str, times: int) -> float:
    """Multiplications and additions a second."""
    side = SIDE[device]
    x = torch.rand(side, side, device=device)
    out = torch.empty_like(x)
    return 2 * side**3 / _best(lambda: torch.mm(x, x, out=out), device, times)


def _best(call: Callable[[], Any], device: str, times: int) -> float:
    """The least seconds of some calls, the device's own."""
    cuda = device == "cuda"
    with queued(AHEAD, cuda):
        marks = [mark(cuda)]
        for _ in range(times + 1):
            call()
            marks.append(mark(cuda))
    return min(map(between, marks, marks[1:]))
