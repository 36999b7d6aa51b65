"""Calls that give back their argument.

Only what is exact in every bit that eager shows is left out: ``x + 0.0`` is not ``x`` where that is
-0.0.  A copy stays where its memory counts: where it leaves the graph, or where the graph writes it
or what it was copied from.  A view that is returned stays a tensor of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.graph.aliasing import is_returned, leaves, offset_of, shares_memory, written
from litz.graph.patterns import CallPattern, Capture, Match, Rule, rewrite
from litz.graph.values import same_dims, same_value

aten = torch.ops.aten
X, Y = Capture("x"), Capture("y")
FULL = CallPattern(
    aten.full.default,
    (Capture("size"), Y),
    {name: Capture(name) for name in ("dtype", "layout", "device", "pin_memory")},
)

# Views whose result has the elements of the argument, so that equal sizes and strides say all.
VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.reshape.default,
    aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor,
    aten.alias.default, aten.detach.default,
)  # fmt: skip
COPIES = (aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _is_one(value: Any) -> bool:
    return _is_number(value) and value == 1


def _is_zero(value: Any, sign: float) -> bool:
    return _is_number(value) and value == 0 and math.copysign(1.0, float(value)) == sign


def _dtype(match: Match) -> torch.dtype | None:
    val = match.node.meta.get("val")
    return val.dtype if isinstance(val, torch.Tensor) else None


def _times_one(match: Match) -> bool:
    # Complex products are not exact: inf * (1 + 0i) has a nan.
    dtype = _dtype(match)
    return dtype is not None and not dtype.is_complex and _is_one(match["y"])


def _plus_zero(match: Match) -> bool:
    dtype = _dtype(match)
    if dtype is None or dtype.is_complex:
        return False
    if dtype.is_floating_point:
        return _is_zero(match["y"], -1.0)
    return _is_number(match["y"]) and match["y"] == 0


def _minus_zero(match: Match) -> bool:
    dtype = _dtype(match)
    if dtype is None or dtype.is_complex:
        return False
    return _is_zero(match["y"], 1.0)


def _is_copy(match: Match) -> bool:
    return not match.node.kwargs.get("pin_memory")


class _Keep:
    """What must stay of a graph."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm

    @cached_property
    def written(self) -> frozenset[Node]:
        return written(self.gm)

    def allows(self, match: Match) -> bool:
        """Whether the readers of the call may read ``x`` in its place."""
        n, x = match.node, match["x"]
        if not isinstance(x, Node) or not same_value(n.meta.get("val"), x.meta.get("val")):
            return False
        if shares_memory(n):
            if is_returned(n) or not same_dims((offset_of(n),), (offset_of(x),)):
                return False
        elif leaves(n):
            return False
        return n not in self.written and x not in self.written


def _unary(target: torch._ops.OpOverload) -> CallPattern:
    """A call with whatever arguments behind the first."""
    first, *more = target._schema.arguments
    return CallPattern(
        target,
        (X, *(Capture(f"{p.name}_") for p in more if not p.kwarg_only)),
        {p.name: Capture(f"{p.name}_") for p in more if p.kwarg_only},
    )


def _first(match: Match) -> Node | None:
    x = match["x"]
    return x if isinstance(x, Node) else None


def _rule(name: str, pattern: CallPattern, exact: Callable[[Match], bool]) -> Rule:
    return Rule(name, pattern, _first, exact)


def _always(match: Match) -> bool:
    return True


RULES = (
    _rule("x * 1", CallPattern(aten.mul.Tensor, (X, Y)), _times_one),
    _rule("x * ones", CallPattern(aten.mul.Tensor, (X, FULL)), _times_one),
    _rule("ones * x", CallPattern(aten.mul.Tensor, (FULL, X)), _times_one),
    _rule("x * 1", CallPattern(aten.mul.Scalar, (X, Y)), _times_one),
    _rule("x / 1", CallPattern(aten.div.Tensor, (X, Y)), _times_one),
    _rule("x / ones", CallPattern(aten.div.Tensor, (X, FULL)), _times_one),
    _rule("x ** 1", CallPattern(aten.pow.Tensor_Scalar, (X, Y)), _times_one),
    _rule("x + 0", CallPattern(aten.add.Tensor, (X, Y)), _plus_zero),
    _rule("x + zeros", CallPattern(aten.add.Tensor, (X, FULL)), _plus_zero),
    _rule("zeros + x", CallPattern(aten.add.Tensor, (FULL, X)), _plus_zero),
    _rule("x - 0", CallPattern(aten.sub.Tensor, (X, Y)), _minus_zero),
    _rule("x - zeros", CallPattern(aten.sub.Tensor, (X, FULL)), _minus_zero),
    *(_rule(f"{t}(x)", _unary(t), _is_copy) for t in COPIES),
    *(_rule(f"{t}(x)", _unary(t), _always) for t in VIEWS),
)


def drop_no_ops(gm: GraphModule) -> bool:
    """Let readers of a call that gives back its argument read the argument."""
    return rewrite(gm, RULES, _Keep(gm).allows) > 0
