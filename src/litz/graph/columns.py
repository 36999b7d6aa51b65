"""A graph that does the same at many places of lists, beside the one with a place of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch.fx import GraphModule

from litz.dataclass import dataclass

COLUMNS: Final = "litz_columns"
"""Metadata of a graph on lists, ``Columns``."""


@dataclass(frozen=True)
class Columns:
    """A graph on lists with one column, what stands at one place of them, of each kind.

    kind_of: the kind of each input that a column alone has, by name: the number of the column of
    that kind.  named: for each kind what stands for nodes and inputs of that column in each like
    it, by number; rising.
    """

    gm: GraphModule
    kind_of: Mapping[str, int]
    named: Mapping[int, Mapping[int, Mapping[str, str]]]

    @property
    def copies(self) -> int:
        return sum(len(some) - 1 for some in self.named.values())
