"""Equal regions of Dynamo's graph, such as layers: traced and differentiated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Graph, GraphModule

from litz.regions.find import NotEqual, Repeat, repeats
from litz.regions.place import Region, Unseen, outlined, place
from litz.regions.trace import Tracer

TRIES = 4  # how often gradients may arrive in another layout


def traced_once(
    gm: GraphModule,
    tracer: Tracer,
    compile_graph: Callable[[Callable[[Graph], None], str], Callable[..., Any]],
    wanted: bool = True,
) -> Callable[..., Any]:
    """What ``compile_graph`` makes of ``gm`` while equal parts of it are one call each.

    tracer: the functional ATen graph of a program and its inputs.  compile_graph: given what places
    the parts back into a traced graph, and what is shared, or why nothing is.  wanted: otherwise
    nothing is.
    """
    try:
        found, reasons = repeats(gm.graph) if wanted else ([], ["they are not asked for"])
        regions = [Region(r, tracer, i) for i, r in enumerate(found)]
        traced = False

        def placed(graph: Graph) -> None:
            nonlocal traced
            traced = True
            place(graph, regions)

        for _ in range(TRIES if regions else 0):
            traced = False
            try:
                with outlined(gm, regions):
                    return compile_graph(placed, _shared(found))
            except Unseen:
                reasons = ["gradients arrive in many layouts"]
            except Exception as e:
                if traced:  # what came after the trace failed
                    raise
                raise NotEqual(f"PyTorch does not trace the rest by itself: {e}") from e
    except NotEqual as e:
        reasons = [str(e)]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return compile_graph(lambda graph: None, f"no equal regions{why}")


def _shared(found: Sequence[Repeat]) -> str:
    shared = (f"{len(r.parts)} x {len(r.parts[0])} calls" for r in found)
    return f"equal regions are traced once: {', '.join(shared)}"
