"""The table from ATen overloads to lowerings, filled by the family modules when they are imported.

A lowering is a function ``fn(ctx: Call, *args, **kwargs)`` that takes the operator's arguments with
tensors as ``TensorValue`` and symbolic integers as ``Expr``, and returns a ``TensorValue`` (or a
tuple of them, None for results that nobody reads).  It raises ``Unsupported(reason)`` to have the
call made by ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from litz.index import Expr, as_expr
from litz.ir.dtype import DType
from litz.lowering.context import Builder
from litz.lowering.values import Shape, TensorValue

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)


@dataclass(frozen=True)
class Result:
    """What the graph says of one tensor result: shape and strides in elements, type, device."""

    dtype: DType
    shape: Shape
    strides: Shape
    device: str


@dataclass(frozen=True)
class Call:
    """One operator call being lowered.

    b: the program under construction.  mutate: see ``before_mutation``.
    result: metadata of the (first) tensor result.
    results: of all results (None for non-tensors).  n_users: how often the result is read.
    used: positions of results that are read, for ops with several.
    last_use: whether a value lies in memory that may be written, as nothing else reads it later.
    meta: the fake-tensor value of the node, for what else a lowering needs to know.
    """

    b: Builder
    node: torch.fx.Node
    mutate: Callable[[str, torch.fx.Node], None]
    results: tuple[Result | None, ...]
    n_users: int
    used: frozenset[int]
    last_use: Callable[[TensorValue], bool] = lambda v: False

    @property
    def result(self) -> Result:
        first = self.results[0]
        assert first is not None
        return first

    @property
    def dtype(self) -> DType:
        return self.result.dtype

    @property
    def shape(self) -> Shape:
        return self.result.shape

    def before_mutation(self, target: TensorValue) -> None:
        """To be called before a lowering writes into memory that other values may read."""
        assert target.ref is not None
        self.mutate(self.b.root(target.ref.buffer), self.node)

    def expr(self, value: Any) -> Expr:
        """An int or Expr as an Expr."""
        return as_expr(value)


_TABLE: dict[torch._ops.OpOverload, Lowering] = {}
_NAMED: dict[str, Lowering] = {}


def lower(*overloads: torch._ops.OpOverload) -> Callable[[F], F]:
    """Register a lowering for operator overloads (once each)."""

    def register(fn: F) -> F:
        for o in overloads:
            if o in _TABLE:
                raise ValueError(f"{o} has two lowerings")
            _TABLE[o] = fn
        return fn

    return register


def lower_named(name: str) -> Callable[[F], F]:
    """Register a lowering for an operator that PyTorch defines when it first uses it."""

    def register(fn: F) -> F:
        _NAMED[name] = fn
        return fn

    return register


def find(target: object) -> Lowering | None:
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return _TABLE.get(target) or _NAMED.get(target._schema.name)


def registered() -> tuple[torch._ops.OpOverload, ...]:
    return tuple(sorted(_TABLE, key=str))
