"""What repeats in a row of calls, and which arguments make calls equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
from torch.fx import Node

LITERALS: Final = (
    type(None), bool, int, float, complex, str, type(...),
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip


def literal(x: object, of_node: Callable[[Node], object]) -> object:
    """An argument of a call as a key.  of_node: the key of a node, no tuple.

    Raises TypeError where it has none.
    """
    kind = type(x)
    if kind is Node:
        return of_node(x)  # type: ignore[arg-type]
    if kind is int or x is None:
        return kind, x
    if isinstance(x, (tuple, list)):
        # Most are nodes: they go without a call of their own.
        return (kind, *[of_node(e) if type(e) is Node else literal(e, of_node) for e in x])
    if isinstance(x, dict):
        return literal(tuple(x.items()), of_node)
    if isinstance(x, slice):
        return literal((x.start, x.stop, x.step), of_node)
    if isinstance(x, LITERALS):
        return kind, repr(x)
    raise TypeError


def numbered(kinds: Iterable[object | None]) -> list[int]:
    """Equal kinds as equal numbers; None is like no other."""
    known: dict[object, int] = {}
    return [-1 - i if k is None else known.setdefault(k, len(known)) for i, k in enumerate(kinds)]


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
        first, least = start, max(period, fewest)
        for i in range(start, stop - period + 1):
            if i == stop - period or kinds[i] != kinds[i + period]:
                if i - first >= least:
                    yield first, i + period, period
                first = i + 1
