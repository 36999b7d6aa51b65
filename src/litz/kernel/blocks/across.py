"""Rows that a block holds whole, beside each other where memory is contiguous from row to row."""

from __future__ import annotations

from litz.index import coefficient, const, divides
from litz.kernel.phases import sizes_of
from litz.kernel.plan import KernelPlan
from litz.kernel.tiling import accesses_of

LINE, SECTOR = 64, 32  # bytes that memory moves at once, and at least
ROWS = 1 << 14  # elements of a block of rows
FEW = 128  # programs: about one for each multiprocessor


def rows_across(plan: KernelPlan, rows: int, size: int) -> int:
    """Rows of ``size`` elements whose parts fill lines of memory, or sectors where rows are few.

    Fewer where registers do not hold so many; 1 where nothing is contiguous from row to row.
    """
    width = width_across(plan)
    x = LINE // width if width else 1
    while x > 1 and x * size > ROWS:
        x //= 2
    while x * width > SECTOR and rows // x < FEW:
        x //= 2
    return max(1, x)


def stores_sectors(plan: KernelPlan) -> bool:
    """Whether what is stored across rows begins with a sector of memory in each of them."""
    found = (a for a in accesses_of(plan.stores, sizes_of(plan)) if a.is_store)
    steps = (
        (coefficient(a.index, v), a.bytes) for a in found for v in plan.reduced if v in a.index.free
    )
    return all(step is not None and divides(SECTOR // size, step) for step, size in steps)


def width_across(plan: KernelPlan) -> int:
    """Bytes of the widest element that is contiguous from row to row; 0 where none is."""
    along, last = plan.reduced, plan.parallel[-1:]
    found = (
        a.bytes
        for a in accesses_of(plan.stores, sizes_of(plan))
        if not a.through and any(v in a.index.free for v in along)
        if any(coefficient(a.index, v) is const(1) for v in last)
    )
    return max(found, default=0)
