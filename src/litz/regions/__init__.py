"""Equal regions of Dynamo's graph, such as layers: traced and differentiated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from litz.regions.find import NotEqual, repeats
from litz.regions.placing import Placing, compiled
from litz.regions.trace import Tracer


def traced_once(
    gm: GraphModule,
    tracer: Tracer,
    compile_graph: Callable[[Placing], Callable[..., Any]],
    wanted: bool = True,
) -> Callable[..., Any]:
    """What ``compile_graph`` makes of ``gm`` while equal parts of it are one call.

    tracer: the functional ATen graph of a program and its inputs.  compile_graph: given what places
    the parts back into a traced graph.  wanted: otherwise nothing is shared.
    """
    try:
        found, reasons = repeats(gm.graph) if wanted else ([], ["they are not asked for"])
        if found:
            return compiled(gm, found, tracer, compile_graph)
    except NotEqual as e:
        reasons = [str(e)]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return compile_graph(Placing([], f"no equal regions{why}"))
