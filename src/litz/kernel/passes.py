"""Passes: the walks over a plan's reduced dims, and what is done in each.

Reductions that need no other come first, then those that need them, and so on; last come the stores
of the full space that no earlier pass can do along the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Literal

from litz.dataclass import dataclass
from litz.ir.body import Node, Reduce, Store
from litz.kernel.nodes import loops_of, mergeable, roots
from litz.kernel.plan import KernelPlan
from litz.kernel.softmax import is_pair
from litz.kernel.values import Value, Values

Reads = Literal["once", "again", "last"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the reduced dims.

    groups: the reductions that it does, by their numbers (see ``reductions``); those of one group
    share an accumulator: mean and deviations of one value, a maximum and the sum of exponentials
    below it.  stores: those of the full space that run along, by their numbers.
    reads: whether what it reads is read again by a later pass, or was read by an earlier one.
    """

    groups: tuple[tuple[int, ...], ...]
    stores: tuple[int, ...]
    reads: Reads


def reductions(values: Values, stores: Sequence[Store]) -> list[Value]:
    """All reductions of some stores, arguments first: their numbers are the places here."""
    out: dict[Value, None] = {}
    seen: set[int] = set()
    stack = [(values(root), False) for root in reversed(roots(stores))]
    while stack:
        top, done = stack.pop()
        if done:
            if isinstance(top.node, Reduce):
                out[top] = None
        elif id(top) not in seen:
            seen.add(id(top))
            stack.append((top, True))
            stack += [(a, False) for a in reversed((*top.args, *top.conds))]
    return list(out)


def pairs(reduces: Sequence[Value]) -> dict[int, int]:
    """The sums of softmaxes among reductions, each with its maximum, by their numbers."""
    numbered = permutations(enumerate(reduces), 2)
    return {j: i for (i, a), (j, b) in numbered if is_pair(a, b)}


def choose_passes(
    plan: KernelPlan, reduces: Sequence[Value], totals: Mapping[int, int], values: Values
) -> tuple[Pass, ...]:
    """The passes over all reduced dims of a plan at once, one for the reductions of each stage.

    totals: see ``pairs``.
    """
    own = [i for i in range(len(reduces)) if i not in totals]
    levels: dict[Node, int] = {}  # of a node that stands for several values, the highest
    for v in (*(reduces[i] for i in own), *map(values, roots(plan.stores))):
        levels[v.node] = max(levels.get(v.node, -1), v.stage - 1)
    stages = sorted({reduces[i].stage for i in own})
    rounds = [twins([i for i in own if reduces[i].stage == k], reduces) for k in stages]
    nodes = [[_reduction(reduces[i]) for g in groups for i in g] for groups in rounds]
    full = [s for s in plan.stores if loops_of(s, plan.reduced)]
    along = along_passes(full, plan.stores, nodes, levels, own=True)
    online = [
        tuple((*g, *(i for i, top in totals.items() if top == g[0])) for g in groups)
        for groups in rounds
    ]
    left = [s for s in full if not any(s in some for some in along)]
    return passes_of(online, along, [left] if left else [], plan.stores)


def passes_of(
    rounds: Sequence[tuple[tuple[int, ...], ...]],
    along: Sequence[Sequence[Store]],
    left: Sequence[Sequence[Store]],
    stores: Sequence[Store],
) -> tuple[Pass, ...]:
    """A pass for each round, with the stores along, and one for each of the groups left."""
    number = {s: i for i, s in enumerate(stores)}
    every = zip((*rounds, *(() for _ in left)), (*along, *left), strict=True)
    parts = [(groups, tuple(number[s] for s in some)) for groups, some in every]
    last = len(parts) - 1
    reads: list[Reads] = ["again" if i < last else "last" if i else "once" for i in range(last + 1)]
    return tuple(Pass(groups, own, kind) for (groups, own), kind in zip(parts, reads, strict=True))


def twins(numbers: Sequence[int], reduces: Sequence[Value]) -> list[tuple[int, ...]]:
    """Reductions that share an accumulator: mean and deviations of one value."""
    groups: dict[object, list[int]] = {}
    for i in numbers:
        n = _reduction(reduces[i])
        groups.setdefault((n.row, reduces[i].args) if n.row.counts else i, []).append(i)
    return [tuple(g) for g in groups.values()]


def along_passes(
    candidates: Sequence[Store],
    stores: Sequence[Store],
    rounds: Sequence[Sequence[Reduce]],
    levels: Mapping[Node, int],
    own: bool,
    may: Callable[[Store, Reduce], bool] = lambda s, r: True,
) -> list[list[Store]]:
    """The stores that run along with each round of reductions: those of ``candidates``.

    They wait for none of these, and nothing that is read later lies where they store.
    stores: all of the plan's; levels: reductions below each, less one; own: whether the round's own
    reductions count as read later; may: whether a store can run in the loops of a reduction.
    """
    left = list(candidates)
    out: list[list[Store]] = []
    for i, here in enumerate(rounds):
        level = levels[here[0]]
        ready = [s for s in left if max(levels[n] for n in s.roots()) < level and may(s, here[0])]
        done = [s for along in out for s in along]
        others = [s for s in stores if s not in ready and s not in done]
        later = [r.args[0] for some in rounds[i + (not own) :] for r in some]
        out.append(mergeable(ready, [*later, *roots(others)]))
        left = [s for s in left if s not in out[-1]]
    return out


def by_level(reduces: Sequence[Reduce], levels: Mapping[Node, int]) -> list[list[Reduce]]:
    """Reductions in rounds, one for each level."""
    every = sorted({levels[n] for n in reduces})
    return [[n for n in reduces if levels[n] == level] for level in every]


def _reduction(v: Value) -> Reduce:
    assert isinstance(v.node, Reduce)
    return v.node
