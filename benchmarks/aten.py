"""The calls of ATen that a program makes, alone: what they cost without what is around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An overload of an operator, and its arguments."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the calls of ATen that are made where it is entered, but views and bare memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Made] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        bare = op.is_view or op._schema.name.startswith(("aten::empty", "aten::set_"))
        if op.namespace == "aten" and not bare:
            self.calls.append((op, args, kwargs or {}))
        return made


def alone(calls: list[Made]) -> Callable[[], None]:
    """Makes the same calls on the same tensors by PyTorch's own interpreter of graphs, in C++.

    That costs 0.1 to 0.2 microseconds a call beside them.
    """
    torch._C._jit_set_profiling_executor(False)
    torch._C._set_graph_executor_optimize(False)
    graph: Any = torch._C.Graph()
    tensors = list[Tensor]()
    sink, place = graph.addInput(), graph.insertConstant(0)
    sink.setType(torch._C.ListType.ofTensors())

    def given(value: Any) -> Any:
        if isinstance(value, Tensor):  # constants would be computed with when the graph is made
            tensors.append(value.detach())
            return graph.addInput()
        if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
            row = graph.insertNode(
                graph.create("prim::ListConstruct", [given(x) for x in value], 1)
            )
            row.output().setType(torch._C.ListType.ofTensors())
            return row.output()
        return graph.insertConstant(value)

    def argument(a: Any, named: dict[str, Any]) -> Any:
        value = named.get(a.name, a.default_value)
        if value is None and str(a.type) == "Tensor":  # one that is not defined
            return graph.insertNode(graph.create("prim::AutogradZero", [], 1)).output()
        return given(value)

    for op, args, kwargs in calls:
        schema = op._schema
        named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        inputs = [argument(a, named) for a in schema.arguments]
        node = graph.insertNode(graph.create(schema.name, inputs, len(schema.returns)))
        for returned, output in zip(schema.returns, node.outputs(), strict=True):
            output.setType(returned.type)
            if str(returned.type) == "Tensor":  # what nobody takes would not be computed
                graph.insertNode(graph.create("aten::_set_item", [sink, place, output], 1))
    graph.registerOutput(graph.insertConstant(None))
    made = torch._C._create_function_from_graph("calls", graph)
    first = [torch.empty(0)]
    return lambda: made(first, *tensors)
