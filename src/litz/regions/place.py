"""Equal parts as calls that PyTorch traces without looking inside, and back to what they stand for.

A part's call is one opaque operator, its gradient another; their metadata come from the part's own
trace.  Before anything else sees the traced graph, each is replaced by the calls of that trace: the
graph is then the one that PyTorch would have traced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.dataclass import dataclass
from litz.graph.calls import copied
from litz.regions.find import NotEqual, Repeat, value
from litz.regions.memory import Fakes, Layout, Memory
from litz.regions.trace import Recorded, Tracer, layout, record
from litz.runtime.fake import FakeTensor, FakeTensorMode, unset_fake_temporarily
from litz.runtime.past_wrappers import are_idle
from litz.runtime.torch_private import register_fake

Tangents = tuple[Layout | None, ...]
OUTSIDE = -1
MARK = "litz_region"
"""Metadata of what a part is copied to where four parts stay: the region's number, which of the
four, and which of its nodes, ``What``."""
FORWARD, BACKWARD, INPUT = "forward", "backward", "input"
What = tuple[str, int]
Parts = dict[int, dict[Node, Node]]
"""Copies of the first trace's nodes, by part."""

_LIBRARY = torch.library.Library("litz", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "region(Tensor[] given, int[] which, str results) -> Tensor[]"
_LIBRARY.define(_SCHEMA)  # type: ignore[no-untyped-call]
OPERATOR = torch.ops.litz.region.default


def _fake(given: Sequence[torch.Tensor], which: Sequence[int], results: str) -> list[torch.Tensor]:
    mode, fakes = cast(FakeTensor, given[0]).fake_mode, Fakes()
    with unset_fake_temporarily():  # hundreds of gradients: the mode would look at each call
        return [
            fakes.empty(mode, (size, stride, getattr(torch, dtype), torch.device(device)))
            for size, stride, dtype, device in json.loads(results)
        ]


register_fake("litz::region", _fake, _LIBRARY)


def _results(nodes: Sequence[Node | None]) -> str:
    layouts = [layout(n.meta["val"]) for n in nodes if n is not None]
    return json.dumps(
        [(s, t, str(d).partition(".")[2], str(device)) for s, t, d, device in layouts]
    )


class Unseen(Exception):
    """Gradients have arrived laid out as they had not before; they are traced for that now."""


@dataclass(eq=False)
class Region:
    """Equal parts that follow each other, and their traces: one for each layout of the gradients
    that arrive.

    tracer: makes the functional graph of ATen calls of a program.  unseen: layouts that have
    arrived without such a trace.  inputs: what comes from outside of all parts, by first use.
    reads: for each input of each part, by number, the part and the result of it that it is, or
    OUTSIDE and which of ``inputs``.  results: the part and the result of it that each value is
    which somebody outside reads.  hidden: of ``inputs`` that AOTAutograd is not shown, by number,
    the place among the graph's inputs.
    """

    repeat: Repeat
    tracer: Tracer
    number: int
    hidden: Mapping[int, int] = field(default_factory=dict)
    traces: dict[Tangents, Recorded] = field(default_factory=dict)
    unseen: list[Tangents] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts, outputs = self.repeat.parts, self.repeat.outputs
        made = {p[at]: (k, o) for k, p in enumerate(parts) for o, at in enumerate(outputs)}
        outer: dict[Node, int] = {}
        self.reads = [
            [made.get(n) or (OUTSIDE, outer.setdefault(n, len(outer))) for n in inputs]
            for inputs in self.repeat.inputs
        ]
        self.inputs = tuple(outer)
        inside = {n: k for k, part in enumerate(parts) for n in part}
        self.results = [at for n, at in made.items() if any(u not in inside for u in n.users)]
        self.has_gradient = [value(parts[0][i]).requires_grad for i in outputs]
        self.record(
            tuple(
                layout(value(parts[0][i])) if g else None
                for i, g in zip(outputs, self.has_gradient, strict=True)
            )
        )

    def record(self, tangents: Tangents) -> None:
        made = record(self.repeat, tangents, self.tracer)
        if self.traces:
            check_equal(self.first, made)
        self.traces[tangents] = made

    @property
    def first(self) -> Recorded:
        return next(iter(self.traces.values()))

    def variant(self, number: int) -> tuple[Tangents, Recorded]:
        return list(self.traces.items())[number]

    def given(self, call: Node, inputs: Sequence[Node | None]) -> list[Node | None]:
        """What stands for each of ``inputs`` in a traced graph.  inputs: those of that graph."""
        shown = iter(cast(list[Node], call.args[0]))
        return [
            inputs[self.hidden[i]] if i in self.hidden else next(shown)
            for i in range(len(self.inputs))
        ]

    def differentiated(self, given: Sequence[Layout | None]) -> tuple[list[int], list[Node | None]]:
        """The variant of each part where the results' gradients are laid out so, -1 for none, and
        what in it stands for the gradient of each of ``inputs``."""
        arrived = dict(zip(self.results, given, strict=True))
        gradients: list[Node | None] = [None] * len(self.inputs)
        variants = []
        for k in reversed(range(len(self.reads))):
            key = tuple(arrived.get((k, o)) for o in range(len(self.has_gradient)))
            if not any(key):
                variants.append(-1)
                continue
            if key not in self.traces:  # the rest of this trace is for nothing
                self.unseen.append(key)
                key = next(iter(self.traces))
            variants.append(list(self.traces).index(key))
            for (j, i), g in zip(self.reads[k], self.traces[key].gradients, strict=True):
                if g is not None and j == OUTSIDE:
                    gradients[i] = g
                elif g is not None:
                    arrived[j, i] = layout(g.meta["val"])
        return variants[::-1], gradients


class _Call(torch.autograd.Function):
    """All parts of a region, forward and backward.

    Autograd would run their gradients one behind the other too: nothing else reads what a part
    hands to the next.
    """

    @staticmethod
    def forward(ctx: Any, region: Region, *given: torch.Tensor) -> Any:
        ctx.region = region
        ctx.set_materialize_grads(False)
        made = region.first.results
        results = _results([made[o] for _, o in region.results])
        out = tuple(OPERATOR(list(given), [region.number], results))
        ctx.mark_non_differentiable(
            *(
                x
                for x, (_, o) in zip(out, region.results, strict=True)
                if not region.has_gradient[o]
            )
        )
        return out

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        region: Region = ctx.region
        variants, gradients = region.differentiated(
            [None if t is None else layout(t) for t in tangents]
        )
        which = [region.number, *variants]
        found = iter(OPERATOR([t for t in tangents if t is not None], which, _results(gradients)))
        return None, *(None if g is None else next(found) for g in gradients)


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
    ends: dict[Node, Region] = {}
    inside: set[Node] = set()
    for r in regions:
        ends[r.repeat.parts[-1][-1]] = r
        inside.update(*r.repeat.parts)
    graph = Graph()
    copies: dict[Node, Node] = {}
    inside.update(r.inputs[i] for r in regions for i in r.hidden)
    for n in before.nodes:
        if n not in inside:
            new = copies[n] = graph.node_copy(n, copies.__getitem__)
            own = vars(new)  # Dynamo notes on inputs where they come from
            own.update({k: v for k, v in vars(n).items() if k not in own})
        elif n in ends:
            r = ends[n]
            shown = tuple(copies[x] for i, x in enumerate(r.inputs) if i not in r.hidden)
            call = graph.call_function(_caller(r), shown)
            for i, (k, o) in enumerate(r.results):
                old = r.repeat.parts[k][r.repeat.outputs[o]]
                copies[old] = graph.call_function(_pick, (call, i))
                copies[old].meta = dict(old.meta)
    return graph


def _pick(results: tuple[torch.Tensor, ...], at: int) -> torch.Tensor:
    return results[at]


def _caller(region: Region) -> Callable[..., Any]:
    def litz_region(*given: torch.Tensor) -> Any:
        return _Call.apply(region, *given)  # type: ignore[no-untyped-call]

    return litz_region


# --- what AOTAutograd need not see ---


def hide(gm: GraphModule, regions: Sequence[Region]) -> list[int]:
    """Mark inputs that parts alone read as hidden, where nobody asks for gradients.

    AOTAutograd makes tensors of several kinds of each input, and needs them to see gradients,
    writes and memory that is shared, none of which a part's own inputs have.  A region's first
    input stays.  Its wrappers, which have nothing to do then, hand them on like others: they are
    called with all.  Returns which of the graph's inputs are hidden.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    tensors = [value(n) for n in inputs]
    asked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if any(type(x) is not FakeTensor for x in tensors) or asked:
        return []
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        return []
    inside = {n for r in regions for part in r.repeat.parts for n in part}
    at = {n: i for i, n in enumerate(inputs) if n.users and inside.issuperset(n.users)}
    for r in regions:
        at.pop(r.inputs[0], None)
    for r in regions:
        r.hidden = {i: at[n] for i, n in enumerate(r.inputs) if n in at}
    return list(at.values())


def check_hidden(graph: Graph, inputs: Sequence[Node], hidden: Collection[int]) -> None:
    """Raise Unseen where AOTAutograd has put inputs together, or has more to do than a call."""
    own = graph.find_nodes(op="placeholder")
    if hidden and (len(own) + len(hidden) != len(inputs) or not are_idle()):
        raise Unseen


def reveal(
    graph: Graph,
    inputs: Sequence[Node],
    hidden: Collection[int],
    gone: Collection[int],
    mode: FakeTensorMode | None,
) -> list[Node | None]:
    """Give a traced graph the inputs that AOTAutograd has not seen, but for those that are gone.

    inputs: those of Dynamo's graph.  mode: of the trace.  Returns what stands for each.
    """
    shown = iter(graph.find_nodes(op="placeholder"))
    own = [None if i in hidden else next(shown) for i in range(len(inputs))]
    memory = Memory(Fakes(mode))
    for old, new in zip(inputs, own, strict=True):
        if new is not None:
            memory.note(value(old), new.meta["val"])
    behind = next(n for n in graph.nodes if n.op != "placeholder")
    with unset_fake_temporarily():
        for i in range(len(inputs) - 1, -1, -1):
            if own[i] is None and i not in gone:
                with graph.inserting_before(behind):
                    new = graph.create_node("placeholder", hidden_name(i), name=hidden_name(i))
                new.meta["val"] = memory(value(inputs[i]))
                own[i] = new
            behind = own[i] or behind
    return own


def hidden_name(i: int) -> str:
    """What an input that AOTAutograd has not seen is called in a traced graph."""
    return f"hidden{i}"


# --- placed back ---


def place(
    graph: Graph,
    regions: Sequence[Region],
    few: Mapping[int, Sequence[int]] | None = None,
    inputs: Sequence[Node | None] = (),
    marked: bool = False,
) -> Mapping[int, Parts]:
    """Put the calls of its parts in place of each opaque operator of a traced graph.

    few: the parts that are put there, of regions of which not all are.  inputs: the whole graph's,
    where that is another one.  marked: the few are, as MARK says; all others have names by
    ``named``.  Returns what the forward's nodes have become.  Raises Unseen where the trace has to
    be made again.
    """
    few = few or {}
    inputs = inputs or graph.find_nodes(op="placeholder")
    check_seen(regions)
    forward: dict[int, Parts] = {}
    joint = False
    memory = Memory()  # of what stood for results, as what has taken their place
    stood = []  # addresses are theirs as long as they live
    for n in tuple(graph.nodes):
        if n.target is not OPERATOR:
            if memory.storages and "val" in n.meta:
                with unset_fake_temporarily():
                    n.meta["val"] = memory.moved(n.meta["val"])
            continue
        region = regions[number := n.args[1][0]]
        with graph.inserting_before(n), unset_fake_temporarily():
            if number not in forward:
                stay = _stay(region, few.get(number), marked)
                forward[number], made = _forward(region, n, stay, region.given(n, inputs))
            else:
                joint = True
                stay = _stay(region, few.get(number), marked)
                made = _backward(region, n, stay, forward[number])
        for pick in tuple(n.users):
            new = made[pick.args[1]]
            stood.append(pick.meta["val"])
            memory.note(stood[-1], new.meta["val"])
            pick.replace_all_uses_with(new)
            graph.erase_node(pick)
        graph.erase_node(n)
    calls = (n for n in graph.nodes if n.op not in ("placeholder", "output"))
    # PyTorch's partitioner begins with that, which looks at each call for long.
    if forward and not joint and not all(n.users for n in calls):
        graph.eliminate_dead_code()
    return forward


def named(n: Node, part: int) -> str:
    """What a trace's node is called in a part."""
    return f"{n.name}_part{part}"


def check_seen(regions: Sequence[Region]) -> None:
    """Trace what has not been seen before, and raise Unseen if there was such a thing."""
    late = [r for r in regions if r.unseen]
    for r in late:
        r.record(r.unseen[0])
        r.unseen.clear()
    if late:
        raise Unseen


Stay = Sequence[tuple[int, int | None]]
"""The parts to be put there, and their marks."""


def _stay(region: Region, few: Sequence[int] | None, marked: bool) -> Stay:
    if few is None:
        return [(k, None) for k in range(len(region.reads))]
    return [(k, c if marked else None) for c, k in enumerate(few)]


def _forward(
    region: Region, n: Node, stay: Stay, given: Sequence[Node | None]
) -> tuple[Parts, dict[int, Node]]:
    """The copies of each part's calls, put where one call stands for all parts, and its results.

    given: what stands for the region's inputs.
    """
    trace = region.first
    parts: Parts = {}
    before = 0  # the part that was put there last: its results stand for those of what is not
    fakes = Fakes()
    for k, mark in stay:
        read: Any = [
            given[i] if j == OUTSIDE else parts[j if j in parts else before][trace.results[i]]
            for j, i in region.reads[k]
        ]
        parts[k] = dict(zip(trace.inputs, read, strict=True))
        _copy(trace.forward, parts[k], n, k, mark, FORWARD, fakes)
        before = k
    return parts, {i: parts[k][trace.results[o]] for i, (k, o) in enumerate(region.results)}


def _backward(region: Region, n: Node, stay: Stay, parts: Parts) -> dict[int, Node]:
    """The same for the gradients; parts: what ``_forward`` has made."""
    _, *variants = cast(list[int], n.args[1])
    tangents = iter(cast(list[Node], n.args[0]))
    arrived: dict[tuple[int, int], Node] = {}
    for k, o in region.results:
        if variants[k] >= 0 and region.variant(variants[k])[0][o] is not None:
            arrived[k, o] = next(tangents)
    known = {
        i
        for v, reads in zip(variants, region.reads, strict=True)
        if v >= 0
        for (j, i), g in zip(reads, region.variant(v)[1].gradients, strict=True)
        if g is not None and j == OUTSIDE
    }
    place = {i: at for at, i in enumerate(sorted(known))}
    found: dict[int, Node] = {}
    fakes = Fakes()
    for k, mark in reversed(stay):
        if variants[k] < 0:
            continue
        key, trace = region.variant(variants[k])
        early = [parts[k][c] for c in region.first.early]
        given = [arrived[k, o] for o, t in enumerate(key) if t is not None]
        copies = dict(zip((*trace.early, *trace.tangents), (*early, *given), strict=True))
        _copy(trace.backward, copies, n, k, mark, BACKWARD, fakes)
        for (j, i), g in zip(region.reads[k], trace.gradients, strict=True):
            if g is not None and j == OUTSIDE:
                found[place[i]] = copies[g]
            elif g is not None:
                arrived[j if j in parts else 1, i] = copies[g]
    return found


def _copy(
    nodes: Sequence[Node],
    copies: dict[Node, Node],
    instead: Node,
    part: int,
    mark: int | None,
    kind: str,
    fakes: Fakes,
) -> None:
    """Copy calls of a trace to where ``instead`` stands.

    copies: of what they read; gets theirs.  mark: which part they are marked as, if they are.
    """
    memory = Memory(fakes)
    for old, new in copies.items():
        memory.note(old.meta["val"], new.meta["val"])
    meta = {k: instead.meta[k] for k in ("partitioner_tag",) if k in instead.meta}
    number = cast(list[int], instead.args[1])[0]
    for i, n in enumerate(nodes):
        name = named(n, part) if mark is None else None
        new = copies[n] = copied(n, instead.graph, copies.__getitem__, name)
        new.meta.update(n.meta, **meta, val=memory(n.meta["val"]))
        if mark is not None:
            new.meta[MARK] = (number, mark, (kind, i))


def check_equal(a: Recorded, b: Recorded) -> None:
    """Raise NotEqual if two traces differ in what they compute forward."""
    numbers = [{n: i for i, n in enumerate(r.early)} for r in (a, b)]
    texts = [
        [(n.target, repr(map_arg((n.args, n.kwargs), own.__getitem__))) for n in r.forward]
        for r, own in zip((a, b), numbers, strict=True)
    ]
    if texts[0] != texts[1]:
        raise NotEqual("a part's forward depends on the gradients that arrive")
