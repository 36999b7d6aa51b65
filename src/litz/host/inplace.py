"""Which outputs of a kernel may be written into the memory of one of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litz.host.sizes import byte_size
from litz.index import Expr, Var, as_expr, mixed_radix
from litz.ir.body import Load, Masked, Node, Reduce, Store, loads, walk
from litz.ir.program import Buffer
from litz.schedule.groups import Group

Pairs = tuple[tuple[str, str], ...]


def takeovers(
    groups: Iterable[Group],
    plans: Mapping[str, tuple[object, Sequence[str]]],
    buffers: Mapping[str, Buffer],
) -> dict[str, Pairs]:
    """``inplace_pairs`` of each group, by its name; groups of one plan share the answer.

    plans: of each group, by name: what stands for all that it computes, and its buffers in order.
    """
    known: dict[object, list[tuple[int, int]]] = {}
    found: dict[str, Pairs] = {}
    for g in groups:
        plan, names = plans[g.name]
        own = [buffers[name] for name in names]
        laid = ((b.dtype, b.shape, b.strides, b.device, b.kind, b.alias is None) for b in own)
        key = plan, *laid
        if (pairs := known.get(key)) is None:
            at = {name: i for i, name in enumerate(names)}
            pairs = known[key] = [(at[out], at[old]) for out, old in inplace_pairs(g, buffers)]
        found[g.name] = tuple((names[out], names[old]) for out, old in pairs)
    return found


def inplace_pairs(group: Group, buffers: Mapping[str, Buffer]) -> Pairs:
    """(output, input) pairs: the output may lie in the input's memory if the input dies here.

    Both are touched at one index expression only, by points of the iteration space that no two
    share, so that a point overwrites nothing that another still reads.  Within a point a kernel
    may load again after a store: it recomputes in each pass over a reduced axis.  Hence with
    reductions the output must be the only store of the full space, and every reduction that reads
    the input must be part of its value, so that it runs in an earlier pass.  What uses the input
    directly must be part of that value too, so that the store is the last to need it.  Nothing is
    read under a mask, whose loads a kernel places as it likes.
    """
    written = [s.buffer for s in group.stores]
    roots = [r for s in group.stores for r in s.roots()]
    nodes = list(walk(roots))
    reads: dict[str, list[Load]] = {}
    for n in nodes:
        if isinstance(n, Load):
            reads.setdefault(n.buffer, []).append(n)
    hidden = {n.buffer for m in nodes if isinstance(m, Masked) for n in loads((m,))}
    reductions = [n for n in nodes if isinstance(n, Reduce)]
    full = [s for s in group.stores if _depends(s, group.reduce_axes)]
    pairs = []
    for s in group.stores:
        b = buffers[s.buffer]
        if written.count(s.buffer) != 1 or s.buffer in reads or not _fills(s, group, b):
            continue
        if reductions and full != [s]:
            continue
        earlier = set(walk((s.value,)))
        late = {n.buffer for r in reductions if r not in earlier for n in loads((r,))}
        late |= _used_elsewhere(group, s, [n for n in nodes if n not in earlier])
        for name, found in reads.items():
            a = buffers[name]
            fits = a.kind in ("temp", "fresh") and name not in {*written, *hidden, *late}
            if fits and _same_memory(a, b) and all(_reads_at(n, s.index) for n in found):
                pairs.append((s.buffer, name))
    return tuple(pairs)


def _depends(s: Store, reduced: tuple[Expr, ...]) -> bool:
    return any(v in reduced for v in (*s.index.free, *s.value.vars))


def _fills(s: Store, group: Group, b: Buffer) -> bool:
    """Whether the store writes every element of a dense buffer exactly once."""
    if s.mode != "set" or s.mask is not None or s.indirect or b.kind != "temp":
        return False
    space = (*group.axes, *group.reduce_axes) if _depends(s, group.reduce_axes) else group.axes
    loops = [v for v in space if isinstance(v, Var) and v.extent is not as_expr(1)]
    if any(v not in s.index.free for v in loops):
        return False
    radix = mixed_radix(s.index, loops)
    if radix is None or not radix.dense or radix.offset is not as_expr(0):
        return False
    return radix.size * b.dtype.bytes is byte_size(b)


def _used_elsewhere(group: Group, s: Store, others: Iterable[Node]) -> set[str]:
    """Buffers that something uses directly besides the value of ``s``."""
    direct = [a for n in others for a in n.args]
    direct += [r for t in group.stores if t is not s for r in t.roots()]
    return {n.buffer for n in direct if isinstance(n, Load)}


def _same_memory(a: Buffer, b: Buffer) -> bool:
    return (
        a.dtype.bits == b.dtype.bits
        and a.device == b.device
        and a.alias is None
        and byte_size(a) is byte_size(b)
    )


def _reads_at(n: Node, index: Expr) -> bool:
    return isinstance(n, Load) and n.index is index and not n.indirect
