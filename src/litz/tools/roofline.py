"""What this machine can do at most: measured once by a copy and a product, kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import torch

from litz.report.record import Roofline
from litz.runtime.cache import Cache, content_key
from litz.runtime.cpu import detect_isa

KIND: Final = "roofline"  # of the cache's entries
VERSION: Final = "3"
COPIED: Final = 1 << 27
"""Bytes that are copied: more than caches hold."""
SIDE: Final = MappingProxyType({"cpu": 512, "cuda": 4096})
"""Of the square float32 matrices that are multiplied: a few milliseconds' work."""


def roofline(device: str, cache: Cache) -> Roofline:
    """The roofline of ``cpu`` or ``cuda`` for as many threads as PyTorch uses now."""
    key = content_key(KIND, VERSION, *_machine(device))
    kept = cache.get_text(KIND, key)
    if kept is not None:
        found = json.loads(kept)
    else:
        found = [_copy(device), _product(device)]
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


def _copy(device: str) -> float:
    """Bytes a second, read and written."""
    x = torch.zeros(COPIED // 4, device=device)
    y = torch.zeros_like(x)
    return 2 * COPIED / _best(lambda: y.copy_(x), device)


def _product(device: str) -> float:
    """Multiplications and additions a second."""
    side = SIDE[device]
    x = torch.rand(side, side, device=device)
    out = torch.empty_like(x)
    return 2 * side**3 / _best(lambda: torch.mm(x, x, out=out), device, 60)


def _best(call: Callable[[], Any], device: str, times: int = 20) -> float:
    """The least seconds of some calls."""
    found = []
    for _ in range(times + 1):
        _wait(device)
        start = perf_counter()
        call()
        _wait(device)
        found.append(perf_counter() - start)
    return min(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
