"""Two groups as one: their loops in one space, where that changes no result.

Every buffer that one of them writes both touch at one and the same index, or both do no more than
write parts of it that lie apart; updates run as often as before; what reduces runs before what it
reads is overwritten; scans stay along the one reduced loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Final

from litz.dataclass import dataclass
from litz.index import Expr, Var, substitution
from litz.ir import body
from litz.ir.body import Load, Node, Reduce, Rewriter, Store, loops_of
from litz.ir.masks import open_reduces
from litz.ir.program import Template
from litz.ir.scans import scans_of
from litz.ir.unfold import unfold
from litz.schedule.align import Alignment, Space
from litz.schedule.dependencies import lie_apart

Place = Callable[[Expr], Expr]
ELSEWHERE: Final = "one writes where the other does not touch the same element"
OFTEN: Final = "an update would run more often, or a reduction too late"
SCANS: Final = "a scan runs along the one reduced loop of its kernel"


@dataclass
class FusionGroup:
    """A group under construction.  template: whose skeleton runs it, where it came from one."""

    first: int
    last: int
    space: Space
    stores: tuple[Store, ...]
    device: str
    nodes: tuple[str, ...]
    origins: tuple[str, ...]
    template: Template | None = None
    loads: tuple[Load, ...] = ()
    size: int = 0
    reads: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    writes: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = list(body.walk(r for s in self.stores for r in s.roots()))
        self.size = len(nodes)
        self.loads = tuple(n for n in nodes if isinstance(n, Load))
        reads: dict[str, dict[Expr, None]] = {}
        for n in self.loads:
            reads.setdefault(n.buffer, {})[n.index] = None
        writes: dict[str, dict[Expr, None]] = {}
        for s in self.stores:
            writes.setdefault(s.buffer, {})[s.index] = None
        self.reads = {b: tuple(v) for b, v in reads.items()}
        self.writes = {b: tuple(v) for b, v in writes.items()}

    @property
    def accesses(self) -> int:
        """How many loads and stores it has."""
        return len(self.loads) + len(self.stores)

    def unfolded(self) -> FusionGroup:
        """The same with loops cut where its accesses cut them."""
        nest = (self.space.axes, self.space.reduce_axes, self.stores)
        axes, reduced, stores = unfold(nest)
        if stores is self.stores:
            return self
        return replace(self, space=Space(axes, reduced), stores=stores)

    def plain_store(self, buffer: str) -> Store | None:
        """The one unconditional store to ``buffer``, if that is all this group does to it."""
        found = [s for s in self.stores if s.buffer == buffer]
        if len(found) != 1:
            return None
        s = found[0]
        return s if s.mode == "set" and s.mask is None and not s.indirect else None


def _rewrite(
    stores: tuple[Store, ...], mapping: Mapping[Expr, Expr], values: Mapping[str, Node]
) -> tuple[Store, ...]:
    """``stores`` with variables replaced, and loads of the buffers in ``values``."""
    if not mapping and not values:
        return stores

    def forward(old: Node, new: Node) -> Node:
        return values.get(old.buffer, new) if isinstance(old, Load) else new

    rw = Rewriter(substitution(mapping) if mapping else None, forward if values else None)
    return tuple(rw.store(s) for s in stores)


def joined(a: FusionGroup, b: FusionGroup, space: Space, stores: tuple[Store, ...]) -> FusionGroup:
    return FusionGroup(
        min(a.first, b.first), max(a.last, b.last), space, stores, a.device,
        (*a.nodes, *b.nodes), tuple(dict.fromkeys((*a.origins, *b.origins))),
    )  # fmt: skip


def merge(
    a: FusionGroup, b: FusionGroup, how: Alignment, roots: Mapping[str, str], ordered: bool
) -> FusionGroup | str:
    """``a`` then ``b`` as one group under ``how``; the reason where that would change a result.

    ordered: whether one has to follow the other: else what both write are parts that lie apart.
    """
    if not (_scans_stay(a, b, how.left, how.space) and _scans_stay(b, a, how.right, how.space)):
        return SCANS
    if ordered and not _accesses_agree(a, b, how, roots):
        return ELSEWHERE
    left = _rewrite(a.stores, how.left, {})
    right = _rewrite(b.stores, how.right, {s.buffer: s.value for s in left if s.buffer in b.reads})
    # Only now: a forwarded value may not depend on the loops that its load did.
    if not (
        _updates_as_often(a, left, how.left, how.space)
        and _updates_as_often(b, right, how.right, how.space)
    ):
        return OFTEN
    overwritten = {(s.buffer, s.index) for s in right if ordered}
    kept = tuple(s for s in left if (s.buffer, s.index) not in overwritten)
    made = joined(a, b, how.space, (*kept, *right))
    return made if _reduced_in_time(made, roots) else OFTEN


def _scans_stay(
    g: FusionGroup, other: FusionGroup, mapping: Mapping[Expr, Expr], space: Space
) -> bool:
    """Whether the loop of a group's scans is the one reduced loop, along which nothing updates."""
    found = scans_of(g.stores)
    if found and any(s.mode != "set" for s in (*g.stores, *other.stores)):
        return False
    return all(space.reduce_axes == (mapping.get(n.axis, n.axis),) for n in found)


def _reduced_in_time(g: FusionGroup, roots: Mapping[str, str]) -> bool:
    """Whether reductions of what the group overwrites run before that: all but some below masks.

    Each store counts by itself, as another that needs a reduction may not stay in the end.
    """
    written = {roots[x] for x in g.writes}
    if written.isdisjoint(roots[x] for x in g.reads):
        return True
    for s in g.stores:
        known = set(open_reduces(s.roots()))
        below = body.walk(r for r in s.roots() if r.folds & body.REDUCES)
        late = (n for n in below if isinstance(n, Reduce) and n not in known)
        if any(roots[n.buffer] in written for n in body.loads(tuple(late))):
            return False
    return True


def _updates_as_often(
    g: FusionGroup, stores: tuple[Store, ...], mapping: Mapping[Expr, Expr], space: Space
) -> bool:
    """Whether sums and products in memory run over the same points in the fused ``space``.

    A loop that the other side reduces is none for an update that does not depend on it.
    """
    for old, new in zip(g.stores, stores, strict=True):
        if old.mode in ("add", "mul"):
            loops = (*g.space.axes, *loops_of(old, g.space.reduce_axes))
            now = {v for o in loops for v in mapping.get(o, o).free if isinstance(v, Var)}
            if now != {*space.axes, *loops_of(new, space.reduce_axes)}:
                return False
    return True


def _accesses_agree(
    a: FusionGroup, b: FusionGroup, how: Alignment, roots: Mapping[str, str]
) -> bool:
    """What one side writes, both touch at one and the same index, or they write parts of it."""
    left, right = substitution(how.left), substitution(how.right)
    for one, place, other, others_place in ((a, left, b, right), (b, right, a, left)):
        touched = {roots[x] for x in (*other.reads, *other.writes)}
        for x in one.writes:
            if roots[x] in touched and not _parts(one, other, x, roots):
                store = one.plain_store(x)
                if store is None or not _only_at(other, x, place(store.index), others_place, roots):
                    return False
    return True


def _parts(a: FusionGroup, b: FusionGroup, buffer: str, roots: Mapping[str, str]) -> bool:
    """Whether both sides only write memory, by one name, and never at the same place."""
    root = roots[buffer]
    if any(roots[x] == root for g in (a, b) for x in g.reads):
        return False
    stores = (s for g in (a, b) for s in g.stores if roots[s.buffer] == root)
    if any(s.buffer != buffer or s.indirect for s in stores):
        return False
    return all(lie_apart(i, j) for i in a.writes[buffer] for j in b.writes[buffer])


def _only_at(
    g: FusionGroup, buffer: str, index: Expr, place: Place, roots: Mapping[str, str]
) -> bool:
    root = roots[buffer]
    for name in (*g.reads, *g.writes):
        if roots[name] != root:
            continue
        if name != buffer:
            return False
        accesses = (*g.reads.get(name, ()), *g.writes.get(name, ()))
        if any(place(i) is not index for i in accesses):
            return False
        if any(n.indirect for n in g.loads if n.buffer == name):
            return False
        if name in g.writes and g.plain_store(name) is None:
            return False
    return True
