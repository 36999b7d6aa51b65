"""Equal regions of Dynamo's graph, such as layers: traced and differentiated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Graph, GraphModule

from litz.regions.find import NotEqual, repeats
from litz.regions.place import Region, Unseen, outlined, place
from litz.regions.trace import Tracer

TRIES = 4  # how often gradients may arrive in another layout


def traced_once(
    gm: GraphModule,
    tracer: Tracer,
    compile_graph: Callable[[Callable[[Graph], None]], Any],
) -> tuple[Any, str]:
    """What ``compile_graph`` makes of ``gm`` while equal parts of it are one call each.

    tracer: the functional ATen graph of a program and its inputs.  compile_graph: given what places
    the parts back into a traced graph.  Also says what was shared, or why nothing is.
    """
    try:
        found, reasons = repeats(gm.graph)
        regions = [Region(r, tracer, i) for i, r in enumerate(found)]
        for _ in range(TRIES if regions else 0):
            try:
                with outlined(gm, regions):
                    made = compile_graph(lambda graph: place(graph, regions))
                shared = (f"{len(r.parts)} x {len(r.parts[0])} calls" for r in found)
                return made, f"equal regions are traced once: {', '.join(shared)}"
            except Unseen as e:
                e.record()
    except NotEqual as e:
        reasons = [str(e)]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return compile_graph(lambda graph: None), f"no equal regions{why}"
