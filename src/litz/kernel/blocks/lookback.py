"""Scans of few long rows in one kernel: its programs look back at what those before them come to.

As in Merrill and Garland (2016), a program takes a ticket, which says what block of a row it has,
so that those before it have begun; leaves for others what its block comes to; and waits for what
they leave.  Other than there, what it combines is decided by sizes alone, so that results are the
same in every run: the blocks before it in its group, in order, behind all groups before, of each of
which the last program has left what it comes to by itself.  So none waits for more than two words,
one left behind the other, however long a row is.

What is left lies in words of memory that are zero when the kernel begins: 32 bits of a state each,
with a flag beside them, so that a word that is there is whole and nothing has to be put in order.
"""

from __future__ import annotations

from litz.index import Expr, ceildiv, const, product, size_hint, var
from litz.ir import body as nodes
from litz.ir.body import Reduce, Store, walk
from litz.ir.dtype import I64, DType
from litz.ir.scans import run_along, scans_of
from litz.kernel.blocks.axes import choose_axes
from litz.kernel.blocks.recipe import Axes, Config
from litz.kernel.blocks.sizes import (
    HELD,
    PROGRAMS,
    WARP,
    columns_held,
    hint,
    power_of_two,
    scanned_columns,
    state_bytes,
)
from litz.kernel.nodes import extent, over_all, roots
from litz.kernel.phases import Phases, Temporary
from litz.kernel.plan import Dim, KernelPlan, Param

NAME = "words"
WORD = I64
HEAD = 16  # words in front of the others: the ticket, alone in its line of memory
GROUP = 256  # programs of a group
NEAR = 1 << 11  # states that a program looks at together
EACH = 16  # words of a row's states that a thread looks at together
BLOCK = 1 << 14  # bytes of the states of a row's elements that a program scans at once
LONG = 1 << 14  # elements of a row that is worth dividing: no block holds it
TALL = 1 << 9  # likewise of a column
COLUMNS = 32  # of a block
BESIDE = 4  # blocks of other rows beside each other, with which these still wait for each other


def divide(plan: KernelPlan, wanted: bool = False) -> Phases | None:
    """A plan of scans as two, of which the first clears the words; None where it should not be so.

    wanted: None only where that is not possible.
    """
    if why_not(plan) or not (wanted or _serves(plan)):
        return None
    size = words_of(plan, configs_of(plan, choose_axes(plan)))
    at = var("x0", size)
    clear = KernelPlan(
        (Dim(at, "p"),),
        (Param(NAME, WORD, "out"),),
        plan.ints,
        (Store(NAME, at, nodes.const(WORD, 0)),),
        at,
    )
    scan = KernelPlan(
        plan.dims, (*plan.params, Param(NAME, WORD, "inout")), plan.ints, plan.stores, plan.lane
    )
    return Phases((clear, scan), (Temporary(NAME, WORD, size),))


def why_not(plan: KernelPlan) -> str:
    """Why programs cannot scan by looking back; empty where they can."""
    found, stores = scans_of(plan.stores), plan.stores
    if not found:
        return "it scans nothing"
    if any(n.row.whole for n in found):
        return "a sort holds its rows"
    if not run_along(stores, plan.reduced) or len(choose_axes(plan).parallel) > 1:
        return "its scans do not run along one axis"
    if any(isinstance(n, Reduce) for n in walk(roots(stores))):
        return "it reduces rows besides"
    if any(s.mode != "set" or s.indirect or not over_all(s, plan.reduced) for s in stores):
        return "it stores other things than elements of its rows"
    return ""


def looks_back(plan: KernelPlan) -> bool:
    """Whether a plan is the second of those that ``divide`` gives."""
    return any(p.name == NAME and p.mode == "inout" for p in plan.params)


def _serves(plan: KernelPlan) -> bool:
    """Whether rows are long, and too few to keep the machine busy."""
    size = hint(product(extent(v) for v in plan.reduced))
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    if plan.down:
        return size >= TALL and not columns_held(plan) and 2 * -(-rows // COLUMNS) < PROGRAMS
    return size > LONG and rows < PROGRAMS


def configs_of(plan: KernelPlan, axes: Axes) -> tuple[Config, ...]:
    """The default configuration, then others that may be quicker."""
    assert axes.reduced is not None
    size, held = power_of_two(hint(axes.reduced.size)), state_bytes(plan)
    if plan.down:
        rows = power_of_two(hint(axes.parallel[-1].size))
        return tuple(dict.fromkeys(scanned_columns(COLUMNS, rows, size, HELD // held)))
    out, least = [], min(32, power_of_two(GROUP * state_words(plan) // (WARP * EACH)))
    # Where all programs run at once more threads are done sooner, else fewer wait for each other.
    points = hint(product(extent(v) for v in (*plan.parallel, *plan.reduced)))
    few = points * held < 4 * PROGRAMS * BLOCK
    first = ((2, 128), (2, 256)) if few else ((2, 256), (2, 128))
    for n, each in (*first, (1, 128), (1, 256), (1, 64)):
        r = min(n * power_of_two(BLOCK // held), size)
        warps = min(32, power_of_two(r * held // (WARP * each)))
        out.append(Config((("x", 1), ("r", r)), max(least, warps)))
    return tuple(dict.fromkeys(out))


def group_of(configs: tuple[Config, ...]) -> int:
    """Programs of a group: so many that what one looks at fits in its registers."""
    return max(2, min(GROUP, NEAR // max(c.block("x") for c in configs)))


def is_early(plan: KernelPlan, configs: tuple[Config, ...]) -> bool:
    """Whether programs that run at once are of few rows, so that they wait for each other.

    What a block comes to takes a reduction more then, but nobody waits for its scan.
    """
    rows = hint(product(extent(v) for v in plan.parallel))
    return rows <= BESIDE * configs[0].block("x") and any(n.row.op for n in scans_of(plan.stores))


def words_of(plan: KernelPlan, configs: tuple[Config, ...]) -> Expr:
    """How many words there are: of each part of a state for every block and every whole group."""
    size = product(extent(v) for v in plan.reduced)
    points = product(extent(v) for v in plan.parallel)
    blocks = ceildiv(size, const(min(c.block("r") for c in configs)))
    return HEAD + state_words(plan) * points * (blocks + blocks // group_of(configs))


def state_words(plan: KernelPlan) -> int:
    """Words that hold the states of a kernel's scans at one point."""
    found = {(n.kind, n.args, n.combine): n for n in scans_of(plan.stores)}.values()
    return sum(pieces(e.dtype) for n in found for e in n.elements)


def pieces(dtype: DType) -> int:
    """Words that hold a number."""
    return 2 if dtype.bits > 32 else 1
