"""Scans that both targets' tests call: a tensor, and along which dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from judge import FLOOR, error

OPS = {
    "cumsum": torch.cumsum,
    "cumprod": lambda x, d: torch.cumprod(1 + x / 16, d),
    "logcumsumexp": torch.logcumsumexp,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
}

# Functions of two states, the earlier one's parts first; and of a random tensor, what is scanned.
Parts = tuple[torch.Tensor, ...]


def recurrence(a: Any, x: Any, b: Any, y: Any) -> Parts:
    """``h = a * h + x``, as selective state spaces have it."""
    return a * b, b * x + y


def latest_largest(a: Any, at: Any, b: Any, bt: Any) -> Parts:
    take = b >= a
    return torch.where(take, b, a), torch.where(take, bt, at)


def segments(begins: Any, a: Any, other: Any, b: Any) -> Parts:
    """Sums that begin anew where a flag is set."""
    return begins | other, torch.where(other, b, a + b)


def matrices(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Parts:
    """Products of 2x2 matrices."""
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


FUNCTIONS: dict[str, tuple[Callable[..., Parts], Callable[[torch.Tensor], Parts]]] = {
    "sum": (lambda a, b: (a + b,), lambda x: (x,)),
    "recurrence": (recurrence, lambda x: (torch.sigmoid(x), x * 2)),
    "largest": (latest_largest, lambda x: (x, (x * 100).long())),
    "segments": (segments, lambda x: (x > 1, x + 1)),
    "logarithms": (lambda a, b: (torch.logaddexp(a, b),), lambda x: (x - 1,)),
    "matrices": (matrices, lambda x: (x / 4, 1 - x / 8, x / 8 - 0.5, x.abs() / 2)),
}


def scan_of(name: str, dim: int, reverse: bool = False) -> Callable[[torch.Tensor], Parts]:
    """A scan by the operator, in the terms in which PyTorch's function calls it."""
    combine, made = FUNCTIONS[name]

    def fn(x: torch.Tensor) -> Parts:
        parts = [p.movedim(dim, 0) for p in made(x)]
        parts = [p.flip(0) for p in parts] if reverse else parts
        found = torch.ops.higher_order.associative_scan(combine, tuple(parts), ())
        found = [p.flip(0) for p in found] if reverse else found
        return tuple(p.movedim(0, dim) for p in found)

    return fn


def one_by_one(name: str, x: torch.Tensor, dim: int, reverse: bool = False) -> Parts:
    """The same, in steps."""
    combine, made = FUNCTIONS[name]
    rows = list(zip(*(p.unbind(dim) for p in made(x)), strict=True))
    rows = rows[::-1] if reverse else rows
    states = [rows[0]]
    for row in rows[1:]:
        states.append(combine(*states[-1], *row))
    states = states[::-1] if reverse else states
    return tuple(torch.stack(part, dim) for part in zip(*states, strict=True))


def check_scan(name: str, x: torch.Tensor, dim: int, reverse: bool = False, **options: Any) -> None:
    """Against float64 in steps, judged by what the operator's own function has in eager mode."""
    torch._dynamo.reset()
    given = {"check_ir": True, **options}
    compiled = torch.compile(scan_of(name, dim, reverse), backend="litz", options=given)
    exact = one_by_one(name, x.double(), dim, reverse)
    own = scan_of(name, dim, reverse)(x)
    for found, eager, ref in zip(compiled(x), own, exact, strict=True):
        assert found.dtype is eager.dtype
        if not found.dtype.is_floating_point:
            assert torch.equal(found, eager)
        else:
            assert error(found, ref) <= 2 * error(eager, ref) + FLOOR[found.dtype] / 2
