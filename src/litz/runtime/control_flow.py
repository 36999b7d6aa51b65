"""Operators with bodies: which of them runs, and how often, is known while the graph runs.

A body takes its arguments as a list that it empties, and returns a sequence of tensors.  What it
takes stands in tuples, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.runtime.torch_private import address

Body = Callable[[list[Any]], Sequence[Any]]
Values = tuple[Any, ...]


def region(body: Body, operands: Values) -> Values:
    """What a body gives that is always run."""
    return _apart(body([*operands]), operands)


def cond(then: Body, otherwise: Body, predicate: Any, operands: Values) -> Values:
    """What one of two bodies gives, which take the same."""
    return _apart((then if predicate else otherwise)([*operands]), operands)


def while_loop(test: Body, body: Body, carried: Values, others: Values) -> Values:
    """What a body makes of ``carried``, run as often as a test holds.

    others: what both take besides.
    """
    state = carried
    while test([*state, *others])[0]:
        # Of what was given nothing may be handed on: the next turn's is its own.
        state = _apart(body([*state, *others]), (*state, *others))
    return _apart(state, (*carried, *others))


def scan(body: Body, carried: Values, tensors: Values, others: Values) -> Values:
    """A body for each row of ``tensors``, in order.

    carried: handed from row to row, if there is any.  others: what the body takes besides.
    Gives the last of what is carried, then what the body gives besides, stacked.
    """
    state = carried
    given: list[Values] = []
    for row in zip(*(x.unbind(0) for x in tensors), strict=True):
        taken = (*state, *row, *others)
        results = _apart(body([*taken]), taken)
        state = results[: len(carried)]
        given.append(results[len(carried) :])
    stacked = (torch.stack(column) for column in zip(*given, strict=True))
    return (*_apart(state, (*carried, *tensors, *others)), *stacked)


def _apart(results: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results, each in memory of its own: a body may return what it was given."""
    taken = {address(x) for x in operands if isinstance(x, torch.Tensor)}
    out = []
    for x in results:
        if isinstance(x, torch.Tensor):
            x = x.clone() if address(x) in taken else x
            taken.add(address(x))
        out.append(x)
    return tuple(out)
