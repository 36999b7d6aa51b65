"""What a device can do, to weigh one kernel against several."""

from __future__ import annotations

from typing import Final

from litz.dataclass import dataclass


@dataclass(frozen=True)
class Costs:
    """matrix: operations a second of matrix units on 16-bit floats; single: of float32 elsewhere.

    memory: bytes a second.  launch: seconds that one more kernel takes; turn: seconds of a turn of
    a product's loop that neither of the above explains.
    """

    matrix: float
    single: float
    memory: float
    launch: float = 2e-6
    turn: float = 1.5e-7


LARGE: Final = Costs(9e14, 6e13, 4e12)
"""A large GPU, where nobody can be asked."""
