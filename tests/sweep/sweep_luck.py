"""Whether an error larger than eager's is chance: the same call on other numbers, several times.

Where the terms of a sum cancel, a result has few digits left, and of one such result either side
may have more of them.  Over several draws neither side's total may be twice the other's.  In the
widest type nothing tells how far eager is from the truth: there its error is what its results move
by when each number it is given moves to a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sweep_cases as sc
import torch
from sweep_compare import EPS, ULPS, ULPS_OF_EAGER, difference, norm_errors
from torch.utils import _pytree as pytree

DRAWS = 8


def is_chance(
    op: Any,
    target: Callable[..., Any],
    case: sc.Case,
    check: str,
    dtype: torch.dtype,
    limit: int,
    place: sc.Place,
) -> bool:
    """Of a call that differs from eager in nothing but the size of its error."""
    totals: dict[int, list[float]] = {}
    for seed in range(1, DRAWS + 1):
        again = sc.cases(op, dtype, check, limit, place.device, seed)
        if case.number >= len(again):
            return False
        pairs = _errors(target, again[case.number], check, place)
        if pairs is None:
            return False
        for leaf, pair in enumerate(pairs):
            total = totals.setdefault(leaf, [0.0, 0.0, 0.0])
            for i, error in enumerate(pair):
                total[i] += error
    return bool(totals) and all(
        mine <= 2 * theirs + floor for mine, theirs, floor in totals.values()
    )


def _errors(
    target: Callable[..., Any], case: sc.Case, check: str, place: sc.Place
) -> list[tuple[float, float, float]] | None:
    """(its error, eager's, what rounding alone may cost) of each float result; None: no such."""
    try:
        eager = sc.run(target, [case], check)
        exact = sc.exact_run(target, [case], check, eager)
        mine = sc.run(target, [case], check, backend=sc.LitzBackend(sc.Seen(), place))
        moved = sc.run(target, [case], check, convert=_neighbour) if exact is None else eager
    except Exception:
        return None
    seen = [(r.outs, r.grads, r.inputs) for r in (mine, eager)]
    if difference(seen[0], seen[1], values=False):
        return None
    runs = (mine, moved, exact or eager)
    leaves = [pytree.tree_leaves((r.outs, r.grads, r.inputs)) for r in runs]
    pairs = []
    for a, e, r in zip(*leaves, strict=True):
        if isinstance(e, torch.Tensor) and e.dtype in EPS and isinstance(r, torch.Tensor):
            errors = norm_errors(a, e, r if r.shape == e.shape else e)
            floor = EPS[e.dtype] * (ULPS if exact is not None else ULPS_OF_EAGER)
            pairs.append((*errors, floor))
    return pairs


def _neighbour(x: Any) -> Any:
    """A copy of an argument, each of its numbers one unit in the last place up or down."""
    x = sc.copy_input(x)
    if isinstance(x, torch.Tensor) and x.dtype is torch.float64 and x.numel():
        up = torch.rand(x.shape, device=x.device) < 0.5
        with torch.no_grad():
            x.copy_(torch.where(up, x.nextafter(x + 1), x.nextafter(x - 1)))
    return x
