"""Gradients of what attention's functions of scores capture: sums over all scores.

PyTorch's joint function of one score makes each by scattering a number into zeros.  What is linear
in those may as well run once, behind the sums of all numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.func import functionalize
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.dataclass import dataclass
from litz.graph.values import attribute_value, fake_mode
from litz.index import const
from litz.ir import attention, body
from litz.ir.body import Node, Store
from litz.lowering.indexing import bind, position
from litz.lowering.score_functions import Inline
from litz.lowering.state import GraphLowering
from litz.lowering.torch_types import to_torch
from litz.lowering.values import TensorValue

aten = torch.ops.aten

SCATTER: Final = "flex_lib.zeros_and_scatter.default"
GIVEN: Final = 6  # what a joint function takes before what is captured: score, places, gradient
FIRST: Final = 5  # of its results that belongs to what is captured
# Operators that are linear in some arguments, the others given: in all, in either, in the first.
LINEAR: Final[Mapping[object, str]] = MappingProxyType(
    {
        **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor), "all"),
        **dict.fromkeys((aten.mul.Tensor,), "either"),
        **dict.fromkeys(
            (
                aten.neg.default, aten._to_copy.default, aten.clone.default, aten.detach.default,
                aten.alias.default, aten.view.default, aten._unsafe_view.default,
                aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default,
                aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
                aten.sum.default, aten.sum.dim_IntList, aten.mul.Scalar, aten.div.Scalar,
                aten.div.Tensor, aten.select_backward.default, aten.slice_backward.default,
                aten.sigmoid_backward.default, aten.tanh_backward.default,
                torch.ops.prims.convert_element_type.default,
            ),
            "first",
        ),
    }
)  # fmt: skip


def wanted_of_captured(n: FxNode) -> list[int]:
    """Which of what the functions capture somebody asks the gradient of."""
    picked = (u for u in n.users if u.args[1] == 3)
    return sorted({int(u.args[1]) for some in picked for u in some.users})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sum:
    """What one score adds to a sum of some shape: a number, and at which position."""

    node: FxNode
    shape: tuple[int, ...]
    number: FxNode
    positions: tuple[FxNode, ...]


@dataclass(frozen=True)
class Captured:
    """How gradients of what is captured are computed.

    points: a joint function that returns the score's gradient, then of each sum its number and
    positions.  behind: from all sums and what is captured to the gradients that are wanted.
    """

    low: GraphLowering
    n: FxNode
    parts: tuple[Sum, ...]
    points: GraphModule
    behind: GraphModule
    wanted: tuple[int, ...]

    @staticmethod
    def of(low: GraphLowering, n: FxNode) -> Captured | None:
        """None: they are no such sums, or sums in any order are not allowed."""
        wanted = wanted_of_captured(n)
        module = attribute_value(low.gm, n.args[8])  # type: ignore[arg-type]
        joint: Graph = module.graph
        (output,) = joint.find_nodes(op="output")
        slope, asked = output.args[0][0], [output.args[0][FIRST + k] for k in wanted]
        atomics = low.settings.on_gpu(str(n.args[0].meta["val"].device))  # type: ignore[union-attr]
        found = None if wanted and atomics and _is_ordered() else _sums(joint, asked)
        behind = None if found is None else _behind(joint, found, asked)
        if found is None or behind is None:
            return None
        points, given = Graph(), joint.find_nodes(op="placeholder")
        results = (slope, *(x for s in found for x in (s.number, *s.positions)))
        _copied(joint, points, {p: points.node_copy(p) for p in given}, results)
        made = GraphModule(module, points), GraphModule(module, behind)
        return Captured(low, n, found, *made, tuple(wanted))

    def kinds(self) -> Iterator[bool]:
        """Of each number and position that ``points`` returns, whether it is a number."""
        for s in self.parts:
            yield True
            yield from (False for _ in s.positions)

    def sums(self, added: Sequence[Node], device: str) -> list[TensorValue]:
        """Memory of zeros for each sum.  added: numbers and positions."""
        b, found = self.low.b, []
        numbers = [x for x, number in zip(added, self.kinds(), strict=True) if number]
        for s, x in zip(self.parts, numbers, strict=True):
            shape, kind = tuple(map(const, s.shape)), x.dtype.opmath
            made = b.allocate(kind, shape, device)
            b.store_into(TensorValue(kind, shape, device, lazy=body.const(kind, 0)), made)
            found.append(made)
        return found

    def stores(self, sums: list[TensorValue], added: Sequence[Node], mask: Node) -> Iterator[Store]:
        """What each score adds to the sums where ``mask`` holds."""
        values = iter(added)
        for s, made in zip(self.parts, sums, strict=True):
            number = attention.where_seen(mask, body.cast(next(values), made.dtype))
            own = zip(s.positions, made.shape, strict=True)
            places = [position(next(values), size, negative=True) for _, size in own]
            index, bound = bind(places, made.shape, (number,))
            yield made.memory.store(index, number, "add", bound)

    def results(self, sums: list[TensorValue], inline: Inline) -> tuple[TensorValue | None, ...]:
        """A gradient for each of what is captured, or None."""
        vals: Any = self.n.meta["val"][3]
        out: list[TensorValue | None] = [None] * len(vals)
        if not self.wanted:
            return tuple(out)
        taken: Any = self.n.args[12]
        with fake_mode(self.n.graph):
            like = vals[self.wanted[0]]
            given = [
                like.new_empty(s.shape, dtype=to_torch(m.dtype))
                for s, m in zip(self.parts, sums, strict=True)
            ]
            gm = make_fx(functionalize(self.behind))(*given, *(a.meta["val"] for a in taken))
        found = inline(gm, [*sums, *(self.low.env[a] for a in taken)])
        for k, v in zip(self.wanted, found, strict=True):
            r = self.low.result(vals[k])
            assert r is not None
            alike = v if v.dtype is r.dtype else v.with_node(body.cast(v.node, r.dtype))
            out[k] = self.low.b.realize(alike, r.strides)
        return tuple(out)


def _is_ordered() -> bool:
    strict = torch.are_deterministic_algorithms_enabled()
    return strict and not torch.is_deterministic_algorithms_warn_only_enabled()


def _sums(joint: Graph, asked: Sequence[Any]) -> tuple[Sum, ...] | None:
    """The sums that gradients of one score are made of; None where there are others."""
    scatters = {x for x in joint.nodes if str(x.target) == SCATTER}
    found: dict[FxNode, Sum] = {}
    for a in asked:
        if not isinstance(a, FxNode):
            return None
        below = [x for x in joint.nodes if x in scatters & _above([a], scatters)]
        val = a.meta.get("val")
        if not below and (val is None or val.ndim):
            return None
        if not below:
            found[a] = Sum(a, (), a, ())  # a tensor of one element, which has no positions
        for x in below:
            shape, positions, number = x.args
            known = all(isinstance(s, int) and s > 0 for s in shape)
            if not known or len(shape) != len(positions) or scatters & _above([number], set()):
                return None
            found[x] = Sum(x, tuple(shape), number, tuple(positions))
    return tuple(found.values())


def _above(roots: Sequence[FxNode], stop: Set[FxNode]) -> set[FxNode]:
    """What nodes are computed from, and they, down to ``stop``."""
    seen: set[FxNode] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            stack += () if x in stop else x.all_input_nodes
    return seen


def _copied(
    joint: Graph, graph: Graph, known: dict[FxNode, FxNode], roots: Sequence[FxNode]
) -> None:
    """Complete a graph whose results are ``roots``.  known: nodes that it has."""
    needed = _above(roots, known.keys())
    for x in joint.nodes:
        if x in needed and x not in known:
            known[x] = graph.node_copy(x, known.__getitem__)
    graph.output(tuple(known[r] for r in roots))


def _behind(joint: Graph, sums: tuple[Sum, ...], asked: Sequence[FxNode]) -> Graph | None:
    """From sums and what is captured to gradients; None where these are not linear in the sums."""
    graph, placeholders = Graph(), joint.find_nodes(op="placeholder")
    known = {s.node: graph.placeholder(f"sum{k}") for k, s in enumerate(sums)}
    derived = set(known)
    known |= {p: graph.placeholder(p.name) for p in placeholders[GIVEN:]}
    between = _above(asked, known.keys()) - known.keys()
    for x in joint.nodes:
        if x in between and not derived.isdisjoint(x.all_input_nodes):
            if not _is_linear(x, derived):
                return None
            derived.add(x)
    if any(x.op != "call_function" for x in between) or not derived.issuperset(asked):
        return None
    _copied(joint, graph, known, asked)
    return graph


def _is_linear(x: FxNode, derived: set[FxNode]) -> bool:
    rule = LINEAR.get(x.target)
    of = [isinstance(a, FxNode) and a in derived for a in x.args[:2]]
    if rule == "all":
        return all(of)
    if rule == "either":
        return sum(of) == 1
    return rule == "first" and of[0] and derived.isdisjoint(x.all_input_nodes[1:])
