"""What a device can do, to weigh one kernel against several."""

from __future__ import annotations

from typing import Final

from litz.dataclass import dataclass
from litz.ir.dtype import DType


@dataclass(frozen=True)
class Costs:
    """matrix: operations a second of matrix units on 16-bit floats; single: of float32 elsewhere.

    int8, float8: the same on 8-bit integers and floats, as multiples of ``matrix`` (0: none).
    memory, cache: bytes a second, of the memory and of the last-level cache; near: bytes that this
    holds.  programs: that run at
    a time.  launch: seconds that one more kernel takes; turn: seconds of a turn of
    a product's loop that neither of the above explains; fill: before its first one.
    attention: of what matrix units can do, what libraries reach in attention, beside its
    exponentials; 0: there is no library that is known to be quick.
    """

    matrix: float
    single: float
    memory: float
    launch: float = 2e-6
    turn: float = 1.5e-7
    fill: float = 3e-6
    int8: float = 2.0
    float8: float = 2.0
    cache: float = 6e12
    near: float = 5e7
    programs: int = 128
    attention: float = 0.0

    def rate(self, dtype: DType) -> float:
        """Operations a second on a type, which is 0 where there is no unit for it."""
        if dtype.bits >= 32:
            return self.single
        eight = self.float8 if dtype.is_float else self.int8
        return self.matrix * (eight if dtype.bits == 8 else 1.0)


LARGE: Final = Costs(9e14, 6e13, 4e12)
"""A large GPU, where nobody can be asked."""
