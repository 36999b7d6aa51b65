"""Loops over time steps that a program spells out: one scan, and one batched call behind it.

Of ``for t in range(n): h = a[t] * h + b[t]; ys.append(f(h, c[t]))`` Dynamo's graph has every step.
What is found there, in so many steps, is one ``associative_scan`` over pairs (a, b); and a stack of
calls that are alike but for which step of some tensors they take is those calls once, batched.

A scan multiplies factors before it applies them.  That is no less exact where none exceeds one in
magnitude, which has to follow from what the factors are (``exp`` of what is negative, a sigmoid);
and products that would underflow stay above zero, as zero times an infinite state is no number.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.calls import add_body
from litz.graph.mistraced import name_of
from litz.graph.scan_gradients import SCAN
from litz.graph.writes import is_plain, may_write

LEAST = 8  # steps: of fewer, kernels are as quick
ALL = slice(None)
# What gives an element as it is, or rounded.
MOVES = frozenset(
    "getitem float double to unsqueeze squeeze transpose permute movedim contiguous select".split()
)
POSITIVE = frozenset("exp softplus sigmoid relu abs square".split())
UNIT = frozenset(("sigmoid",))
# What steps may do: functions of their arguments alone.
CALLS = MOVES | POSITIVE | frozenset("mul add sub neg truediv matmul bmm silu tanh sum".split())
FUNCTIONS: dict[object, str] = {
    getattr(home, name): name for home in (operator, torch, F) for name in CALLS & {*dir(home)}
}
NOT_BY_NAME = frozenset("input other out inplace".split())


class _Other(Exception):
    """The calls are not alike."""


@dataclass(frozen=True)
class _Pick:
    """An element of a tensor along a dimension."""

    of: Node
    dim: int
    at: int


@dataclass(frozen=True)
class _Step:
    """``node = a * before + b``."""

    node: Node
    before: Node
    a: _Pick
    b: _Pick


def roll_up(gm: GraphModule) -> None:
    """Replace steps by what does all of them, in place."""
    changed = False
    new: dict[Node, Node] = {}  # states by the steps that they replace
    for steps in _chains(gm.graph):
        changed |= _scanned(gm, steps, new)
    for n in gm.graph.find_nodes(op="call_function", target=torch.stack):
        changed |= _batched(gm, n)
    if changed:
        gm.recompile()


# --- recurrences ----------------------------------------------------------------------------------


def _chains(graph: Graph) -> list[list[_Step]]:
    """Steps that follow each other, of which each takes the next elements."""
    known: dict[Node, list[_Step]] = {}  # by the last of them
    chains: list[list[_Step]] = []
    for n in graph.nodes:
        for step in _steps(n):
            chain = known.get(step.before, [])
            last = chain[-1] if chain and chain[-1].node is step.before else None
            if last and _next(last.a, step.a) and _next(last.b, step.b):
                chain.append(step)
            else:
                chain = [step]
                chains.append(chain)
            known[n] = chain
            if len(chain) > 1:
                break
    return [c for c in chains if len(c) >= LEAST]


def _next(a: _Pick, b: _Pick) -> bool:
    return (a.of, a.dim, a.at + 1) == (b.of, b.dim, b.at)


def _steps(n: Node) -> Iterator[_Step]:
    """The ways to read a node as a step."""
    for product, other in _pairs(n, "add"):
        b = _pick(other)
        for factor, before in _pairs(product, "mul") if b is not None else ():
            a = _pick(factor)
            if a is not None and b is not None:
                yield _Step(n, before, a, b)


def _pairs(n: Node, name: str) -> Iterator[tuple[Node, Node]]:
    """The two arguments of a call, in both orders."""
    if _name(n) == name and len(n.args) == 2 and not n.kwargs:
        x, y = n.args
        if isinstance(x, Node) and isinstance(y, Node):
            yield x, y
            yield y, x


def _pick(n: Node) -> _Pick | None:
    value = value_of(n.args[0]) if n.args else None
    if value is None:
        return None
    if _name(n) == "select" and len(n.args) == 3:
        of, dim, at = n.args
    elif _name(n) == "getitem":
        of, places = n.args
        places = places if isinstance(places, tuple) else (places,)
        some = [k for k, p in enumerate(places) if p != ALL]
        if len(some) != 1:
            return None
        (dim,) = some
        at = places[dim]
    else:
        return None
    if type(dim) is not int or type(at) is not int or not isinstance(of, Node):
        return None
    size = value.shape[dim]
    return _Pick(of, dim % value.ndim, at % size) if isinstance(size, int) else None


def _scanned(gm: GraphModule, steps: Sequence[_Step], new: dict[Node, Node]) -> bool:
    """Whether the steps are a scan now; what replaces them is noted."""
    first, last, count = steps[0], steps[-1], len(steps)
    a, b = (replace(p, of=new.get(p.of, p.of)) for p in (first.a, first.b))
    values = [value_of(n) for s in steps for n in (s.node, *s.node.all_input_nodes)]
    like = values[0]
    if like is None or like.dtype not in (torch.float32, torch.float64):
        return False
    if any(v is None or v.shape != like.shape or v.dtype != like.dtype for v in values):
        return False
    of = value_of(a.of)
    if of is None or of.dtype != like.dtype or of.select(a.dim, 0).shape != like.shape:
        return False
    if not _within_one(a.of) or is_disturbed(first.node, last.node):
        return False
    graph = gm.graph
    with graph.inserting_before(first.node.next):
        body = add_body(gm, "recurrence", _combine(gm, like.dtype))
        factors = _along(graph, a, count)
        start = add_call(graph, torch.unsqueeze, first.node, 0)
        rest = _along(graph, replace(b, at=b.at + 1), count - 1)
        terms = add_call(graph, torch.cat, [start, rest])
        scan = graph.call_function(SCAN, (body, (factors, terms), ()))
        scan.meta["example_value"] = (factors.meta["example_value"], terms.meta["example_value"])
        states = graph.call_function(operator.getitem, (scan, 1))
        states.meta["example_value"] = terms.meta["example_value"]
        picked = [add_call(graph, operator.getitem, states, i) for i in range(count)]
    scan.meta["stack_trace"] = first.node.meta.get("stack_trace")
    for step, state in zip(steps, picked, strict=True):
        state.meta = dict(step.node.meta)
        step.node.replace_all_uses_with(state, delete_user_cb=lambda u: u is not start)
        new[step.node] = state
    erase([s.node for s in steps[1:]])
    return True


def _along(graph: Graph, first: _Pick, count: int) -> Node:
    """So many elements from one on, along the first dimension."""
    moved = add_call(graph, torch.movedim, first.of, first.dim, 0)
    return add_call(graph, operator.getitem, moved, slice(first.at, first.at + count))


def add_call(graph: Graph, function: Any, *args: Any, **kwargs: Any) -> Node:
    """A call with the value that it has."""
    n = graph.call_function(function, args, kwargs)
    values = torch.fx.map_arg(args, lambda a: a.meta["example_value"])
    n.meta["example_value"] = function(*values, **kwargs)
    return n


def _combine(gm: GraphModule, dtype: torch.dtype) -> GraphModule:
    """``(a, x), (b, y) -> (a * b, b * x + y)``, but no product of what is not zero is zero."""
    graph = Graph()
    a, x, b, y = (graph.placeholder(name) for name in "axby")
    product = graph.call_function(torch.mul, (a, b))
    nonzero = graph.call_function(torch.ne, (product, 0))
    zeros = [graph.call_function(torch.eq, (v, 0)) for v in (a, b)]
    kept = graph.call_function(torch.logical_or, (nonzero, zeros[0]))
    kept = graph.call_function(torch.logical_or, (kept, zeros[1]))
    least = graph.call_function(torch.full_like, (product, torch.finfo(dtype).tiny))
    least = graph.call_function(torch.copysign, (least, product))
    product = graph.call_function(torch.where, (kept, product, least))
    state = graph.call_function(torch.mul, (b, x))
    graph.output((product, graph.call_function(torch.add, (state, y))))
    return GraphModule(gm, graph)


# --- what is known of numbers -----------------------------------------------------------------


def _within_one(n: object) -> bool:
    """Whether no element exceeds one in magnitude; nan does not."""
    if not isinstance(n, Node):
        return isinstance(n, (int, float)) and abs(n) <= 1
    name = _name(n)
    if name == "exp":
        return _sign(n.args[0]) == -1
    if name == "mul":
        return all(map(_within_one, n.args))
    if name == "neg" or name in MOVES:
        return _within_one(n.args[0])
    return name == "tanh" or _is_unit(n)


def _is_unit(n: object) -> bool:
    """Whether all elements are between zero and one."""
    if not isinstance(n, Node):
        return isinstance(n, (int, float)) and 0 <= n <= 1
    if _name(n) == "sub" and n.args[0] == 1:
        return _is_unit(n.args[1])
    return _name(n) in UNIT or (_name(n) in MOVES and _is_unit(n.args[0]))


def _sign(n: object) -> int:
    """1 where no element is negative, -1 where none is positive, else 0."""
    if not isinstance(n, Node):
        return 0 if not isinstance(n, (int, float)) else 1 if n >= 0 else -1
    name, value = _name(n), value_of(n)
    if value is None or not value.is_floating_point():  # integers wrap around
        return 0
    if name in POSITIVE:
        return 1
    if name == "mul":
        return _sign(n.args[0]) * _sign(n.args[1])
    if name == "neg":
        return -_sign(n.args[0])
    return _sign(n.args[0]) if name in MOVES else 0


def is_disturbed(first: Node, last: Node, but: Collection[Node] = ()) -> bool:
    """Whether anything between two nodes may write into a tensor, or says how others run.

    The former as far as its name, arguments and schema say, and the trace's counts of versions; the
    latter, as autocast, has a private name.
    but: of which that is no matter.
    """
    nodes = takewhile(lambda n: n is not last, _onward(first))
    return any(_may_write(n) for n in nodes if n not in but)


def _may_write(n: Node) -> bool:
    """Whether a call may write into memory, or says how others run."""
    if n.target is not SCAN and (not is_plain(n) or may_write(n)):
        return True
    # Flags, ``inplace`` among them; and what the trace saw that somebody writes into.
    flags = (*n.args, *(v for k, v in n.kwargs.items() if k != "keepdim"))
    told = name_of(n).startswith("_") or any(f is True for f in flags)
    return told or any(map(is_written, n.all_input_nodes))


def _onward(n: Node) -> Iterator[Node]:
    while True:
        yield n
        n = n.next


def is_written(n: Node) -> bool:
    """Whether the graph writes into a value anywhere."""
    value = value_of(n)
    return value is not None and (value.is_inference() or value._version > 0)


# --- calls that are alike -----------------------------------------------------------------------


def _batched(gm: GraphModule, stack: Node) -> bool:
    """Whether a stack is one batched call now."""
    parts, dim = [*stack.args, stack.kwargs.get("dim", 0), 0][:2]
    if not isinstance(parts, (list, tuple)) or len(parts) < LEAST or type(dim) is not int:
        return False
    alike = _Alike(stack)
    try:
        result = alike.values(parts)
    except _Other:
        return False
    if not alike.picked or result in alike.picked.values() or "out" in stack.kwargs:
        return False
    inner = set(alike.nodes)
    if is_disturbed(next(n for n in gm.graph.nodes if n in inner), stack):
        return False
    alike.graph.output(result)
    graph = gm.graph
    # Placeholders of what is picked come before those of what all share, as in the call.
    calls = next(n for n in alike.graph.nodes if n.op != "placeholder")
    for given in (*alike.picked.values(), *alike.shared.values()):
        calls.prepend(given)
    with graph.inserting_before(stack):
        body = add_body(gm, "step", GraphModule(gm, alike.graph))
        picked = tuple(_along(graph, p, len(parts)) for p in alike.picked)
        call = graph.call_function(every_step, (body, picked, tuple(alike.shared)))
        moved = graph.call_function(torch.movedim, (call, 0, dim))
        whole = graph.call_method("contiguous", (moved,))
        value = value_of(stack)
        assert value is not None
        call.meta["example_value"] = value.movedim(dim, 0)
        moved.meta, whole.meta = dict(stack.meta), dict(stack.meta)
        call.meta["stack_trace"] = stack.meta.get("stack_trace")
    stack.replace_all_uses_with(whole)
    erase([*alike.nodes, stack])
    return True


def every_step(function: Any, picked: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
    """A function of one element of each tensor along its first dimension, for all of them."""
    dims = (*(0 for _ in picked), *(None for _ in shared))
    found: Tensor = torch.vmap(function, in_dims=dims)(*picked, *shared)
    return found


class _Alike:
    """Nodes of many steps that do the same, as a graph of one step.

    picked: placeholders of what steps take the next elements of; shared: of what all take.
    """

    def __init__(self, stack: Node) -> None:
        self.graph = Graph()
        self.picked: dict[_Pick, Node] = {}
        self.shared: dict[Node, Node] = {}
        self.known: dict[tuple[Node, ...], Node] = {}
        self.nodes: list[Node] = []
        self.users = {stack}

    def node(self, nodes: tuple[Node, ...]) -> Node:
        """One node for many; what uses them has to be found already."""
        if nodes in self.known:
            return self.known[nodes]
        first = nodes[0]
        value = value_of(first)
        if is_written(first) or (value is not None and value.ndim == 0):
            raise _Other  # numbers do not count for types as a batch of them does
        picks = [_pick(n) for n in nodes]
        start = picks[0]
        if len(set(nodes)) == 1:
            name = f"s{len(self.shared)}"
            found = self.shared.setdefault(first, self.graph.placeholder(name))
        elif start is not None and picks == [
            _Pick(start.of, start.dim, start.at + i) for i in range(len(nodes))
        ]:
            found = self.picked.get(start) or self.graph.placeholder(f"p{len(self.picked)}")
            self.picked[start] = found
            self.nodes += nodes
        else:
            found = self.call(nodes)
        self.known[nodes] = found
        return found

    def call(self, nodes: tuple[Node, ...]) -> Node:
        first = nodes[0]
        if _name(first) not in CALLS or len(set(nodes)) < len(nodes):
            raise _Other
        if any(n.op != first.op or n.target != first.target for n in nodes):
            raise _Other
        if any(u not in self.users for n in nodes for u in n.users):
            raise _Other
        self.users.update(nodes)
        args, kwargs = self.values([(n.args, n.kwargs) for n in nodes])
        self.nodes += nodes
        return self.graph.create_node(first.op, first.target, args, kwargs)

    def values(self, values: Sequence[Any]) -> Any:
        """One argument for many."""
        first = values[0]
        if isinstance(first, Node):
            if not all(isinstance(v, Node) for v in values):
                raise _Other
            return self.node(tuple(values))
        if any(type(v) is not type(first) for v in values):
            raise _Other
        if isinstance(first, (tuple, list)):
            if any(len(v) != len(first) for v in values):
                raise _Other
            return type(first)(self.values(some) for some in zip(*values, strict=True))
        if isinstance(first, dict):
            if any(list(v) != list(first) for v in values):
                raise _Other
            return {k: self.values([v[k] for v in values]) for k in first}
        if isinstance(first, slice):
            places = [(v.start, v.stop, v.step) for v in values]
            return slice(*self.values(places))
        if any(v != first or repr(v) != repr(first) for v in values):  # -0.0 is equal to 0.0
            raise _Other
        return first


def erase(nodes: Sequence[Node]) -> None:
    """Take away nodes, and what they alone used."""
    left = list(nodes)
    while left:
        n = left.pop()
        if not n.users and not n._erased and n.op in ("call_function", "call_method"):
            left += n.all_input_nodes
            n.graph.erase_node(n)


def value_of(n: object) -> Tensor | None:
    value = n.meta.get("example_value") if isinstance(n, Node) else None
    return value if isinstance(value, Tensor) else None


def _name(n: Node) -> str:
    """The name of a call of PyTorch's whose result nobody writes into; "" of anything else."""
    name = str(n.target) if n.op == "call_method" else FUNCTIONS.get(n.target, "")
    if not name or not n.args or n.kwargs.keys() & NOT_BY_NAME or is_written(n):
        return ""
    return name
