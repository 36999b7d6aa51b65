"""Equal parts as calls that PyTorch traces without looking inside, and back to what they stand for.

A part's call is one opaque operator, its gradient another; their metadata come from the part's own
trace.  Before anything else sees the traced graph, each is replaced by the calls of that trace: the
graph is then the one that PyTorch would have traced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.regions.find import NotEqual, Repeat, value
from litz.regions.trace import Layout, Recorded, Tracer, layout, record
from litz.runtime.torch_private import storage_address

Tangents = tuple[Layout | None, ...]

_LIBRARY = torch.library.Library("litz", "FRAGMENT")
_LIBRARY.define("region(Tensor[] given, int[] which, str results) -> Tensor[]")
OPERATOR = torch.ops.litz.region.default


@torch.library.register_fake("litz::region", lib=_LIBRARY)
def _fake(given: Sequence[torch.Tensor], which: Sequence[int], results: str) -> list[torch.Tensor]:
    return [
        torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device=device)
        for size, stride, dtype, device in json.loads(results)
    ]


def _results(nodes: Sequence[Node | None]) -> str:
    layouts = [layout(n.meta["val"]) for n in nodes if n is not None]
    return json.dumps([(s, t, str(d).partition(".")[2], str(device)) for s, t, d, device in layouts])


class Unseen(Exception):
    """Gradients arrive laid out as they have not before."""

    def __init__(self, region: Region, tangents: Tangents) -> None:
        super().__init__("gradients of a part are laid out differently at each try")
        self.region, self.tangents = region, tangents

    def record(self) -> None:
        self.region.record(self.tangents)


@dataclass(eq=False)
class Region:
    """Equal parts and their traces: one for each layout of the gradients that arrive.

    tracer: makes the functional graph of ATen calls of a program.
    """

    repeat: Repeat
    tracer: Tracer
    number: int
    traces: dict[Tangents, Recorded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        results = [value(self.repeat.parts[0][i]) for i in self.repeat.outputs]
        self.has_gradient = [x.requires_grad for x in results]
        self.record(tuple(layout(x) if x.requires_grad else None for x in results))

    def record(self, tangents: Tangents) -> None:
        made = record(self.repeat, tangents, self.tracer)
        if self.traces:
            check_equal(self.first, made)
        self.traces[tangents] = made

    @property
    def first(self) -> Recorded:
        return next(iter(self.traces.values()))


class _Call(torch.autograd.Function):
    """One part, forward and backward."""

    @staticmethod
    def forward(ctx: Any, region: Region, call: int, *given: torch.Tensor) -> Any:
        ctx.region, ctx.call = region, call
        ctx.set_materialize_grads(False)
        which = [region.number, call, -1]
        out = tuple(OPERATOR(list(given), which, _results(region.first.results)))
        ctx.mark_non_differentiable(
            *(x for x, g in zip(out, region.has_gradient, strict=True) if not g)
        )
        return out

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        region: Region = ctx.region
        key = tuple(None if t is None else layout(t) for t in tangents)
        if key not in region.traces:
            raise Unseen(region, key)
        variant = list(region.traces).index(key)
        gradients = region.traces[key].gradients
        which = [region.number, ctx.call, variant]
        found = iter(OPERATOR([t for t in tangents if t is not None], which, _results(gradients)))
        return None, None, *(None if g is None else next(found) for g in gradients)


@contextmanager
def outlined(gm: GraphModule, regions: Sequence[Region]) -> Iterator[None]:
    """Dynamo's graph, meanwhile, with one call for each part."""
    before = gm.graph
    gm.graph = _outlined(before, regions)
    try:
        yield
    finally:
        gm.graph = before


def _outlined(before: Graph, regions: Sequence[Region]) -> Graph:
    ends: dict[Node, tuple[Region, int]] = {}
    inside: set[Node] = set()
    for r in regions:
        for k, part in enumerate(r.repeat.parts):
            ends[part[-1]] = r, k
            inside.update(part)
    graph = Graph()
    copies: dict[Node, Node] = {}
    for n in before.nodes:
        if n not in inside:
            new = copies[n] = graph.node_copy(n, copies.__getitem__)
            own = vars(new)  # Dynamo notes on inputs where they come from
            own.update({k: v for k, v in vars(n).items() if k not in own})
        elif n in ends:
            r, k = ends[n]
            given = tuple(copies[x] for x in r.repeat.inputs[k])
            call = graph.call_function(_caller(r, k), given)
            for i, at in enumerate(r.repeat.outputs):
                old = r.repeat.parts[k][at]
                copies[old] = graph.call_function(_pick, (call, i))
                copies[old].meta = dict(old.meta)
    return graph


def _pick(results: tuple[torch.Tensor, ...], at: int) -> torch.Tensor:
    return results[at]


def _caller(region: Region, call: int) -> Callable[..., Any]:
    def litz_region(*given: torch.Tensor) -> Any:
        return _Call.apply(region, call, *given)

    return litz_region


# --- placed back ---


def place(graph: Graph, regions: Sequence[Region]) -> None:
    """Put the calls of its part in place of each opaque operator of a traced graph."""
    known: dict[tuple[int, int], dict[Node, Node]] = {}
    opaque = [n for n in graph.nodes if n.target is OPERATOR]
    for n in opaque:
        given, (number, call, variant) = n.args[0], n.args[1]
        region = regions[number]
        with graph.inserting_before(n):
            if variant < 0:
                made = region.first
                copies = known[number, call] = dict(zip(made.inputs, given, strict=True))
                _copy(graph, made.forward, copies, n)
                results = [copies[r] for r in made.results]
            else:
                made = list(region.traces.values())[variant]
                of_first = known[number, call]
                copies = {
                    own: of_first[other]
                    for own, other in zip(_early(made), _early(region.first), strict=True)
                }
                copies.update(zip(made.tangents, given, strict=True))
                _copy(graph, made.backward, copies, n)
                results = [copies[g] for g in made.gradients if g is not None]
        for pick in tuple(n.users):
            pick.replace_all_uses_with(results[pick.args[1]])
            graph.erase_node(pick)
        graph.erase_node(n)
    if opaque:
        graph.eliminate_dead_code()


def _early(r: Recorded) -> tuple[Node, ...]:
    return (*r.inputs, *r.forward)


def check_equal(a: Recorded, b: Recorded) -> None:
    """Raise NotEqual if two traces differ in what they compute forward."""
    numbers = [{n: i for i, n in enumerate(_early(r))} for r in (a, b)]
    texts = [
        [(n.target, repr(map_arg((n.args, n.kwargs), own.__getitem__))) for n in r.forward]
        for r, own in zip((a, b), numbers, strict=True)
    ]
    if texts[0] != texts[1]:
        raise NotEqual("a part's forward depends on the gradients that arrive")


def _copy(graph: Graph, nodes: Sequence[Node], copies: dict[Node, Node], instead: Node) -> None:
    """Copy calls of a trace; ``copies`` has those that they read, and gets them."""
    memory = Memory()
    for old, new in copies.items():
        memory.note(old.meta["val"], new.meta["val"])
    tag = {k: instead.meta[k] for k in ("partitioner_tag",) if k in instead.meta}
    for n in nodes:
        args, kwargs = map_arg((n.args, n.kwargs), copies.__getitem__)
        new = copies[n] = graph.call_function(n.target, args, kwargs)
        new.meta = {**n.meta, **tag, "val": memory(n.meta["val"])}


class Memory:
    """Tensors for a copy of a trace: they share memory as those of the trace do."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.bases: dict[int, tuple[torch.Tensor, int]] = {}

    def note(self, old: Any, new: Any) -> None:
        if isinstance(old, tuple | list):
            for a, b in zip(old, new, strict=True):
                self.note(a, b)
        elif isinstance(old, torch.Tensor):
            self.made[id(old)] = new
            offset = new.storage_offset() - old.storage_offset()
            self.bases.setdefault(_address(old), (new, offset))

    def __call__(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(self, x))
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self.made:
            self.note(x, self._tensor(x))
        return self.made[id(x)]

    def _tensor(self, x: torch.Tensor) -> torch.Tensor:
        base = self.bases.get(_address(x))
        with x.fake_mode, torch.no_grad():
            if base is None:
                size, stride, dtype, device = layout(x)
                return torch.empty_strided(size, stride, dtype=dtype, device=device)
            of, offset = base
            return torch.as_strided(of, x.shape, x.stride(), x.storage_offset() + offset)


def _address(x: torch.Tensor) -> int:
    return storage_address(x.untyped_storage())
