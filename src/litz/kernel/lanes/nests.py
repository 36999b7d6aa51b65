"""The loop nests of a plan in lanes: which reductions share one, and which stores run along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from litz.index import Expr, divides, product, size_hint
from litz.ir.body import Load, Masked, Node, Op, Reduce, Store, scans
from litz.kernel.lanes.access import access
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.reuse import ROOM, worth_keeping
from litz.kernel.lanes.space import NARROW, Space
from litz.kernel.nodes import (
    below,
    by_loops,
    extent,
    loaded,
    loops_of,
    readers_first,
    reads,
    reduce_levels,
    roots,
)
from litz.kernel.passes import Pass, along_passes, pairs, passes_of, reductions
from litz.kernel.values import Values

HELD = 1 << 20  # bytes of a block of columns, less than what a core has to itself


def passes(stores: Sequence[Store], space: Space, reduces: Sequence[Reduce]) -> tuple[Pass, ...]:
    """A nest for reductions of one level over the same dims, within the same loops.

    Mean and deviations of each value have their own.
    """
    levels = reduce_levels(roots(stores))
    rounds: dict[object, list[int]] = {}
    for i, n in enumerate(reduces):
        lanes = space.lane in n.vars
        key = levels[n], frozenset(n.axes), around(n, space), lanes, n.args if n.row.counts else ()
        rounds.setdefault(key, []).append(i)
    nodes = [[reduces[i] for i in some] for some in rounds.values()]
    masked = [n for n in levels if isinstance(n, Reduce) and n not in reduces]
    # Inside of another nest a reduction is done again and again, and its results do not last.
    every = frozenset(point(space)[-1:])
    lasting = {n for some in nodes for n in some if not _within(n, space)}
    first = next((i for i, some in enumerate(nodes) if some[0] not in lasting), len(nodes))
    alone = {some[0] for some in nodes[:first] if around(some[0], space) == every}

    def may(s: Store, n: Reduce) -> bool:
        same = set(loops_of(s, space.reduced)) == set(n.axes)
        return same and s.mode == "set" and not n.row.counts and n in alone

    full = stores_of_all(stores, space)
    rest = [masked] if masked else []
    along = along_passes(full, stores, [*nodes, *rest], levels, False, may)[: len(nodes)]
    left = [s for s in full if not any(s in some for some in along)]
    groups = [
        (tuple(some),) if reduces[some[0]].row.counts else tuple((i,) for i in some)
        for some in rounds.values()
    ]
    return passes_of(groups, along, in_order(left, space, lasting), stores)


def point(space: Space) -> tuple[Expr, ...]:
    """The parallel dims in the order of their loops."""
    parallel = (*space.units, *space.serial)
    last = () if space.lane in space.reduced or space.lane is None else (space.lane,)
    return (*(v for v in parallel if v is not space.lane), *last)


def _within(n: Node, space: Space) -> frozenset[Expr]:
    return frozenset(v for v in space.reduced if v in n.vars)


def around(n: Reduce, space: Space) -> frozenset[Expr]:
    """What says within which loops a reduction runs: reduced dims, else the last parallel one."""
    return _within(n, space) or frozenset([v for v in point(space) if v in n.vars][-1:])


def stores_of_all(stores: Sequence[Store], space: Space) -> list[Store]:
    """The stores of the full space."""
    return [s for s in stores if loops_of(s, space.reduced)]


def in_order(stores: Sequence[Store], space: Space, done: set[Reduce]) -> list[list[Store]]:
    """Stores of the full space by the dims that they run over; readers before what replaces.

    done: reductions that are known before.
    """
    groups = by_loops(stores, lambda s: loops_of(s, space.reduced))
    order = readers_first(list(groups.values()), done)
    if order is None:
        raise ValueError("stores over different dims overwrite each other's loads")
    return [list(some) for some in order]


def online(
    stores: Sequence[Store], space: Space, reduces: Sequence[Reduce], passes: Sequence[Pass]
) -> tuple[tuple[int, int], ...]:
    """A softmax's sum and its maximum, of long rows."""
    row = product(extent(v) for v in space.reduced)
    if len(reduces) != 2 or len(passes) > 3 or any(p.stores for p in passes[:2]):
        return ()
    if scans(reduces):
        return ()  # which begin with a row, not with a chunk of it
    if space.lane not in space.reduced or any(set(n.axes) != set(space.reduced) for n in reduces):
        return ()
    if size_hint(row, 0) * reduces[0].dtype.bytes <= ROOM:
        return ()
    axes = dict.fromkeys((*space.units, *space.serial), "x") | dict.fromkeys(space.reduced, "r")
    found = reductions(Values(axes), stores)
    return ((1, 0),) if pairs(found) and [v.node for v in found] == list(reduces) else ()


def replaces_late(stores: Sequence[Store], space: Space, passes: Sequence[Pass]) -> bool:
    """Whether a store that runs over no reduced dim replaces what the last passes still read."""
    read = loaded(roots(stores[i] for p in passes if not p.groups for i in p.stores))
    return any(s.buffer in read for s in stores if not loops_of(s, space.reduced))


def needs(p: Pass, stores: Sequence[Store], reduces: Sequence[Reduce]) -> list[Node]:
    """What a pass computes at each point."""
    return [*(reduces[i].args[0] for g in p.groups for i in g), *roots(stores[i] for i in p.stores)]


def block_values(
    stores: Sequence[Store],
    space: Space,
    reduces: Sequence[Reduce],
    passes: Sequence[Pass],
    lanes: int,
) -> tuple[Node, ...]:
    """What several passes over a block of columns need of each point, memory's first.

    The lines of a column lie apart, collide in the cache and come late: each is read once.
    """
    dims, lane = space.reduced, space.lane
    if lane is None or lane in dims or len(passes) < 2 or scans(roots(stores)):
        return ()
    if any(n.row.counts or set(n.axes) != set(dims) for n in reduces):
        return ()
    computed = [needs(p, stores, reduces) for p in passes]
    room = HELD // NARROW
    costly = worth_keeping(computed, dims, lane, lanes, room)
    loads = (n for n in below(costly) if isinstance(n, Load) and lane in n.vars)
    if not costly or not all(divides(LINE // n.dtype.bytes, extent(lane)) for n in loads):
        return ()  # loads alone are as soon read again, and all are where blocks share lines
    times = Counter(n for some in _computed(computed, costly) for n in some)
    every = {*dims, lane}
    found = [n for n, k in times.items() if k > 1 and isinstance(n, Load) and every <= set(n.vars)]
    kept = (*found, *costly)
    own = set(kept) - succeeding(kept, computed).keys()
    rows = size_hint(product(extent(v) for v in dims), room)
    return kept if rows * sum(n.dtype.bytes for n in own) <= room else costly


def succeeding(kept: Sequence[Node], computed: Sequence[Sequence[Node]]) -> dict[Node, Node]:
    """Kept values that may lie where a load was that no later pass reads: which load.

    computed: what passes compute at each point.
    """
    last: dict[Node, int] = {}
    found: dict[Node, Node] = {}
    for i, some in enumerate(_computed(computed, kept)):
        last |= dict.fromkeys(some, i)
    for n in (n for n in kept if not isinstance(n, Load)):
        first = next(i for i, some in enumerate(computed) if n in below(some))
        for m in below((n,)):
            free = m in kept and m not in found.values() and last.get(m) == first
            if isinstance(m, Load) and free and m.dtype is n.dtype:
                found[n] = m
                break
    return found


def _computed(
    computed: Sequence[Sequence[Node]], kept: Sequence[Node]
) -> Iterator[dict[Node, None]]:
    """The nodes of each pass, costly ones once."""
    known: set[Node] = set()
    for some in computed:
        of = below(some, known)
        yield of
        known |= {n for n in kept if n in of and not isinstance(n, Load)}


def lane_values(
    stores: Sequence[Store],
    space: Space,
    reduces: Sequence[Reduce],
    passes: Sequence[Pass],
    lanes: int,
) -> tuple[Node, ...]:
    """Values of the lanes of a block that are the same in several rows: computed before these.

    What is read from consecutive elements is as well read again.
    """
    lane = space.lane
    assert lane is not None
    found: dict[Node, None] = {}
    seen: set[tuple[Node, tuple[Expr, ...], bool]] = set()

    def walk_from(nodes: Sequence[Node], dims: tuple[Expr, ...]) -> None:
        """nodes: computed at each point of loops over ``dims``."""
        stack = [(n, dims, False) for n in reversed(nodes)]
        while stack:
            n, loops, guarded = top = stack.pop()
            if top in seen or isinstance(n, Reduce):
                continue
            seen.add(top)
            while loops and loops[-1] not in n.vars:
                loops = loops[:-1]
            if loops != top[1]:
                held = guarded and reads(n)
                if lane in n.vars and not held and _worth_keeping(n, lane, lanes):
                    found[n] = None
                elif lane in n.vars:
                    loops = top[1]
            for i, a in enumerate(n.args):
                stack.append((a, loops, guarded or (i == 1 and isinstance(n, Masked) and reads(a))))

    for p in passes:
        of = [reduces[i] for g in p.groups for i in g]
        if of and lane in of[0].vars:
            dims = {*_within(of[0], space), *of[0].axes}
            walk_from([n.args[0] for n in of], tuple(v for v in space.reduced if v in dims))
        for i in p.stores:
            walk_from(stores[i].roots(), loops_of(stores[i], space.reduced))
    return tuple(found)


def _worth_keeping(n: Node, lane: Expr, lanes: int) -> bool:
    if isinstance(n, Load):
        return access(n.index, lane, lanes).kind not in ("next", "same")
    return isinstance(n, (Op, Masked))
