"""The recipe of a plan in blocks: all that is chosen of how it runs, before it is spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from litz.dataclass import dataclass
from litz.index import Expr, product
from litz.ir.body import Node
from litz.kernel.nodes import extent, int_value
from litz.kernel.passes import Pass
from litz.kernel.phases import Temporary
from litz.kernel.plan import KernelPlan
from litz.kernel.text import recipe_text

Form = Literal[
    "once", "persistent", "passes", "crossed", "lookback", "nest", "serial",
    "attention", "gradient", "matmul",
]  # fmt: skip


GRID = 65535  # programs along the second and third axis of a grid


@dataclass(frozen=True, slots=True)
class Style:
    """What the user can choose of how kernels are written.

    widely: with many configurations to choose from.  block_pointers: rectangular accesses by block
    pointers.  contract: a product and a sum may be rounded once.  reduction: the way to reduce that
    is taken wherever it is possible (see ``litz.kernel.blocks.ways``).
    """

    widely: bool = False
    block_pointers: bool = False
    contract: bool = False
    reduction: str = ""


def block_name(axis: str) -> str:
    """The constexpr of a kernel that says how many elements of an axis a block has."""
    return f"{axis.upper()}BLOCK"


@dataclass(frozen=True, slots=True)
class Config:
    """blocks: elements of each axis in a block, by the axis's name; warps of 32 threads."""

    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int = 1

    def block(self, axis: str) -> int:
        """Elements of an axis in a block; 1 along axes that blocks do not span."""
        return dict(self.blocks).get(axis, 1)

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The values of a kernel's constexprs, by their names."""
        return tuple((block_name(axis), n) for axis, n in self.blocks)


@dataclass(frozen=True, slots=True)
class Axis:
    """A flat range over ``dims``, the last fastest."""

    name: str
    dims: tuple[Expr, ...]

    @property
    def size(self) -> Expr:
        return product(extent(v) for v in self.dims)

    @property
    def block(self) -> str:
        """The constexpr that holds its elements in a block."""
        return block_name(self.name)


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a plan: parallel ones from the outermost, and the reduced one."""

    parallel: tuple[Axis, ...]
    reduced: Axis | None

    @property
    def all(self) -> tuple[Axis, ...]:
        return (*self.parallel, self.reduced) if self.reduced is not None else self.parallel

    @property
    def of_dims(self) -> dict[Expr, str]:
        """The name of the axis that each dim is in."""
        return {v: a.name for a in self.all for v in a.dims}

    @property
    def blocked(self) -> tuple[Axis, ...]:
        """The axes of a block, in the order of its shape."""
        wide = tuple(a for a in self.parallel if a.name not in ("z", "t"))
        return (*wide, self.reduced) if self.reduced is not None else wide

    @property
    def turns(self) -> Axis | None:
        """The axis whose points a program goes through one after the other."""
        return next((a for a in self.parallel if a.name == "t"), None)

    def even(self, configs: Sequence[Config]) -> frozenset[str]:
        """The axes that every configuration's block divides."""
        most = {a.name: max(c.block(a.name) for c in configs) for a in self.blocked}
        sizes = {a.name: a.size for a in self.blocked if a.size.is_const}
        return frozenset(name for name, e in sizes.items() if int_value(e) % most[name] == 0)

    @property
    def flat(self) -> bool:
        """Whether the grid's second and third axis could be too long."""
        others = [a.size for a in self.parallel if a.name != "x"]
        return any(not e.is_const or int_value(e) > GRID for e in others)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A plan as one kernel over blocks.

    form: ``once``: nothing is reduced; ``persistent``: a block holds all of the reduced axis;
    ``passes``: loops of blocks along it; ``crossed``: a block holds all of it, and a loop goes
    over axis x (see ``litz.kernel.blocks.crossed``); ``nest``: a loop for every reduced dim;
    ``serial``: one program, a loop for every dim; ``lookback``, ``attention``, ``gradient``,
    ``matmul``: see the files of ``litz.kernel.blocks``.
    passes: over the reduced axis, in order; of a nest the loops of stores.  totals: sums of
    softmaxes and their maxima, by the numbers of the reductions (see
    ``litz.kernel.passes.reductions``); so many neighbours share a maximum.
    late: what a nest stores outside of its loops comes last, computed first.
    configs: blocks and warps to choose from, the default first.  even: axes whose size the blocks
    of all of them divide.  flat: the grid has one axis, from which the others are computed.
    rows: where rows begin that whole accesses do not divide, and elements of such an access; of a
    block that holds them whole, from such an access on.
    inside: blocks that lie inside of axis x run without masks, which keep accesses from being
    whole; the last one runs lines of its own.
    ahead: a turn of the loop over axis x loads what the next one needs.
    pairs: accesses of two neighbours are one (see ``litz.kernel.blocks.places``).
    at_once: turns of the loop over axis t that are under way at once.
    share: of a skeleton: the dim that counts shares of its loop.
    backward: blocks hold the reduced axis from its end, as rows of scans lie in memory.
    early: what a block comes to is reduced by itself, and left before the block is scanned.
    run: elements of a scanned column that a thread has one after the other: blocks hold columns in
    an order in which these come as far apart as other threads' lie between them.
    words: the parameter in which programs that look back leave what their blocks come to, in groups
    of so many.
    wide: indices need 64 bits, but where each of ``reaches``, if there are such, is below 2^31.
    unrolled: reduced dims of which a product is spelled for every value.
    beyond: elements that the grid has behind axis y: there is a block for the rest of each group of
    rows.
    parts_first: programs go down axis z before they go along x: what rows look up more than once is
    still in caches, where only parts of all rows are gone through at one time.
    together: blocks along axis y, of skeletons' loops z, that programs go through together, so that
    caches keep what they share (1: they follow each other along x).  downward: they begin with the
    last block along x.
    scale: of a product: what a factor is multiplied by that is one number a row or column in each
    block along the sum; it multiplies what a block adds up to instead.
    narrow: values that are rounded to 16 bits, for which there is a cheaper function; flushed:
    exponentials of which nobody can tell what is subnormal from zero.
    shared: random draws whose words four neighbours share, and the axis along which they are such
    (see ``litz.kernel.blocks.draws``).
    """

    plan: KernelPlan
    form: Form
    axes: Axes
    configs: tuple[Config, ...]
    even: frozenset[str]
    wide: bool
    flat: bool = False
    passes: tuple[Pass, ...] = ()
    totals: tuple[tuple[int, int], ...] = ()
    neighbours: int = 1
    late: bool = False
    rows: tuple[Expr, int] | None = None
    inside: bool = False
    pairs: bool = False
    ahead: bool = False
    at_once: int = 1
    reaches: tuple[Expr, ...] | None = None
    share: Expr | None = None
    words: tuple[str, int] | None = None
    backward: bool = False
    early: bool = False
    run: int = 1
    unrolled: tuple[Expr, ...] = ()
    beyond: int = 0
    parts_first: bool = False
    together: int = 1
    scale: Node | None = None
    downward: bool = False
    narrow: tuple[Node, ...] = ()
    flushed: tuple[Node, ...] = ()
    shared: tuple[tuple[Node, str], ...] = ()

    @property
    def persistent(self) -> bool:
        """Whether a block holds all of the reduced axis."""
        return self.form in ("persistent", "crossed")

    @property
    def heads_apart(self) -> bool:
        """Whether the first elements of odd rows come last: blocks begin at whole accesses."""
        return self.form == "passes" and self.rows is not None

    @property
    def gridded(self) -> tuple[Axis, ...]:
        """The axes of which programs take a block each, the outermost first."""
        parallel, reduced = self.axes.parallel, self.axes.reduced
        if self.form == "crossed":
            return parallel[:-1]
        parallel = tuple(a for a in parallel if a is not self.axes.turns)
        if self.parts_first:
            return parallel[::-1]
        return (reduced, *parallel) if self.form == "lookback" and reduced else parallel

    def reach(self, axis: Axis) -> Expr:
        """The elements of an axis that the grid's blocks are for."""
        return axis.size + self.beyond if axis.name == "y" else axis.size


@dataclass(frozen=True, slots=True)
class BlockRecipe:
    """How a plan runs: kernels in order, and the memory between them; none where no point is."""

    plan: KernelPlan
    kernels: tuple[BlockPlan, ...]
    temporaries: tuple[Temporary, ...] = ()
    style: Style = Style()

    @property
    def text(self) -> str:
        return recipe_text(self, "blocks")
