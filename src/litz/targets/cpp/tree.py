"""The loop tree: one kernel as typed statements, between a plan and its C++ text.

The builder says where everything happens; the printer spells it.
"""

from __future__ import annotations

from dataclasses import field

from litz.dataclass import dataclass
from litz.index import Expr, const
from litz.ir.body import Load, Node, Scan, Store
from litz.ir.dtype import I64, DType
from litz.ir.reductions import Reduction
from litz.kernel.lanes.access import Move
from litz.kernel.lanes.recipe import Fetch
from litz.kernel.plan import KernelPlan


@dataclass(frozen=True, slots=True)
class Ref:
    """A value in scope: its C++ spelling, type, and whether it holds all lanes.

    apart: whether they lie in whatever order (``litz.kernel.lanes.neighbours``).
    """

    text: str
    dtype: DType
    vec: bool = False
    apart: bool = False


@dataclass(slots=True, eq=False)
class Acc:
    """An accumulator.  ``copies`` independent registers hide the latency of its operation.

    vec: holds a value a lane; folded: its lanes are combined into one at the end, because the lane
    dim is reduced.  position: for a search, an iteration's linear position; places: its type.
    block: the lane dim whose block has a value a lane here, in an array; None: in registers.
    rows: iterations of a loop around that have copies of their own here, in turn.
    """

    name: str
    row: Reduction
    dtype: DType
    vec: bool = False
    folded: bool = False
    copies: int = 1
    position: Expr | None = None
    places: DType = I64
    block: Expr | None = None
    rows: int = 1

    def names(self, row: int = 0) -> list[str]:
        """The registers of one of the rows."""
        return [f"{self.name}_{c}" for c in range(self.copies)][row % self.rows :: self.rows]


class Stmt:
    """A statement; ``Printer`` has a method for each kind."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Let(Stmt):
    """``name = node(args)``; under ``mask`` loads happen only in lanes where it holds.

    form: of one whose lanes lie in whatever order (``litz.kernel.lanes.neighbours``).
    """

    name: str
    node: Node
    args: tuple[Ref, ...]
    vec: bool
    mask: Ref | None = None
    form: str = ""


@dataclass(slots=True, eq=False)
class Put(Stmt):
    """Store ``value``; ``mask`` joins the store's own with those around it.

    between: what is stored behind each lane, where every second element is one.
    """

    store: Store
    value: Ref
    indirect: tuple[Ref, ...] = ()
    mask: Ref | None = None
    stream: bool = False
    between: Ref | None = None


@dataclass(slots=True, eq=False)
class Ask(Stmt):
    """Ask for memory that is soon needed.  picked: the number of the next row."""

    fetch: Fetch
    picked: Ref | None = None


@dataclass(slots=True, eq=False)
class Branch(Stmt):
    """``name = cond ? then : other``, where ``body`` runs only if ``cond`` holds."""

    name: str
    dtype: DType
    vec: bool
    cond: Ref
    body: list[Stmt]
    then: Ref
    other: Ref


@dataclass(slots=True, eq=False)
class Clear(Stmt):
    """Give an accumulator the state of no elements."""

    acc: Acc


@dataclass(slots=True, eq=False)
class Update(Stmt):
    """Take ``value`` into an accumulator.  square: times itself."""

    acc: Acc
    value: Ref
    square: bool = False


@dataclass(slots=True, eq=False)
class Merge(Stmt):
    """Take an inner accumulator into an outer one of the same kind, folded if it is to be."""

    into: Acc
    acc: Acc


@dataclass(slots=True, eq=False)
class Rescale(Stmt):
    """Make ``acc``, a sum of exponentials below ``top``, one below it and ``part``."""

    acc: Acc
    top: Acc
    part: Ref


@dataclass(slots=True, eq=False)
class Finish(Stmt):
    """``name`` = what an accumulator holds, copies (and folded lanes) combined, as ``dtype``.

    part: which part of its state.
    """

    name: str
    acc: Acc
    dtype: DType
    part: str


@dataclass(slots=True, eq=False)
class MergeMoments(Stmt):
    """Take mean and squared deviations of ``terms`` values into an accumulator of such."""

    acc: Acc
    mean: Ref
    m2: Ref
    terms: Expr


@dataclass(slots=True, eq=False)
class Counted(Stmt):
    """``terms`` values have gone into every lane of an accumulator of means."""

    acc: Acc
    terms: Expr


@dataclass(slots=True, eq=False)
class For(Stmt):
    """A serial loop.  ``part``: its range is this thread's share (see ``Kernel.units``).

    step: more than 1 for a loop over chunks, whose end is ``stop``.
    together: so many iterations run in the ``Lanes`` that ends the body, before its next vector.
    ahead: how many iterations later what is fetched meanwhile is read; 0 for nothing.
    rows: iterations that ``beside`` does at once, as long as there are so many.
    """

    var: Expr
    stop: Expr
    body: list[Stmt]
    start: Expr | None = None
    step: int = 1
    part: bool = False
    together: int = 1
    ahead: int = 0
    rows: int = 1
    beside: list[Stmt] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Turns(Stmt):
    """``body`` ``count`` times, of ``var`` from what it is outside on, in steps of ``step``.

    rows: each has its own registers.
    """

    var: Expr
    count: int
    body: list[Stmt]
    step: int | Expr = 1
    rows: bool = False


@dataclass(slots=True, eq=False)
class Lanes(Stmt):
    """A vector loop over ``var``.

    exact: the range is a multiple of ``unroll`` vectors, so that there is no tail.
    between: C++ names of the bounds that an enclosing statement has set.
    ahead: a dim around it, for whose next iteration the memory that is read here is fetched.
    head: a store past the caches, of whole lines: what is before the first, and the rest, is apart.
    """

    var: Expr
    stop: Expr
    body: list[Stmt]
    start: Expr | None = None
    unroll: int = 1
    exact: bool = False
    between: tuple[str, str] | None = None
    ahead: Expr | None = None
    head: Store | None = None


@dataclass(slots=True, eq=False)
class Sums(Stmt):
    """A row of results along ``var``, ``count`` vectors at once: a loop over its updates.

    start: computes what there is first.  over: the variables that count updates, whose numbers lie
    in ``order`` from ``first_`` to ``last_``.  once: what one update computes once; body: what it
    computes of each vector, and ``value``, of these, which updates a vector by ``mode``.  last:
    what is done with the vector, ``sum_``.  ahead: what the next row's first update reads.
    """

    var: Expr
    stop: Expr
    over: tuple[Expr, ...]
    order: str
    start: list[Stmt]
    first: Ref
    once: list[Stmt]
    body: list[Stmt]
    value: Ref
    last: list[Stmt]
    mode: str
    count: int
    ahead: tuple[Load, ...] = ()
    between: tuple[str, str] | None = None


@dataclass(slots=True, eq=False)
class Blocks(Stmt):
    """Blocks of ``size`` lanes of ``var``: sets their bounds.  ranged: within a ``Range``."""

    var: Expr
    stop: Expr
    body: list[Stmt]
    size: int
    ranged: bool = False


@dataclass(slots=True, eq=False)
class Keep(Stmt):
    """Write ``value`` to the array ``array``, at its lanes' places in the block or at ``at``."""

    array: str
    value: Ref
    at: str | None = None


@dataclass(slots=True, eq=False)
class Hold(Stmt):
    """``name`` = ``value``, which later statements change.  ``ref`` says how and of what type."""

    ref: Ref
    value: Ref


@dataclass(slots=True, eq=False)
class Step(Stmt):
    """``out`` = the parts of a scan's state after ``values``; ``held`` is what it was before.

    how: ``lanes``: one lane after the other; ``each``: every lane has its own state.
    """

    scan: Scan
    out: tuple[Ref, ...]
    values: tuple[Ref, ...]
    held: tuple[Ref, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A transposed tile of ``buffer``; stride: elements from lane to lane."""

    array: str
    buffer: str
    index: Expr
    stride: Expr


@dataclass(slots=True, eq=False)
class Tiles(Stmt):
    """Tiles of a block: ``rows`` then ``body`` for every row ``down`` of lanes ``across``.

    exact: all tiles are whole.  down_first: they follow each other down the rows.
    move: what whole tiles are, where nothing is computed; room: an array for all of a block, past
    the caches then, and the elements of its rows.
    """

    down: Expr
    across: Expr
    rows: list[Stmt]
    body: list[Stmt]
    loads: list[Turn] = field(default_factory=list)
    stores: list[Turn] = field(default_factory=list)
    exact: bool = False
    down_first: bool = False
    move: Move | None = None
    room: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """Memory of one thread: ``size`` elements of ``dtype``."""

    name: str
    dtype: DType
    size: int | Expr


@dataclass(frozen=True, slots=True)
class Line(Stmt):
    """A statement of C++ as it is: a call of one of the header's functions, or what it takes.

    every: of the turns of an unrolled loop it is in each so many.
    """

    text: str
    every: int = 1


@dataclass(slots=True, eq=False)
class Range(Stmt):
    """This thread's share of the lane dim ``var``, in whole vectors: sets ``lo`` and ``hi``."""

    var: Expr
    stop: Expr
    body: list[Stmt]


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of every point in a thread's room, in cells of 8 bytes."""

    name: str
    dtype: DType


@dataclass(slots=True, eq=False)
class Combine(Stmt):
    """``name`` (and ``name`` q) = an accumulator's values at ``index``, of all threads' rooms."""

    name: str
    row: Reduction
    slots: tuple[Slot, ...]
    index: Expr
    vec: bool


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel: what runs for the units of work that a thread is given.

    units: the parallel dims that threads divide, outermost first; the lane dim among them counts
    in vectors.  grains: elements to a unit, where not one.  lanes: width of every vector.
    work: rough cost of a whole call, in additions.
    called: ops whose functions are called, not inlined.
    past: bytes of what goes past the caches where threads write enough each; 0: where they do not.
    before: what one thread does before all others, given the arguments.
    """

    plan: KernelPlan
    name: str
    lanes: int
    lane: Expr | None
    units: tuple[Expr, ...]
    body: list[Stmt] = field(default_factory=list)
    work: Expr | None = None
    checks: bool = False
    arrays: list[Array] = field(default_factory=list)
    grains: dict[Expr, int] = field(default_factory=dict)
    split: Split | None = None
    called: tuple[str, ...] = ()
    past: Expr = const(0)
    before: str = ""


@dataclass(frozen=True, slots=True)
class Split:
    """Threads divide the reduced dim ``by`` into ``units`` of ``size``; ``end`` runs after them.

    slots: what every thread leaves of each of the ``points`` of the parallel dims.
    """

    by: Expr
    size: int
    units: Expr
    slots: tuple[Slot, ...]
    points: Expr
    end: Kernel
