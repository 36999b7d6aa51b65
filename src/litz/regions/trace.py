"""One part traced and differentiated: its ATen graph, to be copied to where its equals stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, cast

import torch
from torch._ops import HigherOrderOperator as Higher
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.traceback import preserve_node_meta

from litz.dataclass import dataclass
from litz.regions.find import NotEqual, Repeat, value
from litz.regions.memory import Layout
from litz.runtime.torch_private import keep_lines, noted_lines, tracing_mode

DETACH: Final = torch.ops.aten.detach.default
ALIAS: Final = torch.ops.aten.alias.default
Tracer = Callable[[torch.nn.Module, Sequence[torch.Tensor]], GraphModule]


@dataclass(frozen=True)
class Recorded:
    """A part as ATen calls.

    forward, backward: its calls in order.  inputs, tangents: what stands for those in the graph.
    results, gradients: what it gives, by position; None for no gradient.
    """

    inputs: tuple[Node, ...]
    tangents: tuple[Node, ...]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    results: tuple[Node, ...]
    gradients: tuple[Node | None, ...]

    @property
    def early(self) -> tuple[Node, ...]:
        """What is known before gradients arrive."""
        return (*self.inputs, *self.forward)


def layout(x: torch.Tensor) -> Layout:
    """What a traced tensor is made of again."""
    return tuple(x.shape), tuple(x.stride()), x.dtype, x.device


class _Part(torch.nn.Module):
    """Calls of Dynamo's graph, and the gradients of what of their results has a tangent.

    wanted: which inputs have gradients.  chosen: which results have tangents, in order.
    casts: the regions of autocast that the calls lie in.
    """

    def __init__(
        self,
        body: GraphModule,
        wanted: Sequence[bool],
        chosen: Sequence[int],
        casts: Sequence[tuple[Any, ...]],
    ) -> None:
        super().__init__()
        self.body, self.wanted, self.chosen, self.casts = body, wanted, chosen, casts

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, tangents = args[: len(self.wanted)], args[len(self.wanted) :]
        if not any(self.wanted):
            return self._run(inputs)
        with torch.enable_grad(), noted_lines():
            own = [x.detach().requires_grad_(w) for x, w in self._pairs(inputs)]
            results = self._run(own)
            if not self.chosen:
                return tuple(r.detach() for r in results)
            by = [x for x, w in self._pairs(own) if w]
            given = [ALIAS(t) for t in tangents]  # the first call of the backward part
            ends = [results[i] for i in self.chosen]
            with preserve_node_meta():
                keep_lines(ends)
                found = iter(torch.autograd.grad(ends, by, given, allow_unused=True))
        return (*(r.detach() for r in results), *(next(found) if w else None for w in self.wanted))

    def _pairs(self, xs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, bool]]:
        return list(zip(xs, self.wanted, strict=True))

    def _run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with ExitStack() as around:
            for given in self.casts:
                around.enter_context(torch.autocast(*given))
            around.enter_context(preserve_node_meta())
            results: tuple[torch.Tensor, ...] = Interpreter(self.body).run(*inputs)
        return results


def record(repeat: Repeat, tangents: Sequence[Layout | None], tracer: Tracer) -> Recorded:
    """The first of equal parts, with the gradients that such tangents give it.

    Raises NotEqual where it writes into what it reads.
    """
    inputs = [value(n) for n in repeat.inputs[0]]
    wanted = [x.requires_grad for x in inputs]
    chosen = [i for i, t in enumerate(tangents) if t is not None]
    with tracing_mode() or inputs[0].fake_mode, torch.no_grad():
        given = [_empty(layout(x)) for x in inputs] + [_empty(t) for t in tangents if t is not None]
    try:
        graph = tracer(_Part(_body(repeat), wanted, chosen, repeat.casts), given).graph
    except Exception as e:
        raise NotEqual(f"PyTorch does not trace a part by itself: {e}") from e
    return _taken_apart(graph, len(inputs), len(chosen), len(repeat.outputs), any(wanted))


def _empty(of: Layout) -> torch.Tensor:
    size, stride, dtype, device = of
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _body(repeat: Repeat) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for i, n in enumerate(repeat.inputs[0]):
        copies[n] = graph.placeholder(f"x{i}")
    part = repeat.parts[0]
    for n in part:
        copies[n] = graph.node_copy(n, copies.__getitem__)
    graph.output(tuple(copies[part[i]] for i in repeat.outputs))
    return GraphModule(torch.nn.Module(), graph)


def _taken_apart(
    graph: Graph, inputs: int, tangents: int, results: int, differentiated: bool
) -> Recorded:
    """The trace of a ``_Part``, without the calls that it adds."""
    given = graph.find_nodes(op="placeholder")
    calls = [n for n in graph.nodes if n.op == "call_function"]
    (output,) = graph.find_nodes(op="output")
    if any(n.op == "get_attr" for n in graph.nodes):
        raise NotEqual("a part has constants of its own")
    if len(given) != inputs + tangents or any(isinstance(n.target, Higher) for n in calls):
        raise NotEqual("a part calls what has effects or a graph of its own")
    if any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in calls):
        raise NotEqual("a part writes into what it reads")
    if any(n.target is torch.ops.aten.view.dtype for n in calls):
        raise NotEqual("a part reads memory as another type")
    forward, backward = calls, []
    late = [i for i, n in enumerate(calls) if set(given[inputs:]) & set(n.all_input_nodes)]
    if late:
        forward, backward = calls[: late[0]], calls[late[0] :]
    elif len(given) > inputs:
        raise NotEqual("gradients that no tangent reaches")
    if differentiated:
        added = [n for n in forward[:inputs] if n.target is DETACH and n.args[0] in given]
        added += [n for n in backward if n.target is ALIAS and n.args[0] in given[inputs:]]
        added += [n for n in output.args[0][:results] if n.target is DETACH]
        for n in added:
            n.replace_all_uses_with(cast(Node, n.args[0]))
        forward, backward = ([n for n in p if n not in added] for p in (forward, backward))
    returned = cast(tuple[Any, ...], output.args[0])
    if not all(isinstance(n, Node) and n not in given for n in returned[:results]):
        raise NotEqual("a part returns what it is given")
    return Recorded(
        tuple(given[:inputs]),
        tuple(given[inputs:]),
        tuple(forward),
        tuple(backward),
        tuple(returned[:results]),
        tuple(returned[results:]),
    )
