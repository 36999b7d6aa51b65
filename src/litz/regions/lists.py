"""Calls on lists of tensors (``torch._foreach_mul_``): one place of each kind is traced.

What stands at one place of all lists is a column; nothing goes from one column to another.  Columns
of the same calls on tensors of the same metadata are of one kind: AOTAutograd traces the first of
each, and the others get copies of its calls.  So do optimizers, whose lists have hundreds of
tensors, each of which takes AOTAutograd as long as any other.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from litz.dataclass import dataclass
from litz.graph.calls import give, is_random
from litz.graph.columns import COLUMNS, Columns
from litz.graph.runs import literal
from litz.regions.find import NotEqual, metadata_of, on_lists, value, written
from litz.regions.memory import Fakes, Memory
from litz.regions.trace import Tracer
from litz.runtime.fake import unset_fake_temporarily
from litz.runtime.torch_private import LazyGraphModule, address, in_transform

FEWEST: Final = 16  # columns, below which it isn't worth it
MOST: Final = 0.5  # of the columns that may be traced for it to take less time than all
CALLS: Final = ("call_function", "call_method")
Key = Node | tuple[Node, int]
"""A value, or what a call on lists has at a place."""


@dataclass(frozen=True)
class Whole:
    """The functional graph of ATen calls of a program that writes into its inputs alone.

    given: the values that it takes before the program's own: what the program holds itself.
    written: inputs that it writes into, by position.  shared: what was traced once, in words.
    """

    graph: GraphModule
    inputs: tuple[torch.Tensor, ...]
    given: tuple[torch.Tensor, ...]
    written: tuple[int, ...]
    shared: str


def whole(gm: GraphModule, tracer: Tracer) -> Whole:
    """The graph of one of Dynamo's whose calls are those on lists; tracer: see ``traced_once``.

    Raises NotEqual where it is not all of that kind, or too little of it is equal.
    """
    graph = gm.graph
    sources = [n for n in graph.nodes if n.op in ("placeholder", "get_attr")]
    sources.sort(key=lambda n: n.op == "placeholder")
    metadata = _checked(graph, sources)
    columns = _columns(graph)
    try:
        kinds, inputs = _kinds(graph, columns, metadata)
    except TypeError:
        raise NotEqual("its calls take more than tensors and literals") from None
    first = {kind: c for c, kind in reversed(kinds.items())}
    if len(kinds) < FEWEST or len(first) > MOST * len(kinds):
        raise NotEqual("too few of the tensors in lists are treated alike")
    traced_columns = {-1, *first.values()}  # with what all share
    kept = [n for n in sources if columns.get(n, -1) in traced_columns]
    short = _shortened(graph, kept, columns, traced_columns)
    try:
        with torch.no_grad():
            traced = tracer(short, [value(n) for n in kept])
    except Exception as e:
        raise NotEqual(f"PyTorch does not trace a part of lists by itself: {e}") from e
    if traced.graph.find_nodes(op="output")[0].args[0]:
        raise NotEqual("PyTorch writes into inputs behind the graph")
    if traced.graph.find_nodes(op="get_attr"):
        raise NotEqual("it holds tensors of its own")
    members: dict[int, list[int]] = {}
    for c, kind in kinds.items():
        members.setdefault(first[kind], []).append(c)
    with unset_fake_temporarily():
        given = dict(zip(kept, traced.graph.find_nodes(op="placeholder"), strict=True))
        stand_for = {
            n: (given[old], c)
            for c, own in inputs.items()
            for n, old in zip(own, inputs[first[kinds[c]]], strict=True)
        }
        for n in sources:
            stand_for.setdefault(n, (given.get(n), -1))
        stand_for = {n: stand_for[n] for n in sources}
        made, nodes = _lengthened(traced.graph, stand_for, members)
        fewer, own = _lengthened(traced.graph, stand_for, {r: [r] for r in members})
        made.meta[COLUMNS] = _beside(fewer, own, nodes, members)
    placeholders = made.graph.find_nodes(op="placeholder")
    written = {n.args[0] for n in made.graph.nodes if _writes_input(n)}
    return Whole(
        made,
        tuple(value(n) for n in sources),
        tuple(operator.attrgetter(n.target)(gm) for n in sources if n.op == "get_attr"),
        tuple(i for i, n in enumerate(placeholders) if n in written),
        f"lists are traced once for {len(first)} kinds of {len(kinds)} places",
    )


def _beside(
    gm: GraphModule,
    own: Mapping[tuple[Node, int], Node],
    nodes: Mapping[tuple[Node, int], Node],
    alike: Mapping[int, Sequence[int]],
) -> Columns:
    """A graph with one column of each kind, with the names in the whole one.

    own, nodes: what has become of the traced nodes in each, by column.
    """
    of: dict[int, list[tuple[Node, str]]] = {r: [] for r in alike}
    for (n, r), new in own.items():
        if r >= 0:
            of[r].append((n, new.name))
    return Columns(
        gm,
        {new.name: r for (_, r), new in own.items() if r >= 0 and new.op == "placeholder"},
        {r: {c: {a: nodes[n, c].name for n, a in of[r]} for c in cs} for r, cs in alike.items()},
    )


def _element(n: Node) -> tuple[Node, int] | None:
    """Of which call on lists a node is which result."""
    if n.target is not operator.getitem:
        return None
    of, k = n.args
    return (of, k) if isinstance(of, Node) and isinstance(k, int) and on_lists(of) else None


def _lists(n: Node) -> list[Sequence[Any]]:
    """The lists that a call takes, all of one length; its results are taken one by one."""
    found: list[Sequence[Any]] = []
    found += [a for a in (*n.args, *n.kwargs.values()) if isinstance(a, list | tuple)]
    if len({len(a) for a in found}) != 1 or not all(map(_element, n.users)):
        raise NotEqual("lists of several lengths, or taken whole")
    return found


def _checked(graph: Graph, sources: Sequence[Node]) -> Mapping[Node, int | None]:
    """That nothing is to be done for such a program but to run its calls; what its values are."""
    calls = [n for n in graph.nodes if n.op in CALLS]
    if not any(map(on_lists, calls)):
        raise NotEqual("no calls on lists")
    (output,) = graph.find_nodes(op="output")
    if output.args[0] or len(calls) + len(sources) + 1 != len(graph.nodes):
        raise NotEqual("it returns something, or calls modules")
    metadata = metadata_of(graph)
    if any(n is not output and number is None for n, number in metadata.items()):
        raise NotEqual("it works on more than plain tensors")
    if not all(isinstance(value(n), torch.Tensor) for n in sources):
        raise NotEqual("it takes more than tensors")
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or in_transform():
        raise NotEqual("autocast is on, or a transform")
    if torch.is_grad_enabled() and any(value(n).requires_grad for n in sources):
        raise NotEqual("it has gradients")
    places = [address(value(n)) for n in sources]
    if len({*places}) < len(places):
        raise NotEqual("inputs share memory")
    return metadata


def _columns(graph: Graph) -> dict[Key, int]:
    """The number of each value's column; what all columns share has none."""
    above: dict[Key, Key] = {}

    def top(k: Key) -> Key:
        while above.setdefault(k, k) is not k:
            above[k] = above[above[k]]
            k = above[k]
        return k

    def join(keys: Iterable[Key]) -> None:
        first, *rest = map(top, keys)
        for k in rest:
            above[top(k)] = top(first)

    calls = [n for n in graph.nodes if on_lists(n)]
    for n in calls:
        for k, elements in enumerate(zip(*_lists(n), strict=True)):
            join([(n, k), *(e for e in elements if isinstance(e, Node))])
    for n in graph.nodes:
        if (of := _element(n)) is not None:
            join([of, n])
        elif n.op in CALLS and n not in calls:
            if found := [a for a in n.all_input_nodes if a in above]:
                join([n, *found])
    numbers: dict[Key, int] = {}
    for n in calls:
        found = [top((n, k)) for k in range(len(_lists(n)[0]))]
        if len({*found}) < len(found):
            raise NotEqual("something goes from one place of lists to another")
        for k in found:
            numbers.setdefault(k, len(numbers))
    return {k: numbers[top(k)] for k in above}


def _kinds(
    graph: Graph, columns: Mapping[Key, int], metadata: Mapping[Node, int | None]
) -> tuple[dict[int, int], dict[int, list[Node]]]:
    """The kind of each column: equal ones do the same; and the inputs of each by first use."""
    done: dict[int, list[object]] = {c: [] for c in sorted({*columns.values()})}
    inputs: dict[int, list[Node]] = {c: [] for c in done}
    own: dict[Key, int | str] = {}

    def add(key: Key, what: object) -> None:
        entries = done[columns[key]]
        own[key] = len(entries)
        entries.append(what)

    def of(n: Node) -> int | str:
        if n in columns and n not in own:
            inputs[columns[n]].append(n)
            add(n, metadata[n])
        return own.get(n, n.name)

    changed = written(graph)
    for i, n in enumerate(graph.nodes):
        x = None if n in columns else value(n)
        if isinstance(x, torch.Tensor) and address(x) in changed:
            raise NotEqual(f"{n.name} is written and belongs to all places of lists")
        if on_lists(n):
            if any(isinstance(a, Node) and a in columns for a in (*n.args, *n.kwargs.values())):
                raise NotEqual("something of one place of lists goes to all")
            for k in range(len(_lists(n)[0])):
                called = literal(_at(n, k), of)
                add((n, k), (i, called))
        elif (element := _element(n)) is not None:
            own[n] = own[element]
        elif n in columns and n.op in CALLS:
            called = literal((n.args, n.kwargs), of)
            add(n, (n.target, called))
    numbers: dict[object, int] = {}
    return {c: numbers.setdefault(tuple(x), len(numbers)) for c, x in done.items()}, inputs


def _at(n: Node, k: int) -> tuple[Any, Any]:
    """The arguments of a call on lists at a place."""
    pick: Callable[[Any], Any] = lambda a: a[k] if isinstance(a, list | tuple) else a  # noqa: E731
    return tuple(map(pick, n.args)), {key: pick(a) for key, a in n.kwargs.items()}


def _with_lists(
    n: Node, change: Callable[[Sequence[Any]], list[Any]], of: Callable[[Node], Node]
) -> Any:
    """The arguments of a call on lists with other lists."""

    def made(a: Any) -> Any:
        return change(a) if isinstance(a, list | tuple) else map_arg(a, of)

    return tuple(map(made, n.args)), {k: made(a) for k, a in n.kwargs.items()}


def _shortened(
    graph: Graph, sources: Sequence[Node], columns: Mapping[Key, int], kept: Collection[int]
) -> GraphModule:
    """A program with some columns alone; sources: its inputs then."""
    made = Graph()
    new = {n: made.placeholder(f"x{i}") for i, n in enumerate(sources)}
    at: dict[Key, int] = {}  # where in shorter lists
    for n in (n for n in graph.nodes if n.op in CALLS and columns.get(n, -1) in kept):
        if on_lists(n):
            places = [k for k in range(len(_lists(n)[0])) if columns[n, k] in kept]
            at.update(((n, k), i) for i, k in enumerate(places))

            def some(a: Sequence[Any], places: Any = places) -> list[Any]:
                return [map_arg(a[k], new.__getitem__) for k in places]

            args, kwargs = _with_lists(n, some, new.__getitem__)
            new[n] = made.call_function(n.target, args, kwargs)
        elif (of := _element(n)) is not None:
            new[n] = made.call_function(operator.getitem, (new[of[0]], at[of]))
        else:
            new[n] = made.node_copy(n, new.__getitem__)
        new[n].meta = dict(n.meta)
    made.output(())
    return GraphModule(torch.nn.Module(), made)


def _lengthened(
    traced: Graph, stand_for: Mapping[Node, tuple[Node, int]], alike: Mapping[int, Sequence[int]]
) -> tuple[GraphModule, dict[tuple[Node, int], Node]]:
    """The traced graph with all columns, or some, and its nodes by what was traced and column.

    stand_for: for each input of the program what is traced in its place, and the column that it is
    there for, -1 where all columns share it.  alike: of each column that was traced those like it.
    """
    graph = Graph()
    first = {c: r for r, members in alike.items() for c in members}
    fakes = Fakes()
    memory = {c: Memory(fakes) for c in first}
    place: dict[Key, int] = {}  # the columns of what was traced
    made: dict[tuple[Node, int], Node] = {}  # its copies by column, -1 where all share it
    at: dict[Node, dict[int, int]] = {}  # the place of each column in a list of results

    for i, (n, (old, c)) in enumerate(stand_for.items()):
        if c >= 0 and c not in first:
            continue
        new = made[old, c] = graph.placeholder(f"arg{i}_1")
        new.meta["val"] = value(n)
        if c >= 0:
            place[old] = first[c]
            memory[c].note(old.meta["val"], value(n))

    def copy(n: Node, c: int, args: Any, kwargs: Any, val: Any) -> Node:
        name = re.sub(r"_\d+$", "", n.name)
        new = graph.create_node("call_function", n.target, name=name)
        give(new, args, kwargs)  # see ``copied``
        new.meta.update(n.meta, val=val)
        made[n, c] = new
        return new

    def of(a: Node, c: int) -> Node:
        return made[a, c if a in place else -1]

    waiting: dict[int, list[Node]] = {}  # calls in a row, by columns: in all of these they follow

    def follow() -> None:
        for c in sorted(c for r in waiting for c in alike[r]):
            for n in waiting[first[c]]:
                args, kwargs = map_arg((n.args, n.kwargs), partial(of, c=c))
                if (call := _element(n)) is not None:
                    args = (made[call[0], -1], at[call[0]][c])
                copy(n, c, args, kwargs, memory[c](n.meta["val"]))
        waiting.clear()

    last: dict[Node, Node] = {}  # what writes into inputs, in their order behind all else
    for n in (n for n in traced.nodes if n.op == "call_function"):
        _check_call(n)
        if _writes_input(n):
            last[n.args[0]] = n
            continue
        if last:
            raise NotEqual(f"{n.name} comes after inputs are written")
        lists = on_lists(n)
        element = _element(n)
        r = -1 if lists else place[element] if element else _one(n.all_input_nodes, place)
        if r < 0 or (r in waiting and r != next(reversed(waiting))):
            follow()
        if r >= 0:
            place[n] = r
            waiting.setdefault(r, []).append(n)
        elif lists:
            places = [_one(a, place) for a in zip(*_lists(n), strict=True)]
            if -1 in places:
                raise NotEqual("a list of what belongs to all places of lists")
            whole = sorted((c, i) for i, r in enumerate(places) for c in alike[r])
            place.update({(n, i): r for i, r in enumerate(places)})
            at[n] = {c: k for k, (c, _) in enumerate(whole)}

            def all_of(a: Sequence[Any], whole: Any = whole) -> list[Any]:
                return [map_arg(a[i], partial(of, c=c)) for c, i in whole]

            args, kwargs = _with_lists(n, all_of, partial(of, c=-1))
            copy(n, -1, args, kwargs, [memory[c](n.meta["val"][i]) for c, i in whole])
        else:
            args, kwargs = map_arg((n.args, n.kwargs), partial(of, c=-1))
            copy(n, -1, args, kwargs, n.meta["val"])
    follow()
    for old, c in stand_for.values():
        if old in last and (old, c) in made:
            n = last[old]
            args, kwargs = map_arg((n.args, n.kwargs), partial(of, c=c))
            copy(n, c, args, kwargs, made[old, c].meta["val"])
    graph.output(())
    return LazyGraphModule(torch.nn.Module(), graph), made


def _one(values: Iterable[Any], place: Mapping[Key, int]) -> int:
    """The column of some values; -1 where all columns share them."""
    found = {place[a] for a in values if isinstance(a, Node) and a in place}
    if len(found) > 1:
        raise NotEqual("a call goes from one place of lists to another")
    return next(iter(found), -1)


def _check_call(n: Node) -> None:
    """That copies of a call do what one call for all would."""
    if n.target is operator.getitem:
        return
    if not isinstance(n.target, OpOverload):
        raise NotEqual(f"{n.name} calls what has effects or a graph of its own")
    if is_random(n.target):
        raise NotEqual(f"{n.name} draws random numbers")
    if n.target._schema.is_mutable and not _writes_input(n):
        raise NotEqual(f"{n.name} writes into what it reads")


def _writes_input(n: Node) -> bool:
    to = n.args[0] if n.target is torch.ops.aten.copy_.default else None
    return isinstance(to, Node) and to.op == "placeholder"
