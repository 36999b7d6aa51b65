"""How much of each parameter's memory a kernel may touch."""

from __future__ import annotations

from litz.index import Expr, const
from litz.ir.body import Load, Masked, loads, walk
from litz.kernel.blocks.reach import index_ints
from litz.kernel.blocks.recipe import BlockRecipe
from litz.kernel.nodes import extent, int_value


def extents(recipe: BlockRecipe) -> tuple[int | None, ...] | None:
    """Bytes of each parameter's memory, of each temporary, then None for each integer.

    None for a parameter whose places data or conditions decide, or that is a value; None for the
    kernel if it cannot be run on copies of what it writes, or its sizes are open, or there is
    nothing to run.
    """
    plan = recipe.plan
    if any(extent(d.var) is const(0) for d in plan.dims):
        return None
    if index_ints(plan) or any(s.mode != "set" or s.indirect for s in plan.stores):
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
    out: list[int | None] = []
    for p in plan.params:
        ends = [e.hi for e in places[p.name]]
        if p.name in data or any(e is None for e in ends):
            if p.mode != "in":
                return None
            out.append(None)
        else:
            out.append(p.dtype.bytes * (1 + max((e for e in ends if e is not None), default=0)))
    temporaries = (int_value(t.size) * t.dtype.bytes for t in recipe.temporaries)
    return (*out, *temporaries, *(None for _ in plan.ints))
