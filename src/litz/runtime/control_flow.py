"""Operators with bodies: which of them runs, and how often, is known while the graph runs.

A body takes its arguments as a list that it empties, and returns a sequence of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.runtime.torch_private import storage_address

Body = Callable[[list[Any]], Sequence[Any]]


class ControlFlow:
    """A call of bodies; its text is the operator's name."""


@dataclass(frozen=True, eq=False)
class Region(ControlFlow):
    """A body that is always called.  Call: its operands.  title: the operator's name."""

    body: Body
    title: str = "invoke_subgraph"

    def __str__(self) -> str:
        return f"higher_order.{self.title}"

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        return _apart(self.body(list(operands)), operands)


@dataclass(frozen=True, eq=False)
class Cond(ControlFlow):
    """One of two bodies.  Call: predicate, then the operands that both take."""

    then: Body
    otherwise: Body

    def __str__(self) -> str:
        return "higher_order.cond"

    def __call__(self, predicate: Any, *operands: Any) -> tuple[Any, ...]:
        body = self.then if predicate else self.otherwise
        return _apart(body(list(operands)), operands)


@dataclass(frozen=True, eq=False)
class WhileLoop(ControlFlow):
    """A body as often as a test holds.  Call: what is carried, then what both take besides.

    carried: how many operands the body replaces.
    """

    test: Body
    body: Body
    carried: int

    def __str__(self) -> str:
        return "higher_order.while_loop"

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        state, others = operands[: self.carried], operands[self.carried :]
        while self.test([*state, *others])[0]:
            # Of what was given nothing may be handed on: the next turn's is its own.
            state = _apart(self.body([*state, *others]), (*state, *others))
        return _apart(state, operands)


@dataclass(frozen=True, eq=False)
class Scan(ControlFlow):
    """A body for each row of some tensors, in order.

    Call: what is carried from row to row, the tensors, then what the body takes besides.  Gives the
    last of what is carried, then what the body gives besides, stacked.
    carried, rows: how many operands these are.  title: the operator's name.
    """

    body: Body
    carried: int
    rows: int
    title: str

    def __str__(self) -> str:
        return f"higher_order.{self.title}"

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        end = self.carried + self.rows
        state, tensors, others = (
            operands[: self.carried],
            operands[self.carried : end],
            operands[end:],
        )
        given: list[tuple[Any, ...]] = []
        for row in zip(*(x.unbind(0) for x in tensors), strict=True):
            taken = (*state, *row, *others)
            results = _apart(self.body(list(taken)), taken)
            state = results[: self.carried]
            given.append(results[self.carried :])
        stacked = (torch.stack(column) for column in zip(*given, strict=True))
        return (*_apart(state, operands), *stacked)


def _apart(results: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results, each in memory of its own: a body may return what it was given."""
    taken = {storage_address(x.untyped_storage()) for x in operands if isinstance(x, torch.Tensor)}
    out = []
    for x in results:
        if isinstance(x, torch.Tensor):
            x = x.clone() if storage_address(x.untyped_storage()) in taken else x
            taken.add(storage_address(x.untyped_storage()))
        out.append(x)
    return tuple(out)
