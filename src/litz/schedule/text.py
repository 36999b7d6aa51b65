"""The text form of a schedule."""

from __future__ import annotations

from litz.ir.body import stores_lines
from litz.ir.text import ValuePrinter, axes_text, node_lines
from litz.schedule.groups import Group, Schedule, Step, Transfer


def schedule_text(s: Schedule, reasons: bool = False) -> str:
    """One block a step, in order, then the horizontal groups.

    reasons: behind them, why groups that share memory stay apart.
    """
    values = ValuePrinter(s.program.buffers, s.program.constants)
    steps = ["\n".join(step_lines(step, values)) for step in s.steps]
    apart = (f"# {a} and {b} stay apart: {why}" for a, b, why in s.refused if reasons)
    launches = (f"horizontal ({', '.join(x.groups)}) because {x.reason}" for x in s.horizontal)
    return "\n".join((*steps, *launches, *map(transfer_text, s.transfers), *apart))


def transfer_text(t: Transfer) -> str:
    times = f"{1e6 * t.idle:.1f} -> {1e6 * t.left:.1f} us idle of {1e6 * t.seconds:.1f}"
    return f"transfer {t.name}: {t.bytes} bytes, {times}"


def step_lines(step: Step, values: ValuePrinter) -> list[str]:
    return group_lines(step) if isinstance(step, Group) else node_lines(step, values)


def group_lines(g: Group) -> list[str]:
    head = f"{g.name} = group [{axes_text(g.axes)}]"
    if g.reduce_axes:
        head += f" reduce [{axes_text(g.reduce_axes)}]"
    body = [f"  {line}" for line in stores_lines(g.stores)]
    return [f"{head} of ({', '.join(g.nodes)}) {{", *body, "}"]
