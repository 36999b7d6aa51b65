"""Segments, consecutive calls of C++ kernels as one native call, bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litz.artifact import SegmentTable
from litz.errors import OutOfRangeError
from litz.runtime.native import Fault, Function, Runtime, Segment, Step

# By the numbers that kernels report: a bad index is 1, a divisor of zero 2, no memory 4, and sums.
INDEX_FAULT: Fault = (OutOfRangeError, "index out of range in a compiled kernel")
ZERO_FAULT: Fault = (RuntimeError, "ZeroDivisionError in a compiled kernel")
MEMORY_FAULT: Fault = (MemoryError, "no memory for the rows that a compiled kernel keeps")
FAULTS = (INDEX_FAULT, ZERO_FAULT, INDEX_FAULT, *[MEMORY_FAULT] * 4)


def bind_segments(
    tables: Sequence[SegmentTable],
    runtime: Runtime,
    functions: Mapping[str, Function],
) -> dict[str, Segment]:
    """The runtime's segment of each table.  functions: C++ kernels by their names."""
    bound = {}
    for t in tables:
        steps = [Step(functions[k], p, i, FAULTS) for k, p, i in t.steps]
        bound[t.name] = Segment(runtime, steps, t.n_ptrs, t.n_ints)
    return bound
