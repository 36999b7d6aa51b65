"""What the Triton target makes of a plan: kernels with their blocks, and how to launch them."""

from __future__ import annotations

from dataclasses import replace
from itertools import dropwhile

from litz.dataclass import dataclass
from litz.index import Expr
from litz.kernel.blocks.recipe import Config
from litz.kernel.plan import Param


@dataclass(frozen=True, slots=True)
class Row:
    """A call in a launch of several: how many programs it takes, and its arguments.

    names: of pointers, then of scalars; ints: integers of the call, or numbers.
    """

    programs: Expr
    names: tuple[str, ...]
    ints: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """The calls of one body in a launch of several; ``room``: for how many the table has rows.

    types: of a row's arguments, as they are packed: ``*`` for pointers that blocks run along.
    """

    rows: tuple[Row, ...]
    room: int
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The arguments of a launch of several calls, as cells of eight bytes.

    For each body: the first program of each row, then a cell a row for each argument.  Rows that no
    call has begin behind all programs.
    """

    columns: tuple[Column, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """How each cell is packed."""
        return tuple(t for c in self.columns for own in ("i64", *c.types) for t in [own] * c.room)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a plan.

    source: a Python module of one ``@triton.jit`` function ``name``; blocks are its constexprs.
    pointers, scalars, ints: its arguments in order.  grid: size of each parallel axis, x first,
    with the axis's name: the grid divides it by the block.  flat: all axes share the grid's first.
    configs: the first is the default.  checks: whether the kernel checks indices.  narrow: the same
    in 32 bits, right where every one of ``reaches`` is less than 2^31, with room for a block.
    table: of a launch that does several calls, all its arguments.  contract: a product and a sum
    may be rounded once.  asks_alignment: its constexpr ALIGNED says whether all addresses are
    multiples of 16 bytes.  leads, follows: its constexprs LEADS and FOLLOWS say whether what is
    behind it, or it itself, may begin before all of the launch in front has ended.
    """

    name: str
    source: str
    pointers: tuple[Param, ...]
    ints: tuple[Expr, ...]
    int_types: tuple[str, ...]
    grid: tuple[tuple[str, Expr], ...]
    configs: tuple[Config, ...]
    flat: bool = False
    checks: bool = False
    scalars: tuple[Param, ...] = ()
    narrow: Launch | None = None
    reaches: tuple[Expr, ...] = ()
    table: Table | None = None
    contract: bool = False
    asks_alignment: bool = False
    leads: bool = False
    follows: bool = False

    def constants(
        self, config: Config, aligned: bool, early: bool = False
    ) -> tuple[tuple[str, int], ...]:
        """The values of its constexprs, by their names.  early: whether launches may overlap."""
        asked = (
            ("ALIGNED", self.asks_alignment, aligned),
            ("LEADS", self.leads, early),
            ("FOLLOWS", self.follows, early),
        )
        return config.constants + tuple((name, value) for name, has, value in asked if has)

    def layout(self) -> str:
        """What distinguishes launches of one source: types, the grid, and blocks to choose from."""
        types = [p.dtype.name for p in self.pointers] + [a.dtype.name for a in self.scalars]
        types += self.int_types + (self.narrow.int_types if self.narrow is not None else ())
        grid = [f"{axis}={size}" for axis, size in self.grid]
        configs = [f"{c.blocks} {c.warps} {c.stages}" for c in self.configs]
        ends = [str(e) for e in self.reaches]
        return f"{types} {grid} {configs} {self.flat} {ends} {self.table} {self.contract}"

    @property
    def code(self) -> str:
        """The source without the comment at its head: equal code is built once."""
        lines = self.source.splitlines(keepends=True)
        return "".join(dropwhile(lambda line: line.startswith("#"), lines))

    def sources(self) -> tuple[str, ...]:
        """The sources of all its forms."""
        return (self.source,) if self.narrow is None else (self.source, self.narrow.source)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """All that a plan needs: what callers hand it, and launches in order.

    params: those of the plan, and behind them the memory between the launches.
    extents: bytes of each parameter's memory, in terms of ``ints``, where launches can be tried on
    copies of it; see ``litz.targets.triton.extents``.
    way: the name of how it reduces, empty where there is no choice; estimate: its seconds by the
    model, at least and at most.  others: kernels with the same signature (what they do not use has
    names of its own) that do the same in other ways, where the model cannot tell which is quicker.
    """

    params: tuple[Param, ...]
    ints: tuple[Expr, ...]
    launches: tuple[Launch, ...]
    extents: tuple[Expr | None, ...] | None = None
    way: str = ""
    estimate: tuple[float, float] = (0.0, 0.0)
    others: tuple[TritonKernel, ...] = ()

    @property
    def ways(self) -> tuple[TritonKernel, ...]:
        """It by itself, and the others."""
        return (replace(self, others=()) if self.others else self, *self.others)

    @property
    def all_launches(self) -> tuple[Launch, ...]:
        """Its launches, then those of the others."""
        return tuple(x for way in self.ways for x in way.launches)

    def sources(self) -> tuple[str, ...]:
        """The sources of all launches of all ways, in all their forms."""
        return tuple(source for x in self.all_launches for source in x.sources())
