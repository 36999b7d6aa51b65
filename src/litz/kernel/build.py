"""From a fused group to a KernelPlan: one normalised iteration space with canonical names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from litz.dataclass import dataclass
from litz.index import Const as IndexConst
from litz.index import Expr, Substitution, Sum, Symbol, const, symbol, var
from litz.ir import body
from litz.ir.body import Const, Index, Load, Node, Op, Reduce, Rewriter, Store, op
from litz.ir.dtype import F32, F64
from litz.ir.ops import RANDOM
from litz.ir.program import Buffer, Skeleton, Template
from litz.ir.scans import run_along, scans_of
from litz.ir.skeletons import GROWING
from litz.ir.unfold import Nest
from litz.kernel.guards import lifted, unguarded
from litz.kernel.merge import merge_loops
from litz.kernel.plan import Dim, KernelPlan, Mode, Param
from litz.kernel.tiling import (
    ANY_STRIDE,
    DIVIDED,
    ENDS,
    EXTREMES,
    PLACES,
    accesses_of,
    across,
    beside,
    best_score,
    choose_tiling,
    filled,
    loop_order,
)
from litz.kernel.unfold import halves_apart, unfold_where_better
from litz.kernel.weave import woven
from litz.schedule.groups import Group


@dataclass(frozen=True)
class BoundKernel:
    """A plan and what its parameters stand for: program buffers, and integers of the program."""

    plan: KernelPlan
    buffers: tuple[str, ...]
    ints: tuple[Expr, ...]


class KernelBuilder:
    """Builds the kernels of one program; groups that differ in their buffers' names share work."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self.buffers = buffers
        self.known: dict[object, BoundKernel] = {}

    def __call__(self, group: Group | Template) -> BoundKernel:
        if isinstance(group, Template):
            nest = (group.axes, group.reduce_axes, group.stores)
            if not group.skeleton.slots and group.skeleton.kind in GROWING:
                nest = merge_loops(*nest)
            return _canonical(*nest, None, None, self.buffers, group.device, group.skeleton)
        names: dict[str, str] = {}
        for n in _nodes(group.stores):
            if isinstance(n, Load):
                names.setdefault(n.buffer, f"a{len(names)}")
        for s in group.stores:
            names.setdefault(s.buffer, f"a{len(names)}")
        starts: dict[int, Expr] = {}
        rename = Rewriter(buffers=names, replace=lambda _, n: _started(scaled(n), starts))
        stores = tuple(rename.store(s) for s in group.stores)
        own = [self.buffers[n] for n in names]
        alike = dict(zip(names.values(), own, strict=True))
        stores = unguarded(stores, alike)
        if group.device != "cpu":
            stores = lifted(stores, alike)
        kinds = tuple((b.dtype, b.device) for b in own)
        key = group.axes, group.reduce_axes, stores, kinds, group.device
        found = self.known.get(key)
        if found is None:
            found = build_kernel(replace(group, stores=stores), alike)
            self.known[key] = found
        back = {new: old for old, new in names.items()}
        given: dict[Expr, Expr] = {e: const(start) for start, e in starts.items()}
        ints = tuple(given.get(e, e) for e in found.ints)
        return replace(found, buffers=tuple(back[n] for n in found.buffers), ints=ints)


def _started(n: Node, starts: dict[int, Expr]) -> Node:
    """A draw whose place in the stream is an argument: calls that differ in it are one kernel."""
    if not isinstance(n, Op) or n.name not in RANDOM:
        return n
    seed, at, *limits = n.args
    e, start = drawn_at(at)
    first = starts.setdefault(start, symbol(f"start{len(starts)}", 0, (1 << 63) - 1, 0))
    return op(n.name, seed, op("add", body.index(e - start), body.index(first)), *limits)


def drawn_at(at: Node) -> tuple[Expr, int]:
    """The position of a draw in the stream, and where its operator begins: the constant in it.

    What a view adds to that is left out but for multiples of four, so that it is one itself.
    """
    assert isinstance(at, Index | Const)
    e = at.expr if isinstance(at, Index) else const(int(at.value))
    start = int(e) if isinstance(e, IndexConst) else e.const if isinstance(e, Sum) else 0
    return e, start - start % 4


def in_blocks(device: str) -> bool:
    """Whether kernels there run as programs over blocks, whose accesses together are whole."""
    return device != "cpu"


def scaled(n: Node) -> Node:
    """A product in place of a quotient by a power of two: the same bits for a tenth of the time."""
    if not isinstance(n, Op) or n.name != "div" or not isinstance(n.args[1], Const):
        return n
    by = float(n.args[1].value)
    part, power = math.frexp(by)
    most = {F32: 126, F64: 1022}.get(n.dtype, -1)  # beyond which the other is subnormal
    if abs(part) != 0.5 or abs(power - 1) > most:
        return n
    return op("mul", n.args[0], body.const(n.dtype, 1 / by))


def build_kernel(group: Group, buffers: Mapping[str, Buffer]) -> BoundKernel:
    """Merge and order the loops of ``group``, choose its lanes, and name everything canonically."""

    def contiguous(nest: Nest) -> float:
        axes, reduced, stores = merge_loops(*nest)
        return best_score((*axes, *reduced), accesses_of(stores, sizes), divided)

    sizes = {name: b.dtype.bytes for name, b in buffers.items()}
    nest = (group.axes, group.reduce_axes, group.stores)
    divided = ANY_STRIDE
    if not in_blocks(group.device):  # where lanes may be any, each has a branch of its own
        nest, divided = halves_apart(nest), DIVIDED
    axes, reduced, stores = merge_loops(*unfold_where_better(nest, contiguous))
    if not run_along(stores, reduced):
        raise ValueError("a scan has to run along the one reduced loop of its kernel")
    accesses = accesses_of(stores, sizes)
    tiling = choose_tiling(axes, reduced, accesses)
    if in_blocks(group.device) and reduced:
        tiling = across(tiling, reduced, accesses)
    elif in_blocks(group.device):
        tiling, stores = woven(filled(tiling, accesses), stores)
    rows = [n.row for n in _nodes(stores) if isinstance(n, Reduce)]
    positional = any(row.positional for row in rows)
    if not in_blocks(group.device) and not scans_of(stores):
        extreme = any(row.op in ("maximum", "minimum") for row in rows)
        longest = PLACES if positional else EXTREMES if extreme else ENDS
        tiling = beside(tiling, reduced, accesses, longest)
    lane, tile = tiling.lane, tiling.tile
    r_order = (
        _argument_order(stores, reduced) if positional else loop_order(reduced, accesses, lane)
    )
    return _canonical(tiling.parallel, r_order, stores, lane, tile, buffers, group.device)


def _nodes(stores: tuple[Store, ...]) -> list[Node]:
    return list(body.walk(r for s in stores for r in s.roots()))


def _argument_order(stores: tuple[Store, ...], reduced: tuple[Expr, ...]) -> tuple[Expr, ...]:
    for n in _nodes(stores):
        if isinstance(n, Reduce) and n.row.positional:
            return (*n.axes, *(r for r in reduced if r not in n.axes))
    return reduced


# --- names ---


def _canonical(
    p_axes: tuple[Expr, ...],
    r_axes: tuple[Expr, ...],
    stores: tuple[Store, ...],
    lane: Expr | None,
    tile: Expr | None,
    buffers: Mapping[str, Buffer],
    device: str,
    skeleton: Skeleton | None = None,
) -> BoundKernel:
    slots = () if skeleton is None else skeleton.slots
    nodes = list(body.walk((*(r for s in stores for r in s.roots()), *slots)))
    sizes: dict[Expr, Expr] = {}
    indirect: dict[Expr, Expr] = {}

    def note(e: Expr) -> None:
        for leaf in e.free:
            if isinstance(leaf, Symbol) and leaf not in sizes and leaf not in indirect:
                sizes[leaf] = symbol(f"s{len(sizes)}", leaf.lo, leaf.hi, leaf.hint)

    loads = [n for n in nodes if isinstance(n, Load)]
    named = [s for n in loads for s, _ in n.indirect] + [s for x in stores for s, _ in x.indirect]
    for s in named:
        indirect.setdefault(s, symbol(f"t{len(indirect)}", s.lo, s.hi, s.hint))  # type: ignore[attr-defined]
    for v in (*p_axes, *r_axes):
        note(v.extent)  # type: ignore[attr-defined]
    names: dict[str, str] = {}
    for n in nodes:
        if isinstance(n, Load):
            names.setdefault(n.buffer, f"b{len(names)}")
            note(n.index)
        elif isinstance(n, Index):
            note(n.expr)
    for st in stores:
        names.setdefault(st.buffer, f"b{len(names)}")
        note(st.index)
    shrink = Substitution(dict(sizes))
    renamed: dict[Expr, Expr] = {**sizes, **indirect}
    for prefix, loops in (("x", p_axes), ("r", r_axes)):
        for k, v in enumerate(loops):
            renamed[v] = var(f"{prefix}{k}", shrink(v.extent))  # type: ignore[attr-defined]
    rw = Rewriter(Substitution(renamed), buffers=names)
    new_stores = tuple(rw.store(s) for s in stores)
    if skeleton is not None:
        skeleton = replace(skeleton, slots=tuple(rw(n) for n in slots))
    written = {s.buffer for s in stores}
    read = {n.buffer for n in loads} | {s.buffer for s in stores if s.updates}

    def param(old: str, new: str) -> Param:
        b = buffers[old]
        mode: Mode = "in" if old not in written else "inout" if old in read else "out"
        return Param(new, b.dtype, mode, b.device == "cpu" and device != "cpu")

    params = tuple(param(old, new) for old, new in names.items())
    dims = (
        *(Dim(renamed[v], "p") for v in p_axes),
        *(Dim(renamed[v], "r") for v in r_axes),
    )
    plan = KernelPlan(
        dims,
        params,
        tuple(sizes.values()),
        new_stores,
        None if lane is None else renamed[lane],
        None if tile is None else renamed[tile],
        skeleton,
    )
    return BoundKernel(plan, tuple(names), tuple(sizes))
