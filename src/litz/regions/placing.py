"""What a graph is compiled through while equal parts of it are one call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch.fx import Graph, GraphModule

from litz.dataclass import dataclass
from litz.regions.find import NotEqual
from litz.runtime.min_cut import Cut

if TYPE_CHECKING:
    from litz.regions.place import Region

Split = Callable[[GraphModule, Sequence[int], list[Cut]], Sequence[GraphModule]]
"""Parts a joint graph in forward and backward; some of its inputs stay where they are.

The list gets the cuts that were made for it."""


@dataclass(eq=False)
class Placing:
    """What puts equal regions back into a traced graph, before anything else is done with it.

    said: what is shared, or why nothing is.  begun: whether there was such a graph.
    """

    regions: Sequence[Region]
    said: str
    begun: bool = False

    def whole(self, graph: Graph) -> None:
        self.begun = True
        if self.regions:
            from litz.regions.place import place

            place(graph, self.regions)

    def split(
        self, joint: GraphModule, forwards: int, static: Sequence[int], split: Split
    ) -> Sequence[GraphModule]:
        """The forward and backward part of a joint graph; see ``split_short``."""
        self.begun = True
        if not self.regions:
            return split(joint, static, [])
        from litz.regions.place import place
        from litz.regions.split import split_short

        try:
            return split_short(joint, self.regions, forwards, static, split)
        except NotEqual as e:
            if e.args:
                self.said += f"; forward and backward are parted whole: {e}"
        place(joint.graph, self.regions)
        return split(joint, static, [])
