"""Fusion: groups grow greedily by the bytes that a merge keeps out of memory, legality first."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Final

from litz.dataclass import dataclass
from litz.index import Const, Expr, size_hint, substitution
from litz.ir import body, matmul, updates
from litz.ir.body import Reduce, is_even
from litz.ir.program import Extern, Loops, Program, Template
from litz.ir.scans import in_rows, scans_of
from litz.ir.skeletons import fault
from litz.schedule.align import Alignment, Space, alignments
from litz.schedule.crossed import AGAIN, Crossed, crossed, reduced_again, why_not
from litz.schedule.dependencies import Dependencies, dependencies
from litz.schedule.groups import bytes_hint
from litz.schedule.merge import ELSEWHERE, FusionGroup, joined, merge
from litz.schedule.templates import (
    APART,
    MANY,
    NO_PLACE,
    ONCE,
    READ,
    TWO,
    grows,
    is_factor,
    taken_in,
)

NEAR = 8  # elements: what lies so near shares most lines of memory
# Why two groups that touch one buffer stay apart.
DEVICES: Final = "they run on different devices"
LARGE: Final = "one kernel of both would be too large"
BETWEEN: Final = "another step runs between them"
BUFFERS: Final = "one kernel of both would touch too many buffers"
ACCESSES: Final = "one kernel of both would access memory at too many places"
LOOPS: Final = "their loops do not become one nest"
ROWS: Final = "few long rows are split over threads, which nothing can follow"
NOTHING: Final = "in common loops they touch nothing at the same place"
NESTED: Final = "loops within loops would run point by point"


@dataclass(frozen=True)
class FusionSettings:
    """Limits of fusion.

    max_params: buffers that one kernel may touch.  max_nodes: body nodes of one kernel.
    max_accesses: loads and stores of one kernel over blocks: Triton chooses their layouts in a time
    that grows with their square (a second for so many).
    max_distance: how far apart (in program order) two readers of a buffer are looked at.
    fuel: stop after this many merges (None: no limit); for bisecting a wrong result.
    min_rows, long_row: a full-space consumer stays out of a reduction with fewer rows than
    ``min_rows`` when a row is longer than ``long_row``, which would leave threads idle.
    blocks: the kinds of devices whose kernels run as many programs over blocks.
    """

    max_params: int = 40
    max_nodes: int = 800
    max_accesses: int = 160
    max_distance: int = 24
    fuel: int | None = None
    min_rows: int = 8
    long_row: int = 1 << 15
    blocks: tuple[str, ...] = ("cuda",)


class Fusion:
    """Greedy fusion over one program; ``run`` gives the groups in program order."""

    def __init__(self, program: Program, settings: FusionSettings) -> None:
        self.program = program
        self.settings = settings
        self.roots = {name: program.root(name) for name in program.buffers}
        self.bytes = {name: bytes_hint(b) for name, b in program.buffers.items()}
        self.single = {n for n, b in program.buffers.items() if self.bytes[n] == b.dtype.bytes}
        self.deps: Dependencies = dependencies(program, self.roots)
        self.groups: dict[int, FusionGroup] = {}
        self.owner: dict[int, int] = {}
        self.merges = 0
        self.refused: dict[tuple[int, ...], str] = {}
        for k, n in enumerate(program.nodes):
            self.owner[k] = k
            if isinstance(n, Loops) or (isinstance(n, Template) and grows(n)):
                axes, reduced, stores = in_rows(n.axes, n.reduce_axes, n.stores)
                self.groups[k] = FusionGroup(
                    k, k, Space(axes, reduced), stores, n.device, (n.name,), n.origins,
                    n if isinstance(n, Template) else None,
                )  # fmt: skip

    def run(self) -> list[FusionGroup | Extern | Template]:
        """Templates come first: they take in what was counted on when they were chosen.

        What lies between two products is computed once, behind the first.
        """
        if any(g.template is not None for g in self.groups.values()):
            for side in (0, 1):
                while self._round(True, side):
                    pass
        for vertical in (True, False):
            while self._round(vertical):
                pass
        return self._ordered()

    # --- candidates ---------------------------------------------------------------------------

    def _round(self, vertical: bool, side: int | None = None) -> bool:
        """side: which of a pair has to be a template."""
        merged = False
        for _, _, a, b in self._candidates(vertical):
            a, b = self._find(a), self._find(b)
            wanted = side is None or self.groups[(a, b)[side]].template is not None
            if a != b and wanted and self._try(a, b):
                merged = True
        return merged

    def _find(self, k: int) -> int:
        while self.owner[k] != k:
            k = self.owner[k]
        return k

    def _candidates(self, vertical: bool) -> list[tuple[int, int, int, int]]:
        """(-bytes shared, distance, earlier, later), best first."""
        touch: dict[str, tuple[list[int], list[int]]] = {}
        for k, g in self.groups.items():
            for x in g.writes:
                touch.setdefault(x, ([], []))[0].append(k)
            for x in g.reads:
                touch.setdefault(x, ([], []))[1].append(k)
        score: dict[tuple[int, int], int] = {}
        for x, (writers, readers) in touch.items():
            size = self.bytes[x]
            if vertical:
                pairs = [(w, r) for w in writers for r in readers if w != r]
            else:
                readers, writers = (
                    sorted(some, key=lambda k: self.groups[k].first) for some in (readers, writers)
                )
                if self.roots[x] in self.single:
                    # Loops that share no more had better share a launch: one that goes through the
                    # memory of all of them at once is slower.
                    spaces = {k: self.groups[k].space for k in readers}
                    readers = [k for k, s in spaces.items() if not (s.axes or s.reduce_axes)]
                pairs = [
                    (p, q) for n, p in enumerate(readers) for q in readers[n + 1 : n + 5] if p != q
                ]
                pairs += [(p, q) for p, q in pairwise(writers) if self._beside(x, p, q)]
            for p, q in pairs:
                key = (min(p, q), max(p, q))
                if self._pair(*key) not in self.refused:
                    score[key] = score.get(key, 0) + size
        out = []
        for (p, q), s in score.items():
            far = abs(self.groups[p].first - self.groups[q].first)
            if vertical or far <= self.settings.max_distance:
                out.append((-s, far, p, q))
        return sorted(out)

    def _beside(self, buffer: str, a: int, b: int) -> bool:
        """Whether two groups write parts of a buffer that lie side by side all along.

        Of single elements next to each other nothing is gained: kernels by themselves, of one
        source or of parts that share launches, serve better.
        """
        first, second = (self.groups[k].plain_store(buffer) for k in (a, b))
        if first is None or second is None or first.index.is_const:
            return False
        return _is_near(first.index, second.index)

    # --- one merge ----------------------------------------------------------------------------

    def _try(self, a: int, b: int) -> bool:
        if a not in self.groups or b not in self.groups or self._pair(a, b) in self.refused:
            return False
        if self.settings.fuel is not None and self.merges >= self.settings.fuel:
            return False
        if self.deps.before(b, a) or (not self.deps.before(a, b) and b < a):
            a, b = b, a
        merged = self._merged(a, b)
        if isinstance(merged, str):
            self.refused[self._pair(a, b)] = merged
            return False
        self.deps.merge(a, b)
        del self.groups[b]
        self.owner[b] = a
        self.groups[a] = merged
        self.merges += 1
        return True

    def _pair(self, a: int, b: int) -> tuple[int, ...]:
        """Two groups as they are now: another pair when one has grown."""
        return *(p := sorted((a, b))), *(len(self.groups[k].nodes) for k in p)

    def _merged(self, a: int, b: int) -> FusionGroup | str:
        first, second = self.groups[a], self.groups[b]
        if first.device != second.device:
            return DEVICES
        if first.size + second.size > self.settings.max_nodes:
            return LARGE
        if self.deps.path_between(a, b):
            return BETWEEN
        params = {*first.reads, *first.writes, *second.reads, *second.writes}
        if len(params) > self.settings.max_params:
            return BUFFERS
        if self._in_blocks(first) and first.accesses + second.accesses > self.settings.max_accesses:
            return ACCESSES
        if first.template is not None or second.template is not None:
            return self._with_template(a, b)
        return self._in_one_space(first, second)

    def _in_one_space(self, first: FusionGroup, second: FusionGroup) -> FusionGroup | str:
        merged = self._aligned(first, second)
        if isinstance(merged, str) and any(x in first.writes for x in second.reads):
            cut = first.unfolded(), second.unfolded()
            if cut[0] is not first or cut[1] is not second:
                merged = self._aligned(*cut)
        return merged

    def _with_template(self, a: int, b: int) -> FusionGroup | str:
        """What follows a product, or what its factors are computed from, as part of its kernel."""
        first, second = self.groups[a], self.groups[b]
        template = first.template or second.template
        assert template is not None
        if first.template is not None and second.template is not None:
            return TWO
        between = [x for x in second.reads if x in first.writes]
        if not between:
            return APART
        if second.template is not None and any(is_factor(x, second.stores) for x in between):
            merged = self._taken_in(a, b)
        else:
            merged = self._in_one_space(first, second)
        if isinstance(merged, str):
            return merged
        space = merged.space
        grown = replace(
            template, axes=space.axes, reduce_axes=space.reduce_axes, stores=merged.stores,
            origins=merged.origins, nodes=merged.nodes,
        )  # fmt: skip
        why = fault(grown)
        return f"{NO_PLACE}: {why}" if why else replace(merged, template=grown)

    def _taken_in(self, a: int, b: int) -> FusionGroup | str:
        """Template ``b`` that computes what group ``a`` stores where it reads that."""
        first, second = self.groups[a], self.groups[b]
        template = second.template
        assert template is not None
        if len(first.stores) > 1 or first.space.reduce_axes:
            return MANY
        (made,) = first.stores
        if first.plain_store(made.buffer) is None:
            return MANY
        if not self._is_between(made.buffer, a, b):
            return READ
        if {self.roots[x] for x in second.writes} & {self.roots[x] for x in first.reads}:
            return ELSEWHERE
        once = template.skeleton.kind == updates.KIND and updates.reads_once(template, made.buffer)
        if not once and (why := matmul.refused(made, self.program.buffers)):
            return why
        if self._is_reduced(a):
            return ONCE
        stores = taken_in(made, first.space.axes, second.stores)
        if isinstance(stores, str):
            return stores
        return joined(first, second, second.space, tuple(stores))

    def _is_reduced(self, a: int) -> bool:
        """Whether a group could be part of a kernel that reduces, whose results it reads."""
        read = {self.roots[x] for x in self.groups[a].reads}
        return any(
            g.template is None and g.space.reduce_axes and k != a
            and not read.isdisjoint(self.roots[x] for x in g.writes)
            and not isinstance(self._merged(k, a), str)
            for k, g in self.groups.items()
        )  # fmt: skip

    def _is_between(self, buffer: str, a: int, b: int) -> bool:
        """Whether group ``a`` alone writes a buffer and ``b`` alone reads it."""
        p, root = self.program, self.roots[buffer]
        shown = {self.roots[r.buffer] for r in p.output_refs()}
        if root != buffer or root in shown or p.buffers[buffer].kind != "temp":
            return False
        for k, n in enumerate(p.nodes):
            for names, group in ((n.write_buffers(), a), (n.read_buffers(), b)):
                if any(self.roots[x] == root for x in names) and self._find(k) != group:
                    return False
        return True

    def _aligned(self, first: FusionGroup, second: FusionGroup) -> FusionGroup | str:
        """Both in one iteration space, or why the last that was tried does not serve."""
        shared = [
            (i, j)
            for x in (*first.writes, *first.reads)
            for i in (*first.writes.get(x, ()), *first.reads.get(x, ()))
            for j in (*second.reads.get(x, ()), *second.writes.get(x, ()))
        ]
        why = LOOPS
        ordered = self.deps.before(self.number(first), self.number(second))
        blocks = self._in_blocks(first)
        for how in alignments(first.space, second.space, tuple(shared[:8]), blocks):
            merged = merge(first, second, how, self.roots, ordered)
            if isinstance(merged, str):
                why = merged
                continue
            nested = blocks and not is_even(merged.stores, merged.space.reduce_axes)
            both = crossed(merged.stores, merged.space.reduce_axes) if nested else None
            worth = both is not None or self._worth(first, second, how)
            if not (worth or self._in_parts(merged)):
                why = ROWS
            elif not (saved := self._saved(first, second, how)):
                why = NOTHING
            elif nested and (reason := self._nested(first, second, merged, both, saved)):
                why = reason
            else:
                return merged
        return why

    def _nested(
        self, a: FusionGroup, b: FusionGroup, merged: FusionGroup, both: Crossed | None, saved: int
    ) -> str:
        """Why no merge makes loops within loops, which one lane of a GPU runs point by point.

        both: rows and columns of one matrix, which programs reduce that go over rows.
        """
        known = [crossed(g.stores, g.space.reduce_axes) for g in (a, b)]
        if not any(known) and not all(is_even(g.stores, g.space.reduce_axes) for g in (a, b)):
            if not _again(merged) or _again(a) or _again(b):
                return ""
            return f"{NESTED}: {AGAIN}"
        left = sum(c.left for c in known if c is not None)
        why = why_not(both, merged.stores, saved, left)
        return f"{NESTED}: {why}" if why else ""

    def _in_blocks(self, g: FusionGroup) -> bool:
        return g.device.partition(":")[0] in self.settings.blocks

    def _in_parts(self, g: FusionGroup) -> bool:
        """Whether programs over blocks share rows of what reduces and goes on along them."""
        touched = ({self.roots[x] for x in names} for names in (g.reads, g.writes))
        return (
            self._in_blocks(g)
            and all(v.extent.is_const for v in g.space.reduce_axes)  # type: ignore[attr-defined]
            and is_even(g.stores, g.space.reduce_axes)
            and not any(s.mode != "set" or s.indirect for s in g.stores)
            and not scans_of(g.stores)
            and set.isdisjoint(*touched)
        )

    def _worth(self, a: FusionGroup, b: FusionGroup, how: Alignment) -> bool:
        """Whether the fused loops still feed the threads."""
        if not how.space.reduce_axes:
            return True
        rows, cols = (
            prod(size_hint(v.extent, default=64) for v in loops)  # type: ignore[attr-defined, misc]
            for loops in (how.space.axes, how.space.reduce_axes)
        )
        if rows >= self.settings.min_rows or cols < self.settings.long_row:
            return True
        # Few long rows: the reductions split over threads, but then nothing may follow them.
        return not (a.space.reduce_axes and _follows(a, b)) or _only_scans(a)

    def _saved(self, a: FusionGroup, b: FusionGroup, how: Alignment) -> int:
        """Bytes that the fused loops touch at one place.

        0 where one hands on nothing there, and they are not most of what both touch: a matrix that
        one of them walks across would be read in strides.  What both read, or write parts of, may
        lie near as well: in the lines of memory that one of them touches anyway.
        """
        sub_a, sub_b = substitution(how.left), substitution(how.right)
        kept = apart = handed = 0
        for x in dict.fromkeys((*a.writes, *a.reads)):
            theirs = (*b.reads.get(x, ()), *b.writes.get(x, ()))
            if not theirs:
                continue
            mine = {sub_a(i) for i in (*a.writes.get(x, ()), *a.reads.get(x, ()))}
            places = [sub_b(i) for i in theirs]
            if any(i in mine for i in places):
                handed += x in a.writes
                kept += self.bytes[x]
            elif any(_is_near(i, m) for i in places for m in mine):
                kept += self.bytes[x]
            else:
                apart += self.bytes[x]
        return max(handed, kept) if handed or kept >= apart else 0

    # --- result -------------------------------------------------------------------------------

    def _ordered(self) -> list[FusionGroup | Extern | Template]:
        last = {k: g.last for k, g in self.groups.items()}
        order = self.deps.topological({k: last.get(k, k) for k in self.deps.alive})
        out: list[FusionGroup | Extern | Template] = []
        for k in order:
            node = self.program.nodes[k]
            if k in self.groups:
                out.append(self.groups[k])
            elif isinstance(node, Extern | Template):
                out.append(node)
        return out

    def apart(self) -> dict[tuple[int, int], str]:
        """Why groups that share memory stay apart, by their numbers."""
        known = self.groups
        pairs = ((p[0], p[1], p, why) for p, why in self.refused.items())
        return {
            (a, b): why
            for a, b, p, why in pairs
            if a in known and b in known and p == self._pair(a, b)
        }

    def number(self, g: FusionGroup) -> int:
        """The number under which pairs of ``apart`` name a group: of its first node."""
        return self._find(g.first)


def _is_near(a: Expr, b: Expr) -> bool:
    """Whether two places lie side by side all along."""
    apart = a - b
    return isinstance(apart, Const) and 0 < abs(apart.value) < NEAR


def _again(g: FusionGroup) -> bool:
    return reduced_again(g.stores, g.space.reduce_axes)


def _only_scans(g: FusionGroup) -> bool:
    """Whether a group scans rows, and reduces none."""
    nodes = body.walk(r for s in g.stores for r in s.roots())
    return bool(scans_of(g.stores)) and not any(isinstance(n, Reduce) for n in nodes)


def _follows(a: FusionGroup, b: FusionGroup) -> bool:
    """Whether ``b`` runs over the full space or reduces again after a reduction of ``a``.

    What ``a`` stores along its rows is there before: each thread goes on with its own part.
    """
    ends = (s for s in a.stores if any(r.folds & body.REDUCES for r in s.roots()))
    return any(s.buffer in b.reads for s in ends) and len(b.space.all) > len(a.space.axes)
