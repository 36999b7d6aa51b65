"""How much of each parameter's memory a kernel may touch."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, const, max_
from litz.ir.body import Load, Masked, loads, walk
from litz.kernel.blocks.reach import highest
from litz.kernel.nodes import extent
from litz.kernel.phases import Temporary
from litz.kernel.plan import KernelPlan


def extents(plan: KernelPlan, temporaries: Sequence[Temporary]) -> tuple[Expr | None, ...] | None:
    """Bytes of each parameter's memory, of each temporary, then None for each integer.

    In terms of the plan's integers; wrong where one of its dims has no point.
    None for a parameter whose places data or conditions decide, or that is a value; None for the
    kernel if it cannot be run on copies of what it writes, or there is nothing to run.
    """
    if any(extent(d.var) is const(0) for d in plan.dims):
        return None
    if any(s.mode != "set" or s.indirect for s in plan.stores):
        return None
    places: dict[str, list[Expr]] = {p.name: [] for p in plan.params}
    data: set[str] = {p.name for p in plan.params if p.by_value}
    for n in walk(r for s in plan.stores for r in s.roots()):
        if isinstance(n, Load):
            places[n.buffer].append(n.index)
            if n.indirect:
                data.add(n.buffer)
        elif isinstance(n, Masked):  # where it does not hold, an index may lie beyond the memory
            data.update(x.buffer for x in loads((n.args[1],)))
    for s in plan.stores:
        places[s.buffer].append(s.index)
        if s.mask is not None:
            data.add(s.buffer)
    out: list[Expr | None] = []
    for p in plan.params:
        ends = [_end(e, plan) for e in places[p.name]]
        if p.name in data or None in ends:
            if p.mode != "in":
                return None
            out.append(None)
        else:
            known = [e for e in ends if e is not None]
            out.append(p.dtype.bytes * (1 + max_(const(0), *known)))
    return (*out, *(t.size * t.dtype.bytes for t in temporaries), *(None for _ in plan.ints))


def _end(e: Expr, plan: KernelPlan) -> Expr | None:
    """The highest value of an index."""
    known = [e, *(extent(d.var) for d in plan.dims if d.var in e.free)]
    if any(v in plan.ints for x in known for v in x.free):
        return highest(e, plan.ints)
    return None if e.hi is None else const(e.hi)
