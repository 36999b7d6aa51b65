"""``associative_scan`` in its generic mode: taken apart in Dynamo's graph, here made whole again.

PyTorch calls the function on neighbours, then on neighbours of what that gives, and so on: some
steps for each doubling of the length, all of whose results are stored.  The calls stand in an order
that the length alone decides.  What is found in that order is one call of the operator again, if
all its functions are the same one and pointwise; so a scan is one whichever mode it was asked in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.calls import add_body
from litz.graph.scan_gradients import SCAN

SLICE = torch.ops.aten.slice
VMAP = "_vmap_increment_nesting"
PLAIN = ("detach", "clone", "alias", "_to_copy", "lift_fresh_copy", "scalar_tensor", "full")
Nodes = list[Node]


class _Other(Exception):
    """The calls are not those of a scan."""


def make_scans_whole(gm: GraphModule) -> None:
    """Replace the steps of scans by the operator, in place."""
    if not any(_name(n) == VMAP for n in gm.graph.nodes):
        return
    nodes: Nodes = list(gm.graph.nodes)
    at, changed = 0, False
    while at < len(nodes):
        end = _replaced(gm, nodes, at) if _begins(nodes[at]) else at
        changed |= end > at
        at = max(end, at + 1)
    if changed:
        gm.recompile()


def _begins(n: Node) -> bool:
    """Whether a call is the first of a scan: every second element, from the first but the last."""
    return n.target is SLICE and n.args[1:] == (0, 0, -1, 2)


def _replaced(gm: GraphModule, nodes: Nodes, at: int) -> int:
    """Where the steps end that are replaced; ``at`` where there are none."""
    xs: Nodes = []
    for n in nodes[at:]:
        if not _begins(n):
            break
        assert isinstance(n.args[0], Node)
        xs.append(n.args[0])
    steps = _Steps(nodes, at)
    try:
        length = xs[0].meta["example_value"].shape[0]
        if not isinstance(length, int):
            return at
        results = steps.scan(xs, length)
        inner = set(nodes[at : steps.at])
        if any(u not in inner for n in inner.difference(results) for u in n.users):
            return at
        function = steps.function(gm)
    except (_Other, KeyError, IndexError):
        return at
    with gm.graph.inserting_before(nodes[steps.at]):
        body = add_body(gm, "generic_scan", function)
        call = gm.graph.call_function(SCAN, (body, tuple(xs), ()))
        call.meta["example_value"] = tuple(x.meta["example_value"] for x in xs)
        for k, old in enumerate(results):
            new = gm.graph.call_function(operator.getitem, (call, k))
            new.meta = dict(old.meta)
            old.replace_all_uses_with(new)
    for n in reversed(nodes[at : steps.at]):
        gm.graph.erase_node(n)
    return steps.at


class _Steps:
    """Reads the steps in the order in which ``generic_associative_scan`` takes them.

    called: how the function was called first, and what that call computes; all others are alike.
    """

    def __init__(self, nodes: Nodes, at: int) -> None:
        self.nodes, self.at = nodes, at
        self.called: tuple[Any, Nodes, Nodes, Nodes] | None = None

    def take(self, target: object, *args: Any, **kwargs: Any) -> Node:
        """The next call, which is to be this one.  target: a function, or its name."""
        n = self.nodes[self.at]
        alike = _name(n) == target if isinstance(target, str) else n.target is target
        if not alike or (args and (n.args != args or n.kwargs != kwargs)):
            raise _Other
        self.at += 1
        return n

    def scan(self, xs: Nodes, length: int) -> Nodes:
        """The results of a scan over ``xs``."""
        if length < 2:
            return xs
        pairs = [self.take(SLICE, x, 0, 0, -1, 2) for x in xs]
        pairs += [self.take(SLICE, x, 0, 1, None, 2) for x in xs]
        odd = self.scan(self.call(pairs), length // 2)
        before = odd
        if length % 2 == 0:
            before = [self.take(SLICE, x, 0, 0, -1) for x in odd]
        behind = self.call([*before, *(self.take(SLICE, x, 0, 2, None, 2) for x in xs)])
        even = []
        for x, y in zip(xs, behind, strict=True):
            first = self.take(SLICE, x, 0, 0, 1)
            even.append(first if length == 2 else self.take(torch.cat, [first, y], dim=0))
        return [self.interleaved(a, b, length) for a, b in zip(even, odd, strict=True)]

    def interleaved(self, a: Node, b: Node, length: int) -> Node:
        if length % 2:
            padded = self.take("pad")
            around = [0] * (2 * b.meta["example_value"].ndim - 1) + [1]
            if padded.args != (b, around, "constant", None) or padded.kwargs:
                raise _Other
            b = padded
        both = self.take(torch.stack, [a, b], dim=1)
        flat = self.take(torch.flatten, both, start_dim=0, end_dim=1)
        return self.take(SLICE, flat, 0, 0, length) if length % 2 else flat

    def call(self, given: Nodes) -> Nodes:
        """The results of the function, which is called below one ``vmap``."""
        self.take("lazy_load_decompositions")
        self.take(VMAP)
        inputs = [self.take("_add_batch_dim", x, 0, 1) for x in given]
        start = self.at
        while _name(self.nodes[self.at]) != "_remove_batch_dim":
            self.at += 1
        inner = self.nodes[start : self.at]
        results = [self.take("_remove_batch_dim") for _ in range(len(given) // 2)]
        self.take("_vmap_decrement_nesting")
        if any(n.args[1] != 1 or n.args[3] != 0 for n in results):
            raise _Other
        given_back = [n.args[0] for n in results]
        number = {n: k for k, n in enumerate((*inputs, *inner))}
        if any(a not in number for n in (*inner, *results) for a in n.all_input_nodes):
            raise _Other  # it captures something
        said = [(n.op, n.target, _numbered((n.args, n.kwargs), number)) for n in inner]
        said.append(("output", "", _numbered(given_back, number)))
        if self.called is None:
            self.called = said, inputs, inner, given_back  # type: ignore[assignment]
        elif self.called[0] != said:
            raise _Other
        return results

    def function(self, gm: GraphModule) -> GraphModule:
        """The function by itself.  Raises ``_Other`` if it is not pointwise."""
        assert self.called is not None
        _, inputs, inner, results = self.called
        graph = Graph()
        known = {n: graph.placeholder(f"x{k}") for k, n in enumerate(inputs)}
        for n in inner:
            known[n] = graph.node_copy(n, known.__getitem__)
        graph.output(tuple(known[n] for n in results))
        made = GraphModule(gm, graph)
        samples = [n.meta["example_value"] for n in (x.args[0] for x in inputs)]  # type: ignore[union-attr]
        if not _is_pointwise(made, [x[0] for x in samples]):
            raise _Other
        return made


def _numbered(value: Any, number: dict[Node, int]) -> Any:
    return map_arg(value, lambda n: ("node", number[n]))


def _name(n: Node) -> str:
    return str(getattr(n.target, "__name__", "")) if n.op == "call_function" else ""


def _is_pointwise(function: Callable[..., Any], samples: Sequence[torch.Tensor]) -> bool:
    """Whether every element of a result is computed from the same elements of what is given."""
    graph = make_fx(lambda *xs: function(*xs))(*map(torch.empty_like, samples)).graph
    (output,) = graph.find_nodes(op="output")
    for a, x in zip(output.args[0], samples, strict=False):
        if (a.meta["val"].shape, a.meta["val"].dtype) != (x.shape, x.dtype):
            return False
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    return all(
        torch.Tag.pointwise in getattr(n.target, "tags", ()) or _name(n).partition(".")[0] in PLAIN
        for n in calls
    )
