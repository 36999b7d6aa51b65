"""Makes a failing program small: fewer calls, then shorter tensors, as long as it fails.

Calls go by delta debugging (Zeller and Hildebrandt, 2002): what is left out is computed by ATen
once and handed in.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate

from litz.dataclass import dataclass

LENGTHS = (1, 2, 3, 5, 8, 17, 33)
"""Of a dimension that becomes shorter; later ones are more than one vector long."""


@dataclass(frozen=True)
class Case:
    """A program and what it is called on; its calls are of ATen's operators."""

    module: GraphModule
    inputs: tuple[Any, ...]

    @property
    def calls(self) -> list[Node]:
        return [n for n in self.module.graph.nodes if n.op == "call_function"]

    def copies(self) -> list[Any]:
        """The inputs for one run, which may write them."""
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in self.inputs]


Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, seconds: float = 60.0) -> Case:
    """The smallest program found in that time of which ``fails`` is true, as it is of ``case``.

    fails: asked of programs that ATen can run.
    """
    until = time.monotonic() + seconds

    def still(other: Case | None) -> bool:
        return (
            other is not None
            and time.monotonic() < until
            and values_of(other) is not None
            and fails(other)
        )

    return _shorter(_fewer(case, still), still)


class _Recorder(Interpreter):
    def __init__(self, case: Case) -> None:
        super().__init__(case.module)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        # As it is now: a later call may write it.
        self.values[n] = value.clone() if isinstance(value, torch.Tensor) else value
        return value


def values_of(case: Case) -> dict[Node, Any] | None:
    """What ATen computes for each node; None where it refuses."""
    recorder = _Recorder(case)
    try:
        with torch.no_grad():
            recorder.run(*case.copies())
    except Exception:  # any operator may refuse what it is handed
        return None
    return recorder.values


# --- fewer calls ---------------------------------------------------------------------------------


def part(case: Case, kept: Sequence[Node], values: dict[Node, Any]) -> Case | None:
    """The program of some calls alone; None if it has no result that is a tensor."""
    inside = set(kept)
    for n in kept:  # a result of a call with several goes with the call
        if n.target is operator.getitem and n.args[0] not in inside:
            inside.discard(n)
    graph, new, inputs = Graph(), dict[Node, Node](), list[Any]()
    wanted = {m for n in inside for m in n.all_input_nodes if m not in inside}
    for n in case.module.graph.nodes:
        if n in wanted:
            new[n] = graph.placeholder(n.name)
            inputs.append(values[n])
    for n in case.module.graph.nodes:
        if n in inside:
            new[n] = graph.node_copy(n, new.__getitem__)
    results = [
        new[n]
        for n in case.module.graph.nodes
        if n in inside
        and isinstance(values[n], torch.Tensor)
        and (inside.isdisjoint(n.users) or any(u.op == "output" for u in n.users))
    ]
    if not results:
        return None
    graph.output(tuple(results))
    return Case(GraphModule(case.module, graph), tuple(inputs))


def _fewer(case: Case, still: Fails) -> Case:
    values = values_of(case)
    if values is None:
        return case
    kept, found, size = case.calls, case, len(case.calls)
    while size:
        for at in range(len(kept) - size, -size, -size):  # from the end: results go first
            less = kept[: max(at, 0)] + kept[at + size :]
            other = part(case, less, values)
            if other is not None and len(other.calls) < len(found.calls) and still(other):
                kept, found = less, other
        size //= 2
    return found


# --- shorter tensors -----------------------------------------------------------------------------


def _shorter(case: Case, still: Fails) -> Case:
    tensors = (x for x in case.inputs if isinstance(x, torch.Tensor))
    for size in sorted({s for x in tensors for s in x.shape}, reverse=True):
        for other in _with_size(case, size):
            if still(other):
                case = other
                break
    return case


def _with_size(case: Case, size: int) -> Iterator[Case]:
    """Every dimension of that size shorter; numbers in calls that are it, or multiples of it."""
    for length in (n for n in LENGTHS if n < size):
        inputs = tuple(_cut(x, size, length) for x in case.inputs)
        for multiples in (False, True):

            def number(x: Any, length: int = length, multiples: bool = multiples) -> Any:
                if type(x) is not int or x < size or not (x == size or multiples):
                    return x
                return x // size * length if x % size == 0 else x

            graph = Graph()
            new: dict[Node, Node] = {}
            for n in case.module.graph.nodes:
                new[n] = graph.node_copy(n, new.__getitem__)
                new[n].args = map_aggregate(new[n].args, number)
            yield Case(GraphModule(case.module, graph), inputs)


def _cut(x: Any, size: int, length: int) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    for dim, n in enumerate(x.shape):
        x = x.narrow(dim, 0, length) if n == size else x
    if not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool):
        x = torch.where((x >= length) & (x < size), x % length, x)  # it may be an index
    return x.clone()
