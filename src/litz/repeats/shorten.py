"""A graph of ATen calls with fewer of the equal copies in its middle.

Of copies that follow each other, equal up to their parameters and each wired to the one before it
as that one is to its own, four stay: the first and the last, which meet other neighbours, and two
between them, by which ``litz.repeats.lengthen`` sees that the others would be like them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op, told_of
from litz.graph.calls import copied, leaves
from litz.graph.runs import LITERALS, literal, numbered, runs
from litz.graph.short import Short
from litz.graph.values import EAGER_VAL
from litz.runtime.fake import FakeTensor
from litz.runtime.torch_private import LazyGraphModule

KEPT: Final = 4
FEWEST: Final = KEPT + 1  # copies from which it pays
CALLS: Final = 32  # that are left out at least
COPY: Final = torch.ops.aten.copy_.default  # PyTorch's last calls, into arguments


Read = Mapping[Node, Sequence[Node]]
"""What each node of a graph reads, once; the nodes in order."""


class NotRepeating(Exception):
    """Why all of a graph is scheduled; without a reason where little in it repeats."""


def shortened(gm: GraphModule) -> Short:
    """Raises NotRepeating where nothing can be left out."""
    # What PyTorch makes a list of whenever it is asked.
    read: Read = {n: n.all_input_nodes for n in gm.graph.nodes}
    calls = _calls(read)
    if len(calls) < CALLS:
        raise NotRepeating
    returned = Counter(leaves(gm.graph.output_node().args[0]))
    kinds = numbered(_kind(n, read[n], returned[n]) for n in calls)
    at = {n: i for i, n in enumerate(calls)}
    layouts = {n: _layout(n) for n in gm.graph.find_nodes(op="placeholder")}
    windows = [w for r in _likeliest(kinds) for w in _windows(calls, read, at, layouts, *r)]
    best = max(windows, key=lambda w: (w.left_out, -w.period), default=None)
    if best is None or best.left_out < CALLS:
        raise NotRepeating
    best = _between_readers(best, calls, read, at, layouts)
    return _Cut(gm, calls, read, at, best, returned).run()


# --- what repeats ---


def _calls(read: Read) -> list[Node]:
    """The calls; views and parts that are only returned, and writes, stand behind what they read.

    PyTorch puts those of all copies at the end.
    """
    calls = [n for n in read if n.op not in ("placeholder", "get_attr", "output")]
    at = {n: i for i, n in enumerate(calls)}
    late: set[Node] = set()
    for n in reversed(calls):
        if all(u.op == "output" or u in late for u in n.users) and (
            n.target in (COPY, operator.getitem) or is_view_op(n.target)
        ):
            late.add(n)
    if not late:
        return calls
    place: dict[Node, tuple[int, ...]] = {}
    for i, n in enumerate(calls):
        made = [place[a] for a in read[n] if a in at] if n in late else None
        place[n] = (*max(made), i) if made else (i,)
    return sorted(calls, key=place.__getitem__)


def _likeliest(kinds: Sequence[int]) -> list[tuple[int, int, int]]:
    found = [r for r in runs(kinds, 0, len(kinds), CALLS) if r[1] - r[0] >= FEWEST * r[2]]
    return sorted(found, key=lambda r: (r[0] + KEPT * r[2] - r[1], r[2]))[:4]


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
        return (self.count - KEPT) * self.period


def _windows(
    calls: Sequence[Node],
    read: Read,
    at: Mapping[Node, int],
    layouts: Mapping[Node, object],
    first: int,
    end: int,
    period: int,
) -> Iterator[_Window]:
    """Where calls a period apart are wired alike.

    The first copy begins with the last call that reads something else than its next does, so that
    what is fused is fused alike from there on.
    """

    def wired(u: Node, v: Node) -> bool:
        for a, b in zip(read[u], read[v], strict=True):
            if a in at and b in at and at[b] - at[a] == period:
                continue
            if a is not b and not (a in layouts and layouts[a] == layouts.get(b)):
                return False
        return True

    others = [i for i in range(first, end - period) if not wired(calls[i], calls[i + period])]
    for start, stop in pairwise([first, *others, end - period]):
        found = _Window(start, stop + period, period)
        if found.count >= FEWEST:
            yield found


def _between_readers(
    w: _Window,
    calls: Sequence[Node],
    read: Read,
    at: Mapping[Node, int],
    layouts: Mapping[Node, object],
) -> _Window:
    """The window, begun as little later as no input is read on both sides of where copies meet.

    Inputs that are read over more than a copy are shared, wherever copies begin.
    """
    taken = set[int]()
    second = calls[w.first + w.period : w.first + 2 * w.period]
    for x in {a: None for n in second for a in read[n] if a in layouts}:
        places = [at[u] for u in x.users if u in at]
        first, last = min(places), max(places)
        if last - first < w.period:
            taken.update((i - w.first) % w.period for i in range(first + 1, last + 1))
    later = next((k for k in range(w.period) if k not in taken), 0)
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
        # By its identity: PyTorch hashes an operator in Python.
        return id(target), *args, _described(n.meta.get("val")), *laid, returned
    except TypeError:
        return None


def _layout(n: Node) -> object | None:
    """What an input is; of what is like no other, itself."""
    try:
        return _described(n.meta.get("val"))
    except TypeError:
        return n


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
    """Leaves copies out of a graph: those from 2 on but for the last two, counted from 0."""

    def __init__(
        self,
        gm: GraphModule,
        calls: Sequence[Node],
        read: Read,
        at: Mapping[Node, int],
        window: _Window,
        returned: Mapping[Node, int],
    ) -> None:
        self.gm, self.calls, self.read, self.at, self.returned = gm, calls, read, at, returned
        self.first, self.period, self.count = window.first, window.period, window.count
        self.end = self.first + self.period * self.count
        self.copies = self.count - KEPT

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
        for k in range(1, self.count - 1):
            self._check(k, [n for n in own[k] if n not in fixed])
        copy_of: dict[str, int] = {}
        for k, c in enumerate((0, 1, self.count - 2, self.count - 1)):
            apart = [n for n in own[c] if n not in fixed and self._only_in(n, c)]
            copy_of |= {n.name: k for n in (*self.part(c), *apart)}
        parts = [self.part(k) for k in range(self.count - 1)]
        inner = [row for row in rows if row[0] not in fixed]
        inner += [*zip(*parts[1:], strict=True), *zip(*parts[:-1], strict=True)]
        # What is left out, with what it is like in the second copy, and how many copies later.
        gone = {n: (row[0], k) for row in inner[: -self.period] for k, n in enumerate(row[1:-1], 1)}
        gm = self._graph(gone)
        returned: Any = gm.graph.output_node().args[0]
        return Short(
            gm,
            self.copies,
            copy_of,
            {row[0].name: tuple(n.name for n in row[1:]) for row in inner},
            tuple(n.name for n in self.gm.graph.find_nodes(op="placeholder")),
            self._outputs(gone),
            tuple(-1 if x is None else copy_of.get(x.name, -1) for x in returned),
        )

    def _inputs(self, copy: int) -> list[Node]:
        """The graph's inputs that a copy reads, by first use."""
        read = (a for n in self.part(copy) for a in self.read[n] if a.op == "placeholder")
        return list(dict.fromkeys(read))

    def _rows(self, own: Sequence[Sequence[Node]]) -> list[tuple[Node, ...]]:
        """What stands for each input of the second copy in those from it on to the last but one."""
        inner = range(1, self.count - 1)
        places = []
        for k in inner:
            number = {n: i for i, n in enumerate(own[k])}
            read = (a for n in self.part(k) for a in self.read[n])
            places.append([number[a] for a in read if a in number])
        if any(p != places[0] for p in places):
            raise NotRepeating("copies share other inputs than their neighbours do")
        rows = list(zip(*(own[k] for k in inner), strict=True))
        if any(1 < len(set(row)) < len(row) for row in rows):
            raise NotRepeating("some copies share inputs that others do not")
        if any(len({self.returned[n] for n in row}) > 1 for row in rows):
            raise NotRepeating("some copies' inputs are returned")
        return rows

    def _only_in(self, n: Node, copy: int) -> bool:
        return all(u.op == "output" or self.copy(u) == copy for u in n.users)

    def _check(self, copy: int, own: Sequence[Node]) -> None:
        """Whether nobody else reads what a copy does not hand to the next ones."""
        for n in own:
            if not self._only_in(n, copy):
                raise NotRepeating(f"{n.name} is read outside of its copy too")
        first = self.first + self.period
        for before, n in zip(self.part(copy - 1), self.part(copy), strict=True):
            if any(self.at.get(u, -1) >= self.end for u in n.users):
                raise NotRepeating(f"{n.name} is read behind the last copy")
            for a, b in zip(self.read[before], self.read[n], strict=True):
                if a is b and self.at.get(a, -1) >= first:
                    raise NotRepeating(f"{n.name} reads what all copies share with one")

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
                copies[n] = new = copied(n, graph, given, n.name)
                new.meta.update(n.meta)
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
