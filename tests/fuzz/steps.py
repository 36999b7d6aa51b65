"""What a step can be: one maker a kind of operator, with its weight."""

from __future__ import annotations

from functools import lru_cache

from tests.fuzz import (
    steps_conv,
    steps_index,
    steps_layers,
    steps_more,
    steps_out,
    steps_pointwise,
    steps_random,
    steps_reduce,
    steps_table,
    steps_views,
    steps_write,
)
from tests.fuzz.generate import Maker

LAYERS = (*steps_layers.MAKERS, *steps_conv.MAKERS, *steps_random.MAKERS)
OFTEN = 12.0  # how much likelier they are where a program is to be made of them


@lru_cache(maxsize=2)
def makers(layers: bool) -> tuple[tuple[float, Maker], ...]:
    """(weight, maker) pairs.  layers: mostly those of neural networks."""
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
    scale = OFTEN if layers else 1.0
    return (*rows, *((weight * scale, maker) for weight, maker in LAYERS))
