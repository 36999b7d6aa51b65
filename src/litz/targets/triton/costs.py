"""What a GPU can do, from what its driver says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from litz.passes.costs import LARGE, Costs

# Operations that a multiprocessor's matrix units do in a cycle on dense 16-bit floats, and its
# other units on float32, by compute capability (NVIDIA's tables of throughputs).
RATES: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (8, 0): (2048, 128),
    (8, 6): (512, 256),
    (8, 9): (1024, 256),
    (9, 0): (4096, 256),
    (10, 0): (8192, 256),
    (12, 0): (1024, 256),
}
ATTENTION: Final[Mapping[tuple[int, int], float]] = {(9, 0): 0.84}  # cuDNN's, measured
CUDNN: Final = 90000  # its version from which it has attention
LEAST: Final = 8  # major compute capability: arithmetic on pairs of bfloat16 begins there
FLOAT8: Final = (8, 9)  # compute capability from which matrix units take 8-bit floats
READ: Final = 0.85  # of what memory could, that a copy reaches
CACHED: Final = 24  # bytes that a multiprocessor gets from the last-level cache in a cycle


def costs_of(device: str) -> Costs | None:
    """Of the GPU at hand; of a large one where there is none, or none that says what it is.

    None: its matrix units are too old for templates.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda" or not torch.cuda.is_available():
        return LARGE
    try:
        p: Any = torch.cuda.get_device_properties(int(index or 0))
        if p.major < LEAST:
            return None
        matrix, single = RATES[p.major, p.minor]
        cycles = 1e3 * p.clock_rate * p.multi_processor_count
        memory = 2e3 * p.memory_clock_rate * p.memory_bus_width / 8  # twice a cycle
    except (RuntimeError, AssertionError, AttributeError, KeyError):
        return LARGE
    if cycles <= 0 or memory <= 0:
        return LARGE
    float8 = 2.0 if (p.major, p.minor) >= FLOAT8 else 0.0
    return Costs(
        matrix * cycles, single * cycles, READ * memory,
        float8=float8, cache=CACHED * cycles, near=p.L2_cache_size,
        programs=p.multi_processor_count,
        attention=ATTENTION.get((p.major, p.minor), 0.0) if _has_attention() else 0.0,
    )  # fmt: skip


def _has_attention() -> bool:
    """Whether cuDNN computes attention, as far as PyTorch is told to let it."""
    cudnn: Any = torch.backends.cudnn
    cuda: Any = torch.backends.cuda
    return cudnn.enabled and cuda.cudnn_sdp_enabled() and (cudnn.version() or 0) >= CUDNN
