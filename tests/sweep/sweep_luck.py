"""Whether an error larger than eager's is chance: the same call on other numbers, several times.

Where the terms of a sum cancel, a result has few digits left, and of one such result either side
may have more of them.  Over several draws neither side's total may be twice the other's.
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
    except Exception:
        return None
    runs = [(r.outs, r.grads, r.inputs) if r is not None else None for r in (mine, eager, exact)]
    assert runs[0] is not None and runs[1] is not None
    if difference(runs[0], runs[1], values=False):
        return None
    leaves = [pytree.tree_leaves(r) for r in (*runs[:2], runs[2] or runs[1])]
    pairs = []
    for a, e, r in zip(*leaves, strict=True):
        if isinstance(e, torch.Tensor) and e.dtype in EPS and isinstance(r, torch.Tensor):
            errors = norm_errors(a, e, r if r.shape == e.shape else e)
            floor = EPS[e.dtype] * (ULPS if runs[2] is not None else ULPS_OF_EAGER)
            pairs.append((*errors, floor))
    return pairs
