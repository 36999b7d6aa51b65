"""The text form of a kernel plan."""

from __future__ import annotations

from litz.ir.body import stores_lines
from litz.ir.text import axes_text
from litz.kernel.plan import KernelPlan


def plan_text(p: KernelPlan) -> str:
    params = ", ".join(f"{x.name}: {x.mode} {x.dtype}" for x in p.params)
    head = f"kernel ({params}) for [{axes_text(p.parallel)}]"
    if p.reduced:
        head += f" reduce [{axes_text(p.reduced)}]"
    if p.ints:
        head += f" ints [{', '.join(str(e) for e in p.ints)}]"
    head += f" lane {p.lane}" + (f" tile {p.tile}" if p.tile is not None else "")
    return "\n".join([head + " {", *(f"  {line}" for line in stores_lines(p.stores)), "}"])
