"""A graph whose middle repeats, as the one with few of its copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch.fx import GraphModule

from litz.dataclass import dataclass
from litz.graph.calls import count_calls

SHORT: Final = "litz_short"
"""Metadata of a graph that is put together when somebody looks at it, ``Short``, until then."""


@dataclass(frozen=True)
class Short:
    """A graph without some of its equal copies.

    copies: how many are left out, behind the second of the four that stay.
    copy_of: which of the four each node of theirs is in, and each input that one copy alone reads,
    by name.
    named: what stands for a node or input of the second in the copies behind it, and for a node of
    the first, up to the third of the four.
    inputs: the names of all inputs.  outputs: for each result of the whole graph the result of the
    short one that it is, or, in a copy by its number from 1 on, is like.  results: which of the
    four each result of the short graph is made in; -1 for none.
    """

    gm: GraphModule
    copies: int
    copy_of: Mapping[str, int]
    named: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[int, int], ...]
    results: tuple[int, ...]


def seen(gm: GraphModule) -> GraphModule:
    """The graph, or of what is put together later, what it repeats."""
    short: Short | None = gm.meta.get(SHORT)
    return gm if short is None else short.gm


def called(gm: GraphModule) -> int:
    """How many operators the whole graph calls."""
    short: Short | None = gm.meta.get(SHORT)
    if short is None:
        return count_calls(gm)
    second = [n for n, copy in short.copy_of.items() if copy == 1 and n not in short.inputs]
    return count_calls(short.gm) + short.copies * len(second)
