"""Passes: the walks over a plan's reduced dims, and what is done in each.

Reductions that need no other come first, then those that need them, and so on; last come the stores
of the full space that no earlier pass can do along the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

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


def choose_passes(plan: KernelPlan, reduces: Sequence[Value], values: Values) -> tuple[Pass, ...]:
    """The passes over all reduced dims of a plan at once."""
    totals = pairs(reduces)
    own = [v for i, v in enumerate(reduces) if i not in totals]
    full = [s for s in plan.stores if loops_of(s, plan.reduced)]
    levels: dict[Node, int] = {}  # of a node that stands for several values, the highest
    for v in (*own, *map(values, roots(plan.stores))):
        levels[v.node] = max(levels.get(v.node, -1), v.stage - 1)
    nodes = [v.node for v in own if isinstance(v.node, Reduce)]
    along = along_passes(full, plan.stores, nodes, levels, own=True)
    number = {s: i for i, s in enumerate(plan.stores)}
    left = len(full)
    out: list[Pass] = []
    rounds = sorted({v.stage for v in own})
    for stage, stores in zip(rounds, along, strict=True):
        here = [i for i, v in enumerate(reduces) if v.stage == stage and i not in totals]
        groups = tuple(
            (*g, *(i for i, top in totals.items() if top == g[0])) for g in twins(here, reduces)
        )
        left -= len(stores)
        again = left > 0 or stage != rounds[-1]
        reads: Reads = "again" if again else "last" if out else "once"
        out.append(Pass(groups, tuple(number[s] for s in stores), reads))
    done = {i for p in out for i in p.stores}
    last = tuple(number[s] for s in full if number[s] not in done)
    if last:
        out.append(Pass((), last, "last" if out else "once"))
    return tuple(out)


def twins(numbers: Sequence[int], reduces: Sequence[Value]) -> list[tuple[int, ...]]:
    """Reductions that share an accumulator: mean and deviations of one value."""
    groups: dict[object, list[int]] = {}
    for i in numbers:
        n = reduces[i].node
        assert isinstance(n, Reduce)
        groups.setdefault((n.row, reduces[i].args) if n.row.counts else i, []).append(i)
    return [tuple(g) for g in groups.values()]


def along_passes(
    candidates: Sequence[Store],
    stores: Sequence[Store],
    reduces: Sequence[Reduce],
    levels: Mapping[Node, int],
    own: bool,
) -> list[list[Store]]:
    """The stores that run along with the reductions of each level: those of ``candidates``.

    They wait for none of these, and nothing that is read later lies where they store.
    stores: all of the plan's; own: whether the pass's own reductions count as read later.
    """
    left = list(candidates)
    out: list[list[Store]] = []
    for level in sorted({levels[n] for n in reduces}):
        ready = [s for s in left if max(levels[n] for n in s.roots()) < level]
        done = [s for along in out for s in along]
        others = [s for s in stores if s not in ready and s not in done]
        later = [r.args[0] for r in reduces if levels[r] >= level + (not own)]
        out.append(mergeable(ready, [*later, *roots(others)]))
        left = [s for s in left if s not in out[-1]]
    return out


def pass_text(p: Pass) -> str:
    groups = [" + ".join(map(str, g)) for g in p.groups]
    text = "pass" + (f" reduces {', '.join(groups)}" if groups else "")
    text += f" stores {', '.join(map(str, p.stores))}" if p.stores else ""
    return text + f", reads {p.reads}"
