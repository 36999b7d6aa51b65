"""A small pattern matcher for FX graphs of ATen calls.

A rule says what to look for, when, and what to put in its place, as data::

    pattern = CallPattern(aten.mul.Tensor, (X, Capture("y")))
    Rule("x * 1", pattern, where=..., replace=lambda m: m["x"])

or as two functions of ATen calls::

    rule_of("log of exp", lambda x: aten.log(aten.exp(x)), lambda x: x, where=...)

Rules that a user gives to Litz go into a ``Rewrites``, which is a hook for the options
``before_passes``, ``after_simplifying`` and their like.  A graph is walked once for all rules:
those for other operators than a node's cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.values import add_call, same_value
from litz.logs import events

Target = torch._ops.OpOverload
_NONE = object()


@dataclass(frozen=True)
class Capture:
    """Any argument, under a name.  Where a name stands twice, both are the same."""

    name: str


@dataclass(frozen=True)
class CallPattern:
    """A call of one operator.

    args, kwargs: a ``CallPattern``, a ``Capture``, or a value that is equal and of the same type;
    an argument that is left out is its default.
    """

    target: Target
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    bound: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _bound(self.target, self.args, self.kwargs))


@dataclass(frozen=True)
class Match:
    """Where a pattern was found.  node: the call that is to be replaced."""

    gm: GraphModule
    node: Node
    found: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def call(self, target: Target, *args: Any, **kwargs: Any) -> Node:
        """A new call in front of the node, with its fake tensor."""
        with self.gm.graph.inserting_before(self.node):
            return add_call(self.node, target, args, kwargs)


def _always(match: Match) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """name: for logs.  where: whether to replace what was found.

    replace: the node that takes the place of ``match.node``, or None to leave it.
    """

    name: str
    pattern: CallPattern
    replace: Callable[[Match], Node | None]
    where: Callable[[Match], bool] = _always


@dataclass(frozen=True)
class Rewrites:
    """Rules as a hook.

    name: stands for the rules in the key of cached code; another one for other rules.
    """

    name: str
    rules: tuple[Rule, ...]

    def __call__(self, gm: GraphModule) -> None:
        if rewrite(gm, self.rules):
            gm.graph.eliminate_dead_code()

    def uuid(self) -> str:
        return self.name


def rewrite(
    gm: GraphModule, rules: Sequence[Rule], allow: Callable[[Match], bool] = _always
) -> int:
    """Replace what the rules find, in one walk from the inputs on; how often.

    allow: a condition of all rules, asked last.
    A replacement whose fake tensor is not the one of what it replaces (type, sizes, strides) is
    refused, and a message says so.
    """
    table: dict[Target, list[Rule]] = {}
    for rule in rules:
        table.setdefault(rule.pattern.target, []).append(rule)
    return sum(
        any(_apply(gm, n, rule, allow) for rule in table[n.target])
        for n in list(gm.graph.nodes)
        if n.target in table and n.op == "call_function"
    )


def _apply(gm: GraphModule, n: Node, rule: Rule, allow: Callable[[Match], bool]) -> bool:
    found: dict[str, Any] = {}
    if not _matches(rule.pattern, n, found):
        return False
    match = Match(gm, n, found)
    if not (rule.where(match) and allow(match)):
        return False
    before = n.prev
    new = rule.replace(match)
    if new is None or not same_value(new.meta.get("val"), n.meta.get("val")):
        if new is not None:
            events.warning("rule %r: the replacement of %s is laid out otherwise", rule.name, n)
        while n.prev is not before:
            gm.graph.erase_node(n.prev)
        return False
    n.replace_all_uses_with(new)
    gm.graph.erase_node(n)
    return True


# --- matching ---


def _bound(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the defaults of those that are left out."""
    bound: dict[str, Any] = {}
    for i, (name, positional, default) in enumerate(_parameters(target)):
        if positional and i < len(args):
            bound[name] = args[i]
        elif name in kwargs:
            bound[name] = kwargs[name]
        elif default is not _NONE:
            bound[name] = default
        else:
            raise TypeError(f"{target} lacks its argument {name!r}")
    return bound


@lru_cache(maxsize=1024)
def _parameters(target: Target) -> tuple[tuple[str, bool, Any], ...]:
    """Name, whether it may stand by position, and default of each parameter."""
    return tuple(
        (p.name, not p.kwarg_only, p.default_value if p.has_default_value() else _NONE)
        for p in target._schema.arguments
    )


def _matches(pattern: Any, value: Any, found: dict[str, Any]) -> bool:
    if isinstance(pattern, Capture):
        known: Any = found.setdefault(pattern.name, value)
        return known is value or _equal(known, value)
    if isinstance(pattern, CallPattern):
        if not isinstance(value, Node) or value.target is not pattern.target:
            return False
        actual = _bound(pattern.target, value.args, value.kwargs)
        return all(_matches(p, actual[name], found) for name, p in pattern.bound.items())
    if isinstance(pattern, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(pattern) == len(value)
            and all(_matches(p, v, found) for p, v in zip(pattern, value, strict=True))
        )
    return _equal(pattern, value)


def _equal(a: Any, b: Any) -> bool:
    """Equal and of the same type; 0.0 and -0.0 differ, and a nan equals itself."""
    if isinstance(a, Node) or isinstance(b, Node) or type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == float(b).hex()
    if isinstance(a, torch.SymInt | torch.SymFloat | torch.SymBool):
        return False  # to compare would take a guard
    return bool(a == b)


# --- rules of functions ---


def rule_of(
    name: str,
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    where: Callable[[Match], bool] = _always,
) -> Rule:
    """A rule of two functions of ATen calls with the same parameters.

    The parameters stand for any argument.  Raises ValueError for a function that is no single
    expression of ATen calls.
    """
    wanted = _trace(pattern)
    made = _trace(replacement)
    captures: dict[Node, Any] = {}
    for n in wanted.nodes:
        if n.op == "placeholder":
            captures[n] = Capture(str(n.target))
        elif n.op == "call_function":
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), captures.__getitem__)
            captures[n] = CallPattern(_overload(n), tuple(args), kwargs)
    root = captures.get(_result(wanted))
    if not isinstance(root, CallPattern):
        raise ValueError(f"the pattern of rule {name!r} calls no operator")

    def replace(match: Match) -> Node | None:
        env: dict[Node, Any] = {}
        for n in made.nodes:
            if n.op == "placeholder":
                env[n] = match[str(n.target)]
            elif n.op == "call_function":
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), env.__getitem__)
                env[n] = match.call(_overload(n), *args, **kwargs)
        result = env[_result(made)]
        return result if isinstance(result, Node) else None

    return Rule(name, root, replace, where)


def _trace(function: Callable[..., Any]) -> torch.fx.Graph:
    return torch.fx.Tracer().trace(function)


def _overload(n: Node) -> Target:
    if isinstance(n.target, torch._ops.OpOverloadPacket):
        names: list[str] = n.target.overloads()  # type: ignore[no-untyped-call]
        if len(names) != 1:
            raise ValueError(f"{n.target} has the overloads {', '.join(names)}: name one")
        return getattr(n.target, names[0])  # type: ignore[no-any-return]
    if not isinstance(n.target, torch._ops.OpOverload):
        raise ValueError(f"{n.target} is no ATen operator")
    return n.target


def _result(graph: torch.fx.Graph) -> Node:
    (result,) = next(n for n in graph.nodes if n.op == "output").args
    if not isinstance(result, Node):
        raise ValueError("a pattern has one result")
    return result
