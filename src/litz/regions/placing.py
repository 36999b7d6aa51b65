"""What a graph is compiled through while equal parts of it are one call each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.regions.find import NotEqual, Repeat
from litz.regions.memory import as_traced
from litz.regions.trace import Tracer
from litz.runtime.min_cut import Split
from litz.runtime.torch_private import tracing_mode

if TYPE_CHECKING:
    from litz.regions.place import Region

TRIES: Final = 4  # how often gradients may arrive in another layout


@dataclass(eq=False)
class Placing:
    """What puts equal regions back into a traced graph, before anything else is done with it.

    said: what is shared, or why nothing is.  inputs: those of Dynamo's graph; hidden: which of
    them AOTAutograd is not shown.  begun: whether there was such a graph.
    """

    regions: Sequence[Region]
    said: str
    inputs: Sequence[Node] = ()
    hidden: Collection[int] = frozenset()
    begun: bool = False

    def shown(self, given: Sequence[Any]) -> Sequence[Any]:
        """What AOTAutograd is given as inputs: without those that it need not see, and parameters
        as it would make them."""
        mode = tracing_mode()
        if not self.regions or mode is None:
            return given
        return as_traced([x for i, x in enumerate(given) if i not in self.hidden], mode)

    def whole(self, gm: GraphModule) -> GraphModule:
        """A traced graph without gradients: at once, or once somebody looks at it."""
        self.begun = True
        if self.regions:
            from litz.regions.few import with_few_parts
            from litz.regions.place import check_hidden, place, reveal
            from litz.repeats.shorten import NotRepeating

            own: list[Node | None] = []
            check_hidden(gm.graph, self.inputs, self.hidden)
            if self.hidden:
                with suppress(NotEqual, NotRepeating):
                    return with_few_parts(gm, self.regions, self.inputs, self.hidden)
                own = reveal(gm.graph, self.inputs, self.hidden, (), tracing_mode())
            place(gm.graph, self.regions, {}, own)
        return gm

    def split(
        self, joint: GraphModule, forwards: int, static: Sequence[int], split: Split
    ) -> Sequence[GraphModule]:
        """The forward and backward part of a joint graph; see ``split_short``."""
        self.begun = True
        if not self.regions:
            return split(joint, static, [])
        from litz.regions.place import Unseen, place
        from litz.regions.split import split_short

        if self.hidden:
            raise Unseen
        try:
            return split_short(joint, self.regions, forwards, static, split)
        except NotEqual as e:
            if e.args:
                self.said += f"; forward and backward are parted whole: {e}"
        place(joint.graph, self.regions)
        return split(joint, static, [])


def compiled(
    gm: GraphModule,
    found: Sequence[Repeat],
    tracer: Tracer,
    compile_graph: Callable[[Placing], Callable[..., Any]],
) -> Callable[..., Any]:
    """``traced_once`` with these parts.  Raises NotEqual where the plain way is to be taken."""
    # An operator is registered there.
    from litz.regions.place import Region, Unseen, hide, outlined

    regions = [Region(r, tracer, i) for i, r in enumerate(found)]
    inputs, hidden = gm.graph.find_nodes(op="placeholder"), frozenset(hide(gm, regions))
    shared = ", ".join(f"{len(r.parts)} x {len(r.parts[0])} calls" for r in found)
    for _ in range(TRIES):
        said = f"equal regions are traced once: {shared}"
        placing = Placing(regions, said, inputs, hidden)
        try:
            with outlined(gm, regions):
                return compile_graph(placing)
        except Unseen:
            for r in regions:
                r.hidden = {}
            hidden = frozenset()
        except Exception as e:
            if placing.begun:  # what came after the trace failed
                raise
            raise NotEqual(f"PyTorch does not trace the rest by itself: {e}") from e
    raise NotEqual("gradients arrive in many layouts")
