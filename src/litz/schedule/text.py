"""The text form of a schedule."""

from __future__ import annotations

from litz.ir.body import stores_lines
from litz.ir.text import Values, axes_text, node_lines
from litz.schedule.groups import Group, Schedule


def schedule_text(s: Schedule, reasons: bool = False) -> str:
    """One block a step, in order; reasons: behind them, why groups that share memory stay apart."""
    values = Values(s.program.buffers, s.program.constants)
    steps = [
        group_text(step) if isinstance(step, Group) else "\n".join(node_lines(step, values))
        for step in s.steps
    ]
    apart = (f"# {a} and {b} stay apart: {why}" for a, b, why in s.refused if reasons)
    return "\n".join((*steps, *apart))


def group_text(g: Group) -> str:
    head = f"{g.name} = group [{axes_text(g.axes)}]"
    if g.reduce_axes:
        head += f" reduce [{axes_text(g.reduce_axes)}]"
    body = [f"  {line}" for line in stores_lines(g.stores)]
    return "\n".join([f"{head} of ({', '.join(g.nodes)}) {{", *body, "}"])
