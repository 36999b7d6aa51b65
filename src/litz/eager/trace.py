"""The graph of one call of an operator, and what must hold for a graph of open sizes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from litz.eager.signature import Layout
from litz.runtime.fake import FakeTensorMode

Dims = Sequence[int]


def traced(
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    open_dims: Sequence[Dims] = (),
) -> GraphModule:
    """The graph of a call, which takes its tensors in order and returns those of its results.

    open_dims: of each tensor, the dimensions whose sizes are symbols; none for a graph of just
    these sizes.  Raises whatever the operator's metadata function does.
    """
    env = ShapeEnv(duck_shape=False) if open_dims else None
    mode = FakeTensorMode(shape_env=env)
    graph = Graph()
    count = 0

    def given(value: Any) -> Any:
        """The argument in the graph."""
        nonlocal count
        if isinstance(value, list | tuple):
            return [given(v) for v in value]
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder(f"t{count}")
        layout: Any = (value.shape, value.stride())
        if env is not None:
            layout = _open(env, layout, count, open_dims[count])
        with mode:
            node.meta["val"] = torch.empty_strided(*layout, dtype=value.dtype, device=value.device)
        count += 1
        return node

    given_args = tuple(given(v) for v in args)
    given_kwargs = {k: given(v) for k, v in kwargs.items()}
    call = graph.call_function(op, given_args, given_kwargs)
    with mode:
        values = torch.fx.node.map_arg((given_args, given_kwargs), lambda n: n.meta["val"])
        call.meta["val"] = result = op(*values[0], **values[1])
    graph.output(tuple(_results(graph, call, result)))
    return GraphModule(torch.nn.Module(), graph)


def _open(env: ShapeEnv, layout: Layout, position: int, dims: Dims) -> tuple[Any, Any]:
    """Sizes and strides, with symbols for the sizes of some dimensions."""
    from torch._dynamo.source import LocalSource  # who finds what was compiled does without it

    kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(len(layout[0]))]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    sizes, strides, _ = env.create_symbolic_sizes_strides_storage_offset(
        _without_memory(layout), LocalSource(f"t{position}"), symbolic_context=context
    )
    return sizes, strides


def _results(graph: Graph, call: Node, result: Any) -> list[Node | None]:
    if isinstance(result, Tensor):
        return [call]
    found: list[Node | None] = []
    for i, value in enumerate(result):
        if not isinstance(value, Tensor):  # a gradient that nobody asked for
            found.append(None)
            continue
        node = graph.call_function(operator.getitem, (call, i))
        node.meta["val"] = value
        found.append(node)
    return found


def guards(graph: GraphModule) -> str:
    """What sizes a compiled graph is for, as an expression for ``fits``."""
    values = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    env: ShapeEnv = values[0].fake_mode.shape_env
    return env.produce_guards_expression(values, ignore_static=False) or "True"


def fits(guards: str, layouts: Sequence[Layout]) -> bool:
    """Whether a graph of open sizes is for tensors.  guards: as ``guards`` gives them."""
    return ShapeEnv().evaluate_guards_expression(guards, [_without_memory(x) for x in layouts])


def _without_memory(layout: Layout) -> Tensor:
    return torch.empty_strided(*layout, device="meta")  # which begins where its memory does
