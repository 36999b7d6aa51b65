"""What a step can be: one maker a kind of operator, with its weight."""

from __future__ import annotations

from functools import lru_cache

from tests.fuzz import (
    steps_index,
    steps_more,
    steps_out,
    steps_pointwise,
    steps_reduce,
    steps_table,
    steps_views,
    steps_write,
)
from tests.fuzz.generate import Maker


@lru_cache(maxsize=2)
def makers(grad: bool) -> tuple[tuple[float, Maker], ...]:
    """(weight, maker) pairs.  grad: those that make sense where gradients are wanted."""
    rows: list[tuple[float, Maker]] = [
        *steps_pointwise.MAKERS,
        *steps_views.MAKERS,
        *steps_reduce.MAKERS,
        *steps_index.MAKERS,
        *steps_write.MAKERS,
        *steps_table.MAKERS,
        *steps_more.MAKERS,
        *steps_out.MAKERS,
    ]
    return tuple(rows)
