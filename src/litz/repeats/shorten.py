"""A graph of ATen calls with fewer of the equal copies in its middle.

Of copies that follow each other, equal up to their parameters and each wired to the one before it
as that one is to its own, two stay: one for those left out, and the last, by which
``litz.repeats.lengthen`` sees that they would be like the one.  Copies are cut off at products, so
that the one is not fused with what stands before it; where it is, another stays there too.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op, told_of
from litz.graph.calls import leaves
from litz.graph.constants import PRODUCTS
from litz.graph.runs import LITERALS, literal, numbered, runs
from litz.graph.values import EAGER_VAL
from litz.runtime.fake import FakeTensor
from litz.runtime.torch_private import LazyGraphModule

KEPT_COPIES: Final = 2
FEWEST: Final = KEPT_COPIES + 2  # copies from which it pays
CALLS: Final = 32  # that are left out at least
COPY: Final = torch.ops.aten.copy_.default  # PyTorch's last calls, into arguments


Read = Mapping[Node, Sequence[Node]]
"""What each node of a graph reads, once; the nodes in order."""


class NotRepeating(Exception):
    """Why all of a graph is scheduled; without a reason where little in it repeats."""


BEFORE, KEPT, BEHIND = range(3)  # where something stands: beside or in the copy that stays


@dataclass(frozen=True)
class Short:
    """A graph without some of its equal copies.

    copies: how many are left out, behind the one that stays.
    place: where each node of the graph is, as above, and each input that is read there alone, by
    name.
    named: what stands for a node or input of the copy that stays in those left out, and for one
    before it a copy later each, by name.  following: what stands for it a copy later in this graph.
    inputs: the names of all inputs.  outputs: for each result of the whole graph the result of the
    short one that it is, or, in a copy by its number from 1 on, is like.  results: where each
    result of the short graph is made; -1 for none.
    """

    gm: GraphModule
    copies: int
    place: Mapping[str, int]
    named: Mapping[str, tuple[str, ...]]
    following: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[int, int], ...]
    results: tuple[int, ...]


def shortened(gm: GraphModule) -> Sequence[Callable[[], Short]]:
    """Ways to leave copies out, that which leaves out most first; none where nothing can be.

    Each raises NotRepeating where it cannot be.
    """
    # What PyTorch makes a list of whenever it is asked.
    read: Read = {n: n.all_input_nodes for n in gm.graph.nodes}
    calls = _calls(read)
    if len(calls) < CALLS:
        return ()
    returned = Counter(leaves(gm.graph.output_node().args[0]))
    kinds = numbered(_kind(n, read[n], returned[n]) for n in calls)
    row = _Row(calls, kinds, read, {n: i for i, n in enumerate(calls)}, _layouts(gm.graph))
    windows = [w for r in _likeliest(kinds) for w in _windows(row, *r)]
    best = max(windows, key=lambda w: (w.left_out, -w.period), default=None)
    if best is None or best.left_out < CALLS:
        return ()
    best = _between_readers(best, row)
    less = replace(best, first=best.first + best.period)
    ways = [w for w in (best, less) if w.count >= FEWEST and w.left_out >= CALLS]
    return [_Cut(gm, row, w, returned).run for w in ways]


# --- what repeats ---


def _calls(read: Read) -> list[Node]:
    """The calls; views and parts that are only returned, and writes, stand behind what they read.

    PyTorch puts those of all copies at the end.
    """
    calls = [n for n in read if n.op not in ("placeholder", "get_attr", "output")]
    at = {n: i for i, n in enumerate(calls)}
    late: set[Node] = set()
    for n in reversed(calls):
        moves = n.target in (COPY, operator.getitem) or is_view_op(n.target)
        if moves and all(u.op == "output" or u in late for u in n.users):
            late.add(n)
    place: dict[Node, tuple[int, ...]] = {}
    for i, n in enumerate(calls):
        made = [place[a] for a in read[n] if a in at] if n in late else None
        place[n] = (*max(made), i) if made else (i,)
    return sorted(calls, key=place.__getitem__)


def _likeliest(kinds: Sequence[int]) -> list[tuple[int, int, int]]:
    found = [r for r in runs(kinds, 0, len(kinds), CALLS) if r[1] - r[0] >= FEWEST * r[2]]
    return sorted(found, key=lambda r: (r[0] + KEPT_COPIES * r[2] - r[1], r[2]))[:4]


@dataclass(frozen=True)
class _Row:
    """kinds: of calls, equal for equal ones.  at: the place of each.  layouts: of inputs."""

    calls: Sequence[Node]
    kinds: Sequence[int]
    read: Read
    at: Mapping[Node, int]
    layouts: Mapping[Node, object]

    def wired(self, i: int, period: int) -> bool:
        """Whether a call reads what the one a period later reads a period later, or both share."""
        at, layouts = self.at, self.layouts
        for a, b in zip(self.read[self.calls[i]], self.read[self.calls[i + period]], strict=True):
            if a in at and b in at and at[b] - at[a] == period:
                continue
            if a is not b and not (a in layouts and layouts[a] == layouts.get(b)):
                return False
        return True


@dataclass(frozen=True)
class _Window:
    """Copies of ``period`` calls, as many as there is room for from ``first`` to ``end``."""

    first: int
    end: int
    period: int

    @property
    def count(self) -> int:
        return (self.end - self.first) // self.period

    @property
    def left_out(self) -> int:
        return (self.count - KEPT_COPIES) * self.period


def _windows(row: _Row, first: int, end: int, period: int) -> Iterator[_Window]:
    """Where calls a period apart are wired alike."""
    others = [i for i in range(first, end - period) if not row.wired(i, period)]
    for start, stop in pairwise([first - 1, *others, end - period]):
        found = _Window(start + 1, stop + period, period)
        if found.count >= FEWEST:
            yield found


def _between_readers(w: _Window, row: _Row) -> _Window:
    """The window, begun a little later, so that no input is read on both sides of where copies
    meet.

    Inputs that are read over more than a copy are shared, wherever copies begin.  Where there is a
    product behind another, and behind all that reads what stands before the window, the first copy
    begins with that: what it is fused with is then like what the next is fused with.
    """
    taken = set[int]()
    second = row.calls[w.first + w.period : w.first + 2 * w.period]
    for x in {a: None for n in second for a in row.read[n] if a in row.layouts}:
        places = [row.at[u] for u in x.users if u in row.at]
        first, last = min(places), max(places)
        if last - first < w.period:
            taken.update((i - w.first) % w.period for i in range(first + 1, last + 1))
    outside = set(row.calls[: w.first])
    made = set[Node]()  # of a product
    last = -1
    at = []
    for k, (n, m) in enumerate(zip(row.calls[w.first :], second, strict=False)):
        if any(a in outside and a is not b for a, b in zip(row.read[n], row.read[m], strict=True)):
            last = k
            if n.target is operator.getitem or is_view_op(n.target):
                outside.add(n)
        product, behind = n.target in PRODUCTS, not made.isdisjoint(row.read[n])
        if product or behind:
            made.add(n)
        if product and k not in taken:
            at.append((k, behind))
    free = next((k for k in range(w.period) if k not in taken), 0)
    later = min(((k <= last, not behind, k) for k, behind in at), default=(True, True, free))[2]
    moved = replace(w, first=w.first + later)
    return moved if moved.count >= FEWEST and moved.left_out >= CALLS else w


def _kind(n: Node, read: Sequence[Node], returned: int) -> object | None:
    """What equal calls agree in; None for a call that is like no other."""
    target = n.target
    if n.op != "call_function" or isinstance(target, HigherOrderOperator):
        return None
    if isinstance(target, OpOverload) and target._schema.is_mutable and target is not COPY:
        return None
    try:
        args = literal(n.args, read.index), literal(n.kwargs, read.index) if n.kwargs else None
        laid = (_described(n.meta[EAGER_VAL]),) if EAGER_VAL in n.meta else ()
        return target, *args, _described(n.meta.get("val")), *laid, returned
    except TypeError:
        return None


def _layouts(graph: Graph) -> dict[Node, object]:
    """What inputs are; of what is like no other, itself."""
    found: dict[Node, object] = {}
    for n in graph.find_nodes(op="placeholder"):
        try:
            found[n] = _described(n.meta.get("val"))
        except TypeError:
            found[n] = n
    return found


def _described(x: object) -> object:
    # Of classes that are asked for often, the likeliest first.
    if type(x) is FakeTensor or isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.is_conj() or x.is_neg():
            raise TypeError
        sizes: tuple[object, ...] = (x.shape, x.stride(), x.storage_offset())
        if x._has_symbolic_sizes_strides:
            sizes = tuple(map(str, sizes))
        return sizes, x.dtype, x.device
    if isinstance(x, (tuple, list)):
        return tuple(map(_described, x))
    if isinstance(x, LITERALS):
        return type(x), repr(x)
    raise TypeError


# --- what is left out ---


class _Cut:
    """Leaves copies out of a graph: all but the first and the last."""

    def __init__(
        self, gm: GraphModule, row: _Row, window: _Window, returned: Mapping[Node, int]
    ) -> None:
        self.gm, self.row, self.returned = gm, row, returned
        self.calls, self.read, self.at = row.calls, row.read, row.at
        self.first, self.period = window.first, window.period
        self.count = window.count - KEPT_COPIES + 1  # with the one for those left out
        self.end = self.first + self.period * self.count
        self.copies = self.count - 1

    def copy(self, n: Node) -> int:
        """The copy that a call is in; -1 before them, ``count`` and more behind."""
        return (self.at[n] - self.first) // self.period if self.at[n] >= self.first else -1

    def part(self, copy: int) -> Sequence[Node]:
        start = self.first + copy * self.period
        return self.calls[start : start + self.period]

    def run(self) -> Short:
        own = [self._inputs(k) for k in range(self.count)]
        rows = self._rows(own)
        fixed = {row[0] for row in rows if row[0] is row[1]}
        for k in range(self.count):
            self._check(k, [n for n in own[k] if n not in fixed])
        inner = [row for row in rows if row[0] not in fixed]
        inner += zip(*map(self.part, range(self.count)), strict=True)
        # What is left out, with what it is like in the copy that stays, and how many copies later.
        gone = {n: (row[0], k) for row in inner for k, n in enumerate(row[1:], 1)}
        named = {row[0]: row[1:] for row in inner}
        following = self._following()
        named |= {n: (m, *named[m][:-1]) for n, m in following.items() if m in named}
        place = self._places(gone)
        gm = self._graph(gone)
        returned: Any = gm.graph.output_node().args[0]
        return Short(
            gm,
            self.copies,
            place,
            {n.name: tuple(m.name for m in images) for n, images in named.items()},
            {n.name: m.name for n, m in following.items()},
            tuple(n.name for n in self.gm.graph.find_nodes(op="placeholder")),
            self._outputs(gone),
            tuple(-1 if x is None else place.get(x.name, -1) for x in returned),
        )

    def _following(self) -> dict[Node, Node]:
        """What stands a copy later for nodes and inputs beside the copy that stays, and in it."""
        kinds, period = self.row.kinds, self.period
        before, behind = self.first, self.end
        while before and before > self.first - period:
            if kinds[before - 1] != kinds[before - 1 + period]:
                break
            before -= 1
        while behind < len(kinds) and behind < self.end + period:
            if kinds[behind] != kinds[behind - period]:
                break
            behind += 1
        late = self.end - self.first
        pairs = [(self.calls[i], self.calls[i + period]) for i in range(before, self.first)]
        pairs += [(self.calls[i - late], self.calls[i]) for i in range(self.end, behind)]
        found = dict(pairs)
        layouts = self.row.layouts
        for n, m in pairs:
            for a, b in zip(self.read[n], self.read[m], strict=True):
                if a is not b and a in layouts and layouts[a] == layouts.get(b):
                    found.setdefault(a, b)
        return found

    def _places(self, gone: Mapping[Node, tuple[Node, int]]) -> dict[str, int]:
        found: dict[Node, int] = {}
        for n in self.calls:
            if n not in gone:
                found[n] = BEFORE if (k := self.copy(n)) < 0 else KEPT if k == 0 else BEHIND
        for x in self.row.layouts:
            read = {found.get(u, -1) for u in x.users if u in self.at}
            if len(read) == 1:
                found[x] = read.pop()
        return {n.name: k for n, k in found.items() if k >= 0}

    def _inputs(self, copy: int) -> list[Node]:
        """The graph's inputs that a copy reads, by first use."""
        read = (a for n in self.part(copy) for a in self.read[n] if a.op == "placeholder")
        return list(dict.fromkeys(read))

    def _rows(self, own: Sequence[Sequence[Node]]) -> list[tuple[Node, ...]]:
        """What stands for each input of the first copy in all of them."""
        places = []
        for k in range(self.count):
            number = {n: i for i, n in enumerate(own[k])}
            read = (a for n in self.part(k) for a in self.read[n])
            places.append([number[a] for a in read if a in number])
        if any(p != places[0] for p in places):
            raise NotRepeating("copies share other inputs than their neighbours do")
        rows = list(zip(*own, strict=True))
        if any(1 < len(set(row)) < len(row) for row in rows):
            raise NotRepeating("some copies share inputs that others do not")
        if any(len({self.returned[n] for n in row}) > 1 for row in rows):
            raise NotRepeating("some copies' inputs are returned")
        return rows

    def _only_in(self, n: Node, copy: int) -> bool:
        return all(u.op == "output" or self.copy(u) == copy for u in n.users)

    def _check(self, copy: int, own: Sequence[Node]) -> None:
        """Whether nobody else reads what a copy does not hand to the next one."""
        for n in own:
            if not self._only_in(n, copy):
                raise NotRepeating(f"{n.name} is read outside of its copy too")
        near = self.first + (copy - 1) * self.period
        for i, n in enumerate(self.part(copy)):
            late = self.end if copy < self.count - 1 else len(self.calls)
            if any(self.at.get(u, -1) >= late for u in n.users):
                raise NotRepeating(f"{n.name} is read behind the last copy")
            before = self.read[self.part(copy - 1)[i]] if copy else self.read[n]
            for a, b in zip(before, self.read[n], strict=True):
                if a is b and self.at.get(a, -1) >= self.first:
                    if copy:
                        raise NotRepeating(f"{n.name} reads what all copies share with one")
                elif a is not b and self.at.get(b, near) < near:
                    raise NotRepeating(f"{n.name} reads what is more than a copy before")

    def _graph(self, gone: Mapping[Node, tuple[Node, int]]) -> GraphModule:
        graph = Graph()
        copies: dict[Node, Node] = {}

        def given(n: Node) -> Node:
            # What the copy before it gave, the second copy gives now.
            like, k = gone.get(n, (n, self.copies))
            if k < self.copies:
                raise NotRepeating(f"{n.name} is read more than a copy later")
            return copies[like]

        for n in self.gm.graph.nodes:
            if n.op == "output":
                kept = [i for i, x in enumerate(n.args[0]) if x not in gone]
                output = graph.output(tuple(copies.get(n.args[0][i]) for i in kept))
                output.meta = told_of(n, kept)
            elif n not in gone:
                copies[n] = new = graph.node_copy(n, given)
                if new.name != n.name:
                    raise NotRepeating(f"{n.name} cannot keep its name")
        return LazyGraphModule(self.gm, graph, type(self.gm).__name__)

    def _outputs(self, gone: Mapping[Node, tuple[Node, int]]) -> tuple[tuple[int, int], ...]:
        results: Any = self.gm.graph.output_node().args[0]
        if not all(x is None or isinstance(x, Node) for x in results):
            raise NotRepeating("results are no tensors")
        place: dict[Node, int] = {}
        for i, x in enumerate(x for x in results if x not in gone):
            place.setdefault(x, i)
        number = iter(range(len(results)))
        return tuple(
            (place[gone[x][0]], gone[x][1]) if x in gone else (next(number), 0) for x in results
        )
