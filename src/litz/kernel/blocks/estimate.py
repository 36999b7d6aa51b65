"""How long a recipe takes, from what its blocks move and how many of them run at a time.

A kernel takes what the memory takes for its bytes, or what its programs take if there are too few
of them to keep the memory busy: every turn of a loop waits for its loads, every pass for what the
threads of a program reduce together.  The first is known well, the second within a factor.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod, sqrt

from litz.dataclass import dataclass
from litz.index import Const, Expr, coefficient, divides, product
from litz.ir.body import loads as loads_of
from litz.kernel.blocks.across import SECTOR
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe
from litz.kernel.blocks.sizes import CACHE, hint
from litz.kernel.nodes import extent, reduce_levels, roots, row_start
from litz.passes.costs import Costs

TRIP = 6e-7  # seconds from a load to what it loads, the queue for memory included
NEAR = 3e-7  # likewise where the last-level cache has it
ALONE = 2.5  # times its share of the cache's rate that a multiprocessor gets where others are idle
TOGETHER = 3e-7  # seconds in which the threads of a program reduce what each has
ONE = 24  # operations in whose time an element is accessed by itself
WITHIN = 1.3  # factor within which the time of programs is known
PROCESSOR = 2048, 65536, 32  # threads, registers and programs that a multiprocessor holds
REGISTERS = 24  # of a thread, beside the elements that it holds


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, at least and at most."""

    low: float = 0.0
    high: float = 0.0

    @property
    def likely(self) -> float:
        return sqrt(self.low * self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{1e6 * self.low:.1f} to {1e6 * self.high:.1f} us"


def estimate(recipe: BlockRecipe, costs: Costs) -> Estimate:
    """Of all kernels of a recipe, one after the other, on a cold cache."""
    parts = [_kernel(k, costs, warm=i > 0) for i, k in enumerate(recipe.kernels)]
    return Estimate(sum(e.low for e in parts), sum(e.high for e in parts))


def _kernel(k: BlockPlan, costs: Costs, warm: bool) -> Estimate:
    """warm: what it reads was read or written just before, and is cached if it fits."""
    config, axes = k.configs[0], k.axes
    programs = prod(-(-hint(a.size) // config.block(a.name)) for a in k.gridded)
    size = hint(axes.reduced.size) if axes.reduced is not None else 1
    if k.words is not None:
        size = config.block("r")
    passes, turns = max(1, len(k.passes)), -(-size // config.block("r"))
    levels = len(k.passes) or 1 + max(reduce_levels(roots(k.plan.stores)).values())
    loads = {(n.buffer, n.index): n.vars for n in loads_of(roots(k.plan.stores))}
    stores = {(s.buffer, s.index): s.index.free for s in k.plan.stores}
    kinds = {p.name: p.dtype.bytes for p in k.plan.params}

    def points(free: Collection[Expr]) -> int:
        return hint(product(extent(d.var) for d in k.plan.dims if d.var in free))

    def block(free: Collection[Expr], row: int) -> int:
        """Elements of a program that differ in some loops; row: those along the reduced axis."""
        own = [(a, config.block(a.name)) for a in axes.blocked if a is not axes.reduced]
        own += [(axes.reduced, row)] if axes.reduced is not None else []
        return prod(n for a, n in own if any(v in free for v in a.dims))

    once = {b: max(points(f) for (x, _), f in loads.items() if x == b) * kinds[b] for b, _ in loads}
    read, written = sum(once.values()), sum(points(f) * kinds[b] for (b, _), f in stores.items())
    row = sum(block(f, size) * kinds[b] for (b, _), f in loads.items())
    moved, alone = 0, 0  # bytes; elements that are accessed one by one
    for accesses, times in ((loads, passes), (stores, 1)):
        for (b, e), f in accesses.items():
            elements = times * block(f, size)
            moved += elements * kinds[b] * _gaps(k, e, kinds[b])
            alone += 0 if _is_whole(k, e, kinds[b]) else elements
    # What a thread holds are its loads; 4 bytes a register.
    threads = 32 * config.warps
    held = sum(block(f, config.block("r")) * max(4, kinds[b]) // 4 for (b, _), f in loads.items())
    wanted = threads * REGISTERS + held
    most, registers, several = PROCESSOR
    at_once = max(1, min(several, most // threads, registers // wanted))
    # What does not fit goes to memory and comes back, for what is reduced and for what is stored.
    moved += 8 * (levels + 1) * max(0, wanted - registers)
    each = -(-programs // costs.programs)  # of a multiprocessor, one after the other or at a time
    looks = 3 * TRIP if k.words is not None else 0.0
    under_way = min(programs, at_once * costs.programs) * row
    again = NEAR if under_way <= CACHE else TRIP
    trips = turns * (TRIP + (passes - 1) * again)
    waiting = -(-each // at_once) * (trips + levels * TOGETHER + looks)
    busy_ones = min(costs.programs, max(programs, costs.programs / ALONE))
    moving = each * (moved * busy_ones / costs.cache + alone * ONE * costs.programs / costs.single)
    short, long = sorted((waiting, moving))
    busy = long + short / min(each, at_once)
    memory = written / costs.memory
    memory += read / (costs.cache if warm and read <= CACHE else costs.memory)
    memory += (passes - 1) * read / (costs.cache if under_way <= CACHE else costs.memory)
    low, high = (costs.launch + max(memory, t) for t in (busy / WITHIN, busy * WITHIN))
    return Estimate(low, high)


def _gaps(k: BlockPlan, e: Expr, size: int) -> int:
    """Elements that memory moves for one, where neighbours in a block lie apart.  size: bytes."""
    config = k.configs[0]
    blocks = [(config.block(a.name), coefficient(e, a.dims[-1])) for a in k.axes.blocked if a.dims]
    steps = [(n, abs(c.value)) for n, c in blocks if isinstance(c, Const) and c.value and n > 1]
    if any(n * size >= SECTOR and step == 1 for n, step in steps):
        return 1
    return min(SECTOR // size, min((step for _, step in steps), default=1))


def _is_whole(k: BlockPlan, e: Expr, size: int) -> bool:
    """Whether a thread's accesses are of 16 bytes, as far as where rows begin decides that."""
    start = None if k.plan.lane is None or k.heads_apart else row_start(e, k.plan.lane)
    return start is None or divides(16 // size, start)
