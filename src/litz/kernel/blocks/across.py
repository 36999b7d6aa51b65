"""Rows that a block holds whole, beside each other where memory is contiguous from row to row."""

from __future__ import annotations

from litz.index import coefficient, const, product, size_hint
from litz.ir.body import Load, walk
from litz.ir.scans import scans_of, sorts_of
from litz.kernel.nodes import extent, int_value, loops_of, reduce_levels, roots
from litz.kernel.phases import sizes_of
from litz.kernel.plan import KernelPlan
from litz.kernel.tiling import accesses_of

LINE, SECTOR = 64, 32  # bytes that memory moves at once, and at least
ROWS = 1 << 14  # elements of a block of rows
COLUMNS = 1 << 15  # likewise of columns
FEW = 128  # programs: about one for each multiprocessor
NARROW = 1 << 9  # columns that keep a good part of those busy
MANY = 1 << 14  # columns of which loops keep all of them busy


def rows_across(plan: KernelPlan, rows: int, size: int) -> int:
    """Rows of ``size`` elements whose parts fill lines of memory, or sectors where rows are few.

    Fewer where registers do not hold so many; 1 where nothing is contiguous from row to row.
    """
    width = _width(plan)
    x = LINE // width if width else 1
    while x > 1 and x * size > ROWS:
        x //= 2
    while x * width > SECTOR and rows // x < FEW:
        x //= 2
    return max(1, x)


def columns_held(plan: KernelPlan) -> int:
    """Columns of a block that holds long ones whole; 0 where none should.

    One should where loops would read them again, where they are scanned, and where they are few.
    """
    size = product(extent(v) for v in plan.reduced)
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    if not plan.down or not size.is_const or rows < NARROW or sorts_of(plan.stores):
        return 0
    if rows > MANY and not scans_of(plan.stores) and not reads_again(plan):
        return 0
    loads = (n for n in walk(roots(plan.stores)) if isinstance(n, Load))
    held = sum(any(v in n.vars for v in plan.reduced) for n in loads)
    width = _width(plan)
    if not width or LINE // width * int_value(size) * max(1, held) > COLUMNS:
        return 0
    x = LINE // width
    return x if rows // x >= FEW else x // 2


def reads_again(plan: KernelPlan) -> bool:
    """Whether loops over rows would read them more than once."""
    full = any(loops_of(s, plan.reduced) for s in plan.stores)
    return full or max(reduce_levels(roots(plan.stores)).values()) >= 1


def _width(plan: KernelPlan) -> int:
    """Bytes of the widest element that is contiguous from row to row; 0 where none is."""
    along, last = plan.reduced, plan.parallel[-1:]
    found = (
        a.bytes
        for a in accesses_of(plan.stores, sizes_of(plan))
        if not a.through and any(v in a.index.free for v in along)
        if any(coefficient(a.index, v) is const(1) for v in last)
    )
    return max(found, default=0)
