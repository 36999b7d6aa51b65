"""Launchers of kernels as plans for the native executor: what ``print_launcher`` says in Python."""

from __future__ import annotations

from collections.abc import Sequence

from litz.host.words import Words
from litz.index import Expr, and_, as_expr, const, lt
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.blocks.recipe import Config
from litz.runtime.launchers import Form, Launcher
from litz.runtime.plan import NUMBER_OF
from litz.runtime.shipped import CELLS
from litz.targets.triton.launcher import NEVER, grid
from litz.targets.triton.signature import scalar_type
from litz.targets.triton.source import Launch, Table, TritonKernel

_CELL = {name: i for i, name in enumerate(CELLS)}
_VALUES = {"fp32": "f32", "fp64": "f64"}  # of scalars; the others are integers


def launcher_words(
    kernel: TritonKernel, configs: Sequence[Config]
) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """A launcher's instructions and registers.  configs: one for each launch."""
    printer = _Printer(kernel)
    for launch, config in zip(kernel.launches, configs, strict=True):
        printer.either(launch, config)
    printer.emit("end")
    return tuple(printer.words), tuple(printer.numbers)


def launcher_of(kernel: TritonKernel, configs: Sequence[Config], forms: Sequence[Form]) -> Launcher:
    """forms: of each launch, its narrow one behind it."""
    return Launcher(*launcher_words(kernel, configs), forms)


class _Printer(Words):
    def __init__(self, kernel: TritonKernel) -> None:
        super().__init__()
        self.at = {p.name: i for i, p in enumerate(kernel.params)}
        self.values = {p.name for p in kernel.params if p.by_value}
        self.ints = {str(e): self.register() for e in kernel.ints}
        self.forms = 0

    def symbol(self, name: str) -> int:
        return self.ints[name]

    def either(self, launch: Launch, config: Config) -> None:
        """A launch, in 32 bits where that serves."""
        wide = self.start(launch, config)
        if launch.narrow is None:
            self.words += wide
            return
        narrow = self.start(launch.narrow, config)
        fits = self.number(and_(*(lt(e, LIMIT) for e in launch.reaches)))
        jump = [NUMBER_OF["skip"], self.number(const(0)), len(wide)]
        self.emit("skip", fits, len(narrow) + len(jump))
        self.words += [*narrow, *jump, *wide]

    def start(self, launch: Launch, config: Config) -> list[int]:
        """The words that start a launch; what computes its numbers is written at once."""
        if launch.table is not None:
            sizes, cells = self.table(launch.table)
        else:
            sizes, cells = grid(launch, config), self.cells(launch)
        sizes += [const(1)] * (3 - len(sizes))
        where = [self.number(e) for e in sizes]
        self.forms += 1
        count = len(cells) // 2
        return [NUMBER_OF["start"], *where, self.forms - 1, count, *cells]

    def cells(self, launch: Launch) -> list[int]:
        out: list[int] = []
        for p in launch.pointers:
            out += [_CELL["pointer"], self.at[p.name]]
        for p in launch.scalars:
            out += [_CELL[_VALUES.get(scalar_type(p.dtype), "int")], self.at[p.name]]
        for e, kind in zip(launch.ints, launch.int_types, strict=True):
            out += [_CELL["small" if kind == "i32" else "number"], self.number(e)]
        return out

    def table(self, table: Table) -> tuple[list[Expr], list[int]]:
        """The size of a launch of several calls, and its cells."""
        out: list[int] = []
        start: Expr = const(0)
        for c in table.columns:
            rest = c.room - len(c.rows)
            for row in c.rows:
                out += self.plain(start)
                start = start + row.programs
            out += self.plain(as_expr(NEVER)) * rest
            for i, kind in enumerate(c.types):
                for row in c.rows:
                    name = row.names[i] if i < len(row.names) else None
                    out += (
                        self.cell(kind, name) if name else self.plain(row.ints[i - len(row.names)])
                    )
                out += self.plain(const(0)) * rest
        return [start], out

    def plain(self, e: Expr) -> list[int]:
        return [_CELL["plain"], self.number(e)]

    def cell(self, kind: str, name: str) -> list[int]:
        """An argument of a row that is a value, or a pointer, along which blocks run or not."""
        known = _VALUES.get(kind, "int")
        if name not in self.values:
            known = "pointer" if kind == "*" else "address"
        return [_CELL[known], self.at[name]]
