"""A joint graph split into forward and backward with four of a region's parts, then lengthened.

What PyTorch's partitioner decides for a part between two others is what it decides for each: the
second and the second last part stay between the first and the last, and where they come out alike,
those left out are put between them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.dataclass import dataclass
from litz.graph.aliasing import DESCRIPTIONS
from litz.graph.calls import copied, higher_order_name, leaves, op_name
from litz.regions.cut import EARLY, FIRST, LAST, LATE, check_cut
from litz.regions.few import Long, long_region, without
from litz.regions.find import NotEqual
from litz.regions.memory import Fakes
from litz.regions.place import (
    BACKWARD,
    FORWARD,
    INPUT,
    MARK,
    OPERATOR,
    Region,
    What,
    place,
)
from litz.runtime.fake import FakeTensor, unset_fake_temporarily
from litz.runtime.min_cut import Cut, Split
from litz.runtime.torch_private import (
    LazyGraphModule,
    LongChains,
    address,
    long_chains,
    without_long_chains,
)

FEWEST: Final = 6  # parts from which it pays
# What it chains calls with where they write into what these are given.
SPECIAL: Final = ("auto_functionalized", "triton_kernel_wrapper_functional")
Images = dict[tuple[int, What], Node]
"""The nodes of a graph that parts have become, by part."""


def split_short(
    joint: GraphModule,
    regions: Sequence[Region],
    forwards: int,
    static: Sequence[int],
    split: Split,
) -> Sequence[GraphModule]:
    """The forward and backward part of a joint graph in which one call stands for each region.

    forwards: how many of its results are the forward's.  static: inputs that stay where they are.
    Raises NotEqual, with the graph as it was, where the whole graph has to be split.
    """
    graph = joint.graph
    inputs = [n for n in graph.find_nodes(op="placeholder") if "tangents" not in str(n.target)]
    output = graph.output_node()
    results = cast(tuple[Any, ...], output.args[0])
    told = output.meta.get(DESCRIPTIONS, [None] * len(results))
    plain = all(str(n.target).startswith("primals_") for n in inputs)
    if not plain or len(results) != forwards + len(inputs) or len(told) != len(results):
        raise NotEqual("there is more in the joint graph than inputs and results")
    long = [_long(r, graph, inputs) for r in regions if len(r.reads) >= FEWEST]
    if not long:
        raise NotEqual
    gone = {i for r in long for row in r.own.values() for i in row[2:-2]}
    stays = [i for i in range(len(inputs)) if i not in gone]
    kept = [*range(forwards), *(forwards + i for i in stays)]
    short = without(graph, {inputs[i] for i in gone}, kept)
    marks = {
        inputs[i].name: (r.number, c, (INPUT, which))
        for r in long
        for which, row in r.own.items()
        for c, i in enumerate((*row[:2], *row[-2:]))
    }
    for n in short.find_nodes(op="placeholder"):
        if n.name in marks:
            n.meta[MARK] = marks[n.name]
    place(short, regions, {r.number: (0, 1, r.parts - 2, r.parts - 1) for r in long}, marked=True)
    at = {i: k for k, i in enumerate(stays)}
    gm = LazyGraphModule(joint, short)
    cuts: list[Cut] = []
    with without_long_chains():
        parts = split(gm, [at[i] for i in static if i in at], cuts)
    if len(cuts) != 1:
        raise NotEqual("PyTorch's partitioner does not cut a network once")
    known = [(r.parts, partial(_key, r.number)) for r in long]
    check_cut(gm.graph, cuts[0], known, forwards, _long_chains(gm.graph))
    forward, backward = (p.graph for p in parts)
    with unset_fake_temporarily():
        for r in long:
            made = _Lengthening(r, forward, backward, inputs, stays, forwards, told)
            stays = made.run()
    for g in (forward, backward):
        _check_order(g)
        for n in g.nodes:
            n.meta.pop(MARK, None)
    return parts


def _long_chains(graph: Graph) -> LongChains | None:
    """The partitioner's rule, for a graph of which it knows no more than calls and their order."""
    rule = long_chains()
    for n in graph.nodes if rule else ():
        if "recompute" in n.meta or higher_order_name(n.target) in SPECIAL:
            raise NotEqual(f"PyTorch's partitioner has rules of its own for {n.name}")
        if n.op == "placeholder" and any(op_name(u.target) == "cat" for u in n.users):
            raise NotEqual(f"a chain of calls begins with {n.name}")
    return rule


def _key(region: int, n: Node) -> tuple[int, What] | None:
    """Which of a region's four parts a node is of, and which of its nodes."""
    number, *key = n.meta.get(MARK, (None,))
    return cast(tuple[int, What], tuple(key)) if number == region else None


def _long(region: Region, graph: Graph, inputs: Sequence[Node]) -> Long:
    calls = [n for n in graph.nodes if n.target is OPERATOR and n.args[1][0] == region.number]
    given = cast(list[Node], calls[0].args[0])
    position = {n: i for i, n in enumerate(inputs)}

    def own(at: int) -> int | None:
        n = given[at]
        if n in position and len(n.users) > 1:
            raise NotEqual("a part's input has other readers")
        return position.get(n)

    return long_region(region, calls, own)


def _calls(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op not in ("placeholder", "output")]


def _check_order(graph: Graph) -> None:
    seen: set[Node] = set()
    for n in graph.nodes:
        if not seen.issuperset(n.all_input_nodes):
            raise NotEqual(f"{n.name} is read before it is made")
        seen.add(n)


@dataclass(frozen=True)
class _Like:
    """A call as each part between others has it.

    node: the second's.  offset, what: which node of which part it is; parts are counted from the
    one among whose calls it stands.  reads: the same of what it reads of parts.  meta: its own, but
    for ``val``, which ``make`` makes for a part.
    """

    node: Node
    offset: int
    what: What
    reads: Mapping[Node, tuple[int, What]]
    meta: Mapping[str, Any]
    make: Callable[[int], Any]


class _Lengthening:
    """One region's parts that were left out, put into the forward and the backward graph.

    values: metadata of what they are copied to, which both graphs share.
    """

    def __init__(
        self,
        long: Long,
        forward: Graph,
        backward: Graph,
        inputs: Sequence[Node],
        stays: Sequence[int],
        forwards: int,
        told: Sequence[Any],
    ) -> None:
        self.long, self.forward, self.backward = long, forward, backward
        self.inputs, self.stays, self.forwards, self.told = inputs, stays, forwards, told
        self.between = range(2, long.parts - 2)
        self.values: dict[tuple[int, What], Any] = {}
        self.key = partial(_key, long.number)
        self.memory = _Memory(long, self.key, (forward, backward))

    def _kind(self, n: Node) -> str:
        key = self.key(n)
        return key[1][0] if key else ""

    def run(self) -> list[int]:
        """Returns which of the joint graph's inputs there are now."""
        new = [i for row in self.long.own.values() for i in row[2:-2]]
        stays = sorted({*self.stays, *new})
        forward = self._take_inputs(stays)
        # Of what only gradients need, the forward graph has what no gradient is needed for.
        calls = _calls(self.forward)
        tail = next((i for i, n in enumerate(calls) if self._kind(n) == BACKWARD), len(calls))
        self._add_calls(self.forward, calls[:tail], FORWARD, forward)
        self._add_calls(self.forward, calls[tail:], BACKWARD, forward)
        backward = self._save(forward, stays)
        self._add_calls(self.backward, _calls(self.backward), BACKWARD, backward)
        self._return_gradients(backward, stays)
        return stays

    # --- what goes in and comes out ---

    def _take_inputs(self, stays: Sequence[int]) -> Images:
        there = dict(zip(self.stays, self.forward.find_nodes(op="placeholder"), strict=True))
        wanted = [(there.get(i), self.inputs[i]) for i in stays]
        every = dict(zip(stays, _placeholders(self.forward, wanted), strict=True))
        images: Images = {}
        for which, row in self.long.own.items():
            for k, i in enumerate(row):
                images[k, (INPUT, which)] = every[i]
                if k in self.between:
                    self.memory.note(k, (INPUT, which), every[i].meta["val"])
        return images

    def _save(self, images: Images, stays: Sequence[int]) -> Images:
        """Let the forward graph save what the copies need, and the backward one take it."""
        output = self.forward.output_node()
        results = list(cast(tuple[Any, ...], output.args[0]))
        saved: list[Node] = results[self.forwards :]
        given = self.backward.find_nodes(op="placeholder")
        if any(s.name != g.name for s, g in zip(saved, given, strict=False)):
            raise NotEqual("what is saved is called otherwise")
        at = dict(zip(self.forward.find_nodes(op="placeholder"), stays, strict=True))
        keys = [self.key(s) for s in saved]
        early, late = ([k[1] for k in keys if k and k[0] == c] for c in (EARLY, LATE))
        if early != late:
            raise NotEqual("other values are saved of one part than of the next")
        first = [s for s in saved if s in at]
        made = saved[len(first) :]
        if saved[: len(first)] != sorted(first, key=at.__getitem__):
            raise NotEqual("what is saved is in another order")
        first += [images[k, w] for k in self.between for w in early if w[0] == INPUT]
        first.sort(key=at.__getitem__)
        for sort, ahead in ((FORWARD, EARLY), (BACKWARD, LATE)):
            own = [i for i, s in enumerate(made) if self._kind(s) == sort]
            inner = [i for i in own if (key := self.key(made[i])) and key[0] == ahead]
            if not inner:
                continue
            stop = inner[-1] + 1
            if stop - inner[0] != len(inner):
                raise NotEqual("what is saved is in another order")
            order = self.between if sort == FORWARD else self.between[::-1]
            made[stop:stop] = [images[k, w] for k in order for w in early if w[0] == sort]
        every = [*first, *made]
        there = dict(zip(saved, given, strict=False))
        new = _placeholders(self.backward, [(there.get(s), s) for s in every])
        output.args = ((*results[: self.forwards], *every),)
        told = output.meta[DESCRIPTIONS]
        if kinds := {type(d) for d in told[self.forwards :]}:
            kind, *others = kinds
            if others:
                raise NotEqual("values are saved in several ways")
            saves = [kind(i) for i in range(len(every))]
            output.meta[DESCRIPTIONS] = [*told[: self.forwards], *saves]
        _note_lines(output)
        for n, s in zip(new, every, strict=True):
            n.meta["val"] = s.meta["val"]
        whose = {s: key for key, s in images.items()}
        return {whose[s]: n for s, n in zip(every, new, strict=True) if s in whose}

    def _return_gradients(self, images: Images, stays: Sequence[int]) -> None:
        output = self.backward.output_node()
        there = dict(zip(self.stays, cast(tuple[Any, ...], output.args[0]), strict=True))
        for row in self.long.own.values():
            early, late = there[row[1]], there[row[-2]]
            if early is late:  # none, or the same for all
                there |= dict.fromkeys(row[2:-2], early)
                continue
            one, other = (self.key(n) if n else None for n in (early, late))
            if one != (EARLY, one and one[1]) or other != (LATE, one and one[1]):
                raise NotEqual("gradients of one part are others than those of the next")
            assert one
            there |= {row[k]: images[k, one[1]] for k in range(1, self.long.parts - 1)}
        output.args = (tuple(there[i] for i in stays),)
        output.meta[DESCRIPTIONS] = [self.told[self.forwards + i] for i in stays]
        _note_lines(output)

    # --- what stands between ---

    def _add_calls(self, graph: Graph, calls: list[Node], kind: str, images: Images) -> None:
        """Put the copies' calls between the second part's and the second last's.

        images: those in the graph's inputs; gets all others.
        """
        block = self._blocks(calls, kind)
        if not block:
            return
        early, late = ([n for n in calls if block[n] == c] for c in (EARLY, LATE))
        if len(early) != len(late):
            raise NotEqual("one part has more calls than the next")
        likes = [self._like(x, y, kind) for x, y in zip(early, late, strict=True)]
        for n in calls:
            if key := self.key(n):
                if (part := self._part(key[0], block[n])) is None:
                    raise NotEqual(f"{n.name} stands among another part's calls")
                images[part, key[1]] = n
        order = self.between if kind == FORWARD else self.between[::-1]
        with graph.inserting_before((late if kind == FORWARD else early)[0]):
            for k in order:
                for like in likes:
                    self._add(graph, like, k, images)
        for n in calls:
            if block[n] in (EARLY, LATE) and (key := self.key(n)):
                part = block[n] if block[n] == EARLY else self.long.parts - 2
                where = part + key[0] - block[n], key[1]
                if where not in self.values:
                    self.values[where] = self.memory.moved(n.meta.get("val"), block[n], part)
                n.meta["val"] = self.values[where]
            for a in n.all_input_nodes:
                if (key := self.key(a)) and key[0] in (EARLY, LATE):
                    part = self._part(key[0], block[n])
                    if part is None or (part, key[1]) not in images:
                        raise NotEqual(f"{n.name} reads what another part made")
                    if images[part, key[1]] is not a:
                        n.replace_input_with(a, images[part, key[1]])

    def _blocks(self, calls: Sequence[Node], kind: str) -> dict[Node, int]:
        """Among which part's calls each stands: up to the last that is the part's own."""
        last: dict[int, int] = {}
        for i, n in enumerate(calls):
            if (key := self.key(n)) and key[1][0] == kind:
                last[key[0]] = i
        if all((key := self.key(n)) is None or key[0] in (FIRST, LAST) for n in calls):
            return {}
        order = range(4) if kind == FORWARD else range(3, -1, -1)
        stops = [last.get(c, -1) for c in order[:-1]]
        if stops != sorted(stops) or not last.keys() >= {EARLY, LATE}:
            raise NotEqual("parts' calls are not in order")
        block: dict[Node, int] = {}
        start = 0
        for c, stop in zip(order, (*stops, len(calls)), strict=True):
            block |= dict.fromkeys(calls[start : stop + 1], c)
            start = stop + 1
        return block

    def _part(self, four: int, block: int) -> int | None:
        """The part that one of the four is for what stands among a block's calls: the next or
        the one before is another where they are apart now."""
        parts = self.long.parts
        if four in (FIRST, LAST):
            return 0 if four == FIRST else parts - 1
        near = {EARLY: (1, 1, parts - 3, None), LATE: (None, 2, parts - 2, parts - 2)}
        return near[four][block]

    def _like(self, x: Node, y: Node, kind: str) -> _Like:
        one, other = self.key(x), self.key(y)
        if not one or not other or one[1] != other[1] or one[0] - EARLY != other[0] - LATE:
            raise NotEqual(f"{x.name} and {y.name} of neighbouring parts differ")
        if x.target != y.target or (kind == FORWARD and one[0] != EARLY):
            raise NotEqual(f"{x.name} stands among another part's calls")
        read: list[list[Node]] = [[], []]
        for n, into in zip((x, y), read, strict=True):
            map_arg((n.args, n.kwargs), into.append)
        reads: dict[Node, tuple[int, What]] = {}
        shared: set[Node] = set()
        if len(read[0]) != len(read[1]):
            raise NotEqual(f"{x.name} and {y.name} read differently many values")
        for a, b in zip(*read, strict=True):
            p, q = self.key(a), self.key(b)
            if a is b and not (p and p[0] in (EARLY, LATE)):
                shared.add(a)
            elif p and q and p[1] == q[1] and p[0] - EARLY == q[0] - LATE:
                reads[a] = (p[0] - EARLY, p[1])
            else:
                raise NotEqual(f"{x.name} and {y.name} read different things")
        if shared & set(reads):
            raise NotEqual(f"{x.name} reads one value in two ways")
        meta = {k: v for k, v in x.meta.items() if k not in (MARK, "val")}
        make = self.memory.maker(x.meta.get("val"), EARLY)
        return _Like(x, one[0] - EARLY, one[1], reads, meta, make)

    def _add(self, graph: Graph, like: _Like, part: int, images: Images) -> None:
        n, reads = like.node, like.reads
        key = part + like.offset, like.what

        def given(a: Node) -> Node:
            if a not in reads:
                return a
            offset, what = reads[a]
            if (image := images.get((part + offset, what))) is None:
                raise NotEqual(f"{n.name} reads what another part made")
            return image

        images[key] = new = copied(n, graph, given, f"{n.name}_part{key[0]}")
        if key not in self.values:
            self.values[key] = like.make(part)
        new.meta.update(like.meta, val=self.values[key])


class _Memory:
    """The memory of parts that were left out.

    owner: whose memory an address is: one of the four parts' nodes, and which of its tensors.
    home: the memory of each.  there: that of the parts of the whole graph.
    """

    def __init__(
        self, long: Long, key: Callable[[Node], tuple[int, What] | None], graphs: Sequence[Graph]
    ) -> None:
        self.fakes = Fakes()
        self.owner: dict[int, tuple[int, What, int] | None] = {}
        self.home: dict[tuple[int, What, int], torch.UntypedStorage] = {}
        for graph in graphs:
            for n in graph.nodes:
                own = key(n)
                for i, x in enumerate(leaves(n.meta.get("val"))):
                    if isinstance(x, FakeTensor):
                        at = address(x)
                        whose = (*own, i) if own else None
                        if self.owner.setdefault(at, whose) == whose and whose:
                            self.home[whose] = x.untyped_storage()
        late = long.parts - 4
        self.there = {(c + late * (c >= LATE), w, i): s for (c, w, i), s in self.home.items()}

    def note(self, part: int, what: What, x: object) -> None:
        if isinstance(x, FakeTensor):
            self.there[part, what, 0] = x.untyped_storage()

    def maker(self, x: Any, four: int) -> Callable[[int], Any]:
        """Makes metadata of parts, like those of what stands among the calls of one of the four."""
        if isinstance(x, tuple | list):
            makers = [self.maker(e, four) for e in x]
            return lambda part: type(x)(make(part) for make in makers)
        if not isinstance(x, FakeTensor):
            return lambda part: x
        like, storage = self.fakes.like(x), x.untyped_storage()
        whose = self.owner.get(address(x))
        near = whose is not None and abs(whose[0] - four) <= 1
        if whose is None or not near or (EARLY, *whose[1:]) not in self.home:
            return lambda part: like(storage)
        later, what, i = whose[0] - four, *whose[1:]

        def make(part: int) -> FakeTensor:
            at = part + later, what, i
            made = like(self.there.get(at))
            self.there.setdefault(at, made.untyped_storage())
            return made

        return make

    def moved(self, x: Any, four: int, part: int) -> Any:
        """The same for what was there before: ``x`` where its memory is what it was."""
        made = self.maker(x, four)(part)
        old, new = leaves(x), leaves(made)
        tensors = (isinstance(a, FakeTensor) for a in old)
        same = (address(a) == address(b) for a, b, t in zip(old, new, tensors, strict=True) if t)
        return x if all(same) else made


def _placeholders(graph: Graph, wanted: Sequence[tuple[Node | None, Node]]) -> list[Node]:
    """A graph's first inputs in that order: those that are there, and new ones like other nodes."""
    found: list[Node] = []
    there = [n for n, _ in wanted if n is not None]
    anchor = there[-1].next if there else next(iter(graph.nodes))
    for known, like in reversed(wanted):
        if known is None:
            with graph.inserting_before(anchor):
                anchor = graph.create_node("placeholder", like.name, name=like.name)
            anchor.meta.update(like.meta)
            anchor.meta.pop(MARK, None)
        else:
            anchor = known
        found.append(anchor)
    return found[::-1]


def _note_lines(output: Node) -> None:
    if "output_stack_traces" in output.meta:
        results = cast(tuple[Any, ...], output.args[0])
        lines = [n.meta.get("stack_trace") if isinstance(n, Node) else None for n in results]
        output.meta["output_stack_traces"] = lines
