"""The graph as it was before the passes, for ATen.

Some passes leave calls that mean to the lowering what they do not mean to ATen: ``as_strided`` of a
flat tensor counts from its first element and not from its storage's, and writes in place may read,
through views, what they write.  A graph that may come to hold such calls is kept as it was, in case
that Litz cannot compile it and ATen runs it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Graph, GraphModule, Node

from litz.graph.calls import copied
from litz.graph.short import SHORT
from litz.runtime.torch_private import LazyGraphModule

aten = torch.ops.aten
REWRITTEN: Final = frozenset({
    aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default,
    aten.copy_.default,
})  # fmt: skip


def kept(gm: GraphModule) -> Graph | None:
    """A copy of the graph, if passes may make of it what ATen would run otherwise.

    None of what is put together later: passes have another one.
    """
    if SHORT in gm.meta or not any(n.target in REWRITTEN for n in gm.graph.nodes):
        return None
    copy = Graph()
    copies: dict[Node, Node] = {}
    for n in gm.graph.nodes:
        copies[n] = new = copied(n, copy, copies.__getitem__, n.name)
        new.meta, new.type = dict(n.meta), n.type
    return copy


def copy_of(gm: GraphModule) -> GraphModule:
    """A program with a graph of its own, and the graphs that it runs."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    made = LazyGraphModule(gm, graph)
    for name, m in made.named_children():
        if isinstance(m, GraphModule):
            setattr(made, name, copy_of(m))
    return made


def restored(gm: GraphModule, kept: Graph | None) -> GraphModule:
    """The module with the graph that was kept, or with its own."""
    return gm if kept is None else GraphModule(gm, kept, type(gm).__name__)
