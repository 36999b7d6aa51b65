"""Parts of Dynamo's graph that follow each other and are equal up to their parameters.

Equal: the same calls with the same literals on tensors of the same metadata, wired in the same way,
parameters and what else comes from outside numbered by their first use.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from litz.dataclass import dataclass
from litz.graph.runs import literal, numbered, runs
from litz.runtime.fake import FakeTensor
from litz.runtime.torch_private import address, backward_autocasts_as_forward

FEWEST: Final = 8  # calls that are not traced, below which it isn't worth a second trace


class NotEqual(Exception):
    """Why the plain way is taken."""


@dataclass(frozen=True)
class Repeat:
    """Equal parts of a graph.

    parts: the calls of each.  inputs: what each reads from outside, by first use.
    outputs: which of its calls somebody outside reads.  casts: the regions of autocast around them,
    as arguments of ``torch.autocast``.
    """

    parts: tuple[tuple[Node, ...], ...]
    inputs: tuple[tuple[Node, ...], ...]
    outputs: tuple[int, ...]
    casts: tuple[tuple[Any, ...], ...] = ()


def value(n: Node) -> Any:
    """What Dynamo's trace has computed for a node."""
    return n.meta.get("example_value")


def written(graph: Graph) -> set[int]:
    """Addresses of memory that calls write.  PyTorch counts writes, but for those of lists."""
    found = [n for n in graph.nodes if getattr(value(n), "_version", 0)]
    for n in graph.nodes:
        if on_lists(n) and n.target.__name__.partition(".")[0].endswith("_"):
            found += [a for a in next(iter((*n.args, *n.kwargs.values()))) if isinstance(a, Node)]
    return {address(value(n)) for n in found}


def on_lists(n: Node) -> bool:
    """Whether a call applies one operator to all tensors of lists: ``torch._foreach_mul``."""
    name = getattr(n.target, "__name__", "").partition(".")[0]
    known = isinstance(n.target, OpOverload) or n.target is getattr(torch, name, None)
    return n.op == "call_function" and name.startswith("_foreach_") and known


def repeats(graph: Graph) -> tuple[list[Repeat], list[str]]:
    """The repeated parts, none of which overlap, and why others are no such parts.

    Raises NotEqual where nothing in the graph may be moved out of its place.
    """
    calls = [n for n in graph.nodes if n.op in ("call_function", "call_method")]
    states = _states(graph, calls)
    metadata = metadata_of(graph)
    read: dict[Node, list[Node]] = {}
    kinds = numbered(
        _kind(n, metadata, read) if state.grad is None else None
        for n, state in zip(calls, states, strict=True)
    )
    owners: dict[int, Node] = {}  # of memory that nobody writes, ``x.data`` included
    tensors = [n for n in graph.nodes if isinstance(value(n), torch.Tensor)]
    for n in tensors:
        owners.setdefault(address(value(n)), n)
    for at in written(graph):
        owners.pop(at, None)
    reasons: list[str] = []
    found: list[Repeat] = []
    _search(_Row(calls, kinds, read, owners), 0, len(calls), found, reasons)
    casts = {n: state.casts for n, state in zip(calls, states, strict=True)}
    made = []
    for r in found:
        given = casts[r.parts[0][0]]
        if given and (kept := next(_cast_once(r), None)) is not None:
            reasons.append(f"autocast casts {kept.name} once for several calls")
        else:
            made.append(replace(r, casts=given))
    return made, list(dict.fromkeys(reasons))


def _cast_once(r: Repeat) -> Iterator[Node]:
    """Inputs that autocast may cast for one call and hand to others, depending on where they are
    made: a part's own trace makes none of them."""
    for n in r.inputs[0]:
        if value(n).requires_grad and sum(n in c.all_input_nodes for c in r.parts[0]) > 1:
            yield n


# --- where a part may lie ---


@dataclass(frozen=True)
class _State:
    """grad: the gradient mode, where it was set to another one.  casts: autocasts entered."""

    grad: bool | None = None
    casts: tuple[tuple[Any, ...], ...] = ()


def _states(graph: Graph, calls: Sequence[Node]) -> list[_State]:
    """The modes around each call."""
    around = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    if around and not backward_autocasts_as_forward():
        raise NotEqual("autocast is on, and is another one for gradients")
    for n in graph.find_nodes(op="placeholder"):
        sizes = value(n).shape if isinstance(value(n), torch.Tensor) else (value(n),)
        if any(isinstance(s, torch.SymInt | torch.SymFloat | torch.SymBool) for s in sizes):
            raise NotEqual("sizes are open")
    state = _State()
    out = []
    for n in calls:
        name = getattr(n.target, "__name__", "")
        if name == "_set_grad_enabled":
            grad = None if n.args[0] == torch.is_grad_enabled() else bool(n.args[0])
            state = replace(state, grad=grad)
        elif name == "_enter_autocast":
            state = replace(state, casts=(*state.casts, n.args))
        elif name == "_exit_autocast":
            state = replace(state, casts=state.casts[:-1])
        elif value(n) is None and name != "_log_api_usage_once" and not _sets_items(n):
            raise NotEqual(f"{name or n.target} may change what follows")
        out.append(state)
    return out


def _sets_items(n: Node) -> bool:
    """Whether a call writes into its first argument alone, whose memory is then known as written:
    no part reads it."""
    target = n.args[0] if n.target is operator.setitem else None
    return isinstance(target, Node) and isinstance(value(target), torch.Tensor)


def metadata_of(graph: Graph) -> dict[Node, int | None]:
    """What nodes' values are, as numbers; None for what may not be handed around.

    Each is looked at once: hundreds of calls may take an element of one list.
    """
    numbers: dict[object, int | None] = {None: None}
    seen: dict[int, object | None] = {}
    return {n: numbers.setdefault(_described(value(n), seen), len(numbers)) for n in graph.nodes}


def _kind(
    n: Node, metadata: Mapping[Node, int | None], read: dict[Node, list[Node]]
) -> object | None:
    """What equal calls agree in; None for a call that is like no other.

    read: gets what the call reads.
    """
    if isinstance(n.target, HigherOrderOperator) or metadata[n] is None:
        return None
    own = read[n] = []

    def handed(a: Node) -> int:
        if (number := metadata[a]) is None:
            raise TypeError
        own.append(a)
        return number

    try:
        return n.op, n.target, literal((n.args, n.kwargs), handed), metadata[n]
    except TypeError:
        return None


def _described(x: object, seen: dict[int, object | None]) -> object | None:
    """Metadata of a value that may be handed around; None where it is of another sort.

    seen: those of tensors, by identity.
    """
    if isinstance(x, tuple | list):
        parts = tuple("none" if e is None else _described(e, seen) for e in x)
        return None if None in parts else (type(x), parts)
    if id(x) not in seen:
        seen[id(x)] = _of_tensor(x)
    return seen[id(x)]


def _of_tensor(x: object) -> object | None:
    if not isinstance(x, FakeTensor) or x.layout is not torch.strided or x.is_inference():
        return None
    sizes = (*x.shape, *x.stride(), x.storage_offset())
    if not all(type(s) is int for s in sizes) or x.is_conj() or x.is_neg():
        return None
    return (x.dim(), sizes, x.dtype, x.device, x.requires_grad, isinstance(x, torch.nn.Parameter))


# --- what repeats ---


@dataclass(frozen=True)
class _Row:
    """kinds: of calls, equal for equal ones.  read: what each reads, in the order of its arguments
    and as often as it stands there.  owners: of memory that nobody writes, by address."""

    calls: Sequence[Node]
    kinds: Sequence[int]
    read: Mapping[Node, Sequence[Node]]
    owners: Mapping[int, Node]


def _search(row: _Row, start: int, stop: int, found: list[Repeat], reasons: list[str]) -> None:
    """The repeat that saves most between two positions, then others before and behind it."""
    stretches = sorted(
        runs(row.kinds, start, stop, FEWEST), key=lambda r: (-(r[1] - r[0] - r[2]), r[2])
    )
    for first, end, period in stretches[:4]:
        # A part costs beside its calls: of small ones several are a part, yet as few as do, for a
        # part is traced, and several stay.
        period *= max(1, min(isqrt(end - first), FEWEST) // period)
        made = _best(row, first, end, period, reasons)
        if made is not None:
            at, repeat = made
            found.append(repeat)
            after = at + period * len(repeat.parts)
            _search(row, start, at, found, reasons)
            _search(row, after, stop, found, reasons)
            return


def _best(
    row: _Row, first: int, end: int, period: int, reasons: list[str]
) -> tuple[int, Repeat] | None:
    """Where to cut: as many parts as can be, which then read as little as can be from outside."""

    def outside(at: int) -> int:
        part = row.calls[at : at + period]
        return len({a for n in part for a in row.read[n]}.difference(part))

    for count in range((end - first) // period, 1, -1):
        starts = range(first, min(first + period, end - count * period + 1))
        for at in sorted(starts, key=outside):
            try:
                return at, _repeat(row, at, period, count)
            except NotEqual as e:
                reasons.append(str(e))
        if count * period < (end - first) - 2 * period:
            return None
    return None


def _repeat(row: _Row, at: int, period: int, count: int) -> Repeat:
    """That many parts from a position on, whose calls are of the same kinds."""
    parts = [tuple(row.calls[at + k * period : at + (k + 1) * period]) for k in range(count)]
    shape: list[int] | None = None
    inputs = []
    outputs: dict[int, None] = {}
    for part in parts:
        inside = {n: i for i, n in enumerate(part)}
        outside: dict[Node, int] = {}
        wiring = [
            inside[a] if a in inside else -1 - outside.setdefault(a, len(outside))
            for n in part
            for a in row.read[n]
        ]
        if shape not in (None, wiring):
            raise NotEqual("calls that look alike read different things")
        shape = wiring
        for n in outside:
            _check_input(n, inside, row.owners)
        for i, n in enumerate(part):
            if any(u not in inside for u in n.users):
                _check_output(n, row.owners)
                outputs[i] = None
        inputs.append(tuple(outside))
    if not outputs or not inputs[0]:
        raise NotEqual("parts without inputs or results")
    return Repeat(tuple(parts), tuple(inputs), tuple(sorted(outputs)))


def _check_input(n: Node, inside: dict[Node, int], owners: Mapping[int, Node]) -> None:
    x = value(n)
    if not isinstance(x, torch.Tensor):
        raise NotEqual(f"{n.name} is no tensor")
    if address(x) not in owners:
        raise NotEqual(f"{n.name} is written")
    if x.requires_grad and any(u not in inside for u in n.users):
        raise NotEqual(f"gradients of {n.name} come from several places, in an order of their own")


def _check_output(n: Node, owners: Mapping[int, Node]) -> None:
    x = value(n)
    if not isinstance(x, torch.Tensor):
        raise NotEqual(f"{n.name} is no tensor")
    if x._is_view() or owners.get(address(x)) is not n:
        raise NotEqual(f"{n.name} shares memory or is written")
