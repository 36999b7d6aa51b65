"""What repeats in a row of calls, and which arguments make calls equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import torch

LITERALS: Final = (
    type(None), bool, int, float, complex, str, type(...),
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip


def runs(
    kinds: Sequence[int], start: int, stop: int, fewest: int
) -> Iterator[tuple[int, int, int]]:
    """Longest stretches in which what stands a period apart is of one kind.

    Gives first position, end and period of those of at least ``fewest`` positions beside a period.
    """
    last: dict[int, int] = {}
    apart: Counter[int] = Counter()
    for i in range(start, stop):
        if kinds[i] in last:
            apart[i - last[kinds[i]]] += 1
        last[kinds[i]] = i
    for period, _ in apart.most_common(8):
        first = start
        for i in range(start, stop - period + 1):
            if i == stop - period or kinds[i] != kinds[i + period]:
                if i - first >= max(period, fewest):
                    yield first, i + period, period
                first = i + 1
