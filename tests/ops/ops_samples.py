"""Operands for op tests: special values against each other, then random bits."""

from __future__ import annotations

import itertools
import math

import torch
from ops_harness import TORCH

from litz.ir.dtype import DType
from litz.ir.ops import OpRow

LANES = 16
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, 3.0, -7.0, 10.0, 100.5, -1e4)
_FAR = (math.inf, -math.inf, math.nan, 8388607.5, 8388609.0, 1e30, -1e30, 3.7e9, -9.3e18, 1.9e19)


def specials(dtype: DType) -> torch.Tensor:
    """The values that are worth trying against each other."""
    if dtype.kind == "bool":
        return torch.tensor([False, True])
    if dtype.is_float:
        info = torch.finfo(TORCH[dtype])
        edge = [info.max, info.min, info.tiny, -info.tiny, info.smallest_normal / 2, info.eps]
        last = [info.smallest_normal * info.eps, -info.smallest_normal * info.eps, 1 - info.eps / 2]
        return torch.tensor([*_FLOATS, *_FAR, *edge, *last], dtype=torch.float64).to(TORCH[dtype])
    low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
    high = (1 << dtype.bits) - 1 + low
    middle = [1 << (dtype.bits // 2), (1 << min(dtype.bits - 2, 52)) + 1]
    values = [0, 1, 2, 3, 7, 10, *middle, low, low + 1, high, high - 1]
    if low:
        values += [-1, -2, -3, -7, -100 % 128]
    return torch.tensor(sorted(set(values)), dtype=TORCH[dtype])


def random_bits(dtype: DType, count: int, seed: int = 0) -> torch.Tensor:
    """Any bits at all, as the dtype; bools are 0 or 1, nans quiet."""
    generator = torch.Generator().manual_seed(seed)
    octets = torch.randint(0, 256, (count * dtype.bytes,), dtype=torch.uint8, generator=generator)
    if dtype.kind == "bool":
        return (octets & 1).bool()
    values = octets.view(TORCH[dtype])
    return values.nan_to_num(math.nan, math.inf, -math.inf) if dtype.is_float else values


def moderate(dtype: DType, count: int, seed: int = 1) -> torch.Tensor:
    """Values of everyday size."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_float:
        return (torch.randn(count, generator=generator, dtype=torch.float64) * 4).to(TORCH[dtype])
    if dtype.kind == "bool":
        return random_bits(dtype, count, seed)
    low = 0 if dtype.kind == "uint" else -100
    return torch.randint(low, 100, (count,), generator=generator).to(TORCH[dtype])


def operands(row: OpRow, dtype: DType, count: int = 2048) -> list[torch.Tensor]:
    """Operand tensors of equal length, a multiple of the lanes."""
    own = specials(dtype).tolist()
    values = [k for k in row.kinds if k != "b*"]
    crossed = list(itertools.product(own, repeat=min(len(values), 2)))
    columns: list[torch.Tensor] = []
    for i, kind in enumerate(row.kinds):
        if kind == "b*":
            columns.append(torch.tensor([True, False, True]).repeat(len(crossed))[: len(crossed)])
            columns[-1] = torch.cat([columns[-1], torch.arange(2 * count) % 3 != 0])
            continue
        first = i - sum(k == "b*" for k in row.kinds[:i])
        head = torch.tensor([c[min(first, 1)] for c in crossed], dtype=TORCH[dtype])
        if first == 2:
            head = head.flip(0)
        parts = [head, random_bits(dtype, count, 7 * i), moderate(dtype, count, 7 * i + 1)]
        columns.append(torch.cat(parts))
    if row.samples == "shift":
        columns[1][len(crossed) :] = (torch.arange(2 * count) % (dtype.bits + 4)).to(TORCH[dtype])
    pad = -len(columns[0]) % LANES
    return [torch.cat([c, c[:pad]]).contiguous() for c in columns]
