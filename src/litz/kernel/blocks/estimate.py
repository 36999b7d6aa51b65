"""How long a recipe takes, from what its blocks move and how many of them run at a time.

A kernel takes what the memory takes for its bytes, or what its programs take if there are too few
of them to keep the memory busy: every turn of a loop waits for its loads, every pass for what the
threads of a program reduce together.  The first is known well, the second within a factor.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod, sqrt

from litz.dataclass import dataclass
from litz.index import Expr, product
from litz.ir.body import Load, walk
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe
from litz.kernel.blocks.sizes import CACHE, hint
from litz.kernel.nodes import extent, roots
from litz.passes.costs import Costs

TRIP = 8e-7  # seconds from a load to what it loads, the queue for memory included
TOGETHER = 3e-7  # seconds in which the threads of a program reduce what each has
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
    chain = 0.0  # seconds that groups of programs wait for each other
    if k.words is not None:
        blocks, size = -(-size // config.block("r")), config.block("r")
        chain = blocks // k.words[1] * TRIP
    passes = max(1, len(k.passes))
    turns = passes * -(-size // config.block("r"))
    loads = {(n.buffer, n.index): n.vars for n in walk(roots(k.plan.stores)) if isinstance(n, Load)}
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
    moved = passes * row + sum(block(f, size) * kinds[b] for (b, _), f in stores.items())
    # What a thread holds are its loads; 4 bytes a register.
    threads = 32 * config.warps
    held = sum(block(f, config.block("r")) * max(4, kinds[b]) // 4 for (b, _), f in loads.items())
    wanted = threads * REGISTERS + held
    most, registers, several = PROCESSOR
    at_once = max(1, min(several, most // threads, registers // wanted))
    moved += 8 * max(0, wanted - registers)  # what does not fit goes to memory and comes back
    each = -(-programs // costs.programs)  # of a multiprocessor, one after the other or at a time
    looks = 2 * TRIP if k.words is not None else 0.0
    waiting = -(-each // at_once) * (turns * TRIP + passes * TOGETHER + looks)
    moving = each * moved / (costs.cache / costs.programs)
    short, long = sorted((waiting, moving))
    busy = long + short / min(each, at_once)
    under_way = min(programs, at_once * costs.programs) * row
    again = (passes - 1) * read
    memory = written / costs.memory
    memory += read / (costs.cache if warm and read <= CACHE else costs.memory)
    memory += again / (costs.cache if under_way <= CACHE else costs.memory)
    low, high = (costs.launch + max(memory, chain, t) for t in (busy / WITHIN, busy * WITHIN))
    return Estimate(low, high)
