"""The text form of a schedule."""

from __future__ import annotations

from litz.ir.text import extern_text, stores_text
from litz.schedule.groups import Group, Schedule


def schedule_text(s: Schedule) -> str:
    """One block a step, in order."""
    return "\n".join(
        group_text(step, s) if isinstance(step, Group) else extern_text(step) for step in s.steps
    )


def group_text(g: Group, s: Schedule) -> str:
    loops = ", ".join(f"{v} < {v.extent}" for v in g.axes)  # type: ignore[attr-defined]
    inner = ", ".join(f"{v} < {v.extent}" for v in g.reduce_axes)  # type: ignore[attr-defined]
    head = f"{g.name} [{loops}] reduce [{inner}] of ({', '.join(g.nodes)})"
    return head + " {\n" + stores_text(g.stores) + "\n}"
