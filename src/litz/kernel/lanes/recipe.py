"""The recipe of a plan in lanes: what is chosen of how it runs on a CPU, before it is spelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from litz.dataclass import dataclass
from litz.index import Expr, Substitution, const
from litz.ir.body import Node, Reduce
from litz.kernel.lanes.space import Space
from litz.kernel.passes import Pass
from litz.kernel.phases import Temporary
from litz.kernel.plan import KernelPlan
from litz.kernel.text import recipe_text

Form = Literal["rows", "columns", "tiles", "room", "sorted", "attention", "gradient"]
STREAM = 1 << 23  # bytes of results, for each thread, that go past the caches
STREAM_THREADS = 4  # threads that count so: more share what the memory moves


@dataclass(frozen=True, slots=True)
class Limit:
    """How many iterations over each of ``dims`` an accumulator of a sum takes.

    The innermost loop that may have more is cut, and what its chunks leave is added up in a wider
    type.
    """

    dims: tuple[Expr, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Reductions that take two passes over each ``size`` iterations over ``by``."""

    of: tuple[Reduce, ...]
    by: Expr
    size: int


@dataclass(frozen=True, slots=True)
class Copies:
    """Reductions that have so many accumulators in turn: none waits for the operation before.

    In columns, where a lane's accumulator lies in memory, so many rows that it takes at once.
    """

    of: tuple[Reduce, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Memory at ``index``, which is asked for at every vector.  written: to be changed there.

    data: integers, if any: of those from ``at`` on, ``left`` in all, each lane's next one times
    ``step`` is added, and ``apart`` for each lane before.
    picked: what says which row is read, of rows ``step`` apart: the next one along ``over`` is
    fetched.
    """

    buffer: str
    index: Expr
    written: bool = False
    data: str = ""
    at: Expr = const(0)
    step: Expr = const(0)
    apart: Expr = const(0)
    left: Expr = const(0)
    picked: Node | None = None
    over: Expr = const(0)

    def where(self, here: Substitution) -> Fetch:
        """The same with other loops."""
        return replace(self, index=here(self.index), at=here(self.at), left=here(self.left))


@dataclass(frozen=True, slots=True)
class LanePlan:
    """A plan as one kernel of loops; mean and deviations that are two sums are so in the plan.

    form: ``rows``: vectors along the lane, one after the other; ``columns``: reductions whose lane
    is not reduced, in blocks of ``block`` lanes that have their accumulators in arrays; ``tiles``:
    transposed in registers, in blocks of ``block`` rows and lanes; ``room``: updates within rows,
    each in memory of the thread until it is stored; ``sorted``: updates of rows in the order of
    these, ``block`` vectors of a row at once; ``attention``: its skeleton, in blocks of ``block``
    queries and keys, of which a thread copies the operands ``kept`` and has products ``tile`` rows
    and vectors at a time; a block has the queries of a serial dim's heads; ``gradient``: likewise,
    in blocks of ``block`` rows and of what they meet, all of it copied.
    lanes: elements of every vector.  divided: the reduced dim that threads divide, if they do, in
    parts of ``unit`` iterations.  work: rough cost of a call, in additions.
    reductions: those that may run before what needs them.  passes: over reduced dims, in order; of
    reductions and stores it has the places.  Each is one nest of loops, within those that its
    reductions depend on.  late: what runs over no reduced dim is stored behind the last pass, which
    still reads what it replaces.
    totals: sums of softmaxes that share a pass with their maxima, by the places of both.
    kept: values that more than one pass needs, which the first of them keeps for a row; in columns
    values that are the same in several rows, computed before these for all lanes of a block.
    cuts: where the lane's loop, which one thread walks alone, is cut into loops of their own.
    streamed: places of stores that go past the caches, where threads write ``STREAM`` each of their
    ``past`` bytes (0: of any number).  ahead: the pass, after the first, in which the row behind
    this one is fetched, as all that the pass reads is in the cache; 0 for none.
    fetches: lines of the next rows within which data says what is read or written.
    turned: loads, and places of stores, that go through transposed tiles.
    branches: masked regions that vectors without lanes in them skip.
    limits, chunks, copies: how loops over reduced dims are cut and unrolled.
    called: ops whose C++ function is called, where those of others are inlined.
    unordered: loops along the lane, by number, whose lanes lie in whatever order.
    heads: places of what is streamed in rows that begin within a line: lanes up to it run before.
    rows: so many are reduced at once, of the last dim that threads divide, as long as there are;
    parts of a row where they divide that.
    """

    plan: KernelPlan
    space: Space
    form: Form
    lanes: int
    work: Expr
    block: tuple[int, ...] = ()
    divided: Expr | None = None
    unit: int = 1
    reductions: tuple[Reduce, ...] = ()
    passes: tuple[Pass, ...] = ()
    totals: tuple[tuple[int, int], ...] = ()
    late: bool = False
    kept: tuple[Node, ...] = ()
    cuts: tuple[int, ...] = ()
    streamed: tuple[int, ...] = ()
    past: Expr = const(0)
    ahead: int = 0
    fetches: tuple[Fetch, ...] = ()
    turned: tuple[Node, ...] = ()
    turned_stores: tuple[int, ...] = ()
    branches: tuple[Node, ...] = ()
    limits: tuple[Limit, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    copies: tuple[Copies, ...] = ()
    called: tuple[str, ...] = ()
    tile: tuple[int, ...] = ()
    unordered: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    rows: int = 1

    @property
    def shared(self) -> tuple[Node, ...]:
        """Values kept in columns that are the same in several rows; the others are a point's."""
        if self.form != "columns":
            return ()
        return tuple(n for n in self.kept if not {*self.space.reduced} <= set(n.vars))


@dataclass(frozen=True, slots=True)
class LaneRecipe:
    """How a plan runs: kernels in order, and the memory between them.

    grain: work that is worth a thread, in additions: some microseconds, as ATen's 32,768 elements
    of a sum of two are.
    """

    plan: KernelPlan
    kernels: tuple[LanePlan, ...]
    temporaries: tuple[Temporary, ...] = ()
    grain: int = 1 << 18

    @property
    def text(self) -> str:
        return recipe_text(self, "lanes")
