"""Equal parts as calls that PyTorch traces without looking inside, and back to what they stand for.

A part's call is one opaque operator, its gradient another; their metadata come from the part's own
trace.  Before anything else sees the traced graph, each is replaced by the calls of that trace: the
graph is then the one that PyTorch would have traced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.dataclass import dataclass
from litz.regions.find import NotEqual, Repeat, value
from litz.regions.trace import Layout, Recorded, Tracer, layout, record
from litz.runtime.fake import FakeTensor, unset_fake_temporarily
from litz.runtime.torch_private import storage_address

Tangents = tuple[Layout | None, ...]
TRIES = 4  # how often gradients may arrive in another layout

_LIBRARY = torch.library.Library("litz", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "region(Tensor[] given, int[] which, str results) -> Tensor[]"
_LIBRARY.define(_SCHEMA)  # type: ignore[no-untyped-call]
OPERATOR = torch.ops.litz.region.default


@torch.library.register_fake("litz::region", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake(given: Sequence[torch.Tensor], which: Sequence[int], results: str) -> list[torch.Tensor]:
    return [
        torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device=device)
        for size, stride, dtype, device in json.loads(results)
    ]


def _results(nodes: Sequence[Node | None]) -> str:
    layouts = [layout(n.meta["val"]) for n in nodes if n is not None]
    return json.dumps(
        [(s, t, str(d).partition(".")[2], str(device)) for s, t, d, device in layouts]
    )


class Unseen(Exception):
    """Gradients have arrived laid out as they had not before; they are traced for that now."""


@dataclass(eq=False)
class Region:
    """Equal parts and their traces: one for each layout of the gradients that arrive.

    tracer: makes the functional graph of ATen calls of a program.  unseen: layouts that have
    arrived without such a trace.
    """

    repeat: Repeat
    tracer: Tracer
    number: int
    traces: dict[Tangents, Recorded] = field(default_factory=dict)
    unseen: list[Tangents] = field(default_factory=list)

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
        if key not in region.traces:  # the rest of this trace is for nothing
            region.unseen.append(key)
            key = next(iter(region.traces))
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
        return _Call.apply(region, call, *given)  # type: ignore[no-untyped-call]

    return litz_region


def compiled(
    gm: GraphModule,
    found: Sequence[Repeat],
    tracer: Tracer,
    compile_graph: Callable[[Callable[[Graph], None], str], Callable[..., Any]],
) -> Callable[..., Any]:
    """``traced_once`` with these parts.  Raises NotEqual where the plain way is to be taken."""
    regions = [Region(r, tracer, i) for i, r in enumerate(found)]
    shared = ", ".join(f"{len(r.parts)} x {len(r.parts[0])} calls" for r in found)
    traced = False

    def placed(graph: Graph) -> None:
        nonlocal traced
        traced = True
        place(graph, regions)

    for _ in range(TRIES):
        traced = False
        try:
            with outlined(gm, regions):
                return compile_graph(placed, f"equal regions are traced once: {shared}")
        except Unseen:
            continue
        except Exception as e:
            if traced:  # what came after the trace failed
                raise
            raise NotEqual(f"PyTorch does not trace the rest by itself: {e}") from e
    raise NotEqual("gradients arrive in many layouts")


# --- placed back ---


def place(graph: Graph, regions: Sequence[Region]) -> None:
    """Put the calls of its part in place of each opaque operator of a traced graph.

    Raises Unseen where the trace has to be made again.
    """
    late = [r for r in regions if r.unseen]
    for r in late:
        r.record(r.unseen[0])
        r.unseen.clear()
    if late:
        raise Unseen
    forward: dict[tuple[int, int], dict[Node, Node]] = {}  # copies of the first trace, by part
    joint = False
    memory = Memory()  # of what stood for results, as what has taken their place
    stood = []  # addresses are theirs as long as they live
    for n in tuple(graph.nodes):
        if n.target is not OPERATOR:
            if memory.storages and "val" in n.meta:
                with unset_fake_temporarily():
                    n.meta["val"] = memory.moved(n.meta["val"])
            continue
        number, call, variant = n.args[1]
        region = regions[number]
        if variant < 0:
            trace = region.first
            copies = forward[number, call] = dict(zip(trace.inputs, n.args[0], strict=True))
            calls, wanted = trace.forward, trace.results
        else:
            trace = list(region.traces.values())[variant]
            joint = True
            known = [forward[number, call][c] for c in region.first.early]
            copies = dict(zip((*trace.early, *trace.tangents), (*known, *n.args[0]), strict=True))
            calls, wanted = trace.backward, [g for g in trace.gradients if g is not None]
        with graph.inserting_before(n), unset_fake_temporarily():
            _copy(calls, copies, n)
        for pick in tuple(n.users):
            new = copies[wanted[pick.args[1]]]
            stood.append(pick.meta["val"])
            memory.note(stood[-1], new.meta["val"])
            pick.replace_all_uses_with(new)
            graph.erase_node(pick)
        graph.erase_node(n)
    if forward and not joint:  # PyTorch's partitioner begins with that
        graph.eliminate_dead_code()


def _copy(nodes: Sequence[Node], copies: dict[Node, Node], instead: Node) -> None:
    """Copy calls of a trace to where ``instead`` stands.

    copies: of what they read; gets theirs.
    """
    memory = Memory()
    for old, new in copies.items():
        memory.note(old.meta["val"], new.meta["val"])
    tag = {k: instead.meta[k] for k in ("partitioner_tag",) if k in instead.meta}
    for n in nodes:
        args, kwargs = map_arg((n.args, n.kwargs), copies.__getitem__)
        assert callable(n.target)
        new = copies[n] = instead.graph.call_function(n.target, args, kwargs)
        new.meta = {**n.meta, **tag, "val": memory(n.meta["val"])}


def check_equal(a: Recorded, b: Recorded) -> None:
    """Raise NotEqual if two traces differ in what they compute forward."""
    numbers = [{n: i for i, n in enumerate(r.early)} for r in (a, b)]
    texts = [
        [(n.target, repr(map_arg((n.args, n.kwargs), own.__getitem__))) for n in r.forward]
        for r, own in zip((a, b), numbers, strict=True)
    ]
    if texts[0] != texts[1]:
        raise NotEqual("a part's forward depends on the gradients that arrive")


class Memory:
    """Metadata for a copy of a trace: memory of its own, shared where the trace shares it.

    made: of tensors that are known.  storages: of the trace's by address, with what to add to
    positions in it.
    """

    def __init__(self) -> None:
        self.made: dict[int, torch.Tensor] = {}
        self.storages: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def note(self, old: Any, new: Any) -> None:
        """Say that one stands for another, tuples of tensors too."""
        if isinstance(old, tuple | list):
            for a, b in zip(old, new, strict=True):
                self.note(a, b)
        elif isinstance(old, torch.Tensor):
            self.made[id(old)] = new
            moved = new.storage_offset() - old.storage_offset()
            self.storages.setdefault(_address(old), (new.untyped_storage(), moved))

    def moved(self, x: Any) -> Any:
        """Metadata of what isn't copied itself, and may share memory with what is known."""
        if isinstance(x, tuple | list):
            return type(x)(map(self.moved, x))
        known = isinstance(x, FakeTensor) and _address(x) in self.storages
        return self(x) if known else x

    def __call__(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(self, x))
        if not isinstance(x, FakeTensor):
            return x
        if id(x) not in self.made:
            at = _address(x)
            first = at not in self.storages
            if first:
                view = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
                own = view.untyped_storage()
                # Memory of another size than its first tensor's has room for more.
                if x.storage_offset() or own.nbytes() != x.untyped_storage().nbytes():
                    nbytes = x.untyped_storage().nbytes()
                    own = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
                    first = False
                self.storages[at] = own, 0
            if not first:
                storage, moved = self.storages[at]
                empty = torch.empty(0, dtype=x.dtype, device="meta")
                view = empty.set_(storage, x.storage_offset() + moved, x.shape, x.stride())
            self.made[id(x)] = FakeTensor(x.fake_mode, view, x.device)
        return self.made[id(x)]


def _address(x: torch.Tensor) -> int:
    return storage_address(x.untyped_storage())
