"""The launcher of a kernel: a Python function from addresses and sizes to launches.

Text, specialised for one configuration: grids are arithmetic on sizes, or numbers where those are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from litz.index import PYTHON, Expr, ceildiv, const, render, symbol
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.blocks.recipe import Config
from litz.targets.triton.source import Launch, Table, TritonKernel

NEVER = (1 << 31) - 1  # a program that no launch has


def print_launcher(kernel: TritonKernel, configs: Sequence[Config]) -> str:
    """A module with ``call(*kernel.params, *kernel.ints)``.

    configs: one for each launch.  The module's globals supply ``launch_0``, ... (called with the
    three sizes of the grid, then addresses and integers), ``launch_0_narrow``, ... where there are
    such.
    """
    lines = [f"def call({', '.join([*(p.name for p in kernel.params), *map(str, kernel.ints)])}):"]
    for i, (launch, config) in enumerate(zip(kernel.launches, configs, strict=True)):
        lines += [f"    {line}" for line in _either(launch, config, f"launch_{i}")]
    if len(lines) == 1:
        lines.append("    pass")
    return "\n".join(lines) + "\n"


def forms(kernel: TritonKernel, configs: Sequence[Config]) -> Iterator[tuple[str, Launch, Config]]:
    """What the module's globals supply: names, launches, and the configurations of these."""
    for i, (launch, config) in enumerate(zip(kernel.launches, configs, strict=True)):
        yield f"launch_{i}", launch, config
        if launch.narrow is not None:
            yield f"launch_{i}_narrow", launch.narrow, config


def bind(
    kernel: TritonKernel,
    configs: Sequence[Config],
    launcher: Callable[[Launch, Config], Callable[..., None]],
) -> Callable[..., None]:
    """The module's ``call``.  launcher: what a launch calls, with the grid first."""
    scope: dict[str, Any] = {n: launcher(x, c) for n, x, c in forms(kernel, configs)}
    exec(compile(print_launcher(kernel, configs), "<litz launcher>", "exec"), scope)
    call: Callable[..., None] = scope["call"]
    return call


def _either(launch: Launch, config: Config, name: str) -> list[str]:
    """A launch, in 32 bits where that serves (``<name>_narrow``)."""
    wide = _launch(launch, config, name)
    if launch.narrow is None:
        return wide
    fits = " and ".join(f"{render(e, PYTHON)} < {LIMIT}" for e in launch.reaches)
    narrow = _launch(launch.narrow, config, f"{name}_narrow")
    indent = "    {}".format
    return [f"if {fits}:", *map(indent, narrow), "else:", *map(indent, wide)]


def _launch(launch: Launch, config: Config, name: str) -> list[str]:
    if launch.table is not None:
        return _table(launch.table, name)
    counts = grid(launch, config)
    sizes = [render(c, PYTHON) for c in counts] + ["1"] * (3 - len(counts))
    args = [p.name for p in launch.pointers] + [v.name for v in launch.scalars]
    args += map(str, launch.ints)
    call = f"{name}({', '.join([*sizes, *args])})"
    open_sizes = [s for c, s in zip(counts, sizes, strict=False) if not c.is_const]
    if not open_sizes:
        return [call]
    return [f"if {' and '.join(f'({s}) > 0' for s in open_sizes)}:", f"    {call}"]


def grid(launch: Launch, config: Config) -> list[Expr]:
    """How many programs a launch has along each axis, x first."""
    counts = [ceildiv(size, config.block(axis)) for axis, size in launch.grid]
    if launch.flat:
        flat = counts[0]
        for c in counts[1:]:
            flat = flat * c
        counts = [flat]
    return counts


def _table(table: Table, name: str) -> list[str]:
    """A launch of several calls: the first program of each is the number of those before it."""
    lines: list[str] = []
    args: list[str] = []
    start: Expr = const(0)  # a number, or a name behind the first size that is open
    for c in table.columns:
        starts = []
        for row in c.rows:
            starts.append(render(start, PYTHON))
            start = start + row.programs
            if not start.is_const:
                lines.append(f"e{len(lines)} = {render(start, PYTHON)}")
                start = symbol(f"e{len(lines) - 1}")
        rest = c.room - len(c.rows)
        args += [*starts, *[str(NEVER)] * rest]
        cells = [(*r.names, *(render(e, PYTHON) for e in r.ints)) for r in c.rows]
        for values in zip(*cells, strict=True):
            args += [*values, *["0"] * rest]
    call = f"{name}({render(start, PYTHON)}, 1, 1, {', '.join(args)})"
    if start.is_const:
        return [call]
    return [*lines, f"if {render(start, PYTHON)} > 0:", f"    {call}"]
